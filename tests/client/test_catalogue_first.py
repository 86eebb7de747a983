"""A learner that has not read the catalogue yet refuses nobody whom it would answer a moment later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Client, Item, RequestRefused
from hushstream.engine.catalogue import ITEMS
from hushstream.engine.declare.conversation import conversation_of
from hushstream.engine.declare.declaration import request_partitions
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog

X = {"country": "de"}


class Behind(MemoryLog):
    """What machines see of a log: of the catalogue's changes only so many.

    Attributes:
        shown: how many.
    """

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self._log, self.shown = log, 0

    def end(self, topic: str, partition: int) -> int:
        return min(self.shown, self._log.end(topic, partition)) if topic == ITEMS else self._log.end(topic, partition)

    def slice(self, topic: str, partition: int, low: int, high: int | None = None) -> Any:
        top = self.end(topic, partition) if high is None else high
        return self._log.slice(topic, partition, low, top)

    def append(self, topic: str, partition: int, value: bytes) -> int:
        return self._log.append(topic, partition, value)


class Place:
    """A deployment with named items whose learner reads the catalogue when it is told to."""

    def __init__(self, folder: Path) -> None:
        config = {
            "system": "p2b",
            "deployment": "behind",
            "items": {"named": True, "capacity": 3},
            "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
            "release": {"form": "features", "window_units": 100},
            "expected_slots": 100,
        }
        self.system = prepare(folder, parse_config(config))
        self.log = MemoryLog()
        self.behind = Behind(self.log)
        self.driver = DirectDriver(self.behind, all_machines(self.system, KeySource(seed=1)), bytes(32))

    def client(self) -> Client:
        answers = conversation_of(self.system, "").answers
        log = DirectEventLog(self.log, self.driver, request_partitions(self.system), answers)
        return Client(log, rules=self.system.requests)

    def asked(self) -> int:
        return sum(self.log.end("contexts", partition) for partition in range(request_partitions(self.system)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "behind")


async def test_who_asks_before_the_learner_has_read_the_catalogue_is_answered_when_it_has(place: Place) -> None:
    async with place.client() as client:
        await client.items.add_all([Item("hat"), Item("scarf")])
        await client.items.refresh()
        waiting = asyncio.create_task(client.decide("e1", "ann", X, timeout=None))
        for _ in range(20):
            await asyncio.sleep(0)
        # It was refused and is not asked again before the learner has read on.
        assert place.asked() == 1
        assert not waiting.done()
        place.behind.shown = 2
        # Any question lets the machines fold in this runner.
        found = await client.decide("e2", "ben", X, timeout=None)
        assert found.item in ("hat", "scarf")
        first = await asyncio.wait_for(waiting, 60)
        assert first.item in ("hat", "scarf")
        assert place.asked() == 3


async def test_an_item_can_be_asked_for_as_soon_as_it_is_added(place: Place) -> None:
    async with place.client() as client:
        place.behind.shown = 1
        await client.items.add("hat")
        assert (await client.decide("e1", "ann", X, timeout=None)).item == "hat"
        await client.items.add("scarf")
        waiting = asyncio.create_task(client.decide("e2", "ann", X, ["scarf"], timeout=None))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        place.behind.shown = 2
        await client.decide("e3", "ben", X, timeout=None)
        assert (await asyncio.wait_for(waiting, 60)).item == "scarf"


async def test_what_a_learner_refuses_that_has_read_everything_is_refused_at_once(place: Place) -> None:
    place.behind.shown = 9
    async with place.client() as client:
        await client.items.add("hat")
        await client.items.add("scarf")
        await client.decide("e1", "ann", X, timeout=None)
        await client.items.retire("scarf")
        await client.decide("e2", "ann", X, timeout=None)
        asked = place.asked()
        with pytest.raises(RequestRefused, match="dead-letters list edge"):
            await asyncio.wait_for(client.decide("e3", "ann", X, ["scarf"], timeout=None), 60)
        assert place.asked() == asked + 1
