"""Windows close on public events and count each slot once; releases are exact functions of whole numbers."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.privacy.mechanisms.noise import BadNoise
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.shuffler import (
    CellSums,
    ClosedBy,
    Domain,
    Reports,
    ShufflingError,
    SlotOutcome,
    WindowRules,
    Windows,
    noised_sums,
    paper,
    slot_sums,
    tuple_sums,
    tuples,
)


@st.composite
def windows(draw):
    domain = Domain(draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5)))
    report = st.tuples(st.integers(0, domain.codes - 1), st.integers(0, domain.arms - 1), st.integers(0, domain.levels))
    return domain, draw(st.lists(report, max_size=60))


def reports_of(domain, rows):
    columns = np.array(rows, dtype=np.int32).reshape(-1, 3).T
    return Reports.of(domain, *columns)


def as_counter(released):
    rows = zip(released.codes.tolist(), released.arms.tolist(), released.levels.tolist(), strict=True)
    return Counter(dict(zip(rows, released.counts.tolist(), strict=True)))


@given(windows())
@settings(deadline=None)
def test_sums_count_every_report_in_its_cell_alone(window):
    domain, rows = window
    sums = slot_sums(reports_of(domain, rows))
    for code in range(domain.codes):
        for arm in range(domain.arms):
            levels = [level for c, a, level in rows if (c, a) == (code, arm)]
            assert sums.ones[code, arm] == sum(levels)
            assert sums.zeros[code, arm] == sum(domain.levels - level for level in levels)


@given(windows(), st.data())
@settings(deadline=None)
def test_one_slot_moves_the_sums_by_exactly_m_in_l1(window, data):
    domain, rows = window
    extra = data.draw(
        st.tuples(st.integers(0, domain.codes - 1), st.integers(0, domain.arms - 1), st.integers(0, domain.levels))
    )
    with_null, with_report = (
        slot_sums(reports_of(domain, rows)),
        slot_sums(reports_of(domain, [*rows, extra])),
    )
    distance = np.abs(with_report.ones - with_null.ones).sum() + np.abs(with_report.zeros - with_null.zeros).sum()
    assert distance == domain.levels


@given(windows(), st.randoms())
@settings(deadline=None)
def test_no_release_depends_on_the_order_of_arrival(window, random):
    domain, rows = window
    shuffled = list(rows)
    random.shuffle(shuffled)
    first, second = reports_of(domain, rows), reports_of(domain, shuffled)
    everyone = np.ones(len(rows), np.bool_)
    assert np.array_equal(slot_sums(first).ones, slot_sums(second).ones)
    assert as_counter(tuples(first, everyone, 2)) == as_counter(tuples(second, everyone, 2))
    assert as_counter(paper(first, 2)) == as_counter(paper(second, 2))


@given(windows(), st.integers(1, 6), st.data())
@settings(deadline=None)
def test_tuples_release_whole_tuples_that_enough_sampled_reports_share(window, threshold, data):
    domain, rows = window
    sampled = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=np.bool_)
    released = tuples(reports_of(domain, rows), sampled, threshold)
    counts = Counter(row for row, keep in zip(rows, sampled, strict=True) if keep)
    expected = {row: count for row, count in counts.items() if count >= threshold}
    assert as_counter(released) == expected
    assert released.withheld == sampled.sum() - sum(expected.values())
    order = list(zip(released.codes.tolist(), released.arms.tolist(), released.levels.tolist(), strict=True))
    assert order == sorted(order)


@given(windows(), st.integers(1, 8))
@settings(deadline=None)
def test_the_papers_release_keeps_all_of_a_code_or_nothing(window, threshold):
    domain, rows = window
    released = paper(reports_of(domain, rows), threshold)
    crowds = Counter(code for code, _, _ in rows)
    expected = Counter(row for row in rows if crowds[row[0]] >= threshold)
    assert as_counter(released) == expected
    assert released.withheld == len(rows) - sum(expected.values())


@given(windows(), st.integers(1, 6), st.data())
@settings(deadline=None)
def test_what_does_not_count_is_as_if_it_were_not_there(window, threshold, data):
    domain, rows = window
    counted = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=np.bool_)
    masked = reports_of(domain, rows).kept(counted)
    there = reports_of(domain, [row for row, counts in zip(rows, counted, strict=True) if counts])
    assert len(masked) == len(rows)
    assert np.array_equal(slot_sums(masked).ones, slot_sums(there).ones)
    assert np.array_equal(slot_sums(masked).zeros, slot_sums(there).zeros)
    everyone = np.ones(len(rows), np.bool_)
    for held, other in (
        (tuples(masked, everyone, threshold), tuples(there, everyone[: len(there)], threshold)),
        (paper(masked, threshold), paper(there, threshold)),
    ):
        assert as_counter(held) == as_counter(other)
        assert held.withheld == other.withheld


def test_no_small_crowd_survives_next_to_another_small_crowd():
    # A loop that removes from the list it walks skips the entry after each removal: code 1 would survive.
    domain = Domain(4, 1, 1)
    rows = [(0, 0, 0), (1, 0, 0), (2, 0, 0), *[(3, 0, 1)] * 5]
    assert as_counter(paper(reports_of(domain, rows), 5)) == {(3, 0, 1): 5}


def test_a_unique_tuple_under_a_popular_code_is_withheld_by_tuples_and_released_by_the_paper():
    domain = Domain(1, 2, 1)
    reports = reports_of(domain, [(0, 0, 0)] * 20 + [(0, 1, 1)])
    assert (0, 1, 1) not in as_counter(tuples(reports, np.ones(21, np.bool_), 10))
    assert as_counter(paper(reports, 10))[(0, 1, 1)] == 1


def test_released_tuples_make_the_sums_of_their_reports():
    domain = Domain(3, 2, 4)
    rows = [(0, 1, 3)] * 5 + [(2, 0, 4)] * 4 + [(1, 1, 0)]
    reports = reports_of(domain, rows)
    released = tuples(reports, np.ones(10, np.bool_), 4)
    expected = slot_sums(reports.kept(np.array([row != (1, 1, 0) for row in rows])))
    sums = tuple_sums(domain, released)
    assert np.array_equal(sums.ones, expected.ones)
    assert np.array_equal(sums.zeros, expected.zeros)


def test_noise_is_added_once_to_every_sum_empty_cells_included():
    sums = slot_sums(reports_of(Domain(2, 3, 2), [(1, 2, 1)]))
    noise = np.arange(-6, 6, dtype=np.int64).reshape(2, 2, 3)
    released = noised_sums(sums, noise)
    assert np.array_equal(released.ones - sums.ones, noise[0])
    assert np.array_equal(released.zeros - sums.zeros, noise[1])


@pytest.mark.parametrize(
    "noise",
    [
        np.zeros((2, 3, 2), np.int64),
        np.zeros((2, 2, 3), np.float64),
        np.zeros((2, 2, 3), np.int32),
        np.ones((2, 2, 3), np.int64),
    ],
)
def test_noise_that_does_not_fit_is_refused(noise):
    """The last one is: the sum would leave 64 bits."""
    largest = np.full((2, 3), np.iinfo(np.int64).max)
    with pytest.raises(BadNoise):
        noised_sums(CellSums(largest, largest), noise)


def test_an_empty_window_releases_noise_or_nothing():
    reports = reports_of(Domain(2, 2, 1), [])
    assert not slot_sums(reports).ones.any()
    assert len(tuples(reports, np.zeros(0, np.bool_), 1).counts) == 0
    assert len(paper(reports, 1).counts) == 0


@pytest.mark.parametrize("row", [(2, 0, 0), (0, 3, 0), (0, 0, 2), (-1, 0, 0)])
def test_reports_outside_the_domain_are_refused(row):
    with pytest.raises(ShufflingError, match="values from 0"):
        reports_of(Domain(2, 3, 1), [row])


def test_impossible_domains_masks_and_thresholds_are_refused():
    with pytest.raises(ShufflingError, match="at least one"):
        Domain(0, 1, 1)
    with pytest.raises(ShufflingError, match="at most"):
        Domain(1 << 20, 1 << 10, 1)
    reports = reports_of(Domain(1, 1, 1), [(0, 0, 1)])
    with pytest.raises(ShufflingError, match="threshold"):
        tuples(reports, np.ones(1, np.bool_), 0)
    with pytest.raises(ShufflingError, match="mask"):
        tuples(reports, np.ones(2, np.bool_), 1)
    with pytest.raises(ShufflingError, match="equal length"):
        Reports.of(Domain(1, 1, 1), np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(2, np.int64))


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
