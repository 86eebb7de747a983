"""Runs a deployment on this machine, from its configuration alone: `hushstream up`, `down` and `status`.

All that it makes lies in one folder: `deployment` (the prepared configuration, keys and the workers' state), `broker`
(the topics), `logs` (what each process says), `targets` (for a Prometheus) and `up.json` (which processes run). Release
marks lie elsewhere, so a copy of the folder that is put back to an earlier day is refused: its journals are behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hushstream.agents.datadir import owner_only
from hushstream.agents.defaults import METRICS_HOST_VARIABLE, ZONE_METRICS_HOST_VARIABLE
from hushstream.agents.worker.deployment import (
    KEYS,
    KeySource,
    artefacts_of,
    load,
    prepare,
    read_config,
    require_releases,
)
from hushstream.agents.worker.roles import require_live
from hushstream.broker import BrokerSettings, BrokerStartError, EmbeddedBroker
from hushstream.broker.disk import FILE
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.declare.role import key_names
from hushstream.engine.devices.published import SEALING_ZONE, SIGNING_ZONE
from hushstream.engine.system import require_person_promised, require_private
from hushstream.gateway.settings import is_loopback
from hushstream.ops import budget
from hushstream.ops.connection import Connection
from hushstream.ops.export import Manifest
from hushstream.ops.log_copy import copy_async
from hushstream.ops.moving import export_closed, keep, note_closing, note_export
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.replay.runners.generations import IDENTITY, NextGeneration, current, is_changed, prepared_beside
from hushstream.replay.runners.stream import HOST, StreamPlace, StreamSession, answers, first_of, require_free
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

DOWN_SECONDS = 40.0
ANY = "0.0.0.0"
_LOCK, _RUNNING, _OPERATORS, _TOKENS = "up.lock", "up.json", "operators", "tokens"
_MOMENT, _MOMENT_SECONDS = "moment", 60.0
_LOOK_SECONDS = 0.2
_OLDER = re.compile(r"the journal is refused: (?P<why>.*?) \(marks: ")
_OTHER = re.compile(r"expected configuration (?P<there>\w+) of deployment .* got (?P<here>\w+):")
_LEAST_FREE, _LAST_WORDS, _WRONG = 16 << 20, 1 << 14, " ERROR "


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """How a deployment is run.

    Attributes:
        config: the configuration.
        data: folder of all that is made; `data_beside` gives the default.
        marks: folder of release marks; None: below the user's state folder.
        bootstrap: a Kafka; None: the embedded broker, which keeps its topics in the folder.
        security: file with the settings of that Kafka.
        port: port of the gateway.
        broker_port: port of the embedded broker.
        listen: IPv4 address of the gateway; beyond loopback applications need the token of the folder's `tokens`.
        agreed: asked with what persons have paid and will pay, where the configuration was changed; whether to go on.
        began: when the command began, on the monotonic clock.
    """

    config: Path
    data: Path
    marks: Path | None = None
    bootstrap: str | None = None
    security: Path | None = None
    port: int = 8080
    broker_port: int = 9092
    listen: str = HOST
    agreed: Callable[[str], bool] = lambda told: False
    began: float = field(default_factory=time.monotonic)

    @property
    def command(self) -> str:
        """The command that goes on from here."""
        usual = UpOptions(config=self.config, data=data_beside(self.config).resolve())
        words = ["hushstream", "up", str(self.config)]
        for name in ("data", "marks", "bootstrap", "security", "port", "broker_port", "listen"):
            if (value := getattr(self, name)) != getattr(usual, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words)


def data_beside(config: Path) -> Path:
    """The folder of what is made of a configuration: beside it, with its name."""
    return config.with_suffix(".data")


async def up(options: UpOptions, say: Callable[[str], None]) -> None:
    """Run a deployment until SIGINT or SIGTERM; a process that ends is started again.

    Args:
        options: see `UpOptions`.
        say: told each line for the person who started it.

    Raises:
        HushstreamError: a port or the folder is taken, the configuration is another one than before and makes no next
            generation, or a process does not begin to work; the message names the way out.
    """
    try:
        await _up(options, say)
    except HushstreamError as error:
        raise with_way_out(options.data, error) from None


def with_way_out(data: Path, error: HushstreamError) -> HushstreamError:
    """What ended a process, with what whoever uses `up` can do; any other error as it is.

    Workers tell of options and topics that a folder of `up` does not show.
    """
    anew = "begin anew under another `deployment` name and --data; persons in both are charged by both"
    if (older := _OLDER.search(str(error))) is not None:
        return HushstreamError(
            f"{data}: expected all that was released from it, got an older copy ({older['why']}): put the newest one "
            f"back, or {anew}"
        )
    if (other := _OTHER.search(str(error))) is not None:
        return HushstreamError(
            f"{data}: expected configuration {other['here']}, as hushstream {version('hushstream')} reads its file, "
            f"got {other['there']} in its records, which another release wrote: go on with that one, or {anew}"
        )
    return error


def require_ports(options: UpOptions) -> None:
    """Refuse ports on which other programs listen.

    Raises:
        HushstreamError: one is taken; names the option that moves it.
    """
    require_free("--port", options.port)
    if options.bootstrap is None:
        require_free("--broker-port", options.broker_port)


async def _up(options: UpOptions, say: Callable[[str], None]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with _locked(options.data):
        require_ports(options)
        config = read_config(options.config)
        held = current(options.data) / "deployment"
        kept = _place(options, load(held)) if held.exists() else None
        if kept is not None:
            require_newest(kept)
        if kept is not None and is_changed(options.data, config):
            following = NextGeneration(options.data, config, kept, say)
            await first_of(following.make(options.agreed, partial(made, options.config)), ended.wait())
            if ended.is_set():
                return
        elif (begun := prepared_beside(options.data)) is not None:
            say(f"warning: another configuration was begun; if this one is closed for ever, go on with {begun}")
        system = prepared(options, config)
        for note in kind_of(system.config.system).notes(system.config):
            say(f"warning: {note.text}")
        for name in ("logs", "targets"):
            (options.data / name).mkdir(exist_ok=True)
        where = _place(options, system)
        session = StreamSession(system, where)
        broker = "a broker, " if options.bootstrap is None else ""
        say(f"starting {broker}{len(system.role_names)} workers and a gateway")
        running = options.data / _RUNNING
        try:
            async with session:
                _count_moment(where, say)
                # What cannot begin ends the command, and says why; what ends later is started again.
                await first_of(session.ready(say), session.watch(), ended.wait())
                if not ended.is_set():
                    write_targets(options.data / "targets", system, session)
                    place = {
                        "bootstrap": session.bootstrap,
                        "host": options.listen,
                        "port": options.port,
                        "pid": os.getpid(),
                    }
                    _write(running, {**place, "command": options.command, "processes": dict(session.pids())})
                    shown = await screen(options.data)
                    say(f"ready after {time.monotonic() - options.began:.1f} s\n\n{shown}")
                    await first_of(session.supervise(say), _count_moments(where, say), ended.wait())
                say("stopping ...")
                _count_moment(where, say)
        finally:
            running.unlink(missing_ok=True)
    say(f"stopped; `{options.command}` goes on from here")


def require_newest(place: StreamPlace) -> None:
    """Refuse an older copy of the embedded broker's folder: it counts fewer moments than were noted beside the marks.

    Before a first release no mark would show it, and what was answered since would be answered otherwise.

    Raises:
        HushstreamError: the folder is such a copy; the message names the way out.
    """
    if place.data is None or place.marks is None:
        return
    (count, when), (known, newest) = _moment(place.data), _moment(place.marks)
    if count < known:
        raise HushstreamError(
            f"{place.data}: expected the data of {newest}, got an older copy, of {when}: what was answered and learned "
            "since would be gone. Put the newest data back, or begin anew in another folder (--data). If the newest is "
            f"lost, remove {place.marks / _MOMENT} to go on with this copy, which release marks may still refuse"
        )


def _moment(folder: Path) -> tuple[int, str]:
    """How many moments were counted in a folder, and when the last one was."""
    path = folder / _MOMENT
    if not path.exists():
        return 0, "no known time"
    count, _, when = path.read_text(encoding="utf-8").partition(" ")
    return int(count), when


def _count_moment(place: StreamPlace, say: Callable[[str], None]) -> None:
    if place.data is None or place.marks is None:
        return
    counted = f"{_moment(place.data)[0] + 1} {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}"
    try:
        place.marks.mkdir(parents=True, exist_ok=True, mode=0o700)
        # In this order: whoever is killed between the two is no older copy.
        keep(place.data / _MOMENT, counted)
        keep(place.marks / _MOMENT, counted)
    except OSError as error:
        say(f"warning: a copy made of the data by now would not be told from newer data ({error.strerror})")


async def _count_moments(place: StreamPlace, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_MOMENT_SECONDS)
        await asyncio.to_thread(_count_moment, place, say)


def prepared(options: UpOptions, config: Any) -> System:
    """The deployment of the newest generation: made with new keys the first time, and the same one ever after."""
    folder = current(options.data) / "deployment"
    if not folder.exists():
        # Made elsewhere and moved: a folder that was killed half-way holds no deployment.
        fresh = folder.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        made(options.config, fresh, config, {})
        fresh.rename(folder)
    return load(folder)


def made(file: Path, fresh: Path, config: Any, inputs: Mapping[str, tuple[str, str]]) -> System:
    """Prepare the deployment of a configuration file in a folder, with new keys of all zones whose keys are not there.

    Raises:
        HushstreamError: it releases nothing ever, or does not promise what every deployment must.
    """
    kind = kind_of(config.system)
    kind.check(config)
    require_releases(config, str(file))
    # The agreement of devices names the public halves of these two, so they come first.
    edge = kind.guarantee(config, artefacts_of(fresh)).deployment == "edge"
    published = (SEALING_ZONE, SIGNING_ZONE) if edge and kind.published_keys else ()
    generate_keys(fresh / KEYS, published)
    system = prepare(fresh, config, inputs, KeySource(fresh / KEYS) if published else None)
    require_private(system.guarantee(), str(file))
    require_person_promised(config, system.guarantee(), str(file))
    missing = {zone for zone in key_names(system.roles) if not key_path(fresh / KEYS, zone).exists()}
    generate_keys(fresh / KEYS, missing)
    require_live(system, KeySource(fresh / KEYS))
    return system


async def screen(data: Path) -> str:
    """Where to ask, where to look, what was released and spent; read from released records alone."""
    folder, found = current(data) / "deployment", running_at(data)
    system = load(folder)
    connection = Connection(found["bootstrap"], f"{system.config.deployment}.")
    logs = await copy_async(connection, system.partitions, frozenset(budget.budget_topics(system)))
    spent = budget.read(logs, system)
    released = (
        ", ".join(f"{number} by {name}" for name, number in spent.by_mechanism.items())
        or "none yet, before a first window is full"
    )
    base = f"http://{HOST if found['host'] == ANY else found['host']}:{found['port']}"
    rows = {
        "ask and look": f"{base}/ (the page) and /v1/decide; /openapi.json has all calls",
        **({} if is_loopback(found["host"]) else {"applications": f"with the token in {data / _TOKENS}"}),
        **({"items": f"{base}/catalogue, with the token in {data / _OPERATORS}"} if has_catalogue(system) else {}),
        "so far": f"{begun_with(system)}released: {released}",
        "budget": " ".join(fact.as_text() for fact in spent.facts) or spent.guarantee.phrase(),
        "guarantee": f"{system.guarantee().sentence()} One operator holds all keys on this machine.",
        "broker": found["bootstrap"],
        "tools": f"--deployment {folder} --bootstrap {found['bootstrap']}",
        "Prometheus": f"{data / 'targets' / 'public.yml'} (released), zone.yml (private to the zones)",
        "logs": str(data / "logs"),
    }
    return "\n".join(f"{name:14}{value}" for name, value in rows.items())


def begun_with(system: System) -> str:
    """Whose model a deployment began with, before words on its own releases; empty without one."""
    names = {fact.name for fact in system.before}
    if "started_from_slots" not in names:
        return ""
    return f"{'the former generation' if 'generation' in names else 'another deployment'}'s model (version 0 here); "


def running_at(data: Path) -> Mapping[str, Any]:
    """What runs on a folder.

    Raises:
        HushstreamError: nothing does.
    """
    path = data / _RUNNING
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not found or not _is_locked(data):
        raise HushstreamError(f"{data}: expected a deployment that is up, got none; `hushstream up` starts it")
    return found


def why_not_ready(data: Path) -> str:
    """Why what runs on a folder answers no requests; empty if it answers."""
    found = running_at(data)
    if answers(found["host"], found["port"]):
        return ""
    free = shutil.disk_usage(data).free
    full = [f"the disk of {data} is full ({free:,} bytes are free): free some space"] if free < _LEAST_FREE else []
    logs = [data / "logs" / f"{name}.log" for name in found["processes"]]
    last = [(log.stem, log.read_bytes()[-_LAST_WORDS:].decode(errors="replace").strip()) for log in logs]
    wrong = [f"{name}: {words.splitlines()[-1]}" for name, words in last if _WRONG in words.rpartition("\n")[2]]
    return "; ".join(full + wrong) or f"nothing answers yet; see {data / 'logs'}"


def down(data: Path) -> str:
    """Stop what runs on a folder, and wait for its end; gives the command that goes on from there.

    Raises:
        HushstreamError: nothing runs, or it does not end.
    """
    found = running_at(data)
    os.kill(int(found["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + DOWN_SECONDS
    while _is_locked(data):
        if time.monotonic() > deadline:
            raise HushstreamError(f"{data}: expected it to stop within {DOWN_SECONDS:g} s; see {data / 'logs'}")
        time.sleep(_LOOK_SECONDS)
    return str(found.get("command", "hushstream up"))


async def move_out(data: Path, deployment: System, marks: Path | None, directory: Path) -> Manifest:
    """Close the embedded broker of a folder for ever, and export its topics for `hushstream topics import`.

    Args:
        data: the folder; nothing may run on it.
        deployment: the deployment that is moved, to which the import will compare; that of the newest generation.
        marks: folder of release marks, as of `UpOptions`.
        directory: a new folder.

    Raises:
        HushstreamError: it is no such folder or one of another deployment, a deployment is up on it, it was exported
            before, or the export cannot be written.
    """
    home = current(data)
    system = load(home / "deployment")
    if deployment.digest != system.digest:
        raise HushstreamError(
            f"--deployment: expected {home / 'deployment'}, which is what {data} runs, got another one: give that to "
            f"`topics export` and `topics import`; nothing was closed"
        )
    place = _place(UpOptions(config=data, data=data, marks=marks), system)
    if place.data is None or place.marks is None or not (place.data / FILE).exists():
        raise HushstreamError(f"{data}: expected a folder of `hushstream up` with an embedded broker, got none")
    note_export(home, directory)
    try:
        async with EmbeddedBroker(BrokerSettings(data=place.data)) as broker:
            note_closing([place.marks / role for role in system.role_names], broker.cluster_id)
            await broker.close_for_ever()
            return await export_closed(Connection(broker.bootstrap, f"{system.config.deployment}."), system, directory)
    except BrokerStartError as error:
        raise HushstreamError(str(error)) from None


def _place(options: UpOptions, system: System) -> StreamPlace:
    home = current(options.data)
    identity = home / IDENTITY
    if not identity.exists():
        _write(identity, os.urandom(8).hex())
    # Named by what a copy of the folder has too: wherever it is put back, it meets the marks of its original.
    name = f"{system.config.deployment}-{json.loads(identity.read_text(encoding='utf-8'))}"
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return StreamPlace(
        home / "deployment",
        options.bootstrap,
        None,
        resume=True,
        security=options.security,
        data=None if options.bootstrap else home / "broker",
        broker_port=options.broker_port,
        marks=(options.marks or state / "hushstream" / "marks") / name,
        gateway=gateway_settings(options, system),
        logs=options.data / "logs",
    )


def gateway_settings(options: UpOptions, system: System) -> dict[str, Any]:
    """The settings of the gateway (`hushstream.gateway.settings`); the files of tokens that they name are made once."""
    settings: dict[str, Any] = {"host": options.listen, "port": options.port}
    if has_catalogue(system):
        settings["operators_file"] = str(_token(options.data / _OPERATORS, "owner"))
    if system.requests is None or system.kind == "edge":
        settings["devices"] = {}
    if not is_loopback(options.listen):
        settings["allow_plaintext"] = True
        if "devices" not in settings:
            settings["tokens_file"] = str(_token(options.data / _TOKENS, "application"))
    return settings


def has_catalogue(system: System) -> bool:
    """Whether the deployment's items have names, which an operator may change over HTTP."""
    return isinstance(system.requests, ContextRules) and system.requests.catalogue is not None


