"""The number of codes follows from configuration alone; its quality is simulated in tests/aggregation."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.guarantee.summed import auto_codes


def test_the_settings_that_were_simulated_get_the_codes_that_were_checked():
    assert auto_codes(10, 1400, 1.0) == 8
    assert auto_codes(10, 14_000, math.log(2)) == 16
    assert auto_codes(10, 20_000, math.log(2)) == 32
    assert auto_codes(10, 70_000, math.log(2)) == 32
    assert auto_codes(10, 500, 1.0) == 8
    assert auto_codes(20, 3000, 1.0) == 8


def test_more_slots_or_budget_never_give_fewer_codes_and_more_arms_or_windows_never_more():
    slots = [auto_codes(10, n, 1.0) for n in (1, 100, 1000, 10_000, 100_000, 10**9)]
    budgets = [auto_codes(10, 1400, epsilon) for epsilon in (1e-6, 0.1, 0.5, 1, 5, 1e3, 1e9)]
    arms = [auto_codes(arms, 1400, 1.0) for arms in (1, 5, 10, 50, 1000)]
    windows = [auto_codes(10, 1400, 1.0, windows=windows) for windows in (1, 7, 100)]
    assert slots == sorted(slots)
    assert budgets == sorted(budgets)
    assert arms == sorted(arms, reverse=True)
    assert windows == sorted(windows, reverse=True)
    assert slots[0] == budgets[0] == 2
    assert slots[-1] == budgets[-1] == 32


def test_finer_levels_cost_little():
    assert auto_codes(10, 1400, Fraction(1), levels=256) in (4, 8)


def test_codes_stay_within_a_few_a_dimension():
    for dimension in (2, 3, 6, 20):
        assert auto_codes(10, 10**9, 1.0, dimension=dimension) <= 4 * dimension


@pytest.mark.parametrize(
    "changed",
    [
        {"arms": 0},
        {"expected_slots": 0},
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"levels": 0},
        {"dimension": 1},
    ],
)
def test_impossible_settings_are_refused(changed):
    settings = {"arms": 10, "expected_slots": 100, "epsilon": 1.0, "levels": 1, "dimension": 10} | changed
    with pytest.raises(ContributionError):
        auto_codes(**settings)
