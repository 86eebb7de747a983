"""Windows close on public events of the log, count every slot once and forget what is old."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.windows import ClosedBy, SlotOutcome, WindowRules, Windows

PERIOD_MS = 100


def rules(slots=4, open_ms=None, origins=(0, 1)):
    return WindowRules(slots, frozenset(origins), PERIOD_MS, open_ms, content_bytes=4)


def named(number):
    return number.to_bytes(16, "big")


def content(number):
    return number.to_bytes(4, "little")


# A log: slots (id, age of the period that they name, content), phase ends (phase, origin), ticks; with log times.
entries = st.one_of(
    st.tuples(st.just("slot"), st.integers(0, 30), st.integers(-1, 3)),
    st.tuples(st.just("seal"), st.integers(0, 4), st.integers(0, 1)),
    st.tuples(st.just("tick"), st.just(0), st.just(0)),
)
logs = st.lists(st.tuples(st.integers(-5, 60), entries), max_size=120)


def feed(windows, log, start=0):
    """Feed a log; give every closed window, every outcome, and what the log time was."""
    closed, outcomes, now = [], [], start
    for number, (step, (kind, first, second)) in enumerate(log):
        now += step
        closed.append(windows.advance(now))
        if kind == "slot":
            offer = windows.offer(named(first), windows.period - second, content(number))
            outcomes.append((first, windows.period - second, number, offer.outcome))
            closed.append(offer.closed)
        elif kind == "seal":
            closed.append(windows.end_phase(first, second))
    return [window for window in closed if window is not None], outcomes, now


@given(logs, st.integers(1, 5), st.one_of(st.none(), st.integers(1, 200)))
@settings(max_examples=200, deadline=None)
def test_every_joined_slot_is_in_exactly_one_window_in_the_order_of_ids(log, slots, open_ms):
    windows = Windows(rules(slots, open_ms))
    closed, outcomes, _ = feed(windows, log)
    joined = iter((named(first), content(number)) for first, _, number, out in outcomes if out is SlotOutcome.JOINED)
    for window in closed:
        expected = sorted(slot for _, slot in zip(window.contents, joined, strict=False))
        assert window.contents == tuple(part for _, part in expected)
    assert len(list(joined)) == windows.slots < slots
    assert [window.window for window in closed] == list(range(len(closed)))
    assert all(window.contents for window in closed)
    assert all(len(window.contents) == slots for window in closed if window.closed_by is ClosedBy.SLOTS)
    assert all(len(window.contents) <= slots for window in closed)


@given(st.permutations(range(6)))
@settings(max_examples=30, deadline=None)
def test_a_window_is_the_same_in_whatever_order_its_slots_come(order):
    windows = Windows(rules(slots=6))
    offers = [windows.offer(named(number), 0, content(number)) for number in order]
    assert offers[-1].closed.contents == tuple(content(number) for number in range(6))


@given(logs)
@settings(max_examples=200, deadline=None)
def test_an_id_counts_once_however_much_later_it_comes_again(log):
    windows = Windows(rules(3))
    _, outcomes, _ = feed(windows, log)
    joined = set()
    for report, period, _, outcome in outcomes:
        assert (outcome is SlotOutcome.REPEATED) == (report in joined), period
        if outcome is SlotOutcome.JOINED:
            joined.add(report)
    assert windows.remembered == len(joined)


def test_an_id_is_known_again_after_more_periods_than_are_accepted_and_a_restart():
    windows = Windows(rules(slots=1))
    assert windows.offer(named(7), 0, content(1)).outcome is SlotOutcome.JOINED
    for periods in (1, 2, 3, 10_000):
        windows.advance(periods * PERIOD_MS)
        windows = Windows.load(windows.rules, windows.dump())
        assert windows.offer(named(7), periods, content(2)).outcome is SlotOutcome.REPEATED
    assert windows.window == 1


@given(logs, logs, st.one_of(st.none(), st.integers(1, 200)))
@settings(max_examples=150, deadline=None)
def test_a_dumped_state_goes_on_as_if_nothing_had_happened(before, after, open_ms):
    windows = Windows(rules(3, open_ms))
    _, _, now = feed(windows, before)
    again = Windows.load(windows.rules, windows.dump())
    assert again.dump() == windows.dump()
    assert feed(again, after, now) == feed(windows, after, now)
    assert again.dump() == windows.dump()


def test_a_phase_ends_with_the_phase_end_of_its_last_origin():
    windows = Windows(rules(slots=100, origins=(0, 3)))
    windows.offer(named(1), 0, content(1))
    assert windows.end_phase(0, 3) is None
    assert windows.end_phase(0, 3) is None
    closed = windows.end_phase(0, 0)
    assert closed is not None
    assert (closed.window, closed.closed_by, closed.contents) == (0, ClosedBy.SEAL, (content(1),))
    assert windows.ended_phase == 0
    windows.offer(named(2), 0, content(2))
    assert windows.end_phase(0, 0) is None
    assert windows.slots == 1


def test_a_phase_end_of_a_later_phase_ends_the_earlier_ones_too():
    windows = Windows(rules(slots=100))
    windows.offer(named(1), 0, content(1))
    assert windows.end_phase(2, 0) is None
    closed = windows.end_phase(1, 1)
    assert closed is not None
    assert windows.ended_phase == 1


def test_an_empty_window_never_closes():
    windows = Windows(rules(open_ms=10))
    assert windows.advance(1000) is None
    assert windows.end_phase(0, 0) is None
    assert windows.end_phase(0, 1) is None
    assert (windows.window, windows.ended_phase) == (0, 0)


def test_log_time_closes_a_window_before_the_record_that_moved_it():
    windows = Windows(rules(open_ms=10))
    windows.advance(100)
    windows.offer(named(1), 1, content(1))
    assert windows.advance(109) is None
    windows.offer(named(2), 1, content(2))
    closed = windows.advance(110)
    assert closed is not None
    assert (closed.closed_by, closed.contents) == (ClosedBy.TIME, (content(1), content(2)))
    assert windows.offer(named(3), 1, content(3)).outcome is SlotOutcome.JOINED
    assert windows.slots == 1


def test_late_early_and_repeated_reports_do_not_join():
    windows = Windows(rules(slots=100))
    windows.advance(5 * PERIOD_MS)
    assert windows.offer(named(1), 3, content(1)).outcome is SlotOutcome.LATE
    assert windows.offer(named(1), 6, content(1)).outcome is SlotOutcome.EARLY
    assert windows.offer(named(1), 4, content(1)).outcome is SlotOutcome.JOINED
    assert windows.offer(named(1), 5, content(9)).outcome is SlotOutcome.REPEATED
    windows.advance(7 * PERIOD_MS)
    assert windows.offer(named(1), 4, content(1)).outcome is SlotOutcome.REPEATED
    assert windows.offer(named(2), 4, content(1)).outcome is SlotOutcome.LATE
    assert windows.slots == 1


def test_log_time_never_goes_back():
    windows = Windows(rules())
    windows.advance(5 * PERIOD_MS)
    windows.advance(0)
    assert windows.period == 5


def test_foreign_phase_ends_and_sizes_are_refused_and_change_nothing():
    windows = Windows(rules())
    before = windows.dump()
    for phase, origin in ((0, 7), (-1, 0)):
        with pytest.raises(ShufflingError, match="known learner partition"):
            windows.end_phase(phase, origin)
    for report_id, body in ((named(1)[:-1], content(1)), (named(1), b"12345")):
        with pytest.raises(ShufflingError, match="bytes"):
            windows.offer(report_id, 0, body)
    assert windows.dump() == before


def test_damaged_or_foreign_dumps_are_refused():
    windows = Windows(rules())
    windows.offer(named(1), 0, content(1))
    dumped = windows.dump()
    for broken in (b"", dumped[:-1], dumped + b"\0", b"X" + dumped[1:], dumped[:60]):
        with pytest.raises(HushstreamError):
            Windows.load(rules(), broken)
    with pytest.raises(HushstreamError):
        Windows.load(rules(origins=(0, 1, 2)), dumped)


@pytest.mark.parametrize(
    "values",
    [
        (0, frozenset({0}), 1, None),
        (1, frozenset(), 1, None),
        (1, frozenset({0}), 0, None),
        (1, frozenset({0}), 1, 0),
    ],
)
def test_rules_under_which_nothing_closes_are_refused(values):
    with pytest.raises(ShufflingError):
        WindowRules(*values)
