"""Commands before anything runs: check a configuration, prepare a deployment, and make keys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hushstream.agents.worker.deployment import (
    KEYS,
    artefacts_of,
    configuration_in,
    prepare,
    read_config,
    require_releases,
    write_artefact,
)
from hushstream.agents.worker.deployment import load as load_deployment
from hushstream.cli.options import (
    AsJson,
    ConfigFile,
    DeploymentFolder,
    KeyFolder,
    config_file,
    key_files,
    key_source,
    one_of,
    show,
    storage_zones,
    working,
)
from hushstream.engine.declare.artefacts import PublishedKey
from hushstream.engine.declare.declaration import Kind
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.system import DeploymentValues, person_warning, require_person_promised, require_private
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import check, retire, rotate, storage_zone
from hushstream.privacy.keys import Key, generate_keys, key_path
from hushstream.privacy.promises.promise import Guarantee
from hushstream.privacy.promises.sentence import UNIT
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import common_name
from hushstream.systems.catalogue import kind_of, kinds

config_app = typer.Typer(help="Check a configuration; list settings.", no_args_is_help=True)
keys_app = typer.Typer(help="Make and check the key files of the trust zones.", no_args_is_help=True)

KeyDirectory = Annotated[Path, typer.Argument(help="Folder of key files.")]
ZoneName = Annotated[str, typer.Argument(callback=one_of(key_files), help="Zone of the key.")]
NewZones = Annotated[
    list[str] | None,
    typer.Option("--zone", callback=one_of(key_files), help="Only these zones (default: those of the default system)."),
]
DemandedZones = Annotated[
    list[str] | None,
    typer.Option(
        "--zone",
        callback=one_of(key_files),
        help="Check these zones, whose keys must exist (default: all zones with a key).",
    ),
]

_MAKE_IT = "`hushstream keys storage` makes it"


class OwnFlags(TyperCommand):
    """Leaves every ``--flag VALUE`` that is not an option of the command in the context's ``args``.

    Which files a system needs is known only once the configuration was read. All flags take a value, so this class can
    tell them from arguments without their names.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and options of the command itself."""
        known = {flag: takes for one in self.get_params(ctx) for flag, takes in _flags(one).items()}
        own, rest = _split(args, known)
        super().parse_args(ctx, rest)
        ctx.args = own
        return own


def _flags(parameter: Any) -> Mapping[str, bool]:
    """The flags of an option, and whether a value follows."""
    if parameter.param_type_name != "option":
        return {}
    takes = not (parameter.is_flag or parameter.count)
    return dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes)


def _split(args: list[str], known: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Split a command line into the system's options, and the command's own arguments and options."""
    own: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, _ = word.partition("=")
        target = rest if flag in known or not flag.startswith("--") else own
        target.append(word)
        if not equals and known.get(flag, target is own):
            target += [value for value in (next(words, None),) if value is not None]
    return own, rest


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="prepare", cls=OwnFlags)(prepare_command)
    app.add_typer(config_app, name="config")
    app.add_typer(keys_app, name="keys")


def prepare_command(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A deployment.yaml.")],
    folder: Annotated[Path, typer.Argument(help="The deployment's folder to make.")],
    keys: KeyFolder = None,
    json: AsJson = False,
) -> None:
    """Make a deployment's folder from a configuration.

    A system may need files for this, each as --NAME FILE; a wrong name is answered with the right ones. If users' slots
    are sealed, the public half of the sealing key is written into the folder; workers and agents need nothing else.
    """
    path = config_file(config)
    values = read_config(path)
    _require_possible(values, path)
    require_releases(values, str(path))
    kind = kind_of(values.system)
    inputs = _inputs(kind, context.args)
    public = next(iter(kind.published_keys), None)
    published = public is None or (keys is None and (folder / public.artefact).exists())
    source = None if published else key_source(folder, keys, None)
    with working(f"preparing {folder}", json):
        system = prepare(folder, values, inputs, source)
    made = {"deployment": system.config.deployment, **system.facts, "digest": system.digest.hex()}
    guarantee, line = system.guarantee(), ", ".join(f"{name} {value}" for name, value in made.items())
    warnings = _warnings(kind, values, guarantee)
    told = {**made, "guarantee": guarantee.sentence(), "warnings": warnings}
    show(told, json, f"{folder}: {line}", guarantee.sentence(), *(f"warning: {text}" for text in warnings))


