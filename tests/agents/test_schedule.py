"""Cuts follow from the leading log alone, and nothing is folded before what comes before it in log time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.partition.schedule import FixedSchedule, LiveSchedule
from hushstream.engine.records import Awaited, InputRecord, InputSlice

LEAD, LEFT, RIGHT = ("lead", 0), ("left", 0), ("right", 0)
UNKNOWN = 1 << 62


def buffer(source: tuple[str, int], times: Sequence[int], start: int = 0) -> InputBuffer:
    made = InputBuffer(source, start, 1000, 1 << 20)
    made.sought()
    made.offer([InputRecord(start + i, time, b"v") for i, time in enumerate(times)])
    return made


def ranges(slices: Sequence[InputSlice]) -> list[tuple[str, int, int]]:
    return [(s.topic, s.low, s.high) for s in slices]


def live(buffers: Sequence[InputBuffer], records: int = 2, ends: Mapping[tuple[str, int], int] | None = None):
    known = ends or {}
    return LiveSchedule(buffers, (LEAD, RIGHT), lambda source: known.get(source, 0), records, 1 << 20)


def fold(schedule: LiveSchedule | FixedSchedule, buffers: Sequence[InputBuffer]) -> list[tuple[str, int, int]]:
    """Take the next batch as a machine does that is ready for all of it."""
    batch = schedule.next_batch()
    for part in batch:
        next(b for b in buffers if b.source == (part.topic, part.partition)).advance(part.high)
    if batch:
        schedule.folded()
    return ranges(batch)


# Live.


def test_live_takes_what_has_arrived() -> None:
    schedule = live([buffer(LEAD, [1, 2, 3]), buffer(RIGHT, [])])
    assert ranges(schedule.next_batch()) == [("lead", 0, 2)]


def test_live_takes_the_leading_log_only_as_far_as_a_log_of_which_more_waits() -> None:
    buffers = [buffer(LEAD, [3, 4, 7, 8]), buffer(RIGHT, [1, 2, 5, 5, 6])]
    schedule = live(buffers, 3)
    assert fold(schedule, buffers) == [("lead", 0, 2), ("right", 0, 3)]
    assert fold(schedule, buffers) == [("lead", 2, 4), ("right", 3, 5)]


def test_live_waits_for_what_it_knows_to_be_in_another_log_and_not_for_what_may_come() -> None:
    lead, right = buffer(LEAD, [3, 4]), buffer(RIGHT, [])
    assert ranges(live([lead, right], 9, {RIGHT: 1}).next_batch()) == []
    assert ranges(live([lead, right], 9, {RIGHT: UNKNOWN}).next_batch()) == []
    assert ranges(live([lead, right], 9, {RIGHT: 0}).next_batch()) == [("lead", 0, 2)]
    right.offer([InputRecord(0, 4, b"v")])
    assert ranges(live([lead, right], 9, {RIGHT: 2}).next_batch()) == [("lead", 0, 1), ("right", 0, 1)]


def test_live_does_not_wait_for_records_that_are_lost_at_the_end_of_another_log() -> None:
    """Clicks were deleted, an operator accepted that, and no click came: contexts waited for ever, as a click follows
    a decision."""
    lead, right = buffer(LEAD, [3, 4]), InputBuffer(RIGHT, 50, 1000, 1 << 20, begins=51)
    right.sought()
    assert ranges(live([lead, right], 9, {RIGHT: 51}).next_batch()) == [("lead", 0, 2)]
    assert ranges(live([lead, right], 9, {RIGHT: 52}).next_batch()) == [], "a record behind them is there"
    right.offer([InputRecord(51, 2, b"v")])
    assert ranges(live([lead, right], 9, {RIGHT: 52}).next_batch()) == [("lead", 0, 2), ("right", 50, 52)]


def test_live_takes_an_awaited_log_beyond_the_leading_one_as_far_as_the_record_that_it_waits_for() -> None:
    lead, left, right = buffer(LEAD, [1, 2, 2, 9]), buffer(LEFT, [3]), buffer(RIGHT, [3, 4, 4])
    schedule = live([lead, left, right], 3)
    assert ranges(schedule.next_batch()) == [("lead", 0, 3)]
    awaited = Awaited(0, RIGHT, 1, 99)
    assert schedule.held_back(awaited)
    assert ranges(schedule.next_batch()) == [("lead", 0, 3), ("right", 0, 2)]
    assert not schedule.held_back(awaited), "no more of it is wanted"
    schedule.folded()
    assert ranges(schedule.next_batch()) == [("lead", 0, 3)]


def test_live_takes_an_awaited_log_no_further_than_to_a_record_that_is_too_late() -> None:
    schedule = live([buffer(LEAD, [1, 2, 2, 9]), buffer(RIGHT, [3, 7, 8])], 3)
    schedule.next_batch()
    assert schedule.held_back(Awaited(0, RIGHT, 10**9, 6))
    assert ranges(schedule.next_batch())[1:] == [("right", 0, 2)]


def test_live_offers_nothing_more_to_what_waits_for_nothing_or_for_what_has_not_come() -> None:
    schedule = live([buffer(LEAD, [1, 9]), buffer(RIGHT, [3])], 9)
    schedule.next_batch()
    assert not schedule.held_back(None)
    whole = live([buffer(LEAD, [4]), buffer(RIGHT, [3])], 9)
    whole.next_batch()
    assert not whole.held_back(Awaited(0, RIGHT, 7, 99))


TIMES = st.lists(st.integers(0, 9), max_size=12)


@settings(max_examples=200, deadline=None)
@given(lead=TIMES, left=TIMES, right=TIMES, records=st.integers(1, 5))
def test_live_comes_to_the_end_and_never_takes_what_comes_after_something_left(lead, left, right, records) -> None:
    logs = {LEAD: lead, LEFT: left, RIGHT: right}
    keys = {source: _order_keys(source, times) for source, times in logs.items()}
    buffers = [buffer(source, times) for source, times in logs.items()]
    schedule = live(buffers, records)
    while batch := fold(schedule, buffers):
        taken = [keys[topic, 0][high - 1] for topic, _, high in batch]
        left_over = [keys[b.source][b.low] for b in buffers if len(b)]
        assert not left_over or max(taken) <= min(left_over)
    assert not any(len(b) for b in buffers)


def _order_keys(source: tuple[str, int], times: Sequence[int]) -> list[tuple[int, bool, tuple[str, int]]]:
    return [(max(times[: i + 1]), source == LEAD, source) for i in range(len(times))]


# Fixed.


def test_fixed_cuts_the_merge_by_log_time_after_the_same_number_of_leading_records() -> None:
    buffers = [buffer(LEAD, [1, 3, 5, 7]), buffer(RIGHT, [2, 4, 6, 8])]
    schedule = FixedSchedule(buffers, LEAD, 2)
    schedule.set_ends({LEAD: 4, RIGHT: 4})
    assert fold(schedule, buffers) == [("lead", 0, 2), ("right", 0, 1)]
    assert fold(schedule, buffers) == [("lead", 2, 4), ("right", 1, 3)]
    assert fold(schedule, buffers) == [("right", 3, 4)]


def test_one_record_more_or_less_of_another_log_moves_no_cut_of_the_leading_one() -> None:
    def cuts(times: Sequence[int]) -> list[tuple[int, int]]:
        buffers = [buffer(LEAD, range(10, 40)), buffer(RIGHT, times)]
        schedule = FixedSchedule(buffers, LEAD, 5)
        found = []
        while True:
            schedule.set_ends({LEAD: 30, RIGHT: len(times)})
            if not (batch := fold(schedule, buffers)):
                return found
            found += [(low, high) for topic, low, high in batch if topic == "lead"]

    times = [3, 11, 14, 14, 15, 20, 22, 39, 41]
    plain = cuts(times)
    assert len(plain) == 6
    for left_out in range(len(times)):
        assert cuts(times[:left_out] + times[left_out + 1 :]) == plain
    for added in range(45):
        assert cuts(sorted([*times, added])) == plain


def test_fixed_breaks_ties_by_topic_then_offset_and_takes_the_leading_log_last() -> None:
    buffers = [buffer(RIGHT, [1, 2]), buffer(LEFT, [1, 1]), buffer(LEAD, [1, 1])]
    schedule = FixedSchedule(buffers, LEAD, 1)
    schedule.set_ends({LEFT: 2, RIGHT: 2, LEAD: 2})
    assert sorted(fold(schedule, buffers)) == [("lead", 0, 1), ("left", 0, 2), ("right", 0, 1)]


def test_fixed_waits_for_a_log_that_has_more_to_give() -> None:
    schedule = FixedSchedule([buffer(LEAD, [1, 2, 3, 4]), buffer(RIGHT, [])], LEAD, 2)
    schedule.set_ends({LEAD: 4, RIGHT: 1})
    assert schedule.next_batch() == []


def test_fixed_makes_room_for_a_log_that_has_much_between_two_leading_records() -> None:
    lead, right = buffer(LEAD, [100, 200]), InputBuffer(RIGHT, 0, 4, 1)
    right.sought()
    schedule = FixedSchedule([lead, right], LEAD, 1)
    schedule.set_ends({LEAD: 2, RIGHT: 50})
    while not (batch := schedule.next_batch()):
        assert not right.full or right.next_offset == 50
        fresh = range(right.next_offset, min(right.next_offset + 3, 50))
        right.offer([InputRecord(i, i, b"v") for i in fresh])
    assert sorted(ranges(batch)) == [("lead", 0, 1), ("right", 0, 50)]


def test_fixed_cuts_a_short_batch_only_at_the_ends_and_then_looks_again() -> None:
    schedule = FixedSchedule([buffer(LEAD, [1]), buffer(RIGHT, [2])], LEAD, 5)
    assert schedule.wants_ends
    assert schedule.next_batch() == []
    schedule.set_ends({LEAD: 1, RIGHT: 1})
    assert ranges(schedule.next_batch()) == [("lead", 0, 1), ("right", 0, 1)]
    assert schedule.wants_ends


def test_fixed_gives_the_same_cuts_however_records_arrived() -> None:
    times_lead, times_right = [1, 4, 5, 9, 10, 12], [2, 3, 6, 7, 8, 11]

    def cuts(arrivals: Sequence[int]) -> list[list[tuple[str, int, int]]]:
        lead, right = buffer(LEAD, []), buffer(RIGHT, [])
        schedule = FixedSchedule([lead, right], LEAD, 2)
        found = []
        for step in arrivals:
            for made, times in ((lead, times_lead), (right, times_right)):
                fresh = range(made.next_offset, min(made.next_offset + step, len(times)))
                made.offer([InputRecord(i, times[i], b"v") for i in fresh])
            schedule.set_ends({LEAD: 6, RIGHT: 6})
            while batch := fold(schedule, [lead, right]):
                found.append(batch)
                schedule.set_ends({LEAD: 6, RIGHT: 6})
        return found

    assert cuts([6]) == cuts([1] * 6) == cuts([2, 1, 3])
    assert len(cuts([6])) == 3


def test_fixed_offers_more_when_the_machine_holds_everything_back() -> None:
    schedule = FixedSchedule([buffer(LEAD, range(10))], LEAD, 2)
    schedule.set_ends({LEAD: 10})
    assert ranges(schedule.next_batch()) == [("lead", 0, 2)]
    assert schedule.held_back(None)
    assert ranges(schedule.next_batch()) == [("lead", 0, 4)]
    schedule.folded()
    assert ranges(schedule.next_batch()) == [("lead", 0, 2)]
