"""Options that several commands share, so that they have the same names everywhere.

*Names* of roles, zones or keys of any system; an unknown name is wrong usage.

*Tables.* Prints tables and texts for the terminal's width; in a file or a pipe, wide enough that no text is cut.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console, RenderableType

from hushstream.agents import defaults
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.agents.observe.endpoints import MetricsAccess
    from hushstream.agents.worker.deployment import KeySource
    from hushstream.engine.declare.declaration import Kind
    from hushstream.replay.logged.table import Source


import math
import time
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from hushstream.agents.security import read_security
from hushstream.agents.worker.deployment import KeySource, load
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection

STATE = "state"
"""The folder of workers' state in a deployment's folder, with one folder for each role."""

DeploymentFolder = Annotated[
    Path, typer.Option("--deployment", "-d", help="The deployment's folder, which `up` or `prepare` made.")
]


ConfigFile = Annotated[Path, typer.Argument(help="A deployment.yaml, or the folder that holds one.")]


def _addresses(text: str | None) -> str | None:
    """Refuse text that is no list of ``host:port``, before a client library fails on it."""
    for address in [] if text is None else text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise typer.BadParameter(f"expected host:port, or several separated by commas, got {text!r}")
    return text


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="HUSHSTREAM_BOOTSTRAP", callback=_addresses, help="host:port of a Kafka broker."
    ),
]
RunningAt = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", callback=_addresses,
        help="host:port of the deployment's Kafka: reads there which losses operators have accepted.",
    ),
]  # fmt: skip
OwnKafka = Annotated[
    str | None,
    typer.Option("--bootstrap", callback=_addresses, help="host:port of a Kafka (default: the embedded broker)."),
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
Prefix = Annotated[str | None, typer.Option("--prefix", help="Prefix of topic names (default: NAME.).")]
SecurityFile = Annotated[
    Path | None,
    typer.Option("--security", envvar="HUSHSTREAM_SECURITY", help="YAML file with the broker's SASL and TLS settings."),
]


class Served(NamedTuple):
    """Where a process serves its metrics, and to whom."""

    metrics_host: str
    metrics_port: int | None
    zone_metrics_host: str
    zone_metrics_port: int | None
    metrics_access: MetricsAccess


def served(
    metrics_host: Annotated[
        str, typer.Option(envvar=defaults.METRICS_HOST_VARIABLE, help="Address of public metrics.")
    ] = defaults.METRICS_HOST,
    zone_metrics_host: Annotated[
        str, typer.Option(envvar=defaults.ZONE_METRICS_HOST_VARIABLE, help="Address of zone-private metrics.")
    ] = defaults.METRICS_HOST,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of public metrics; 0: any free one.")
    ] = None,
    zone_metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of zone-private metrics; 0: any free one.")
    ] = None,
    metrics_token: Annotated[
        Path | None, typer.Option(help="File with the token that a scraper of either endpoint must send; chmod 600.")
    ] = None,
    metrics_certificate: Annotated[
        Path | None, typer.Option(help="PEM file with certificate and key, to serve both over HTTPS; chmod 600.")
    ] = None,
) -> Served:
    """Read the options of metrics.

    Raises:
        HushstreamError: a file cannot be used.
    """
    from hushstream.agents.observe.endpoints import MetricsAccess

    access = MetricsAccess.of_files(metrics_token, metrics_certificate)
    return Served(metrics_host, metrics_port, zone_metrics_host, zone_metrics_port, access)


PrincipalsOf = Annotated[
    list[str] | None,
    typer.Option(
        "--principals",
        help="Who runs a role: ROLE=TYPE:NAME (default: User:ROLE); letters-ZONE for who reads the dead letters of one "
        "zone (default: User:letters-ZONE); verify-ROLE for who may verify it, export for "
        "who may copy everything, requeue-ZONE for who may put refused records again, gateway for who answers over "
        "HTTP; administrator=TYPE:NAME for who may do more.",
    ),
]
OneInSync = Annotated[
    bool,
    typer.Option(
        "--one-in-sync",
        help="Accept that one copy of a record is enough on several brokers: a broker's loss can roll journals back.",
    ),
]
Acls = Annotated[bool, typer.Option("--acls/--no-acls", help="Access rules, on a broker that enforces them.")]


def key_source(folder: Path, keys: Path | None, seed: int | None) -> KeySource:
    """The source of a command's keys."""
    from hushstream.agents.worker.deployment import KEYS, KeySource

    if seed is not None:
        return KeySource(seed=seed)
    return KeySource(folder=keys if keys is not None else folder / KEYS)


