"""Options that several commands share, so that they are spelled alike everywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hushstream.agents.deployment import KEYS, KeySource

DeploymentFolder = Annotated[
    Path,
    typer.Option("--deployment", "-d", help="The deployment's folder: deployment.yaml and encoder.json.", exists=True),
]
Bootstrap = Annotated[
    str, typer.Option("--bootstrap", "-b", envvar="HUSHSTREAM_BOOTSTRAP", help="host:port of a Kafka broker.")
]
KeyFolder = Annotated[
    Path | None,
    typer.Option("--keys", envvar="HUSHSTREAM_KEYS", help="Folder with the zone's key (default: DEPLOYMENT/keys)."),
]
KeySeed = Annotated[
    int | None,
    typer.Option("--seed", help="Keys from a seed instead of files: REPRODUCIBLE, NOT PRIVATE; public data only."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Prefix = Annotated[str | None, typer.Option("--prefix", help="What topic names begin with (default: NAME.).")]
SecurityFile = Annotated[
    Path | None,
    typer.Option("--security", envvar="HUSHSTREAM_SECURITY", help="YAML file with the broker's SASL and TLS settings."),
]


def key_source(folder: Path, keys: Path | None, seed: int | None) -> KeySource:
    """Where a command's keys come from."""
    if seed is not None:
        return KeySource(seed=seed)
    return KeySource(folder=keys if keys is not None else folder / KEYS)


def prefix_of(prefix: str | None, deployment: str) -> str:
    """The topic prefix of a deployment."""
    return f"{deployment}." if prefix is None else prefix


def print_json(value: Any) -> None:
    """Print a value as JSON with stable order."""
    json.dump(value, sys.stdout, indent=2, sort_keys=True, default=str)
    sys.stdout.write("\n")
