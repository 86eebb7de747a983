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
from offered import MEANARM, offered

VALUES = {
    "system": "meanarm",
    "deployment": "shown",
    "arms": 3,
    "privacy": {"epsilon": 0.5, "units_per_person": 2},
    "release": {"window_units": 5},
    "partitions": {"learner": 2},
}
USERS = [f"user-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder that another package is installed in."""
    return MEANARM


@pytest.fixture(scope="module")
def kind() -> Iterator[Kind]:
    """What the other package offers, as the catalogue finds it."""
    with offered(MEANARM, "meanarm") as found:
        yield found


class Played(NamedTuple):
    """A deployment, its log, and who drives it."""

    system: System
    log: MemoryLog
    driver: DirectDriver
    keys: KeySource

    def put(self, schema: str, user: str, event: str, **fields: Any) -> tuple[int, int]:
        """Append a record of a user's event; gives where."""
        partition = partition_of(user, request_partitions(self.system))
        record = {"event_id": event, "user": user, "config_digest": self.system.digest, **fields}
        return partition, self.log.append("asks", partition, codec.encode(schema, record))

    def click(self, user: str, event: str) -> None:
        """A user is shown an arm and clicks."""
        self.put("ArmAsk", user, event)
        self.put("ArmClick", user, event, reward=1)

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
    prepare(tmp_path / "shown", parse_config(VALUES))
    return tmp_path / "shown"


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
    """Two clicks of each user: windows close, and some slots wait."""
    made = _play(system, KeySource(seed=4))
    for user in USERS:
        made.click(user, f"{user}:0")
        made.click(user, f"{user}:1")
    made.driver.pump()
    return made


@pytest.fixture
def forget(played: Played) -> Any:
    """Erase a user."""
    return lambda user: asyncio.run(forget_async(played.client_log(), played.system, user, 5.0))
