"""Windows close at totals that grow, each above the one before."""

from __future__ import annotations

import pytest

from hushstream.systems.pdap.cells import PdapError
from hushstream.systems.pdap.configuration import Schedule


def test_the_defaults_close_at_five_hundred_and_half_as_much_again():
    schedule = Schedule()
    assert [schedule.closes_at(window) for window in range(5)] == [500, 750, 1125, 1688, 2532]
    assert [schedule.windows(total) for total in (0, 499, 500, 749, 750, 200_000)] == [0, 0, 1, 1, 2, 15]


@pytest.mark.parametrize(("first", "ratio"), [(1, 1.01), (1, 1.5), (10, 1.001), (500, 100)])
def test_no_two_windows_close_at_one_total(first, ratio):
    schedule = Schedule(first, ratio)
    totals = [schedule.closes_at(window) for window in range(200 if ratio < 10 else 12)]
    assert totals == sorted(set(totals))
    assert totals[0] == first


@pytest.mark.parametrize(("first", "ratio"), [(1, 1.01), (1, 1.5), (10, 1.001), (500, 100)])
def test_a_window_closes_at_the_first_total_that_was_not_reached_when_it_opened(first, ratio):
    schedule = Schedule(first, ratio)
    totals = [schedule.closes_at(window) for window in range(200 if ratio < 10 else 12)]
    for window, total in enumerate(totals[:-1]):
        assert (schedule.after(total - 1), schedule.after(total)) == (total, totals[window + 1])
        assert schedule.windows(total) == window + 1


@pytest.mark.parametrize(("first", "ratio"), [(0, 1.5), (-1, 2), (10, 1.0), (10, 0.5)])
def test_totals_that_do_not_grow_are_refused(first, ratio):
    with pytest.raises(PdapError, match="a ratio above 1"):
        Schedule(first, ratio)
