"""The calibrations that protect rewards in the collaborative experiments: the paper's, sound ones, and better ones.

The paper (Wang et al. 2020, Algorithms 1 and 2) noises the *projected* sums b = sum x~ r, dN numbers, by a binary
tree: one over all events under a trusted server, or one a user at the edge. `paper` is that as printed: Laplace noise
of scale Delta_2 ln T / epsilon on each node. This is wrong for two reasons: a reward changes h nodes with h > ln T, and
the price of independent Laplace noise is an L1 distance. The true epsilon is

    h max_u ||w_u||_1 max_x ||x||_1 / (Delta_2 ln T / epsilon)

and no smaller one holds for the user who comes first: the far tail of the noise of the h nodes that hold the first
reward attains the ratio. Three sound calibrations of the same tree follow: Laplace on the L1 sensitivity, K-norm on the
L2 sensitivity, discrete Gaussian.

The better ones add noise to the *raw* sums of each user, d numbers, with a counter of T/N leaves for each user. A
reward changes these sums by ||x|| whatever the relation matrix is, and projection is post-processing. A user's own
counter needs no trusted server, so each of these is the DP and the LDP version at the same time. `local-reward` noises
each reward once.

The distances used are the largest ||x||_1 and ||x||_2 of the pool's features, which are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from hushstream.counting import (
    BinaryTree,
    Budget,
    BufferedToeplitz,
    Concentrated,
    Plan,
    PureEpsilon,
    PureLength,
    best_tree,
)
from hushstream.privacy.amounts import MICRO, Cost, epsilon_micro
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.privacy.promises.promise import Claim, Guarantee
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import GRID_BITS
from hushstream.systems.colin.relation import Relation
from hushstream.systems.colin.release import NEIGHBOURS, NOT_PROTECTED

NoiseAt = Literal["server", "learner"]
Law = Literal["laplace", "k-norm", "gaussian"]
Sums = Literal["projected", "raw", "reward"]
CounterKind = Literal["binary", "negative-digit", "blt"]

DELTA = 1e-6
"""Delta of every Gaussian mechanism here."""

REWARD_LEVELS = 256
_MARGIN = 1 + 2.0**-30


class CalibrationError(HushstreamError):
    """A calibration is unknown, or cannot protect the given input."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One way to protect rewards.

    Attributes:
        key: its name in rows.
        words: its name in captions.
        sums: what is noised: projected sums, each user's raw sums, or the reward itself.
        law: distribution of the noise; for ``reward`` see `hushstream.privacy.mechanisms.rewards`.
        counter: the counter of the sums.
        as_stated: whether the stated epsilon holds; False for the paper's own calibration.
    """

    key: str
    words: str
    sums: Sums
    law: Law = "laplace"
    counter: CounterKind = "binary"
    as_stated: bool = True

    @property
    def paired(self) -> bool:
        """Whether the DP and the LDP version are the same, because each user has a counter or noise of their own."""
        return self.sums != "projected"


PAPER = "paper"
CALIBRATIONS = (
    Calibration(PAPER, "Laplace on the L2 sensitivity, ln T levels, binary tree", "projected", as_stated=False),
    Calibration("laplace-l1", "the paper's tree, Laplace on the L1 sensitivity, all levels", "projected"),
    Calibration("k-norm", "the paper's tree, K-norm noise on the L2 sensitivity", "projected", "k-norm"),
    Calibration("gaussian", "the paper's tree, discrete Gaussian, delta 1e-6", "projected", "gaussian"),
    Calibration("user-laplace", "negative-digit trees of raw sums, Laplace", "raw", "laplace", "negative-digit"),
    Calibration("user-k-norm", "negative-digit trees of raw sums, K-norm", "raw", "k-norm", "negative-digit"),
    Calibration(
        "user-gaussian", "negative-digit trees of raw sums, Gaussian, delta 1e-6", "raw", "gaussian", "negative-digit"
    ),
    Calibration("user-blt", "buffered Toeplitz counters of raw sums, Gaussian, delta 1e-6", "raw", "gaussian", "blt"),
    Calibration("local-reward", "noise on each reward, once", "reward"),
)
SOUND_PAPER_TREE = ("laplace-l1", "k-norm", "gaussian")
BETTER = ("user-laplace", "user-k-norm", "user-gaussian", "user-blt", "local-reward")


@dataclass(frozen=True, slots=True)
class Exposure:
    """The public facts that decide a calibration: how far a reward changes sums, and how many rewards there are.

    Attributes:
        users: N.
        dimension: d.
        events: T, a multiple of N; every user has T/N.
        longest_l1: largest ||x||_1 of any arm.
        longest_l2: largest ||x||_2.
        rows_l1: ||w_u||_1 of each user.
        rows_l2: ||w_u||_2 of each user.
    """

    users: int
    dimension: int
    events: int
    longest_l1: float
    longest_l2: float
    rows_l1: tuple[float, ...]
    rows_l2: tuple[float, ...]

    @classmethod
    def of(cls, relation: Relation, dimension: int, events: int, longest_l1: float, longest_l2: float) -> Exposure:
        """Compute it from a relation matrix and the lengths of the features.

        Raises:
            CalibrationError: the events cannot be divided equally among the users.
        """
        if events % relation.users or events < relation.users:
            raise CalibrationError(f"events: expected a multiple of {relation.users} users, got {events}")
        norms = (tuple(relation.row_norms(1).tolist()), tuple(relation.row_norms(2).tolist()))
        return cls(relation.users, dimension, events, longest_l1, longest_l2, *norms)

    @property
    def events_of_user(self) -> int:
        """T/N."""
        return self.events // self.users

    def horizon(self, sums: Sums, noise_at: NoiseAt) -> int:
        """The number of leaves of one counter."""
        return self.events if sums == "projected" and noise_at == "server" else self.events_of_user

    def sensitivities(self, sums: Sums, law: Law, noise_at: NoiseAt) -> tuple[float, ...]:
        """The change by one reward in the leaf of each user's counter, in the noise's norm; one value if shared."""
        longest = self.longest_l1 if law == "laplace" else self.longest_l2
        if sums == "raw":
            return (longest,) * self.users
        rows = self.rows_l1 if law == "laplace" else self.rows_l2
        moved = tuple(longest * row for row in rows)
        return (max(moved),) if noise_at == "server" else moved


def find_calibration(key: str) -> Calibration:
    """The calibration of this name.

    Raises:
        CalibrationError: no calibration has this name; the message lists the known ones.
    """
    for calibration in CALIBRATIONS:
        if calibration.key == key:
            return calibration
    raise CalibrationError(f"unknown calibration {key!r}; known: {', '.join(c.key for c in CALIBRATIONS)}")


def plan_for(calibration: Calibration, budget: Budget, horizon: int, dimension: int, sensitivity: int) -> Plan:
    """The plan of a counter, before any leaf."""
    if calibration.counter == "negative-digit":
        return best_tree(budget, horizon, dimension, sensitivity)
    kind = BinaryTree if calibration.counter == "binary" else BufferedToeplitz
    return kind(budget=budget, dimension=dimension, sensitivity=sensitivity, horizon=horizon)


def levels_of(calibration: Calibration, horizon: int) -> int:
    """The number of nodes that hold one leaf."""
    return plan_for(calibration, PureEpsilon(1), horizon, 1, 1).levels


def paper_scale(exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> tuple[float, ...]:
    """The scale of the paper's Laplace noise on a node, Delta_2 ln T / epsilon, of each counter.

    Raises:
        CalibrationError: a horizon of one event, whose logarithm is 0.
    """
    horizon = exposure.horizon("projected", noise_at)
    if horizon < 2:
        raise CalibrationError(f"paper: expected at least 2 events in a tree, got {horizon}")
    return tuple(
        distance * math.log(horizon) / epsilon for distance in exposure.sensitivities("projected", "k-norm", noise_at)
    )


def paper_true_epsilon(exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> float:
    """The exact epsilon of the paper's calibration for one reward; see the module."""
    levels = levels_of(find_calibration(PAPER), exposure.horizon("projected", noise_at))
    moved = exposure.sensitivities("projected", "laplace", noise_at)
    return max(levels * far / scale for far, scale in zip(moved, paper_scale(exposure, noise_at, epsilon), strict=True))


