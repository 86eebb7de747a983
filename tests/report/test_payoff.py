"""Does it pay: the interval, the verdict and the words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hushstream.replay.report.payoff import Gap, Payoff, paired_gap
from hushstream.replay.result import BadResult


def payoff(low: float | None, high: float | None, **more: Any) -> Payoff:
    value = 0.0 if low is None or high is None else (low + high) / 2
    given: dict[str, Any] = {
        "what": "share of labels right",
        "value": 0.6,
        "baseline": "nodes that keep apart",
        "reference": 0.6 - value,
        "gap": Gap(value, low, high, 64),
        "units": "nodes",
        "otherwise": "keep apart, or take an epsilon of at least 3",
    }
    return Payoff(**{**given, **more})


@pytest.mark.parametrize(
    ("low", "high", "less", "verdict", "begins"),
    [
        (0.01, 0.02, False, "pays", "In this run it pays: "),
        (-0.02, -0.01, False, "does not pay", "In this run it does not pay: "),
        (-0.02, -0.01, True, "pays", "In this run it pays: "),
        (0.01, 0.02, True, "does not pay", "In this run it does not pay: "),
        (-0.01, 0.02, False, "too close to call", "Too close to call in this run"),
        (-0.01, 0.0, True, "too close to call", "Too close to call in this run"),
        (None, None, False, "too close to call", "Too close to call in this run"),
    ],
)
def test_the_verdict_follows_from_the_interval_alone(low, high, less, verdict, begins):
    found = payoff(low, high, less_is_better=less)
    assert found.verdict == verdict
    assert found.sentence.startswith(begins)
    assert ("Keep apart, or take an epsilon of at least 3." in found.sentence) == (verdict != "pays")
    assert found.as_json()["verdict"] == verdict


def test_the_sentence_names_both_figures_the_interval_and_its_method():
    assert payoff(-0.02, -0.006).sentence == (
        "In this run it does not pay: share of labels right 0.600 against 0.613 of nodes that keep apart (-0.013; 95 % "
        "interval -0.020 to -0.006, paired over 64 nodes of this run, whose noise was drawn once). Keep apart, or take "
        "an epsilon of at least 3."
    )


def test_a_fitted_model_is_named_in_the_verdict_and_what_the_interval_leaves_out_after_it():
    said = payoff(-0.02, -0.006, fitted="clicks are a model's").sentence
    assert said.startswith("In the fitted model it does not pay: ")
    assert "paired over 64 nodes of this run, whose noise was drawn once; clicks are a model's)." in said


def test_rows_of_one_group_count_as_one():
    """Ten users with 100 equal differences each are ten values, not a thousand."""
    by_user = np.random.default_rng(1).normal(0.1, 1.0, 10)
    users = np.repeat(np.arange(10), 100)
    rows = np.repeat(by_user, 100)
    alone = paired_gap(by_user, np.zeros(10))
    together = paired_gap(rows, np.zeros(1000), users)
    assert together.groups == 10
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high))
    assert paired_gap(rows, np.zeros(1000)).groups == 1000


def test_the_interval_holds_in_95_of_100():
    """2,000 seeded samples of 12 users with 5 dependent rows: the count of misses is binomial about 100 +- 9.7.

    A true miss rate of .05 leaves 60 to 140 with probability 4e-5; an interval that takes rows as independent misses
    some 25 %, 500 of them.
    """
    draw = np.random.default_rng(5)
    users, misses = np.repeat(np.arange(12), 5), 0
    for _ in range(2000):
        shared = np.repeat(draw.normal(0.0, 1.0, 12), 5) + draw.normal(0.0, 0.5, 60)
        gap = paired_gap(shared, np.zeros(60), users)
        assert gap.low is not None
        assert gap.high is not None
        misses += not gap.low <= 0.0 <= gap.high
    assert 60 <= misses <= 140


def test_one_group_has_no_interval_and_no_rows_are_refused():
    assert paired_gap(np.ones(5), np.zeros(5), np.zeros(5, dtype=np.int64)) == Gap(1.0, None, None, 1)
    with pytest.raises(BadResult, match="at least one"):
        paired_gap(np.ones(0), np.ones(0))
