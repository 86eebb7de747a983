"""A deployment on disk: its configuration, its fitted encoder, and its keys.

A deployment's folder holds ``deployment.yaml`` (what an operator writes), ``encoder.json`` (the centroids that
were fitted once, as whole numbers: another machine's k-means may find others) and, per trust zone, a key
file. Workers of one role need the folder and the key of their own zone, nothing else.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from hushstream.agents.yaml_file import read_yaml
from hushstream.privacy.keys import Key, Zone, key_path, load_key, seeded_key
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.configuration import P2BConfig
from hushstream.systems.p2b import P2BSystem
from hushstream.systems.values import ConfigurationError

CONFIGURATION = "deployment.yaml"
ENCODER = "encoder.json"
KEYS = "keys"
ENVIRONMENT_PREFIX = "HUSHSTREAM__"
"""``HUSHSTREAM__RELEASE__EPSILON=0.5`` overrides ``release: {epsilon: ...}``."""

_CONFIG = TypeAdapter(P2BConfig)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where keys come from: the files of a folder, or (experiments on public data only) a seed."""

    folder: Path | None = None
    seed: int | None = None

    def key(self, zone: Zone) -> Key:
        """The key of one zone.

        Raises:
            HushstreamError: no source was given, or the key file is missing, short or readable by others.
        """
        if self.seed is not None:
            return seeded_key(self.seed, zone.value)
        if self.folder is None:
            raise HushstreamError("keys: expected a key folder; `hushstream keys generate` makes one")
        return load_key(key_path(self.folder, zone))


def parse_config(values: Any, source: str = "configuration") -> P2BConfig:
    """A configuration from plain values; unknown keys are refused.

    Raises:
        ConfigurationError: names the first wrong key, what was expected and what came.
    """
    try:
        return _CONFIG.validate_python(values)
    except ValidationError as error:
        problems = [
            f"{source}: {'.'.join(str(part) for part in found['loc'] if part != 'P2BConfig') or 'top level'}: "
            f"{found['msg']}"
            for found in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError("\n".join(problems)) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def read_config(path: Path) -> P2BConfig:
    """Read ``deployment.yaml``; environment variables override single values.

    Raises:
        ConfigurationError: missing, not YAML, or with impossible or unknown values.
    """
    return parse_config(_overridden(read_yaml(path)), str(path))


def write_config(config: P2BConfig, path: Path) -> None:
    """Write a configuration as YAML, complete."""
    path.write_text(yaml.safe_dump(asdict(config), sort_keys=False), encoding="utf-8")


def prepare(folder: Path, config: P2BConfig) -> P2BSystem:
    """Make a deployment's folder: configuration and fitted encoder (needs the ``replay`` extra to fit).

    An encoder that is there already is kept, so that the deployment's digest does not change.

    Raises:
        ConfigurationError: the folder belongs to another configuration.
    """
    make_folder(folder, config)
    return load(folder)


def make_folder(folder: Path, config: P2BConfig) -> None:
    """`prepare`, for a process that only makes the folder.

    Raises:
        ConfigurationError: the folder belongs to another configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIGURATION
    if path.exists() and read_config(path) != config:
        raise ConfigurationError(f"{path}: expected the configuration at hand or none, got another one")
    write_config(config, path)
    if not (folder / ENCODER).exists():
        fitted = P2BSystem.fitted(config)
        content = {"digits": config.context.digits, "centroids": fitted.encoder.lattice.tolist()}
        (folder / ENCODER).write_text(json.dumps(content), encoding="utf-8")


def load(folder: Path) -> P2BSystem:
    """Read a deployment's folder.

    Raises:
        ConfigurationError: a file is missing or does not fit the other.
    """
    config = read_config(folder / CONFIGURATION)
    path = folder / ENCODER
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        lattice, digits = np.array(content["centroids"]), content["digits"]
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: expected the fitted encoder, got none; run `hushstream prepare`") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path}: expected centroids as whole numbers, got {type(error).__name__}") from None
    if lattice.dtype != np.int64:
        raise ConfigurationError(f"{path}: expected centroids as whole numbers, got {lattice.dtype}")
    if lattice.ndim != 2:
        raise ConfigurationError(f"{path}: expected centroids of shape (k, d), got {lattice.shape}")
    if digits != config.context.digits:
        raise ConfigurationError(
            f"{path}: expected centroids fitted for {config.context.digits} digits, got {digits!r}; "
            f"it belongs to another configuration"
        )
    return P2BSystem.of(config, lattice)


def _overridden(values: dict[str, Any]) -> dict[str, Any]:
    """The values with what the environment says in their place."""
    for name, text in sorted(os.environ.items()):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        place = values
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigurationError(f"{name}: expected the name of a value, got one below a value")
        try:
            place[keys[-1]] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{name}: expected a YAML value, got {type(error).__name__}") from None
    return values
