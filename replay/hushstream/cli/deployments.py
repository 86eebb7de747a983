"""Commands before anything runs: configuration, encoder, keys, and what they promise."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from hushstream.agents.deployment import CONFIGURATION, KEYS, AnyConfig, prepare, read_config, read_p2b
from hushstream.agents.deployment import load as load_deployment
from hushstream.agents.prepared import ENCODER, RELATION, SEALING, publish_sealing, read_edge_list, read_relation
from hushstream.agents.yaml_file import read_yaml
from hushstream.cli.options import AsJson, DeploymentFolder, KeyFolder, config_file, key_source, print_json
from hushstream.engine.budget import BudgetFacts
from hushstream.engine.declaration import System
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.conversion_table import conversion_rows, conversion_text
from hushstream.privacy.key_files import check, retire, rotate
from hushstream.privacy.keys import Zone, generate_keys, key_path
from hushstream.privacy.promise import Promises
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.budget import budget_facts, release_guarantee
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.grid import grid_size
from hushstream.systems.p2b.deployment import P2BSystem, require_record_sizes
from hushstream.systems.p2b.promise import budgets_of, promises_of, resolve_codes, window_tree_of

config_app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)
keys_app = typer.Typer(help="Make and check the key files of the trust zones.", no_args_is_help=True)

ConfigFile = Annotated[Path, typer.Argument(help="A deployment.yaml, or the folder that holds one.")]
KeyDirectory = Annotated[Path, typer.Argument(help="Folder of key files.")]
ZoneName = Annotated[Zone, typer.Argument(help="Whose key.")]
NewZones = Annotated[list[Zone] | None, typer.Option("--zone", help="Only these zones (default: edge and shuffler).")]
DemandedZones = Annotated[
    list[Zone] | None, typer.Option("--zone", help="These zones, whose keys must be there (default: whichever are).")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarantee)
    app.command(name="prepare")(prepare_command)
    app.command()(statement)
    app.add_typer(config_app, name="config")
    app.add_typer(keys_app, name="keys")


def guarantee(config: ConfigFile, json: AsJson = False) -> None:
    """What a configuration promises, to whom, over a lifetime, before anything runs.

    With the budget and how much of what is planned fits it, the price in every currency (rho of zCDP, and epsilon at
    deltas from 1e-5 to 1e-9, for one unit and for all of one user), and what the lift over a hold-out costs beside it.
    """
    path = config_file(config)
    promises, budgets = _promises(path)
    rows, ridge = conversion_rows(promises.releases), _ridge(path)
    if json:
        found = {"budgets": [one.as_json() for one in budgets], "conversions": [row.as_json() for row in rows]}
        print_json({**promises.as_json(), **found, **({} if ridge is None else {"ridge": ridge})})
        return
    typer.echo(promises.releases.as_text(), nl=False)
    typer.echo("\n".join(one.as_text() for one in budgets))
    if ridge is not None:
        typer.echo(f"Ridge of the models: {ridge:.6g}, from configuration and graph alone (it costs no privacy).")
    typer.echo(conversion_text(rows), nl=False)
    typer.echo(promises.beside_text(), nl=False)


def statement(
    deployment: DeploymentFolder,
    facts: Annotated[
        Path | None, typer.Option(help="YAML of what only you know: operator, contact, purpose, legal_basis, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the page here (default: statement.html).")] = None,
    json: AsJson = False,
) -> None:
    """What a data-protection officer needs to know of a deployment, as a page, or as JSON."""
    from hushstream.ops.statement import OperatorFacts, statement_of

    made = statement_of(load_deployment(deployment), OperatorFacts.of({} if facts is None else read_yaml(facts)))
    if json:
        print_json(made.as_json())
    if json and out is None:
        return
    from hushstream.replay.report.statement import statement_page

    path = out or Path("statement.html")
    try:
        path.write_text(statement_page(made), encoding="utf-8")
    except OSError as error:
        raise HushstreamError(f"statement: expected a file to write to, got {path} ({error.strerror})") from None
    if not json:
        typer.echo(str(path))


def prepare_command(
    config: Annotated[Path, typer.Argument(help="A deployment.yaml.")],
    folder: Annotated[Path, typer.Argument(help="The deployment's folder to make.")],
    graph: Annotated[
        Path | None, typer.Option(help="Collaborative systems: public edge list, user,user[,weight] a line.")
    ] = None,
    users: Annotated[Path | None, typer.Option(help="With --graph: all users, one a line.")] = None,
    keys: KeyFolder = None,
    json: AsJson = False,
) -> None:
    """Make a deployment's folder: check the configuration, fit the encoder or take over the graph of users.

    Where slots are sealed, the public half of the sealing key is published in it; workers and agents need no more.
    """
    path = config_file(config)
    values = read_config(path)
    _require_possible(values, path)
    if isinstance(values, P2BConfig) and (graph is not None or users is not None):
        raise ConfigurationError("prepare: expected --graph for a collaborative system only, got one for p2b")
    if not isinstance(values, P2BConfig) and graph is None and not (folder / RELATION).exists():
        raise ConfigurationError("prepare: expected --graph with the users' public ties, got none")
    published = keys is None and (folder / SEALING).exists()
    source = None if published else key_source(folder, keys, None)
    system = prepare(folder, values, None if graph is None else read_edge_list(graph, users), source)
    made = {"deployment": system.config.deployment, **_sizes(system), "digest": system.digest.hex()}
    if json:
        print_json(made)
    else:
        typer.echo(f"{folder}: " + ", ".join(f"{name} {value}" for name, value in made.items()))


@config_app.command(name="check")
def check_config(config: ConfigFile, json: AsJson = False) -> None:
    """Check every value, and say what follows from them."""
    path = config_file(config)
    values = read_config(path)
    _require_possible(values, path)
    resolved: dict[str, str | float] = {"deployment": values.deployment}
    if isinstance(values, P2BConfig):
        resolved["codes"] = resolve_codes(values)
    _, budgets = _promises(path)
    if any((path.parent / name).exists() for name in (ENCODER, RELATION)):
        system = load_deployment(path.parent)
        resolved |= {**_sizes(system), "digest": system.digest.hex()}
    if json:
        print_json({**resolved, "budgets": [one.as_json() for one in budgets], "notes": _notes(values)})
    else:
        typer.echo(f"{path}: good; " + ", ".join(f"{name} {value}" for name, value in resolved.items()))
        typer.echo("\n".join([*(one.as_text() for one in budgets), *_notes(values)]))


def _promises(path: Path) -> tuple[Promises, tuple[BudgetFacts, ...]]:
    """What a configuration promises, and its budget; a collaborative one may be asked before its graph is there."""
    values = read_config(path)
    if isinstance(values, P2BConfig):
        return promises_of(values), budgets_of(values)
    nodes = len(read_relation(path.parent / RELATION).users) if (path.parent / RELATION).exists() else 1
    settings = (values.release, values.features, nodes, values.budget)
    return Promises(release_guarantee(*settings)), (budget_facts(*settings),)


def _ridge(path: Path) -> float | None:
    """Lambda of a collaborative deployment's models, once its graph is there."""
    values, graph = read_config(path), path.parent / RELATION
    if isinstance(values, P2BConfig) or not graph.exists():
        return None
    return CollaborativeSystem.of(values, read_relation(graph)).ridge


def _notes(config: AnyConfig) -> list[str]:
    """What is allowed and serves nobody."""
    if isinstance(config, P2BConfig):
        return _window_notes(config)
    if config.release.leaves == config.release.rewards_per_user:
        return []
    return [
        f"release.horizon: noise is sized for {config.release.leaves} steps of a user, and "
        f"{config.release.rewards_per_user} of his rewards count at most; leave the horizon out to have no more noise "
        "than these need"
    ]


def _window_notes(config: P2BConfig) -> list[str]:
    """A counter whose windows the clock may use up."""
    release = config.release
    if release.window_seconds is None or (tree := window_tree_of(config, resolve_codes(config))) is None:
        return []
    hours = tree.horizon * release.window_seconds / 3600
    return [
        f"release.windows: time closes windows as well, and the counter serves {tree.horizon} of a partition: at one "
        f"each {release.window_seconds:g} s they last {hours:.3g} hours, and then nothing is released any more; state "
        f"as many as the deployment's life has, or sums: fresh"
    ]


def _sizes(system: System) -> dict[str, str | float]:
    if isinstance(system, CollaborativeSystem):
        return {"users": system.nodes, "algorithm": system.config.learner.algorithm, "ridge": round(system.ridge, 6)}
    assert isinstance(system, P2BSystem)
    return {"codes": system.codes}


