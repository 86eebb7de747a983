from __future__ import annotations

from collections.abc import Sequence

from hushstream.agents.intake import InputBuffer
from hushstream.agents.schedule import FixedSchedule, LiveSchedule
from hushstream.roles.machine import InputRecord, InputSlice

LEFT, RIGHT = ("left", 0), ("right", 0)


def buffer(source: tuple[str, int], times: Sequence[int], start: int = 0) -> InputBuffer:
    made = InputBuffer(source, start, 1000, 1 << 20)
    made.sought()
    made.offer([InputRecord(start + i, time, b"v") for i, time in enumerate(times)])
    return made


def ranges(slices: Sequence[InputSlice]) -> list[tuple[str, int, int]]:
    return [(s.topic, s.low, s.high) for s in slices]


def test_live_takes_what_has_arrived() -> None:
    schedule = LiveSchedule([buffer(LEFT, [1, 2, 3]), buffer(RIGHT, [])], 2, 1 << 20)
    assert ranges(schedule.next_batch()) == [("left", 0, 2)]


def test_fixed_cuts_the_merge_by_log_time_after_the_same_number_of_records() -> None:
    left, right = buffer(LEFT, [1, 3, 5, 7]), buffer(RIGHT, [2, 4, 6, 8])
    schedule = FixedSchedule([left, right], 3)
    schedule.set_ends({LEFT: 4, RIGHT: 4})
    assert ranges(schedule.next_batch()) == [("left", 0, 2), ("right", 0, 1)]
    left.advance(2)
    right.advance(1)
    assert ranges(schedule.next_batch()) == [("left", 2, 3), ("right", 1, 3)]


def test_fixed_breaks_ties_by_topic_then_offset() -> None:
    schedule = FixedSchedule([buffer(RIGHT, [1, 1]), buffer(LEFT, [1, 1])], 3)
    schedule.set_ends({LEFT: 2, RIGHT: 2})
    assert sorted(ranges(schedule.next_batch())) == [("left", 0, 2), ("right", 0, 1)]


def test_fixed_waits_for_a_log_that_has_more_to_give() -> None:
    schedule = FixedSchedule([buffer(LEFT, [1, 2, 3, 4]), buffer(RIGHT, [])], 2)
    schedule.set_ends({LEFT: 4, RIGHT: 1})
    assert schedule.next_batch() == []


def test_fixed_cuts_a_short_batch_only_at_the_ends_and_then_looks_again() -> None:
    schedule = FixedSchedule([buffer(LEFT, [1]), buffer(RIGHT, [2])], 5)
    assert schedule.wants_ends
    assert schedule.next_batch() == []
    schedule.set_ends({LEFT: 1, RIGHT: 1})
    assert ranges(schedule.next_batch()) == [("left", 0, 1), ("right", 0, 1)]
    assert schedule.wants_ends


def test_fixed_gives_the_same_cuts_however_records_arrived() -> None:
    times_left, times_right = [1, 4, 5, 9, 10, 12], [2, 3, 6, 7, 8, 11]

    def cuts(arrivals: Sequence[int]) -> list[list[tuple[str, int, int]]]:
        left, right = buffer(LEFT, []), buffer(RIGHT, [])
        schedule = FixedSchedule([left, right], 4)
        found = []
        for step in arrivals:
            for made, times in ((left, times_left), (right, times_right)):
                fresh = range(made.next_offset, min(made.next_offset + step, len(times)))
                made.offer([InputRecord(i, times[i], b"v") for i in fresh])
            schedule.set_ends({LEFT: 6, RIGHT: 6})
            while batch := schedule.next_batch():
                found.append(ranges(batch))
                left.advance(max([s.high for s in batch if s.topic == "left"], default=0))
                right.advance(max([s.high for s in batch if s.topic == "right"], default=0))
                schedule.set_ends({LEFT: 6, RIGHT: 6})
        return found

    assert cuts([6]) == cuts([1] * 6) == cuts([2, 1, 3])
    assert len(cuts([6])) == 3


def test_fixed_offers_more_when_the_machine_holds_everything_back() -> None:
    schedule = FixedSchedule([buffer(LEFT, range(10))], 2)
    schedule.set_ends({LEFT: 10})
    assert ranges(schedule.next_batch()) == [("left", 0, 2)]
    assert schedule.held_back()
    assert ranges(schedule.next_batch()) == [("left", 0, 4)]
    schedule.folded()
    assert ranges(schedule.next_batch()) == [("left", 0, 2)]
