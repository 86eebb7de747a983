"""Starts a deployment on either runner, plays against it, and stops it."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar, get_args

from hushstream.agents.security import Cluster, read_security
from hushstream.agents.worker.deployment import KEYS, KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System, conversation_of, request_partitions
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.runners.stream import StreamPlace, StreamSession, first_of
from hushstream.schemas.errors import HushstreamError


class DirectSession:
    """A deployment whose machines run in this process."""

    def __init__(self, system: System, keys: KeySource) -> None:
        """Prepare a deployment under keys from files or, for experiments on public data only, from a seed."""
        self._system = system
        self._log = MemoryLog()
        self._driver = DirectDriver(self._log, all_machines(system, keys), os.urandom(32))

    async def __aenter__(self) -> Self:
        """Start nothing."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop nothing."""

    def event_log(self, party: str = "") -> EventLog:
        """The log of one client; ``party`` says whose topics, where each party has topics of its own."""
        answers = conversation_of(self._system, party).answers
        return DirectEventLog(self._log, self._driver, request_partitions(self._system), answers)

    async def logs(self) -> LogCopy:
        """A copy of all topics as they are now, for export and verify."""
        return LogCopy.of(self._log)

    def counts(self) -> Mapping[str, int]:
        """Events by outcome, over all roles."""
        total: Counter[str] = Counter()
        for step in self._driver.steps:
            total.update(step.counts)
        return {str(name): number for name, number in sorted(total.items())}


T = TypeVar("T")

Runner = Literal["direct", "stream"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a play runs.

    Attributes:
        runner: "direct" (machines in this process) or "stream" (broker and workers as processes).
        folder: the deployment's folder.
        bootstrap: address of a Kafka; the embedded broker by default.
        seed: seed of the keys (for public data only); None takes the key files of the deployment's folder.
        resume: go on with topics of an earlier run.
        security: file with the SASL and TLS settings of the given Kafka.
    """

    runner: Runner
    folder: Path
    bootstrap: str | None
    seed: int | None
    resume: bool = False
    security: Path | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown runner, and a Kafka that may not be used."""
        require_runner(self.runner, self.bootstrap, self.security)

    @property
    def keys(self) -> KeySource:
        """The source of the keys: the seed, or the deployment's folder."""
        return KeySource(folder=self.folder / KEYS) if self.seed is None else KeySource(seed=self.seed)


@dataclass(frozen=True, slots=True)
class Recording(Generic[T]):
    """The result of a play.

    Attributes:
        played: what the player returned.
        logs: every topic, as it was at the end.
        counts: events by outcome over all roles.
        peak_memory_bytes: by process; empty for the direct runner.
    """

    played: T
    logs: LogCopy
    counts: Mapping[str, int]
    peak_memory_bytes: Mapping[str, int]


@contextmanager
def deployed(folder: Path | None) -> Iterator[Path]:
    """The deployment's folder; without one, a temporary folder that is deleted after the run."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="hushstream-") as made:
        yield Path(made)


def require_runner(runner: str, bootstrap: str | None = None, security: Path | None = None) -> None:
    """Refuse an unknown runner, and a Kafka that may not be used, before anything runs.

    Raises:
        HushstreamError: the runner is none of `Runner`, or settings of a connection come without a Kafka to connect to.
        ConfigurationError: the settings cannot be read, or with them records would leave this machine unencrypted.
    """
    if runner not in get_args(Runner):
        raise HushstreamError(f"runner: expected {' or '.join(get_args(Runner))}, got {runner!r}")
    if bootstrap is not None:
        Cluster(bootstrap, read_security(security)).require_encryption()
    elif security is not None:
        raise HushstreamError(
            f"security: expected the address of a Kafka (--bootstrap) for the settings in {security}, got "
            "none; the embedded broker accepts connections from this machine alone, and has no such settings"
        )


def require_hosted(devices: bool) -> None:
    """Refuse a deployment of users' devices.

    Raises:
        HushstreamError: learners or raters are on ``devices`` (kind ``edge``).
    """
    if devices:
        raise HushstreamError(
            "kind: expected hosted, as a replay sends its requests to learner workers; got edge, which has none "
            "(what is released is the same in both)"
        )


async def play(system: System, place: Place, player: Callable[[EventLog], Awaitable[T]]) -> Recording[T]:
    """`play_parties` for a system without parties: ``player`` gets the one log."""
    return await play_parties(system, place, lambda log_of: player(log_of("")))


async def play_parties(
    system: System, place: Place, player: Callable[[Callable[[str], EventLog]], Awaitable[T]]
) -> Recording[T]:
    """Start a deployment, let ``player`` use it over the log of each party, and return all topics and counts.

    Raises:
        HushstreamError: the deployment has no learner worker (kind ``edge``).
        WorkerDied: a process of the stream ended while it was needed.
        HushstreamError: the player raised it, there is no broker, or topics hold records of an earlier run.
    """
    require_hosted(devices=system.device_service is not None)
    if place.runner == "direct":
        async with DirectSession(system, place.keys) as direct:
            played = await player(direct.event_log)
            return Recording(played, await direct.logs(), direct.counts(), {})
    where = StreamPlace(place.folder, place.bootstrap, place.seed, place.resume, place.security)
    async with StreamSession(system, where) as stream:
        played = await first_of(player(stream.event_log), stream.watch())
        memory = stream.peak_memory_bytes()
        counts = await stream.counts()
        return Recording(played, await stream.logs(), counts, memory)
