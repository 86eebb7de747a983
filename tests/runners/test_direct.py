"""The direct runner, and the memory that it takes."""

import asyncio
from collections import defaultdict

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Client
from hushstream.engine.records import InputRecord
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.system import declare

KEYS = KeySource(seed=3)
NONCE = bytes(32)


@pytest.fixture
def system(rigs):
    return rigs.make_system(public_dataset=True, partitions={"learner": 2, "shuffler": 2})


def driver_of(system, log, keys=KEYS):
    return DirectDriver(log, all_machines(declare(system), keys), NONCE)


async def live(rigs, client, users, first=0, last=3):
    async def one(user):
        for number in range(first, last):
            decision = await client.decide(f"{user}:{number}", user, rigs.point(number), timeout=5)
            await client.reward(decision.event_id, user, decision.arm, float(decision.arm % 2))

    await asyncio.gather(*(one(user) for user in users))


async def play(rigs, system, log, users, phase_end=True, **rounds):
    driver = driver_of(system, log)
    async with Client(DirectEventLog(log, driver, 2)) as client:
        await live(rigs, client, users, **rounds)
        if phase_end:
            await client.end_phase(0)
    return driver


USERS = [f"user-{number}" for number in range(12)]


def values(log):
    return {source: [record.value for record in records] for source, records in log.partitions() if records}


def copy_of(log, only=None):
    copied = MemoryLog()
    for (topic, partition), records in log.partitions():
        if only is None or topic in only:
            copied.load(topic, partition, list(records))
    return copied


async def test_the_same_conversation_gives_the_same_bytes_in_every_topic(rigs, system):
    logs = [MemoryLog(), MemoryLog()]
    for log in logs:
        await play(rigs, system, log, USERS)
    assert values(logs[0]) == values(logs[1])
    assert {topic for topic, _ in values(logs[0])} == {
        "contexts", "clicks", "decisions", "reports", "journal-shuffler", "window-sums", "ledger",
        "models",
    }  # fmt: skip


async def test_a_driver_on_an_existing_log_resumes_and_writes_nothing_again(rigs, system):
    log = MemoryLog()
    await play(rigs, system, log, USERS)
    before = values(log)
    driver_of(system, log).pump()
    assert values(log) == before


async def test_a_conversation_cut_in_two_by_a_restart_ends_as_if_it_had_not_been(rigs, system):
    straight, cut = MemoryLog(), MemoryLog()
    await play(rigs, system, straight, USERS)
    for first, last, phase_end in ((0, 1, False), (1, 2, False), (2, 3, True)):
        await play(rigs, system, cut, USERS, phase_end, first=first, last=last)
    assert decided(cut) == decided(straight)
    for topic in ("reports", "window-sums"):
        assert contents(cut, topic) == contents(straight, topic)


def decided(log):
    answers = {}
    for (topic, _), records in log.partitions():
        for record in records if topic == "decisions" else ():
            name, fields = codec.decode(record.value)
            if name == "Decisions":
                arms = memoryview(fields["arms"]).cast("i").tolist()
                answers.update(zip(fields["event_ids"], arms, strict=True))
    return answers


def contents(log, topic):
    found = defaultdict(list)
    for (name, partition), records in log.partitions():
        if name == topic:
            found[partition] = sorted(record.value for record in records)
    return found


async def test_the_inputs_alone_give_every_output_again(rigs, system):
    log = MemoryLog()
    await play(rigs, system, log, USERS)
    again = copy_of(log, {"contexts", "clicks"})
    driver_of(system, again).pump()
    assert decided(again) == decided(log)
    assert contents(again, "window-sums") == contents(log, "window-sums")


async def test_no_release_stands_in_the_log_before_its_journal_record(rigs, system):
    class Watched(MemoryLog):
        def __init__(self):
            super().__init__()
            self.order = []

        def append(self, topic, partition, value):
            self.order.append(topic)
            return super().append(topic, partition, value)

    log = Watched()
    await play(rigs, system, log, USERS)
    windows = sums = 0
    for topic in log.order:
        windows += topic == "journal-shuffler"
        sums += topic == "window-sums"
        assert sums <= windows
    assert sums > 0


async def test_a_machines_fault_reaches_the_caller(rigs, system):
    log = MemoryLog()
    driver = driver_of(system, log)
    foreign = rigs.AggregatorRig(rigs.make_system(deployment="other")).genesis
    log.load("models", 0, [])
    log.append("models", 0, foreign)
    async with Client(DirectEventLog(log, driver, 2)) as client:
        with pytest.raises(HushstreamError, match="expected deployment"):
            await client.decide("e1", "ann", rigs.point(0), timeout=1)
        log.load("models", 0, [])


def test_offsets_count_from_zero_in_each_partition_and_log_time_never_goes_back():
    log = MemoryLog()
    assert [log.append("a", 0, b"1"), log.append("a", 1, b"2"), log.append("a", 0, b"3")] == [0, 0, 1]
    assert [record.offset for record in log.slice("a", 0, 0).records] == [0, 1]
    times = [record.timestamp_ms for _, records in log.partitions() for record in records]
    assert sorted(times) == [1, 2, 3]
    assert (log.end("a", 0), log.end("a", 1), log.end("b", 0)) == (2, 1, 0)


def test_log_time_may_come_from_a_clock():
    log = MemoryLog(iter([5, 9]).__next__)
    log.append("a", 0, b"")
    log.append("a", 0, b"")
    assert [record.timestamp_ms for record in log.slice("a", 0, 0).records] == [5, 9]


def test_a_slice_says_where_it_begins_and_ends():
    log = MemoryLog()
    for number in range(5):
        log.append("a", 0, bytes([number]))
    part = log.slice("a", 0, 1, 3)
    assert (part.low, part.high, [record.value for record in part.records]) == (1, 3, [b"\1", b"\2"])
    assert log.slice("a", 0, 5).records == []
    assert log.slice("b", 3, 0).high == 0


def test_an_exported_partition_is_taken_as_it_is():
    log = MemoryLog()
    records = [InputRecord(0, 70, b"x"), InputRecord(1, 80, b"y")]
    log.load("a", 0, records)
    assert log.append("a", 0, b"z") == 2
    assert log.slice("a", 0, 0, 2).records == records
    assert log.slice("a", 0, 2).records[0].timestamp_ms > 80
    assert len(records) == 2