def config_file(path: Path) -> Path:
    """The configuration file: the path itself, or ``deployment.yaml`` in that folder.

    Raises:
        HushstreamError: there is no such file.
    """
    from hushstream.agents.worker.deployment import CONFIGURATION

    found = path / CONFIGURATION if path.is_dir() else path
    if not found.is_file():
        raise HushstreamError(f"{found}: expected a configuration file, got none")
    return found


def log_source(text: str) -> Source:
    """The file or the query of DuckDB that holds a log."""
    from hushstream.replay.logged.table import source_of

    return source_of(text)


def require_folder(folder: Path) -> None:
    """Check at the start of a long run that a folder can be written at its end; creates nothing.

    Raises:
        HushstreamError: the folder, or the one above it if it is missing, is no folder or cannot be written.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise HushstreamError(f"{folder}: expected a folder to write to, got {there}")


def prefix_of(prefix: str | None, deployment: str) -> str:
    """The topic prefix of a deployment."""
    return f"{deployment}." if prefix is None else prefix


def print_json(value: Any) -> None:
    """Print a value as JSON with stable order."""
    json.dump(value, sys.stdout, indent=2, sort_keys=True, default=str)
    sys.stdout.write("\n")


def print_and_exit(place: Place, found: Any, json: bool) -> NoReturn:
    """Print what a check found, as text or as JSON, and end with its exit code."""
    if json:
        print_json(found.as_json())
    else:
        print_text(place.located(found.as_text()))
    raise typer.Exit(found.exit_code)


def show(document: Any, json: bool, *shown: str | RenderableType) -> None:
    """Print the result of a command: as JSON for a script, otherwise as text and tables.

    Args:
        document: the whole result as plain values.
        json: whether to print JSON.
        shown: texts and tables, each on lines of its own; empty texts are skipped.
    """
    if json:
        print_json(document)
        return
    for part in shown:
        if not isinstance(part, str):
            print_table(part)
        elif part:
            typer.echo(part, nl=not part.endswith("\n"))


def assignments(texts: list[str], option: str) -> dict[str, Any]:
    """Read texts such as ``["a=1", "b=x"]``, with values in YAML.

    Raises:
        HushstreamError: a text is not ``NAME=VALUE``, or its value is not YAML.
    """
    import yaml

    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise HushstreamError(f"{option}: expected NAME=VALUE, got {text!r}")
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise HushstreamError(f"{option} {name}: expected a value in YAML, got {value!r}") from None
    return values


PLAIN_WIDTH = 160
"""The width without a terminal."""

_HANGING = "  "


def print_table(table: RenderableType) -> None:
    """Print a table on standard output; without a terminal, no line ends with blanks."""
    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=PLAIN_WIDTH)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_text(text: str) -> None:
    """Print lines on standard output; a terminal that is narrower than a line would cut it within a word."""
    typer.echo(_wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text, nl=False)


def _wrapped(text: str, width: int) -> str:
    """Break lines between words; what follows in the same line is indented further than its beginning."""
    return "".join(f"{part}\n" for line in text.splitlines() for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())] + _HANGING
    found = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return found or [""]


ALL = "all"
"""Used in place of a role: all roles, for the owner of all keys."""


GATEWAY = "gateway"
"""Used in place of a role: the gateway, which answers applications over HTTP (`hushstream.gateway`)."""


def _kinds() -> Iterator[Kind]:
    """Yield every system, importing each only when needed: a role's name mostly needs one, and help none."""
    from hushstream.systems.catalogue import each_kind

    return each_kind()


