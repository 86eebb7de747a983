"""Commands before anything runs: configuration, encoder, keys, and what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hushstream.agents.deployment import KEYS, prepare, read_config
from hushstream.agents.deployment import load as load_deployment
from hushstream.cli.options import AsJson, config_file, print_json
from hushstream.contribution.grid import grid_size
from hushstream.privacy.keys import Zone, check, generate_keys
from hushstream.systems.configuration import P2BConfig
from hushstream.systems.p2b import P2BSystem, guarantee_of, resolve_codes
from hushstream.systems.values import ConfigurationError

config_app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)
keys_app = typer.Typer(help="Make and check the key files of the trust zones.", no_args_is_help=True)

ConfigFile = Annotated[Path, typer.Argument(help="A deployment.yaml, or the folder that holds one.")]
KeyDirectory = Annotated[Path, typer.Argument(help="Folder of key files.")]
Zones = Annotated[list[Zone] | None, typer.Option("--zone", help="Only these zones (default: edge and shuffler).")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarantee)
    app.command(name="prepare")(prepare_command)
    app.add_typer(config_app, name="config")
    app.add_typer(keys_app, name="keys")


def guarantee(config: ConfigFile, json: AsJson = False) -> None:
    """What a configuration promises, to whom, over a lifetime, before anything runs."""
    promise = guarantee_of(read_config(config_file(config)))
    if json:
        print_json(promise.as_json())
    else:
        typer.echo(promise.as_text(), nl=False)


def prepare_command(
    config: Annotated[Path, typer.Argument(help="A deployment.yaml.")],
    folder: Annotated[Path, typer.Argument(help="The deployment's folder to make.")],
    json: AsJson = False,
) -> None:
    """Make a deployment's folder: check the configuration and fit the encoder on the public grid of contexts."""
    path = config_file(config)
    values = read_config(path)
    _require_possible(values, path)
    system = prepare(folder, values)
    digest = system.digest.hex()
    if json:
        print_json({"deployment": system.config.deployment, "codes": system.codes, "digest": digest})
    else:
        typer.echo(f"{folder}: deployment {system.config.deployment}, {system.codes} codes, digest {digest}")


@config_app.command(name="check")
def check_config(config: ConfigFile, json: AsJson = False) -> None:
    """Check every value, and say what follows from them."""
    path = config_file(config)
    values = read_config(path)
    _require_possible(values, path)
    resolved = {"deployment": values.deployment, "codes": resolve_codes(values)}
    if (path.parent / "encoder.json").exists():
        resolved["digest"] = load_deployment(path.parent).digest.hex()
    if json:
        print_json(resolved)
    else:
        typer.echo(f"{path}: good; " + ", ".join(f"{name} {value}" for name, value in resolved.items()))


@keys_app.command(name="generate")
def keys_generate(folder: KeyDirectory = Path(KEYS), zones: Zones = None, json: AsJson = False) -> None:
    """Write one new random key per zone, readable by the owner alone; nothing is ever overwritten."""
    made = generate_keys(folder, zones or (Zone.EDGE, Zone.SHUFFLER))
    if json:
        print_json([{"zone": zone.value, "key_id": key.key_id.hex()} for zone, key in made.items()])
        return
    for zone, key in made.items():
        typer.echo(f"{folder / zone.value}.key: key {key.key_id.hex()}")


@keys_app.command(name="check")
def keys_check(folder: KeyDirectory = Path(KEYS), zones: Zones = None, json: AsJson = False) -> None:
    """Look at key files as the workers will."""
    found = check(folder, zones or (Zone.EDGE, Zone.SHUFFLER))
    if json:
        print_json([{"zone": item.zone.value, "key_id": item.key_id, "problem": item.problem} for item in found])
    else:
        for item in found:
            typer.echo(f"{item.path}: {item.problem or f'good, key {item.key_id}'}")
    if any(item.problem for item in found):
        raise typer.Exit(1)


def _require_possible(config: P2BConfig, path: Path) -> None:
    """Refuse what each value allows and all together do not: too many codes, records that are too large."""
    codes, context = resolve_codes(config), config.context
    most = grid_size(context.dimension, context.digits)
    if codes > most:
        raise ConfigurationError(
            f"{path}: encoder.codes: expected at most the {most} contexts of the grid, got {codes}"
        )
    try:
        # Only the number of codes matters here: `prepare` fits them.
        P2BSystem.of(config, np.zeros((codes, context.dimension), dtype=np.int64))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
