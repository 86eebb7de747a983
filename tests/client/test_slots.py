"""Clients whose agents send slots: when, how many; what waits for a click, and how requests are gathered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Client
from hushstream.client import decisions as journals
from hushstream.client.decisions import DecisionReader
from hushstream.client.logs import Linger, Wait
from hushstream.client.ratings import RatingClient
from hushstream.client.waiting import Awaited
from hushstream.engine.declare.requests import RequestRefused
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, ScaleConfig
from hushstream.systems.p2b.machines.learner import LearnerMachine

ITEMS = 24
APPLICATIONS = Path(__file__).parents[2] / "deploy" / "docs" / "reference" / "applications.md"


def configuration(**release: Any) -> BgtConfig:
    plain = {"epsilon": 10.0, "pairs": 8, "top": 10, "factors": 2, **release}
    return BgtConfig("films", ITEMS, 0, ScaleConfig(0.5, 5.0), ReleaseConfig(**plain))


class Deployed:
    """A deployment in memory."""

    def __init__(self, folder: Path, **release: Any) -> None:
        self.system = prepare(folder, configuration(**release))
        self.log = MemoryLog()
        driver = DirectDriver(self.log, all_machines(self.system, KeySource(seed=1)), bytes(32))
        self.events = DirectEventLog(self.log, driver, 1, "predictions")


def test_a_question_that_the_rater_refuses_is_answered_at_once_and_not_by_a_timeout(tmp_path):
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


class Writer:
    """A learner's rig whose journal can be split: a stale owner goes on from the same state with other cuts."""

    def __init__(self, rigs):
        self.rigs = rigs
        self.rig = rigs.LearnerRig()
        self.names = (f"e{number}" for number in count())

    def records(self, number):
        """So many records of one decision each."""
        for _ in range(number):
            self.rig.context(next(self.names))
            self.rig.fold()
        return self.rig.journal[-number:]

    def stale(self, folds, with_click=False):
        """What an owner that has lost the partition here would still write, folding its own way."""
        twin = self.rigs.LearnerRig()
        twin.machine = LearnerMachine(self.rig.system, 0, self.rig.key)
        twin.machine.start(self.rig.genesis)
        twin.machine.restore(self.rig.machine.snapshot())
        twin.logs = {source: list(log) for source, log in self.rig.logs.items()}
        if with_click:
            twin.shown("nobody's", 0)
        for rows in folds:
            for number in range(rows):
                twin.context(f"stale-{len(twin.journal)}-{number}")
            twin.fold()
        return twin.journal


@pytest.fixture
def writer(rigs):
    return Writer(rigs)


def read(reader, values, start=0):
    counted = (found for offset, value in enumerate(values, start) for found in reader.read(offset, value))
    return [answer.event_id for _, answers in counted for answer in answers]


def test_the_answers_of_a_journal_come_in_its_order(writer):
    values = [writer.rig.genesis, *writer.records(4)]
    assert read(DecisionReader(), values) == ["e0", "e1", "e2", "e3"]


def test_a_record_sent_twice_answers_once(writer):
    first, second = writer.records(2)
    assert read(DecisionReader(), [first, first, second, first, second]) == ["e0", "e1"]


@pytest.mark.parametrize("with_click", [False, True])
def test_what_a_stale_owner_writes_is_never_an_answer(writer, with_click):
    head = writer.records(2)
    stale = writer.stale([2, 1, 1, 1], with_click)
    true = writer.records(3)
    for placing in range(4):
        mixed = [*head, true[0], *stale[:placing], *true[1:], *stale[placing:]]
        assert read(DecisionReader(), mixed) == ["e0", "e1", "e2", "e3", "e4"], placing


def test_a_stale_owner_that_ran_ahead_does_not_move_the_reader(writer):
    """Its later numbers look like a gap; only a hole in the offsets is one."""
    head = writer.records(2)
    stale = writer.stale([2, 1, 1, 1, 1, 1])
    true = writer.records(4)
    assert read(DecisionReader(), [*head, true[0], *stale, *true[1:]])[-3:] == ["e3", "e4", "e5"]


def test_a_stale_record_that_skipped_an_input_is_seen_by_the_lows_of_all_inputs(writer):
    """Every record names the place of every input, also where it read nothing: clicks here."""
    head = writer.records(1)
    stale = writer.stale([1, 1])
    writer.rig.shown("nobody's", 0)
    true = writer.records(2)
    assert read(DecisionReader(), [*head, true[0], stale[1], true[1]]) == ["e0", "e1", "e2"]


def test_a_hole_that_retention_left_is_stepped_over(writer):
    values = writer.records(6)
    reader = DecisionReader()
    assert read(reader, values[:2], 0) == ["e0", "e1"]
    assert read(reader, values[4:], 4) == ["e4", "e5"]