def role_names() -> Iterator[str]:
    """Every role, in any system."""
    return (role.name for kind in _kinds() for role in kind.roles)


def worker_names() -> Iterator[str]:
    """Everything that ``hushstream worker`` runs: every role, and `GATEWAY`."""
    return chain((GATEWAY,), role_names())


def roles_or_all() -> Iterator[str]:
    """Every role, and `ALL`."""
    return chain((ALL,), role_names())


def storage_zones() -> tuple[str, ...]:
    """The names of storage key files, in any system."""
    return tuple(dict.fromkeys(role.storage_zone for kind in _kinds() for role in kind.roles))


def key_files() -> tuple[str, ...]:
    """The names of all key files that a deployment may have: of zones, and of their storage keys."""
    zones = dict.fromkeys(zone for kind in _kinds() for role in kind.roles for zone in role.key_zones)
    return (*zones, *storage_zones())


def letter_zones() -> tuple[str, ...]:
    """Every zone that has dead letters, in any system."""
    topics = (topic for kind in _kinds() for topic in kind.topics)
    return tuple(dict.fromkeys(topic.zone for topic in topics if topic.holds_dead_letters))


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[Any], Any]:
    """A callback for a parameter, which may be given several times, whose values are among ``names``.

    Names of single parties end with the party: ``learner.alpha``.
    """

    def check(given: Any) -> Any:
        from hushstream.schemas.topics import common_name

        for name in (given,) if isinstance(given, str) else given or ():
            if common_name(name) not in names():
                why = ", a zone without a key" if names is key_files and common_name(name) in letter_zones() else ""
                raise typer.BadParameter(f"expected one of {', '.join(dict.fromkeys(names()))}, got {name!r}{why}")
        return given

    return check


def one_or_all(role: str) -> tuple[str, ...] | None:
    """The role as a tuple; None for `ALL`."""
    return None if role == ALL else (role,)