@keys_app.command(name="generate")
def keys_generate(folder: KeyDirectory = Path(KEYS), zones: NewZones = None, json: AsJson = False) -> None:
    """Write one new random key per zone, readable by the owner alone; nothing is ever overwritten."""
    made = generate_keys(folder, zones or (Zone.EDGE, Zone.SHUFFLER))
    if json:
        print_json([{"zone": zone.value, "key_id": key.key_id.hex()} for zone, key in made.items()])
        return
    for zone, key in made.items():
        typer.echo(f"{folder / zone.value}.key: key {key.key_id.hex()}")


@keys_app.command(name="check")
def keys_check(folder: KeyDirectory = Path(KEYS), zones: DemandedZones = None, json: AsJson = False) -> None:
    """Look at the key files of a folder as the workers will; exit 1 when one cannot be used, or there is none."""
    there = [zone for zone in Zone if key_path(folder, zone).exists()]
    if not zones and not there:
        names = ", ".join(key_path(folder, zone).name for zone in Zone)
        raise HushstreamError(
            f"keys: expected a key file in {folder} ({names}), got none; `hushstream keys generate` makes one"
        )
    found = check(folder, zones or there)
    if json:
        print_json(
            [
                {"zone": item.zone.value, "key_id": item.key_id, "epochs": item.epochs, "problem": item.problem}
                for item in found
            ]
        )
    else:
        for item in found:
            epoch = f", epoch {item.epochs[1]}" if item.epochs else ""
            typer.echo(f"{item.path}: {item.problem or f'good, key {item.key_id}{epoch}'}")
    if any(item.problem for item in found):
        raise typer.Exit(1)


@keys_app.command(name="rotate")
def keys_rotate(zone: ZoneName, folder: KeyDirectory = Path(KEYS), json: AsJson = False) -> None:
    """Seal the current key epoch of a zone: restarted workers turn to the next with their next release."""
    ring = rotate(key_path(folder, zone))
    key_id = ring.of(ring.current).key_id.hex()
    if json:
        print_json({"zone": zone.value, "epoch": ring.current, "oldest": ring.oldest, "key_id": key_id})
    else:
        typer.echo(f"{key_path(folder, zone)}: epoch {ring.current}, key {key_id}; kept from epoch {ring.oldest}")


@keys_app.command(name="publish")
def keys_publish(
    deployment: DeploymentFolder,
    keys: KeyFolder = None,
    after_hours: Annotated[
        float, typer.Option(min=0, help="Until then every learner must have read the new file (default: a day).")
    ] = 24.0,
    json: AsJson = False,
) -> None:
    """Have slots sealed to the current sealing key, from the first report period after so many hours on.

    It is written to the deployment's sealing.json, vouched for by the key before it.
    """
    config = read_p2b(deployment / CONFIGURATION)
    period_ms = round(config.slot.period_seconds * 1000)
    from_period = int((time.time() + after_hours * 3600) * 1000) // period_ms + 1
    ring = key_source(deployment, keys, None).ring(Zone.SEALING)
    published = publish_sealing(ring, deployment / SEALING, from_period).keys[-1]
    begins = datetime.fromtimestamp(from_period * period_ms / 1000, UTC).isoformat(timespec="seconds")
    if json:
        print_json({"public_key": published.public_key.hex(), "from_period": from_period, "begins": begins})
    else:
        typer.echo(
            f"{deployment / SEALING}: slots are sealed to {published.public_key.hex()[:16]}... from {begins} on; give "
            f"the file to every worker before that, shufflers first"
        )


@keys_app.command(name="retire")
def keys_retire(
    zone: ZoneName,
    epoch: Annotated[int, typer.Option(help="A sealed epoch; it and all before it lose their keys for ever.")],
    folder: KeyDirectory = Path(KEYS),
    json: AsJson = False,
) -> None:
    """Destroy the keys of a sealed epoch and before: nobody can derive those releases again, nor verify them."""
    ring = retire(key_path(folder, zone), epoch)
    if json:
        print_json({"zone": zone.value, "epoch": ring.current, "oldest": ring.oldest, "retired": epoch})
    else:
        typer.echo(
            f"{key_path(folder, zone)}: retired up to epoch {epoch}; kept from epoch {ring.oldest}."
            " Destroy backups and snapshots of the file, too"
        )


def _require_possible(config: AnyConfig, path: Path) -> None:
    """Refuse what each value allows and all together do not: too many codes, records that are too large."""
    if not isinstance(config, P2BConfig):
        return
    codes, context = resolve_codes(config), config.context
    most = grid_size(context.dimension, context.digits)
    if codes > most:
        raise ConfigurationError(
            f"{path}: encoder.codes: expected at most the {most} contexts of the grid, got {codes}"
        )
    try:
        require_record_sizes(config, codes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
