from __future__ import annotations

import asyncio

from hushstream.agents.kafka.intake import InputBuffer, Intake
from hushstream.engine.records import InputRecord, InputSlice
from patience import patience

SOURCE = ("events", 0)


def records(*offsets: int, size: int = 1) -> list[InputRecord]:
    return [InputRecord(offset, 1000 + offset, b"x" * size) for offset in offsets]


def buffer(position: int = 0, limit_records: int = 100, limit_bytes: int = 10_000) -> InputBuffer:
    made = InputBuffer(SOURCE, position, limit_records, limit_bytes)
    made.sought()
    return made


def test_records_come_out_as_one_slice_from_the_position_on() -> None:
    made = buffer(5)
    assert made.offer(records(5, 6, 7))
    assert made.slice(10, 10_000) == InputSlice("events", 0, 5, 8, tuple(records(5, 6, 7)))


def test_records_seen_before_are_dropped() -> None:
    made = buffer(5)
    assert made.offer(records(3, 4, 5, 6))
    assert made.offer(records(5, 6))
    assert [r.offset for r in made.peek()] == [5, 6]


def test_the_rest_of_an_older_fetch_asks_for_a_seek_and_loses_nothing() -> None:
    made = buffer(5)
    assert not made.offer(records(9, 10))
    assert made.wants_seek
    assert made.offer(records(11)), "until the seek is done everything is ignored"
    made.sought()
    assert made.offer(records(5, 6, 7, 8, 9))
    assert [r.offset for r in made.peek()] == [5, 6, 7, 8, 9]


def test_a_hole_that_is_seen_again_after_the_seek_is_real() -> None:
    made = buffer(5)
    assert not made.offer(records(9, 10))
    made.sought()
    assert made.offer(records(9, 10))
    assert made.slice(10, 10_000) == InputSlice("events", 0, 5, 11, tuple(records(9, 10)))


def test_nothing_is_taken_before_the_first_seek() -> None:
    made = InputBuffer(SOURCE, 0, 10, 100)
    assert made.offer(records(0, 1))
    assert len(made) == 0


def test_slices_are_cut_by_records_and_by_bytes_but_never_empty() -> None:
    made = buffer()
    made.offer(records(0, 1, 2, 3, size=100))
    by_count = made.slice(2, 10_000)
    by_bytes = made.slice(10, 250)
    one = made.slice(10, 5)
    assert by_count is not None
    assert by_bytes is not None
    assert one is not None
    assert (by_count.high, by_bytes.high, one.high) == (2, 2, 1)


def test_a_full_buffer_pauses_its_source_and_only_that() -> None:
    intake = Intake()
    full, empty = buffer(limit_records=2), buffer()
    intake.attach({("p.full", 0): full, ("p.empty", 0): empty})
    full.offer(records(0, 1))
    assert intake.open_sources() == {("p.empty", 0)}
    full.advance(2)
    assert intake.open_sources() == {("p.full", 0), ("p.empty", 0)}


def test_bytes_are_bounded_too() -> None:
    made = buffer(limit_bytes=250)
    made.offer(records(0, 1, 2, size=100))
    assert made.full
    made.advance(1)
    assert not made.full


def test_folded_records_are_forgotten() -> None:
    made = buffer()
    made.offer(records(0, 1, 2))
    made.advance(2)
    assert made.low == 2
    assert [r.offset for r in made.peek()] == [2]
    made.advance(1)
    assert made.low == 2


def test_a_rebalance_starts_a_new_epoch_so_that_older_fetches_are_not_delivered() -> None:
    intake = Intake()
    intake.attach({("p", 0): buffer()})
    before = intake.epoch
    intake.detach([("p", 0)])
    assert intake.epoch > before
    assert intake.get(("p", 0)) is None


async def test_a_waiting_fetcher_is_woken_by_capacity() -> None:
    intake = Intake()
    waiting = asyncio.create_task(intake.wait_for_capacity(30))
    await asyncio.sleep(0)
    intake.notify_capacity()
    await asyncio.wait_for(waiting, patience(1))