def node_epsilon_share(calibration: Calibration, epsilon: float) -> float:
    """The number that sensitivities are divided by: epsilon, or sqrt(2 rho) for Gaussian noise of `DELTA`."""
    return math.sqrt(2 * float(_rho(epsilon))) if calibration.law == "gaussian" else epsilon


@lru_cache(maxsize=64)
def _rho(epsilon: float) -> Fraction:
    return Fraction(Concentrated.for_epsilon(epsilon, DELTA).rho)


def reward_law(epsilon: float) -> LocalReward:
    """The local mechanism with the smaller worst-case variance at this epsilon: one bit, or discrete Laplace."""
    return LocalReward.of(REWARD_LEVELS, epsilon)


@lru_cache(maxsize=512)
def guarantee_of(calibration: Calibration, exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> Guarantee:
    """The guarantee of a run for one reward; its lifetime is all T/N rewards of one user.

    The figures come from seeded keys, so the guarantee is marked as reproducible.

    Raises:
        CalibrationError, BadPlan, BadNoise: no mechanism exists for these settings.
    """
    if calibration.sums == "reward":
        local = reward_law(epsilon).guarantee(rewards=exposure.events_of_user)
        return local.under_key(reproducible=True)
    laws: Mapping[Law, Callable[[], Budget]] = {
        "laplace": lambda: PureEpsilon(epsilon),
        "k-norm": lambda: PureLength(epsilon),
        "gaussian": lambda: Concentrated.for_epsilon(epsilon, DELTA),
    }
    budget = laws[calibration.law]()
    farthest = max(exposure.sensitivities(calibration.sums, calibration.law, noise_at))
    dimension = exposure.dimension * (exposure.users if calibration.sums == "projected" else 1)
    horizon = exposure.horizon(calibration.sums, noise_at)
    units = math.ceil(farthest * _MARGIN * (1 << GRID_BITS))
    plan = plan_for(calibration, budget, horizon, dimension, units)
    zone = "counter" if noise_at == "server" and not calibration.paired else "edge"
    stated = plan.guarantee(NEIGHBOURS, exposure.events_of_user, "hosted", zone)
    stated = replace(stated, not_protected=(*NOT_PROTECTED, *stated.not_protected))
    if not calibration.as_stated:
        stated = _with_claim(stated, exposure, noise_at, epsilon)
    return stated.under_key(reproducible=True)


def _with_claim(stated: Guarantee, exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> Guarantee:
    true = Cost(math.ceil(paper_true_epsilon(exposure, noise_at, epsilon) * MICRO), stated.cost.delta_units)
    life = Cost(true.epsilon_micro * exposure.events_of_user, stated.lifetime.cost.delta_units)
    scale = max(paper_scale(exposure, noise_at, epsilon))
    theorem = "Theorem 1" if noise_at == "server" else "Theorem 3"
    return replace(
        stated,
        mechanism=f"binary tree, Laplace noise of scale {scale:.6g} on each node",
        cost=true,
        replace_one=true,
        lifetime=replace(stated.lifetime, cost=life, exchange=life),
        private_as_stated=False,
        claimed=Claim(epsilon_micro(epsilon), "0", f"Wang et al. 2020, {theorem}"),
    )