def _token(path: Path, name: str) -> Path:
    """A file with one caller's token; made once."""
    if not path.exists():
        with open(path, "x", encoding="utf-8", opener=owner_only) as file:
            file.write(f"{name} {secrets.token_urlsafe(32)}\n")
    return path


def write_targets(folder: Path, system: System, session: StreamSession) -> None:
    """The targets of two Prometheus, which may run under other accounts; workers serve where the variables say."""
    for place, name in enumerate(("public", "zone")):
        host = os.environ.get((METRICS_HOST_VARIABLE, ZONE_METRICS_HOST_VARIABLE)[place], HOST)
        targets = [
            {"targets": [f"{host}:{ports[place]}"], "labels": {"deployment": system.config.deployment, "role": role}}
            for role, ports in session.metrics_ports().items()
        ]
        _write(folder / f"{name}.yml", targets, mode=0o644)


def _write(path: Path, value: Any, mode: int = 0o600) -> None:
    """Write a file (JSON is YAML, too) so that a reader sees either none or all of it."""
    fresh = path.with_name(f"{path.name}.new")
    with open(fresh, "w", encoding="utf-8", opener=owner_only) as file:
        json.dump(value, file)
    fresh.chmod(mode)
    fresh.replace(path)


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(data / _LOCK, "w", encoding="utf-8", opener=owner_only) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HushstreamError(
                f"{data}: expected nothing that runs on it, got a deployment that is up; `hushstream down` stops it, "
                "or name another folder (--data)"
            ) from None
        yield


def _is_locked(data: Path) -> bool:
    try:
        with _locked(data):
            return False
    except HushstreamError:
        return True