def test_a_reader_that_starts_in_the_middle_takes_its_place_there(writer):
    assert read(DecisionReader(), writer.records(6)[3:], 77) == ["e3", "e4", "e5"]


def test_a_reader_that_began_on_a_stale_record_finds_the_chain_by_its_length(writer, monkeypatch):
    monkeypatch.setattr(journals, "STALE_RECORDS", 4)
    writer.records(2)
    stale = writer.stale([2, 1, 1])
    true = writer.records(8)
    found = read(DecisionReader(), [stale[0], true[0], stale[1], stale[2], *true[1:]])
    assert found[-8:] == [f"e{number}" for number in range(2, 10)], "those that told the chain answer, too"


def test_records_that_are_no_decisions_are_passed_over(writer, rigs):
    first, second = writer.records(2)
    (_, fields) = rigs.codec.decode(second)
    third = rigs.changed(second, head={**fields["head"], "sequence": 3, "inputs": []}, arms=b"\0" * 7)
    fourth = rigs.changed(second, head={**fields["head"], "sequence": 4, "inputs": []}, policies=b"\x09")
    junk = [b"", b"junk", second[:-3], rigs.window_sums_values(writer.rig.system, 1)[0]]
    assert read(DecisionReader(), [first, *junk, second, third, fourth, *junk]) == ["e0", "e1"]


async def test_a_client_reads_on_after_junk_in_the_decisions_log(log):
    async with Client(log) as client:
        log.tell(b"junk")
        task = asyncio.create_task(client.decide("e1", "ann", [0.7, 0.1, 0.1, 0.1], timeout=1, baseline=0))
        for _ in range(5):
            await asyncio.sleep(0)
        log.work()
        assert (await task).policy == "model"


class _Log:
    """Takes up to three values at a time, when the test lets it."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.values: list[bytes] = []
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self.refusal: Exception | None = None

    async def send(self, values: Sequence[bytes]) -> tuple[int, int]:
        taken = list(values[:3])
        self.batches.append(taken)
        self.asked.set()
        await self.free.wait()
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        base = len(self.values)
        self.values += taken
        return len(taken), base


async def test_what_comes_while_a_batch_is_under_way_makes_the_next_and_each_has_its_own_offset():
    log = _Log()
    linger = Linger(log.send, 0.0)
    first = linger.append(b"0")
    await log.asked.wait()
    others = [linger.append(b"%d" % number) for number in range(1, 6)]
    await asyncio.sleep(0)
    assert log.batches == [[b"0"]]
    log.free.set()
    offsets = await asyncio.wait_for(asyncio.gather(first, *others), 60)
    assert log.batches == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5"]]
    assert [log.values[offset] for offset in offsets] == [b"%d" % number for number in range(6)]


async def test_what_is_refused_is_told_to_its_batch_alone_and_what_is_cancelled_to_nobody():
    log = _Log()
    linger = Linger(log.send, 0.0)
    refused = [linger.append(b"0"), linger.append(b"1")]
    await log.asked.wait()
    log.refusal = HushstreamError("the log is full")
    gone, later = linger.append(b"2"), linger.append(b"3")
    gone.cancel()
    log.free.set()
    for one in refused:
        with pytest.raises(HushstreamError, match="full"):
            await one
    assert await later == 1
    assert log.values == [b"2", b"3"]
    await linger.flush()


async def test_a_record_waits_for_others_as_long_as_was_said():
    log = _Log()
    log.free.set()
    linger = Linger(log.send, 3600.0)
    waiting = [linger.append(b"0"), linger.append(b"1")]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not log.batches
    assert not any(one.done() for one in waiting)


def test_records_wait_twice_as_long_while_many_come():
    wait, now = Wait(0.005), 1000.0
    for records, expected in ((2, 0.005), (8, 0.01), (2, 0.005)):
        for _ in range(50):
            now += 0.005
            wait.sent(records, now)
        assert wait.seconds == expected


async def test_who_goes_away_takes_the_answer_from_nobody():
    answer: Awaited[int] = Awaited()
    with pytest.raises(TimeoutError):
        answer.result()
    patient = [asyncio.create_task(answer.within(None)) for _ in range(2)]
    gone = asyncio.create_task(answer.within(None))
    with pytest.raises(TimeoutError):
        await answer.within(0.01)
    gone.cancel()
    answer.give(7)  # Before the one who goes away has noticed.
    await asyncio.wait((gone,))
    answer.fail(HushstreamError("too late"))
    assert gone.cancelled()
    assert [await one for one in patient] == [7, 7]
    assert answer.result() == await answer.within(0.0) == 7


async def test_what_fails_is_told_to_all_who_wait():
    answer: Awaited[int] = Awaited()
    waiting = [asyncio.create_task(answer.within(None)) for _ in range(2)]
    await asyncio.sleep(0)
    answer.fail(HushstreamError("refused"))
    for one in waiting:
        with pytest.raises(HushstreamError, match="refused"):
            await one