def _inputs(kind: Kind, left: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The files for the preparation, from the rest of the command line."""
    known = {f"--{one.name}": one for one in kind.inputs}
    found: dict[str, tuple[str, str]] = {}
    words = iter(left)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in known:
            takes = "; ".join(f"{flag} FILE ({one.help})" for flag, one in known.items()) or "no file"
            raise ConfigurationError(f"prepare: expected {takes} for {kind.name}, got {word}")
        path = Path(value if equals else next(words, ""))
        try:
            found[known[flag].name] = (str(path), path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError:
            raise ConfigurationError(f"{path}: expected a file of readable text, got other than UTF-8") from None
        except OSError as error:
            raise ConfigurationError(f"{path}: expected a file of readable text, got {error.strerror}") from None
    return found


@config_app.command(name="check")
def check_config(config: ConfigFile, json: AsJson = False) -> None:
    """Check every value; show the guarantee, what the plan says of the expected users, and warnings.

    Exit code 2: the configuration is valid, but cannot do what it is for (nothing can ever be released, or its own
    forecast says that nothing is gained). Lines that begin with `useless:` say why. What `init` would refuse
    is in the first line, and `plan` comes next.
    """
    path = config_file(config)
    values = read_config(path)
    _require_possible(values, path)
    kind, artefacts = kind_of(values.system), artefacts_of(path.parent)
    resolved: dict[str, str | float] = {"deployment": values.deployment, **kind.resolved(values)}
    budgets, promise = kind.budgets(values, artefacts), kind.guarantee(values, artefacts)
    cannot = [note.text for note in kind.notes(values) if note.weight != "warning"]
    warnings, then, digest = _warnings(kind, values, promise), f"up {path}", ""
    if any(artefacts.has(name) for name in kind.artefacts):
        system = load_deployment(path.parent)
        resolved |= {**system.facts, "digest": system.digest.hex()}
        digest = f", digest {resolved['digest']}"
        then = f"topics apply --deployment {path.parent} --bootstrap HOST:PORT"
    ahead = kind.plan and kind.audience and kind.plan(values, artefacts, kind.audience(values))
    doubt = "" if ahead is None or cannot else ahead.doubt
    if ahead is None or cannot or doubt:
        then = f"plan {path}{' --users N --visits-per-user N' if ahead is None else ''}"
    but = ", but useless" if cannot else f", but a shared private model {doubt}" if doubt else ""
    show(
        {
            **resolved,
            "guarantee": promise.sentence(),
            "budgets": [one.as_json() for one in budgets],
            "plan": ahead and ahead.verdict,
            "doubt": doubt,
            "useless": cannot,
            "warnings": warnings,
            "next": f"hushstream {then}",
        },
        json,
        f"{path}: valid{but}{digest}",
        f"guarantee: {_guaranteed(promise, budgets)}",
        # A verdict that is not good is among the warnings.
        f"plan: {ahead.verdict}" if ahead and ahead.beats else "",
        *(f"useless: {text}" for text in cannot),
        *(f"warning: {text}" for text in warnings),
        f"next: hushstream {then}",
    )
    if cannot:
        raise typer.Exit(2)


def _warnings(kind: Kind, values: DeploymentValues, promise: Guarantee) -> list[str]:
    return [*person_warning(values, promise), *(one.text for one in kind.notes(values) if one.weight == "warning")]


def _guaranteed(promise: Guarantee, budgets: Sequence[BudgetFacts]) -> str:
    """The guarantee for one person, with the budgets that it does not name, in one line."""
    both = promise.together.weak is not None or not promise.lifetime.counted
    named = {one.zero_out or one.which for one in (promise.together, promise.unit_prices)[: 1 + both]}
    limits = dict.fromkeys(one.brief for one in budgets if one.fits < one.planned or one.limit not in named)
    relation = UNIT.which if promise.together.zero_out is None else UNIT.zero_out
    return f"{promise.life_line}{f' Of that, {relation}: ' if limits else ''}{'; '.join(limits)}"


def _require_possible(config: DeploymentValues, path: Path) -> None:
    """Refuse combinations of valid values that are not valid together: too many codes, too large records, no noise."""
    kind, artefacts = kind_of(config.system), artefacts_of(path.parent)
    try:
        kind.check(config)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if artefacts.public_dataset is None:
        promise = kind.guarantee(config, artefacts)
        require_private(promise, str(path))
        require_person_promised(config, promise, str(path))


def _default_zones() -> tuple[str, ...]:
    """The zones that the first system of the catalogue needs, for any configuration."""
    first = next(iter(kinds().values()))
    names = (name for role in first.roles for name in (role.key_zone, role.storage_zone) if name is not None)
    return tuple(dict.fromkeys(names))


def _with_storage(zones: Iterable[str]) -> tuple[str, ...]:
    """The names of zones, each followed by that of its storage key if its workers have one."""
    named = ((zone, storage_zone(zone)) for zone in zones)
    found = (name for pair in named for name in pair if name == pair[0] or common_name(name) in storage_zones())
    return tuple(dict.fromkeys(found))


@keys_app.command(name="generate")
def keys_generate(folder: KeyDirectory = Path(KEYS), zones: NewZones = None, json: AsJson = False) -> None:
    """Write one new random key per zone, and its storage key, readable by the owner alone; nothing is overwritten."""
    _print_made(folder, generate_keys(folder, _with_storage(zones) if zones else _default_zones()), json)


@keys_app.command(name="storage")
def keys_storage(folder: KeyDirectory = Path(KEYS), json: AsJson = False) -> None:
    """Write missing storage keys of the zones in a folder, for instance after an upgrade.

    Give them to all workers of a zone.

    A restarted worker seals its state under this key from then on, and can still open what was sealed before.
    """
    lacking = [name for name in _with_storage(_zones_in(folder)) if not key_path(folder, name).exists()]
    made = generate_keys(folder, lacking)
    _print_made(folder, made, json)
    if not made and not json:
        typer.echo(f"{folder}: no zone lacks a storage key")


def _print_made(folder: Path, made: Mapping[str, Key], json: bool) -> None:
    found = [{"zone": zone, "key_id": key.key_id.hex()} for zone, key in made.items()]
    show(found, json, *(f"{key_path(folder, zone)}: key {key.key_id.hex()}" for zone, key in made.items()))


def _zones_in(folder: Path) -> list[str]:
    """The zones whose key file is in a folder, including those of single parties (``edge.alpha``)."""
    found = sorted(path.stem for path in folder.glob("*.key"))
    return [stem for zone in key_files() for stem in found if common_name(stem) == zone]


@keys_app.command(name="check")
def keys_check(folder: KeyDirectory = Path(KEYS), zones: DemandedZones = None, json: AsJson = False) -> None:
    """Check the key files of a folder as workers do; exit 1 if one cannot be used, or there is none."""
    there = _zones_in(folder)
    if not zones and not there:
        names = ", ".join(key_path(folder, zone).name for zone in key_files())
        raise HushstreamError(
            f"keys: expected a key file in {folder} ({names}), got none; `hushstream keys generate {folder}` makes one"
        )
    demanded = tuple(zones or there)
    # Last, so that they are compared with all keys that are there.
    others = (zone for zone in there if zone not in demanded)
    found = [item for item in check(folder, (*others, *demanded)) if item.zone in demanded]
    lines = []
    for item in found:
        epoch = f", epoch {item.epochs[1]}" if item.epochs else ""
        lines.append(f"{item.path}: {item.problem or f'good, key {item.key_id}{epoch}'}")
    for name in _with_storage(there):
        if not key_path(folder, name).exists():
            lines.append(f"{key_path(folder, name)}: none, so states are sealed under the zone's key; {_MAKE_IT}")
    made = [{"zone": one.zone, "key_id": one.key_id, "epochs": one.epochs, "problem": one.problem} for one in found]
    show(made, json, *lines)
    if any(item.problem for item in found):
        raise typer.Exit(1)


@keys_app.command(name="rotate")
def keys_rotate(zone: ZoneName, folder: KeyDirectory = Path(KEYS), json: AsJson = False) -> None:
    """End the current key epoch of a zone: restarted workers rotate to the next key with their next release."""
    ring = rotate(key_path(folder, zone))
    key_id = ring.of(ring.current).key_id.hex()
    text = f"{key_path(folder, zone)}: epoch {ring.current}, key {key_id}; kept from epoch {ring.oldest}"
    show({"zone": zone, "epoch": ring.current, "oldest": ring.oldest, "key_id": key_id}, json, text)


@keys_app.command(name="publish")
def keys_publish(
    deployment: DeploymentFolder,
    keys: KeyFolder = None,
    zone: Annotated[
        str | None, typer.Option(help="Zone of the key: sealing (default), or signing if learners are devices.")
    ] = None,
    after_hours: Annotated[
        float, typer.Option(min=0, help="Hours until every learner has read the new file (default: a day).")
    ] = 24.0,
    from_version: Annotated[
        int | None, typer.Option(min=1, help="The first version that the signing key signs; it must not exist yet.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Publish the current sealing key: slots are sealed to it from the first report period after --after-hours.

    With --zone signing: publish the current signing key, which signs models from --from-version on. It is written
    beside the configuration, signed by the key before it.
    """
    config = read_config(configuration_in(deployment))
    public = _published_key(config.system, zone)
    ring = key_source(deployment, keys, None).ring(public.zone)
    first, begins = _begins(public, config, after_hours, from_version)
    content, half = public.publish(artefacts_of(deployment), ring, first)
    write_artefact(deployment / public.artefact, content)
    name, before = ("from_version", "aggregators") if public.period_ms is None else ("from_period", "shufflers")
    text = (
        f"{deployment / public.artefact}: {public.use} {half.hex()[:16]}... from {begins} on; give the file to every "
        f"worker and gateway before that, {before} first"
    )
    show({"public_key": half.hex(), name: first, "begins": begins}, json, text)


def _published_key(system: str, zone: str | None) -> PublishedKey:
    published = kind_of(system).published_keys
    if not published:
        raise HushstreamError(f"keys: expected a system that publishes the public half of a key, got {system}")
    found = next((one for one in published if zone in (None, one.zone)), None)
    if found is None:
        known = " or ".join(one.zone for one in published)
        raise HushstreamError(f"--zone: expected {known}, whose public halves are published, got another")
    return found


def _begins(public: PublishedKey, config: Any, after_hours: float, from_version: int | None) -> tuple[int, str]:
    """The first period or version of the next key, as a number and as text."""
    if public.period_ms is None:
        if from_version is None:
            raise HushstreamError(f"--from-version: expected the first version of the key of {public.zone}, got none")
        return from_version, f"version {from_version}"
    if from_version is not None:
        raise HushstreamError(f"--from-version: expected it only with --zone signing, got it for {public.zone}")
    period_ms = public.period_ms(config)
    first = int((time.time() + after_hours * 3600) * 1000) // period_ms + 1
    return first, datetime.fromtimestamp(first * period_ms / 1000, UTC).isoformat(timespec="seconds")


@keys_app.command(name="retire")
def keys_retire(
    zone: ZoneName,
    epoch: Annotated[int, typer.Option(help="An ended epoch; destroys its keys and all before it, for ever.")],
    folder: KeyDirectory = Path(KEYS),
    json: AsJson = False,
) -> None:
    """Destroy the keys of an ended epoch and before: nobody can derive those releases again, nor verify them."""
    ring = retire(key_path(folder, zone), epoch)
    text = (
        f"{key_path(folder, zone)}: retired up to epoch {epoch}; kept from epoch {ring.oldest}."
        " Destroy backups and snapshots of the file, too"
    )
    show({"zone": zone, "epoch": ring.current, "oldest": ring.oldest, "retired": epoch}, json, text)
