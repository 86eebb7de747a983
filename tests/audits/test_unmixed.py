"""Draws that are solved for in floats return to their lattice before their signs are tested."""

from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting import BufferedToeplitz, Concentrated
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits import Noises, audit_structure
from hushstream.replay.audits.readings import INNOVATION_STEPS, unmixed
from hushstream.replay.audits.tests import LEAVES
from hushstream.replay.studies.colin import audits
from hushstream.replay.studies.p2b.audits import p2b
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import plan_of
from hushstream.systems.p2b.configuration import ReleaseConfig

RUNS = 3_000
"""Of a thorough audit."""

MECHANISMS = {
    "binary": {"mechanism": "binary"},
    "negative-digit": {},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}


def plan_named(name):
    if name == "p2b":
        return p2b(ReleaseConfig(sums="counter", windows=LEAVES)).window_tree
    release = audits._release(horizon=LEAVES, rewards_per_user=LEAVES, **MECHANISMS[name])
    return plan_of(release, audits.ENTRY_FEATURES)


def alarms(drawn):
    """What the audit sees in draws (draws, runs): only independence is looked at."""
    return audit_structure(Noises(drawn.T, "draw {}".format), None, Cost(1_000_000)).structure


def with_roundings(solved, size):
    """The same, solved by a linear algebra whose errors all have one sign: the worst for a test of signs."""
    return replace(solved, solve=solved.solve + size * np.abs(solved.solve).max())


@pytest.mark.parametrize("name", ["p2b", "binary", "negative-digit"])
def test_draws_of_zero_do_not_alarm_however_they_are_rounded(name):
    """Two draws in three are 0, as at large epsilons. False alarm 1e-6; seeded."""
    plan = plan_named(name)
    left = plan.factorisation(LEAVES).left
    z = np.random.default_rng(7).choice([-1, 0, 0, 0, 0, 1], size=(left.shape[1], RUNS))
    rough = with_roundings(unmixed(plan, LEAVES), 1e-14)
    drawn = rough(left @ z)
    assert len(drawn) > 50
    assert np.isin(np.rint(drawn * rough.unit), [-1, 0, 1]).all()
    assert np.mean(drawn == 0) > 0.6
    assert not alarms(drawn)
    assert alarms(replace(rough, step=1e-18)(left @ z)), "without the lattice roundings agree with one another"


@pytest.mark.parametrize("name", ["blt"])
def test_roundings_of_innovations_are_far_below_their_grid(name):
    """The error of a product of floats is at most n 2^-53 times the sum of sizes (Higham 2002, section 3.1).

    The inverse has an error of its own, of the same order times its condition: so a thousand times as much is allowed.
    """
    solved = unmixed(plan_named(name), LEAVES)
    largest = np.abs(solved.solve) @ (10 * solved.spreads)
    error = 1_000 * LEAVES * 2.0**-53 * largest.max()
    assert error < solved.step / 100
    assert solved.step == pytest.approx(solved.unit / INNOVATION_STEPS)
    rough, nothing = with_roundings(solved, 1e-14), np.zeros((LEAVES, RUNS))
    assert not np.any(rough(nothing + solved.step / 1e6))


@pytest.mark.parametrize("name", ["blt"])
def test_independent_innovations_are_told_as_they_are(name):
    plan = plan_named(name)
    solved = unmixed(plan, LEAVES)
    left = plan.factorisation(LEAVES).left
    noise = solved.unit * np.random.default_rng(3).standard_normal((left.shape[1], RUNS))
    drawn = solved(left @ noise)
    assert drawn.std(axis=1) == pytest.approx(np.ones(LEAVES), rel=0.1)
    assert not alarms(drawn)
    drawn[5] = drawn[11]
    assert alarms(drawn) == "draw 5 and draw 11 share noise"


def test_gaussian_noise_of_a_few_lattice_units_is_refused():
    plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), sensitivity=1, horizon=8)
    with pytest.raises(HushstreamError, match="expected Gaussian noise of 1024 lattice units or more, got"):
        unmixed(plan, 8)
