"""Runs `hushstream quickstart`: a deployment, simulated visitors and a page, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.agents.worker.deployment import KEYS, KeySource, prepare, read_config
from hushstream.client import connect
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import key_names
from hushstream.features.schema import FeatureSchema
from hushstream.ops.check.verify import verified_topics, verify
from hushstream.ops.live import Pause, copy_async, open_logs
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.spending import budget
from hushstream.privacy.amounts import epsilon_value
from hushstream.privacy.keys import generate_keys
from hushstream.replay.quickstart.page import serve
from hushstream.replay.quickstart.traffic import BIN_SECONDS, Traffic
from hushstream.replay.runners.stream import StreamPlace, StreamSession
from hushstream.replay.worlds.shop import DECLARATION, ITEMS
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig

LOOK_SECONDS = 3.0
"""Seconds between two reads of the published topics."""

LEARNER = "learner"
_POLL_SECONDS = 0.1
_NO_PAUSE = Pause(0.05, 0.05)
_WORKER_OPTIONS = ("--snapshot-interval", "5")
"""Seconds between snapshots, so short that a learner that is killed within a minute restarts from one."""

_PUBLISHED = ("crowds", "models")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartOptions:
    """The options of a quickstart.

    Attributes:
        folder: folder for everything that it writes.
        port: port of the page, on loopback; 0 for any free one.
        visitors: how many visitors there are at the same time.
        seed: seed of the visitors' taste.
        seconds: end after this time; None runs until it is interrupted.
    """

    folder: Path = Path("quickstart")
    port: int = 8765
    visitors: int = 60
    seed: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class KillStatus:
    """The state of the learner after it was killed last.

    Attributes:
        number: how many times a learner was killed.
        state: running, away or verifying.
        away_seconds: seconds without an answer of a learner.
        progress: progress of `verify`: steps done, steps in all, and what is being done.
        verified: the result of `verify` after the kill: records by status.
        equal: whether every record was checked and none is changed; None before `verify` has ended.
    """

    number: int = 0
    state: str = "running"
    away_seconds: float | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    equal: bool | None = None


class AlreadyKilled(HushstreamError):
    """The learner has not restarted yet, or its records are still being verified."""


class Quickstart:
    """Holds the state of a running quickstart for the page, and kills the learner."""

    def __init__(self, system: System, session: StreamSession, traffic: Traffic, folder: Path) -> None:
        """Watch a running deployment and its visitors."""
        self._system = system
        self._session = session
        self._traffic = traffic
        self._folder = folder
        self._killing = KillStatus()
        self._published: dict[str, int] = {}
        self._learned: list[dict[str, Any]] = []
        self._spent: dict[str, Any] = {}
        self._trouble = ""
        self._killed_at: list[float] = []
        self._after: asyncio.Task[None] | None = None

    def state(self) -> dict[str, Any]:
        """The state that the page draws, as plain values."""
        tally, killing = self._traffic.tally, self._killing
        bins = sorted(tally.bins.items())
        return {
            "seconds": round(self._traffic.seconds, 1),
            "bin_seconds": BIN_SECONDS,
            "series": [
                {
                    "t": number * BIN_SECONDS,
                    "model": one.model_reward / one.model if one.model else None,
                    "holdout": [one.holdout_reward, one.holdout],
                }
                for number, one in bins
            ],
            "visitors": tally.visitors,
            "answers": dict(tally.answers),
            "version": tally.version,
            "published": self._published,
            "learned": self._learned,
            "budget": self._spent,
            "learner": {
                "state": killing.state,
                "killed": killing.number,
                "away_seconds": killing.away_seconds,
                "progress": killing.progress,
                "verified": killing.verified,
                "equal": killing.equal,
            },
            "killed_at": self._killed_at,
            "promised": self._system.promises.sentence(),
            "trouble": self._trouble,
            "tools": f"--deployment {self._folder / DEPLOYMENT} --bootstrap {self._session.bootstrap}",
            "folder": str(self._folder),
        }

    async def kill(self) -> None:
        """SIGKILL the learner and start it again; when it answers, everything that was published is recomputed.

        Raises:
            AlreadyKilled: an earlier kill is not finished.
        """
        if self._killing.state != "running":
            raise AlreadyKilled(f"kill: expected a running learner, got one that is {self._killing.state}")
        self._killing = KillStatus(self._killing.number + 1, "away")
        self._killed_at.append(round(self._traffic.seconds, 1))
        self._after = asyncio.create_task(self._restart_learner())

    async def look(self) -> None:
        """Read what was published and spent, repeatedly."""
        topics = frozenset((*_PUBLISHED, *budget.budget_topics(self._system)))
        while True:
            try:
                logs = await copy_async(self._session.connection(), self._system.partitions, topics, _NO_PAUSE)
                self._published = {name: _records(logs, name) for name in _PUBLISHED}
                self._learned = _learned(self._system, logs)
                self._spent = _spent(budget.read(logs, self._system))
                self._trouble = ""
            except HushstreamError as error:
                self._trouble = str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _restart_learner(self) -> None:
        killing, tally = self._killing, self._traffic.tally
        try:
            await self._session.kill(LEARNER)
            # The answers that the killed learner had written reach the client shortly after its end.
            await asyncio.sleep(_POLL_SECONDS)
            last = tally.answered_at
            self._traffic.answered.clear()
            await self._traffic.answered.wait()
            killing.away_seconds = round(tally.answered_at - last, 1)
            killing.state = "verifying"
            await self._verify(killing)
        except (HushstreamError, OSError) as error:
            self._trouble = str(error)
        finally:
            killing.state = "running"

    async def _verify(self, killing: KillStatus) -> None:
        """Recompute everything that was published, while visitors continue.

        Visitors pause only while the ends of all logs are read. A record that is written in this moment would be
        counted neither as equal nor as changed.
        """

        def progress(done: int, total: int, what: str) -> None:
            killing.progress = {"done": done, "total": total, "what": what}

        system, connection = self._system, self._session.connection()
        topics = verified_topics(system)
        await self._traffic.pause()
        try:
            async with open_logs(connection, system.partitions, topics) as logs:
                self._traffic.resume()
                copy = await logs.copy(progress)
        finally:
            self._traffic.resume()
        keys = KeySource(self._folder / DEPLOYMENT / KEYS)
        found = await asyncio.to_thread(verify, copy, system, keys, progress=progress)
        killing.verified = {str(status): number for status, number in found.totals.items()}
        killing.equal = found.ok


def _records(logs: LogCopy, topic: str) -> int:
    return sum(len(part.records) for _, part in logs.of_topic(topic))


def _learned(system: System, logs: LogCopy) -> list[dict[str, Any]]:
    """The preferences in the newest model; empty before the first model."""
    newest: dict[str, Any] = {}
    for record in logs.records(["models"]):
        name, fields = codec.decode(record.value)
        if name == "FeatureModel" and fields["version"] > newest.get("version", 0):
            newest = fields
    config = system.core.config
    return learned(config.context.schema, newest, ITEMS[: config.arms]) if newest else []


def _spent(found: budget.Budget) -> dict[str, Any]:
    """The largest charge of one person, the guarantee for one person, and the number of releases in the ledger."""
    limits = [{"unit": fact.unit, "limit": _epsilon(fact.limit.epsilon_micro)} for fact in found.facts]
    return {
        "ok": found.ok,
        "releases": dict(found.by_mechanism),
        "paid": [
            {"mechanism": mechanism, "epsilon": _epsilon(micro)}
            for mechanism, micro in _paid_by_mechanism(found).items()
        ],
        "limits": limits,
    }


def _epsilon(micro: int) -> float:
    return float(epsilon_value(micro))


def _paid_by_mechanism(found: budget.Budget) -> dict[str, int]:
    paid: dict[str, int] = {}
    for account in found.charges:
        paid[account.mechanism] = max(paid.get(account.mechanism, 0), account.spent.epsilon_micro)
    return paid


@contextlib.asynccontextmanager
async def running(options: QuickstartOptions) -> AsyncIterator[tuple[Quickstart, list[asyncio.Task[Any]]]]:
    """Start everything; yields the quickstart, and the tasks that must not end."""
    system = prepare_folder(options.folder)
    place = options.folder / DEPLOYMENT
    session = StreamSession(system, StreamPlace(place, None, None, worker_options=_WORKER_OPTIONS))
    async with session, connect(session.bootstrap, place) as client:
        traffic = Traffic(client, system.core.config, options.visitors, options.seed)
        quickstart = Quickstart(system, session, traffic, options.folder)
        watched = asyncio.create_task(session.watch())
        tasks = [watched]
        try:
            await _first_answer(traffic, watched)
            tasks += [asyncio.create_task(one) for one in (traffic.run(), quickstart.look())]
            yield quickstart, tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _first_answer(traffic: Traffic, watched: asyncio.Task[None]) -> None:
    """Wait until a learner answers; raise if a process ends before."""
    first = asyncio.create_task(traffic.first())
    try:
        done, _ = await asyncio.wait({first, watched}, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()
    finally:
        first.cancel()


async def run(options: QuickstartOptions, print_line: Callable[[str], None]) -> dict[str, Any]:
    """Run until SIGINT, SIGTERM or ``options.seconds``, and stop everything that was started.

    Args:
        options: see `QuickstartOptions`.
        print_line: called with each line to print.

    Returns:
        The last state, in the form that the page gets.

    Raises:
        HushstreamError: the port is in use, another program made the folder, or a process ended by itself.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    async with serve(options.port) as page:
        print_line(f"starting a broker and three workers below {options.folder} ...")
        began = time.monotonic()
        starting = asyncio.create_task(_until(ended, options, page, print_line, began))
        return await starting


