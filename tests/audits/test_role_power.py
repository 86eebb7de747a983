"""The stated power of the audits of what roles publish, at the runs that they take.

A place with half its noise fails with probability above 1 - 1e-6, and so do two places that share theirs: by Chernoff's
bound on means, and by exact binomials. With so many runs a place without noise, or with a tenth of it, is certain.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from hushstream.privacy.audits.audit import lower_confidence, upper_confidence
from hushstream.privacy.audits.laws import gamma_sizes, half_normal_sizes, laplace_pair, lattice_sizes
from hushstream.privacy.audits.structure import surprise_limit
from hushstream.replay.audits.catalogue import audit_names, make_audit
from hushstream.replay.audits.mechanisms import GAUSSIAN_FAMILY, LAPLACE_FAMILY
from hushstream.replay.audits.roles.noise import LEAVES, PARTITIONS
from hushstream.replay.audits.unmixed import unmixed
from hushstream.replay.studies.colin.audits import role_noise, role_rows
from hushstream.replay.studies.colin.audits.role_attacks import leaf_family
from hushstream.replay.studies.p2b.audits.releases import ARMS, CELLS
from hushstream.replay.studies.p2b.audits.role_noise import WINDOWS
from hushstream.replay.studies.p2b.audits.rows import LIFT_OF_ROLES as LIFT
from hushstream.systems.colin.release import plan_of
from hushstream.systems.p2b.lift import SUMS, lift_tree

DRAWS = 2 * LEAVES * role_noise.ENTRIES
LIFT_TREE = lift_tree(LIFT, 2)
PLACES = {
    "windows-each-cell": PARTITIONS * WINDOWS * 2 * CELLS * ARMS,
    "counted-windows-each-cell": 2 * PARTITIONS * 2 * CELLS * ARMS,
    "counted-windows-each-draw": 2 * LEAVES * 2,
    "counter-binary-each-draw": DRAWS,
    "counter-negative-digit-each-draw": DRAWS,
    "counter-k-norm-each-draw": DRAWS,
    "counter-honaker-each-draw": DRAWS,
    "counter-blt-each-draw": DRAWS,
    "counter-each-user": 2 * role_noise.STEPS * role_noise.USERS * role_noise.ENTRIES,
    "counter-honaker-each-user": 2 * role_noise.STEPS * role_rows.FEW_USERS * role_noise.ENTRIES,
    "edge-counters-each-user": 2 * role_noise.STEPS * role_noise.USERS * role_noise.ENTRIES,
    "noisy-rewards-each-user": role_noise.STEPS * role_noise.USERS,
    "lift-each-sum": 2 * PARTITIONS * LIFT.releases * SUMS,
}
"""At most so many places of each audit; with counters every draw and every release is one."""

LAWS = {
    "windows-each-cell": (lattice_sizes(1, LAPLACE_FAMILY), 1.0, 2.0),
    "counted-windows-each-cell": (lattice_sizes(2, LAPLACE_FAMILY), 1.0, 2.0),
    "counted-windows-each-draw": (lattice_sizes(2, LAPLACE_FAMILY), 1.0, 2.0),
    "counter-k-norm-each-draw": (gamma_sizes(role_noise.ENTRIES, LAPLACE_FAMILY), 8.0, 16.0),
    "noisy-rewards-each-user": (lattice_sizes(4, LAPLACE_FAMILY), 3.0, 6.0),
    "lift-each-sum": (lattice_sizes(LIFT_TREE.levels * LIFT_TREE.sensitivity, LAPLACE_FAMILY), 3.0, 6.0),
}
"""Law of a place, the claim and half its noise; the others have Laplace noise on a fine lattice or Gaussian noise."""
FINE = (gamma_sizes(1, LAPLACE_FAMILY), 8.0, 16.0)
RHO = 0.5
"""Sizes are in units of the claimed deviation, so any rho stands for all."""
GAUSSIAN = (half_normal_sizes(RHO, GAUSSIAN_FAMILY), RHO, 4 * RHO)


def law_of(name):
    return LAWS.get(name, GAUSSIAN if "honaker" in name or "blt" in name else FINE)


def beyond(sizes, masses, mean, sign):
    """The exponent of Chernoff's bound on a mean that is on that side of ``mean``, for one draw."""

    def exponent(tilt):
        return float(special.logsumexp(sign * math.exp(tilt) * (sizes - mean), b=masses))

    return float(optimize.minimize_scalar(exponent, bounds=(-9, 6), method="bounded").fun)


def test_every_audit_of_places_has_its_power_stated():
    assert set(PLACES) == {name for name in audit_names() if "-each-" in name}


@pytest.mark.parametrize("name", PLACES)
def test_half_the_noise_of_one_place_is_found(name):
    """There is a mean that is too small for the claim, and too large for half the noise, but for 1e-6."""
    (law, claimed, halved), runs = law_of(name), make_audit(name).runs
    honest, mutant = law.law(claimed), law.law(halved)
    means = np.linspace(float(mutant[0] @ mutant[1]), float(honest[0] @ honest[1]), 60)[1:-1]
    alarm = math.log(5e-7 / PLACES[name]) / runs
    found = [mean for mean in means if beyond(*honest, mean, -1) < alarm]
    missed = beyond(*mutant, found[-1], 1) * runs
    assert math.exp(missed) < 1e-6


@pytest.mark.parametrize("name", PLACES)
def test_two_places_that_share_noise_are_found(name):
    """Signs then agree wherever there is one; on the coarsest lattice more than a third of all draws are 0."""
    law, claimed, _ = law_of(name)
    sizes, masses = law.law(claimed)
    nonzero = 1.0 if len(sizes) == 4_000 else 1 - float(masses[0])
    agreed = int(stats.binom.ppf(1e-6, make_audit(name).runs, nonzero))
    assert agreed / 2 > surprise_limit(PLACES[name], 5e-7)


@pytest.mark.parametrize(
    ("name", "noise_at"), [("random-step-of-the-counter", "server"), ("random-step-at-the-edge", "learner")]
)
def test_half_the_noise_at_random_steps_is_found(name, noise_at):
    """Both rates, mixed over the steps, at their 5e-7 quantiles on the bad side."""
    plan, epsilon = plan_of(role_rows.target_release(noise_at), role_noise.FEATURES), role_rows.TARGET_EPSILON
    solved, runs = unmixed(plan, role_rows.TARGETS), make_audit(name).runs
    rates = []
    for nodes in solved.holders.sum(axis=0).tolist():
        pair = laplace_pair(2 * epsilon * nodes / plan.levels, nodes, 16)
        seen = pair.moved > pair.null * (1 + 1e-9)
        rates.append((float(pair.moved[seen].sum()), float(pair.null[seen].sum())))
    true_rate, false_rate = np.mean(rates, axis=0)
    few = int(stats.binom.ppf(5e-7, runs, true_rate))
    many = int(stats.binom.ppf(1 - 5e-7, runs, false_rate))
    family = leaf_family(solved, plan.levels)
    assert family.lower_bound(lower_confidence(few, runs, 5e-7), upper_confidence(many, runs, 5e-7)) > epsilon
