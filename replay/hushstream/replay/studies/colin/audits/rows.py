"""The audits of collaborative bandits: every counter and noise at both places, noisy rewards, the paper's tree."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import get_args

from hushstream.replay.audits import mechanisms
from hushstream.replay.audits.roles.work import audit_of
from hushstream.replay.audits.row import HORIZON, Audit, Recipe, made
from hushstream.replay.studies.colin.audits import paper as colin_paper
from hushstream.replay.studies.colin.audits import releases as collaborative
from hushstream.replay.studies.colin.audits.role_rows import role_rows
from hushstream.replay.studies.colin.audits.work import works
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig, Mechanism, NoiseAt, NoiseLaw

FEATURES = 4
"""The number of entries of a reward's features, all equal, which changes sums the most in L1."""


COLLABORATIVE_EPSILON = 8.0
"""An epsilon so large that few runs detect noise of half the size, also Gaussian noise."""


COUNTERS: Mapping[NoiseLaw, Mapping[Mechanism, int]] = {
    "laplace": {"negative-digit": HORIZON, "binary": 3, "honaker": 3},
    "k-norm": {"negative-digit": HORIZON, "binary": 3, "honaker": 3},
    "gaussian": {"negative-digit": HORIZON, "binary": 3, "honaker": 3, "blt": 4},
}
"""Horizons of the counters that a configuration may name; trees have two levels."""


K_NORM_RUNS = 600
"""Runs for K-norm noise, which is slow to draw; the smallest number that detects noise of half the size."""


def rows() -> tuple[Recipe, ...]:
    """Every audit of the system: each counter that a configuration may name, at both places, with each noise."""
    counters = [
        Recipe(f"{noise_at}-{mechanism}-{noise}", partial(_continual, noise_at, mechanism, noise))
        for noise, kinds in COUNTERS.items()
        for mechanism in kinds
        for noise_at in get_args(NoiseAt)
    ]
    return (
        *counters,
        made(_noisy_reward("noisy-reward", 1.0, 1_000)),
        made(_noisy_reward("noisy-reward-laplace", 3.0, 2_000)),
        Recipe("colin-paper", _paper),
        *role_rows(),
        *map(made, map(audit_of, works())),
    )


def _paper() -> Audit:
    return Audit(
        "colin-paper",
        "release",
        "the first reward, 1 against 0, all releases seen",
        3_000,
        colin_paper.audit_paper_tree(),
        paper_claim=colin_paper.CLAIM,
        subjects=(colin_paper.EXPOSURE,),
    )


def _continual(noise_at: NoiseAt, mechanism: Mechanism, noise: NoiseLaw) -> Audit:
    horizon = COUNTERS[noise][mechanism]
    release = ContinualConfig(
        noise_at=noise_at,
        mechanism=mechanism,
        noise=noise,
        epsilon=COLLABORATIVE_EPSILON,
        horizon=horizon,
        rewards_per_user=horizon,
    )
    # Under a trusted server the rewards of one step are one leaf, so one deployment gives many runs.
    parallel_runs = 25 if noise_at == "server" and noise != "k-norm" else 1
    features = FeatureConfig(parallel_runs * FEATURES, norm_l1=FEATURES**0.5)
    run = collaborative.audit_counter_release(collaborative.collaborative(release, features), horizon)
    about = "a reward of 1 against 0, all releases seen"
    runs, factor = (K_NORM_RUNS, 2) if noise == "k-norm" else (1_000, 4)
    return Audit(f"{noise_at}-{mechanism}-{noise}", "release", about, runs, run, factor, subjects=(release,))


def _noisy_reward(name: str, epsilon: float, runs: int) -> Audit:
    """At a small epsilon a noised reward is one bit, at a larger one it has Laplace noise."""
    release = ContinualConfig(
        noise_at="learner",
        mechanism="noisy-reward",
        epsilon=epsilon,
        horizon=HORIZON,
        rewards_per_user=HORIZON,
        reward_levels=mechanisms.LEVELS,
    )
    run = collaborative.audit_noisy_reward(collaborative.collaborative(release, FeatureConfig(FEATURES)))
    return Audit(name, "release", "a reward of 1 against 0", runs, run, subjects=(release,))