def options_of(opener: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The options that a function of options declares, by name."""
    return signature(opener, eval_str=True).parameters


def with_options(duty: str = "", **openers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these functions, in place of its parameters of these names.

    Typer reads a command's options from its signature, so the new signature combines all of them.

    Args:
        duty: the role or duty of the account that runs it (`hushstream.ops.access`), by values of the command's
            options; empty for an administrator.
        openers: functions of options.
    """
    groups = {name: options_of(opener) for name, opener in openers.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = signature(command, eval_str=True).parameters.items()
        each = [option for name, one in own for option in (groups[name].values() if name in groups else (one,))]

        @wraps(command)
        def run(**values: Any) -> None:
            for name, opener in openers.items():
                values[name] = opener(**{option: values.pop(option) for option in groups[name]})
            if "place" in values:
                # Nobody verifies all roles but who may read everything.
                whose = "export" if values.get("role") == ALL and "{role}" in duty else duty.format(**values)
                values["place"] = values["place"]._replace(duty=whose)
            try:
                command(**values)
            except HushstreamError as error:
                place = values.get("place")
                raise HushstreamError(str(error) if place is None else place.located(error)) from error

        options = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in each]
        run.__signature__ = Signature(options)  # type: ignore[attr-defined]  # Python looks there (PEP 362).
        run.__annotations__ = {option.name: option.annotation for option in options}
        return run

    return decorate


class Place(NamedTuple):
    """A running deployment: its folder, its system, the connection to its broker, and where its keys come from.

    Attributes:
        options: those that locate it.
        account: the option that names the file of the account in use.
        duty: the role or duty of that account; empty for an administrator.
    """

    folder: Path
    system: System
    connection: Connection
    keys: KeySource
    options: str
    account: str
    duty: str = ""

    def located(self, told: object, principals: Sequence[str] | None = None) -> str:
        """A message whose commands are for this deployment, and for these principals if this account administers it."""
        from hushstream.agents.settings import command_line, located

        def command(words: str) -> str:
            if principals is None:
                return command_line(words, self.options, self.account, self.connection.security, self.duty)
            named = principals if words.startswith("topics apply") else ()
            rules = shlex.join(word for one in named for word in ("--principals", one))
            return " ".join(filter(None, ("hushstream", words, rules, self.options, self.account)))

        return located(str(told), command, self.connection.bootstrap)


def whereabouts(
    deployment: Path | None = None,
    bootstrap: str | None = None,
    prefix: str | None = None,
    security: Path | None = None,
) -> str:
    """The options that locate a deployment, to be printed in commands that messages recommend."""
    given = {
        "--deployment": deployment and deployment.resolve(), "--bootstrap": bootstrap, "--prefix": prefix,
        "--security": security and security.resolve(),
    }  # fmt: skip
    return shlex.join(word for name, value in given.items() if value is not None for word in (name, str(value)))


def open_with_keys(
    deployment: DeploymentFolder,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    prefix: Prefix = None,
    security: SecurityFile = None,
    keys: KeyFolder = None,
    seed: KeySeed = None,
) -> Place:
    """Read a deployment's folder, and make the settings of the connection; does not connect.

    Raises:
        ConfigurationError: the folder is incomplete, or its files do not fit together.
        HushstreamError: the security file cannot be used.
    """
    system = load(deployment)
    name = prefix_of(prefix, system.config.deployment)
    return Place(
        deployment, system, Connection(bootstrap, name, read_security(security)), key_source(deployment, keys, seed),
        whereabouts(deployment, bootstrap, prefix),
        whereabouts(security=security),
    )  # fmt: skip


def open_place(
    deployment: DeploymentFolder,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    prefix: Prefix = None,
    security: SecurityFile = None,
) -> Place:
    """`open_with_keys`, for a command that needs no keys."""
    return open_with_keys(deployment, bootstrap, prefix, security)


at_place = with_options(place=open_place)
"""Gives an administrator's command the options that locate a running deployment, in place of ``place``."""
as_client = with_options("client", place=open_place)
"""As `at_place`, for an application's account."""
as_operator = with_options("operator", place=open_place)
"""As `at_place`, for the operator's account."""
of_letters = with_options("letters-{zone}", place=open_place)
"""As `at_place`, for the account that reads a zone's dead letters."""
with_keys = with_options(place=open_with_keys)
"""As `at_place`, with the options of keys."""
as_verifier = with_options("verify-{role}", place=open_with_keys)
"""As `with_keys`, for an account that reads all that a role reads and writes."""


class _Rate(ProgressColumn):
    """Shows interactions per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")


LINE_EVERY_SECONDS = 10.0
"""Without a terminal a line is written this often; a command that ends before writes none."""

Steps = Callable[[int, int, str], None]
"""Takes how much is done, of how much, and the name of the work."""


@contextmanager
def steps_on_a_bar(quiet: bool, clock: Callable[[], float] = time.monotonic) -> Iterator[Steps]:
    """Show progress during the block: a bar, or lines where there is no terminal.

    Nothing is shown if ``quiet`` (a script reads the output). ``clock`` says in seconds when the next line is due.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield _nothing if quiet else _lines(clock)
        return
    with _bar(console) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
    )


def _nothing(done: int, total: int, what: str) -> None:
    """Show nothing."""


def _lines(clock: Callable[[], float]) -> Steps:
    said, work = clock(), ("", 0.0, 0)

    def say(done: int, total: int, what: str) -> None:
        nonlocal said, work
        now = clock()
        if what != work[0]:
            work = (what, now, done)
        if now - said >= LINE_EVERY_SECONDS:
            said = now
            print(f"{what}: {done:,} of {total:,}{_left(now - work[1], done - work[2], total - done)}", file=sys.stderr)

    return say


def _left(seconds: float, done: int, rest: int) -> str:
    """The estimated rest of the time, at the rate of this part of the work; empty where there is none."""
    return f", some {math.ceil(seconds * rest / done):,} s left" if done and rest else ""


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """Show during the block what is being done, on a terminal and not if ``quiet``."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield
