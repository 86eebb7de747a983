"""A system that another package offers, found as an installed one is: by its entry point on the module path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hushstream.agents.worker.deployment import KeySource, load, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.declaration import Kind, System, conversation_of, request_partitions
from hushstream.ops.forget import forget_async
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of
from offered import POLL, offered

OPTIONS = ("tea", "coffee", "water")
VALUES = {"system": "poll", "deployment": "drinks", "epsilon": 0.5, "window_votes": 5, "homes": 2, "votes_per_user": 2}
USERS = [f"user-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder that another package is installed in."""
    return POLL


@pytest.fixture(scope="module")
def kind() -> Iterator[Kind]:
    """What the other package offers, as the catalogue finds it."""
    with offered(POLL, "poll") as found:
        yield found


class Played(NamedTuple):
    """A deployment, its log, and who drives it."""

    system: System
    log: MemoryLog
    driver: DirectDriver
    keys: KeySource

    def vote(self, user: str, option: int, vote_id: str = "", **fields: Any) -> tuple[int, int]:
        """Append a vote; gives where."""
        homes = request_partitions(self.system)
        record = {
            "vote_id": vote_id or f"{user}:{option}",
            "user": user,
            "option": option,
            "config_digest": self.system.digest,
            **fields,
        }
        partition = partition_of(user, homes)
        return partition, self.log.append("votes", partition, codec.encode("Vote", record))

    def records(self, topic: str) -> list[dict[str, Any]]:
        """All records of a topic but the beginnings of journals."""
        found = [codec.decode(r.value) for (name, _), part in self.log.partitions() if name == topic for r in part]
        return [fields for name, fields in found if name != "Genesis"]

    def client_log(self) -> DirectEventLog:
        """As an application writes."""
        answers = conversation_of(self.system).answers
        return DirectEventLog(self.log, self.driver, request_partitions(self.system), answers)


@pytest.fixture
def folder(kind: Kind, tmp_path: Path) -> Path:
    """A deployment's folder."""
    prepare(tmp_path / "drinks", parse_config(VALUES), {"options": ("options", "\n".join(OPTIONS))})
    return tmp_path / "drinks"


@pytest.fixture
def system(kind: Kind, folder: Path) -> System:
    """The deployment."""
    return load(folder)


def _play(system: System, keys: KeySource) -> Played:
    log = MemoryLog()
    return Played(system, log, DirectDriver(log, all_machines(system, keys), bytes(32)), keys)


@pytest.fixture(scope="module")
def play() -> Callable[[System, KeySource], Played]:
    """Makes an empty log that the machines of a deployment wait at."""
    return _play


@pytest.fixture(scope="module")
def values() -> Mapping[str, Any]:
    """The configuration of a deployment."""
    return VALUES


@pytest.fixture
def played(system: System) -> Played:
    """Two votes of each user: windows of both partitions close, and some votes wait."""
    made = _play(system, KeySource(seed=4))
    for number, user in enumerate(USERS):
        made.vote(user, number % 3)
        made.vote(user, (number + 1) % 3)
    made.driver.pump()
    return made


@pytest.fixture
def forget(played: Played) -> Any:
    """Erase a user."""
    return lambda user: asyncio.run(forget_async(played.client_log(), played.system, user, 0.0))