async def _until(
    ended: asyncio.Event, options: QuickstartOptions, page: Any, print_line: Callable[[str], None], began: float
) -> dict[str, Any]:
    async with running(options) as (quickstart, tasks):
        page.shows(quickstart)
        print_line(f"after {time.monotonic() - began:.0f} s: {page.address}   (Ctrl-C ends everything)")
        timer = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait({*tasks, timer}, timeout=options.seconds, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        for task in done - {timer}:
            task.result()
        print_line("stopping the workers and the broker ...")
        return quickstart.state()


CONFIGURATION = "fast.yaml"
DEPLOYMENT = "deployment"
_MADE_HERE = ".made-by-quickstart"


def prepare_folder(folder: Path) -> System:
    """Write the configuration unless the user has one in the folder, and prepare a deployment with new keys.

    The deployment is new each time, as the logs of the last one were in the memory of a broker that has ended.

    Raises:
        HushstreamError: the configuration is no hosted deployment of p2b, or another program made the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIGURATION
    if not path.exists():
        path.write_text((files(__package__) / CONFIGURATION).read_text(encoding="utf-8"), encoding="utf-8")
    config = read_config(path)
    if config.system != "p2b" or config.kind != "hosted":
        raise HushstreamError(
            f"{path}: expected a hosted deployment of p2b, got {config.system}; other systems are played by "
            f"`hushstream replay {config.system}`"
        )
    _require_shop(path, config)
    made = folder / DEPLOYMENT
    if made.exists():
        if not (made / _MADE_HERE).exists():
            raise HushstreamError(f"{made}: expected a folder that a quickstart made, or none, got another one")
        shutil.rmtree(made)
    made.mkdir()
    (made / _MADE_HERE).touch()
    system = prepare(made, config)
    generate_keys(made / KEYS, key_names(system.roles))
    return system


def _require_shop(path: Path, config: P2BConfig) -> None:
    """Refuse features that the simulated visitors do not have, and more items than the shop has."""
    declared = config.context.declared
    known = {name: one["kind"] for name, one in DECLARATION.items()}
    declared_kinds = {} if declared is None else {name: one.kind for name, one in declared.features.items()}
    if not declared_kinds or any(known.get(name) != kind for name, kind in declared_kinds.items()):
        raise HushstreamError(
            f"{path}: expected features that the simulated visitors have ("
            f"{', '.join(f'{name}: {kind}' for name, kind in known.items())}), got others"
        )
    if config.arms > len(ITEMS):
        raise HushstreamError(f"{path}: items.capacity: expected at most the shop's {len(ITEMS)}, got {config.arms}")


_DEVIATIONS = 2.0
"""An item counts as surely the best if it leads the next one by this many standard deviations."""

_HOURS = ("08:00", "14:00", "20:00")
_AMONG_RANGE = (1 / 6, 1 / 2, 5 / 6)


def learned(schema: FeatureSchema, fields: Mapping[str, Any], items: Sequence[str]) -> list[dict[str, Any]]:
    """For each value of each feature, the item with the highest expected reward; the other features are missing.

    Args:
        schema: the declared features of the deployment.
        fields: fields of a FeatureModel record.
        items: names of the items, by arm.

    Returns:
        Rows with ``feature``, ``value``, ``item``, ``chance`` (the expected reward, cut to 0 to 1) and ``sure``:
        whether the item leads the next one by more than the model's own uncertainty.
    """
    shape = (len(items), fields["cells"])
    means, variances = (np.frombuffer(fields[name], "<f8").reshape(shape) for name in ("means", "variances"))
    found = []
    for name, value in _values(schema):
        blocks = schema.blocks(schema.read(schema.encode({name: value}).row))
        context = np.bincount(blocks.cells[0] + 1, blocks.values[0], shape[1])
        context[0] = 1.0
        expected, variance = means @ context, variances @ context**2
        best, second = np.argsort(-expected, kind="stable")[:2]
        lead = float(expected[best] - expected[second])
        found.append(
            {
                "feature": name,
                "value": value[0] if isinstance(value, list) else value,
                "item": items[best],
                "chance": float(np.clip(expected[best], 0.0, 1.0)),
                "sure": lead > _DEVIATIONS * float(np.sqrt(variance[best] + variance[second])),
            }
        )
    return found


def _values(schema: FeatureSchema) -> Iterator[tuple[str, Any]]:
    """Example values of each feature; embeddings and histograms have none."""
    for name, settings in schema.plain.items():
        match settings["kind"]:
            case "category":
                yield from ((name, one) for one in settings["vocabulary"])
            case "tags":
                yield from ((name, [one]) for one in settings["vocabulary"])
            case "boolean":
                yield from ((name, one) for one in (False, True))
            case "day_of_week":
                yield from ((name, one) for one in range(7))
            case "time_of_day":
                yield from ((name, one) for one in _HOURS)
            case "number":
                low, high = settings["range"]
                yield from ((name, round(low + share * (high - low))) for share in _AMONG_RANGE)
