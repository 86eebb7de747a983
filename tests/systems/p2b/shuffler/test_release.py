"""Releases are exact functions of whole numbers, with the sensitivity and thresholds that they claim."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.sums import (
    CellSums,
    Domain,
    Reports,
    noised,
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
    released = noised(sums, noise)
    assert np.array_equal(released.ones - sums.ones, noise[0])
    assert np.array_equal(released.zeros - sums.zeros, noise[1])


@pytest.mark.parametrize(
    "noise",
    [
        np.zeros((2, 3, 2), np.int64),
        np.zeros((2, 2, 3), np.float64),
        np.zeros((2, 2, 3), np.int32),
        np.full((2, 2, 3), np.iinfo(np.int64).min),
        np.full((2, 2, 3), (1 << 60) + 1),
    ],
)
def test_noise_that_does_not_fit_is_refused(noise):
    sums = CellSums(np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64))
    with pytest.raises(ShufflingError):
        noised(sums, noise)


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
