"""What a client takes for an answer: only what continues the decisions journal, whoever else wrote into it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from hushstream.client import Client
from hushstream.client.decisions import DecisionReader
from hushstream.client.logs import journals
from hushstream.systems.p2b.machines.learner import LearnerMachine


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
    junk = [b"", b"junk", second[:-3], rigs.crowd_values(writer.rig.system, 1)[0]]
    assert read(DecisionReader(), [first, *junk, second, third, fourth, *junk]) == ["e0", "e1"]


async def test_a_client_reads_on_after_junk_in_the_decisions_log(log):
    async with Client(log) as client:
        log.tell(b"junk")
        task = asyncio.create_task(client.decide("e1", "ann", [0.7, 0.1, 0.1, 0.1], timeout=1, baseline=0))
        for _ in range(5):
            await asyncio.sleep(0)
        log.work()
        assert (await task).policy == "model"
