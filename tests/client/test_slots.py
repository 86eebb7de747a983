"""Slots that devices made reach the collector, what was published reaches devices, and a refused question ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.client.ratings import RatingClient
from hushstream.client.slots import RoundOver, SlotClient
from hushstream.engine.declare.requests import RequestRefused
from hushstream.engine.records import InputRecord
from hushstream.privacy.keys import Key
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.runners.stream import StreamPlace, StreamSession
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, ScaleConfig
from hushstream.systems.bgt.edge.agent import RatingAgent, Sent
from hushstream.systems.bgt.errors import BadSlots, BgtError
from hushstream.systems.bgt.rounds import first_round
from hushstream.systems.bgt.slots import null_slots, slot_bytes

ITEMS = 24
APPLICATIONS = Path(__file__).parents[2] / "deploy" / "docs" / "reference" / "applications.md"


def configuration(**release: Any) -> BgtConfig:
    plain = {"epsilon": 10.0, "pairs": 8, "top": 10, "factors": 2, **release}
    return BgtConfig("films", ITEMS, 0, ScaleConfig(0.5, 5.0), ReleaseConfig(**plain))


class PublishedLog:
    """A `SlotLog` over a log in memory and the machines that work on it."""

    def __init__(self, events: DirectEventLog, log: MemoryLog) -> None:
        self._events, self.log = events, log
        self._on_record: Callable[[str, InputRecord], None] | None = None
        self._told = {"models": 0, "rounds": 0}

    async def start(self, on_record: Callable[[str, InputRecord], None]) -> None:
        self._on_record = on_record
        self.tell()

    def tell(self) -> None:
        """Deliver what was published since."""
        assert self._on_record is not None
        for topic, told in self._told.items():
            for record in self.log.slice(topic, 0, told).records:
                self._on_record(topic, record)
            self._told[topic] = self.log.end(topic, 0)

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        return await self._events.append(topic, partition, value)

    async def stop(self) -> None:
        self.stopped = True


class Deployed:
    """A deployment in memory, and a way in for devices."""

    def __init__(self, folder: Path, **release: Any) -> None:
        self.system = prepare(folder, configuration(**release))
        self.log = MemoryLog()
        driver = DirectDriver(self.log, all_machines(self.system, KeySource(seed=1)), bytes(32))
        self.events = DirectEventLog(self.log, driver, 1, "predictions")
        self.published = PublishedLog(self.events, self.log)

    def client(self) -> SlotClient:
        return SlotClient(self.published, self.system.core)

    def written(self, topic: str, schema: str) -> list[dict[str, Any]]:
        found = [codec.decode(record.value) for record in self.log.slice(topic, 0, 0).records]
        return [fields for name, fields in found if name == schema]


def agents(slots: SlotClient, count: int) -> list[RatingAgent]:
    draw = np.random.default_rng(5)
    found = []
    for number in range(count):
        key = Key(number.to_bytes(32, "big"))
        agent = RatingAgent(slots.config, key, lambda done: None, 0, slots.features, slots.digest)
        agent.rate(draw.permutation(ITEMS)[:6].tolist(), draw.choice([1.0, 3.0, 5.0], 6).tolist())
        found.append(agent)
    return found


def test_devices_answer_three_rounds_beside_raters_and_predict_with_the_published_model(tmp_path: Path) -> None:
    deployed = Deployed(tmp_path)

    async def run() -> tuple[list[RatingAgent], SlotClient]:
        async with RatingClient(deployed.events, deployed.system.config) as raters, deployed.client() as slots:
            await raters.rate("ann", [1, 2], [5.0, 1.0])
            devices = agents(slots, 12)
            rounds = slots.rounds()
            for number in range(3):
                asked = await anext(rounds)
                assert asked.number == number
                for device in devices:
                    await slots.send_slot(device.answer(asked, slots.digest))
                await raters.end_round(number)
                deployed.published.tell()
            with pytest.raises(StopAsyncIteration):
                await anext(rounds)
            return devices, slots

    devices, slots = asyncio.run(run())
    released = deployed.written("releases", "RatingSums")
    assert [(one["round"], one["slots"]) for one in released] == [(0, 13), (1, 13), (2, 13)]
    assert not deployed.log.end("dead-letters-shuffler", 0), "devices and raters open the same rounds"
    contents = [one["content"] for one in deployed.written("updates", "RatingSlot")]
    assert {len(one) for one in contents} == {slot_bytes(slots.config)}
    predicted = devices[0].predict(range(ITEMS), slots.model)
    assert slots.model.biases.any()
    assert ((predicted >= 0.5) & (predicted <= 5.0)).all()


def test_what_the_collector_would_not_take_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    deployed = Deployed(tmp_path)

    async def run() -> None:
        async with RatingClient(deployed.events, deployed.system.config) as raters, deployed.client() as slots:
            (device,) = agents(slots, 1)
            good = device.answer(first_round(slots.config), slots.digest)
            for changed, error in (
                ({"digest": bytes(16)}, BgtError),
                ({"round": 1}, RoundOver),
                ({"slot": null_slots(2, slots.config)}, BadSlots),
                ({"slot": null_slots(1, configuration(pairs=9))}, BadSlots),
                ({"slot": heavier(slots.config)}, BadSlots),
            ):
                fields = {
                    name: changed.get(name, getattr(good, name)) for name in ("slot_id", "round", "digest", "slot")
                }
                with pytest.raises(error, match="expected"):
                    await slots.send_slot(Sent(**fields))
            assert not deployed.log.end("updates", 0)
            await slots.send_slot(good)
            await slots.send_slot(good)
            await raters.end_round(0)
            deployed.published.tell()
            with pytest.raises(RoundOver, match="got round 0; it was not sent"):
                await slots.send_slot(good)

    asyncio.run(run())
    assert [one["slots"] for one in deployed.written("releases", "RatingSums")] == [1], "an id counts once"


def heavier(config: BgtConfig) -> Any:
    """One unit longer than the clip."""
    slot = null_slots(1, config)
    slot.items[0, 0], slot.values[0, 0] = 3, (1 << 20) + 1
    return slot


def test_what_another_deployment_published_is_refused_and_a_late_device_joins_the_open_round(tmp_path: Path) -> None:
    deployed, others = Deployed(tmp_path / "ours"), Deployed(tmp_path / "theirs", epsilon=5.0)

    async def run() -> int:
        async with RatingClient(deployed.events, deployed.system.config) as raters:
            await raters.rate("ann", [1, 2], [5.0, 1.0])
            await raters.end_round(0)
        async with deployed.client() as slots:
            joined = (await anext(slots.rounds())).number
        with pytest.raises(HushstreamError, match="expected config_digest"):
            async with SlotClient(PublishedLog(deployed.events, deployed.log), others.system.core):
                pass
        return joined

    assert asyncio.run(run()) == 1


def test_a_question_that_the_rater_refuses_is_answered_at_once_and_not_by_a_timeout(tmp_path: Path) -> None:
    deployed = Deployed(tmp_path)

    async def run() -> list[float]:
        async with RatingClient(deployed.events, deployed.system.config) as raters:
            await raters.rate("ann", [1], [5.0])
            first = await raters.predict("visit", "ann", [2])
            with pytest.raises(RequestRefused, match="dead-letters list edge"):
                await raters.predict("visit", "bob", [2], timeout=None)
            again = await raters.predict("visit", "ann", [2])
        return [float(one.values[0]) for one in (first, again)]

    first, again = asyncio.run(run())
    assert first == again


async def sent(reader: LogReader, topic: str, schema: str) -> list[dict[str, Any]]:
    source = (topic, 0)
    reader.open({source: 0})
    held = await reader.read(source, 0, (await reader.end_offsets([source]))[source])
    return [fields for name, fields in (codec.decode(record.value) for record in held) if name == schema]


@pytest.mark.process
@pytest.mark.slow
def test_the_readmes_device_takes_part_in_a_deployment_on_a_broker(tmp_path: Path, capsys: Any) -> None:
    shown = re.search(
        r"```python\n([^`]*?connect_slots.*?)\nasyncio\.run", APPLICATIONS.read_text(encoding="utf-8"), re.DOTALL
    )
    assert shown is not None
    system = prepare(tmp_path / "films", configuration(), public_dataset="tests")  # the keys are seeded

    async def run() -> Any:
        async with StreamSession(system, StreamPlace(tmp_path / "films", None, seed=1)) as session:
            code = (
                shown[1].replace("127.0.0.1:9092", session.bootstrap).replace('"films"', repr(str(tmp_path / "films")))
            )
            own: dict[str, Any] = {"__name__": "device"}
            exec(compile(code, "applications.md", "exec"), own)
            (tmp_path / "device").mkdir()
            device = asyncio.create_task(own["take_part"](tmp_path / "device"))
            settings = session.connection().settings()
            async with RatingClient(session.event_log(), system.config) as raters, LogReader(settings) as reader:
                for number in range(3):
                    while len(await sent(reader, "updates", "RatingSlot")) <= number:
                        assert not device.done()
                        await asyncio.sleep(0.05)
                    await raters.end_round(number)
                await device
                return await sent(reader, "releases", "RatingSums")

    assert [fields["slots"] for fields in asyncio.run(run())] == [1, 1, 1]
    assert (tmp_path / "device" / "answered").read_text(encoding="utf-8") == "3"
    assert re.fullmatch(r"\[\d[\d.]* +\d[\d.]* *\]\n", capsys.readouterr().out)
