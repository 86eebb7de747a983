"""The K-norm noise of a collaborative release: half of it, or one level's share of it, is found by its audit.

False alarm: at most 1e-6 a run, by the audit's confidence bounds. Power: computed below for both mutants, which at two
levels have the same noise.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from scipy import stats

from hushstream.counting import NegativeDigitTree, PureLength
from hushstream.privacy.audits.audit import lower_confidence, upper_confidence
from hushstream.privacy.audits.laws import length_pair
from hushstream.replay.audits.catalogue import make_audit
from hushstream.replay.audits.readings import reading_family, reading_of
from hushstream.replay.audits.row import HORIZON
from hushstream.replay.studies.colin.audits.rows import COLLABORATIVE_EPSILON, FEATURES
from hushstream.systems.colin import release as collaborative_release
from hushstream.systems.colin.algorithm import noised_sums as collaborative_moments
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig

NAMES = ("server-negative-digit-k-norm", "learner-negative-digit-k-norm")


@pytest.fixture(scope="module")
def audits():
    """Made before anything is mutated: their claims are the product's."""
    return {name: make_audit(name) for name in NAMES}


RELEASE = ContinualConfig(noise="k-norm", epsilon=COLLABORATIVE_EPSILON, horizon=HORIZON, rewards_per_user=HORIZON)


class HalfLength(NegativeDigitTree):
    @property
    def noise(self):
        return PureLength(2 * COLLABORATIVE_EPSILON).node_noise(self.levels, self.sensitivity, self.dimension)


class FlatLength(NegativeDigitTree):
    @property
    def noise(self):
        return self.budget.node_noise(1, self.sensitivity, self.dimension)


@pytest.mark.slow_statistics(keep=["HalfLength-learner-negative-digit-k-norm"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [HalfLength, FlatLength])
def test_half_the_noise_and_one_level_of_it_fail(name, kind, audits, monkeypatch):
    honest = collaborative_release.plan_of

    def mutated(release, features):
        plan = honest(release, features)
        settings = ("budget", "dimension", "sensitivity", "horizon", "base")
        return kind(**{setting: getattr(plan, setting) for setting in settings})

    monkeypatch.setattr(collaborative_moments, "plan_of", lru_cache(mutated))
    row = audits[name]("quick", 1e-6)
    assert (row.passed, row.verdict) == (False, "EXCEEDS the claim"), row.cells()


def test_half_the_noise_is_found_with_the_quick_runs():
    """With both rates at their 5e-7 quantiles on the bad side."""
    plan = collaborative_release.plan_of(RELEASE, FeatureConfig(FEATURES))
    reading = reading_of(plan, HORIZON)
    assert (plan.levels, reading.times) == (2, (1,))
    pair, runs = length_pair(2 * COLLABORATIVE_EPSILON * reading.share, FEATURES), make_audit(NAMES[0]).runs
    seen = pair.moved > pair.null
    few = int(stats.binom.ppf(5e-7, runs, float(pair.moved[seen].sum())))
    many = int(stats.binom.ppf(1 - 5e-7, runs, float(pair.null[seen].sum())))
    family = reading_family(plan, reading, 1)
    found = family.lower_bound(lower_confidence(few, runs, 5e-7), upper_confidence(many, runs, 5e-7))
    assert found > COLLABORATIVE_EPSILON
