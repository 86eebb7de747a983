"""What is said before anything runs; where no block will ever be released, that is what it says, and it is true."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.algorithm.plan import plan
from hushstream.systems.pdap.counter.pending import Counter


@pytest.mark.parametrize(("epsilon", "outcomes"), [(0.001, 2_900), (0.01, 290), (1.0, 400)])
def test_no_block_will_ever_be_released_is_said_and_holds(pdap, epsilon, outcomes):
    settings = pdap.config(epsilon=epsilon)
    assert any(warning.startswith("no block will ever be released") for warning in plan(settings, outcomes).warnings)
    counter = Counter(settings, pdap.keyed(settings))
    ones, zeros = np.ones(outcomes, dtype=np.int64), np.zeros(outcomes, dtype=np.int64)
    released = 0
    while len(ones):
        some = slice(0, counter.capacity_left)
        counter.take(
            Outcomes(
                zeros[some], ones[some] << 57, zeros[some], zeros[some], pdap.names(counter.taken, len(ones[some]))
            )
        )
        ones, zeros = ones[some.stop :], zeros[some.stop :]
        if not counter.capacity_left:
            released += len(counter.close(counter.window).blocks)
    assert released == 0


def test_one_outcome_more_than_the_smallest_block_is_not_called_hopeless(pdap):
    found = plan(pdap.config(epsilon=0.001), 3_000)
    assert not any(warning.startswith("no block") for warning in found.warnings)
    assert any(warning.startswith("hardly any block") for warning in found.warnings)


def test_counters_at_home_fill_from_one_vendors_traffic(pdap):
    serving, home = (plan(pdap.config(vendors=4, placement=one, epsilon=0.01), 1_000) for one in ("serving", "home"))
    assert not any(warning.startswith("no block") for warning in serving.warnings)
    assert any(warning.startswith("no block") for warning in home.warnings)


def test_a_lone_vendor_and_arms_that_never_show_are_named(pdap):
    assert any("nobody to share with" in warning for warning in plan(pdap.config(vendors=1), 10_000).warnings)
    assert any(
        "80 of 92 arms" in warning for warning in plan(pdap.config(vendors=4, arms=23, epsilon=0.1), 1_000).warnings
    )


def test_facts_of_a_healthy_plan(pdap):
    found = plan(pdap.config(vendors=4, arms=1000, epsilon=1.0), 200_000)
    assert (found.least, found.windows, found.first_model, found.pool) == (3, 15, 500, 1341)
    assert found.noise_outcomes == pytest.approx(1.8414 / 0.2, rel=1e-3)
    assert "200,000 outcomes: 15 windows" in found.as_text()
