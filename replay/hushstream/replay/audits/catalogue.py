"""All audits by name: those of the mechanisms, and of each study; the audit of one configuration.

*Mechanisms.* Noise, responses and choices under fresh nonces, attacked on two neighbouring inputs.

Counters are attacked on two streams that differ in their first leaf; the attacker sees every release. From the releases
it computes independent numbers (`hushstream.replay.audits.readings.Reading`) and decides by their likelihood ratio; the
bound uses the curve of an attacker who sees the draws behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import (
    BinaryTree,
    BufferedToeplitz,
    Concentrated,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
    PureLength,
)
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits import (
    FALSE_ALARM,
    Attack,
    Family,
    Pair,
    Sizes,
    laplace_pair,
    lattice_sizes,
    plane_pair,
    pure,
)
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.gaussian import discrete_gaussian, gaussian_truncation, gaussian_variance_for
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.privacy.mechanisms.k_norm import discrete_k_norm_joint, k_norm_truncation
from hushstream.privacy.mechanisms.noise import discrete_laplace, laplace_scale
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.privacy.mechanisms.tuples import RandomisedResponse
from hushstream.replay.audits.configured import RUNS, AuditReport, require_runs
from hushstream.replay.audits.readings import (
    BUDGET,
    EPSILON,
    GAUSSIAN_FAMILY,
    LAPLACE_FAMILY,
    STEP,
    Reading,
    reading_family,
    reading_of,
)
from hushstream.replay.audits.recordings import fresh_address, fresh_key, fresh_stream
from hushstream.replay.audits.row import Audit, Effort, Row
from hushstream.replay.audits.tests import NeighbourTest, Read, Score, SizeTest, Test, each_run, side_by_side
from hushstream.replay.runners.to_end import play_all
from hushstream.replay.study import Progress, studies, study_of
from hushstream.schemas.errors import HushstreamError

CATEGORIES, LEVELS = 4, 4
_DRAWS = 100
"""How many draws of K-norm noise, or for the test of a size, are made at once."""

Draw = Callable[[Key, int], NDArray[np.float64]]
"""Draws n values of a noise under new nonces: integers (n,), or vectors (n, d)."""


def laplace_draw(key: Key, count: int) -> NDArray[np.float64]:
    """Discrete Laplace noise for an integer that moves by 1."""
    return discrete_laplace(fresh_stream(key, "laplace"), *laplace_scale(EPSILON, 1), count).astype(np.float64)


def gaussian_draw(key: Key, count: int) -> NDArray[np.float64]:
    """Discrete Gaussian noise for an integer that moves by `STEP`."""
    variance = gaussian_variance_for(BUDGET.rho, STEP**2)
    return discrete_gaussian(fresh_stream(key, "gaussian"), *variance, count).astype(np.float64)


def k_norm_draw(key: Key, count: int) -> NDArray[np.float64]:
    """K-norm noise for two integers that move by `STEP` in L2."""
    streams = [fresh_stream(key, "k-norm") for _ in range(count)]
    return discrete_k_norm_joint(streams, *laplace_scale(EPSILON, STEP), 2).astype(np.float64)


LAPLACE_COST = slot_sums_guarantee(EPSILON).cost
GAUSSIAN_COST = BUDGET.cost(1, gaussian_truncation(*gaussian_variance_for(BUDGET.rho, STEP**2)))

K_NORM_FAMILY = Family(lambda epsilon: plane_pair(STEP / epsilon, STEP).power, lambda epsilon: epsilon, 0.25, 16.0)


@cache
def k_norm_cost() -> Cost:
    """The cost of the attacked noise; it takes a second to compute, so it is not computed on import."""
    return PureLength(EPSILON).cost(1, k_norm_truncation(*laplace_scale(EPSILON, STEP), 2))


def laplace_score() -> Score:
    """The score: whether a noised 0 or 1 is at least 1."""
    key = fresh_key()
    return lambda present: present + laplace_draw(key, 1)[0] - 0.5


def gaussian_score() -> Score:
    """The score: on which side of the middle a noised integer lies."""
    key = fresh_key()
    return lambda present: STEP * present + gaussian_draw(key, 1)[0] - STEP / 2


def k_norm_attack() -> Attack:
    """The attack on K-norm noise; the score is which of the two points is nearer to the noised one."""
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        first = k_norm_draw(key, _DRAWS)[:, 0] + STEP * present
        return np.asarray(first**2 - (first - STEP) ** 2)

    return side_by_side(scores, _DRAWS)


def response_score(response: RandomisedResponse) -> Score:
    """The score: whether the answer is the unit's category."""
    key = fresh_key()

    def score(present: bool) -> float:
        answer = response.draw(fresh_stream(key, "response"), np.array([int(present)]))
        return 1.0 if answer[0] == 1 else -1.0

    return score


def response_family(categories: int) -> Family:
    """The distributions of the answers: the two categories in question, and all others."""

    return pure(lambda epsilon: response_pair(epsilon, categories).power)


def response_pair(epsilon: float, categories: int) -> Pair:
    """The answers to the first category, and to the second."""
    lie = 1 / (np.exp(epsilon) + categories - 1)
    null = np.full(categories, lie)
    null[0] = 1 - (categories - 1) * lie
    return Pair(null, np.roll(null, 1))


def reward_score(reward: LocalReward) -> Score:
    """The score: whether a noised reward, of 0 or of the highest level, is above the middle."""
    key, middle = fresh_key(), reward.levels / 2 if reward.law == "laplace" else 0.5

    def score(present: bool) -> float:
        noised = reward.draw(fresh_stream(key, "reward"), np.array([reward.levels * present]))
        return float(noised[0]) - middle

    return score


def sizes_of(draw: Draw) -> Read:
    """The sizes of `_DRAWS` draws, under nonces of their own."""
    key = fresh_key()
    return lambda: np.asarray(np.linalg.norm(draw(key, _DRAWS).reshape(_DRAWS, -1), axis=1))


def laplace_sizes() -> Sizes:
    """The distribution of |x| for discrete Laplace noise."""
    return lattice_sizes(1, LAPLACE_FAMILY)


def gaussian_sizes() -> Sizes:
    """The distribution of |x| for discrete Gaussian noise."""

    def law(rho: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        variance = STEP**2 / (2 * rho)
        return _line(lambda x: -(x**2) / (2 * variance), 12 * np.sqrt(variance))

    return Sizes(law, GAUSSIAN_FAMILY)


def k_norm_sizes() -> Sizes:
    """The distribution of the length of K-norm noise in the plane."""

    def law(epsilon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        line = np.arange(-int(32 * STEP / epsilon), int(32 * STEP / epsilon) + 1)
        squares, counts = np.unique(np.add.outer(line**2, line**2), return_counts=True)
        masses = counts * np.exp(-np.sqrt(squares) * epsilon / STEP)
        return np.sqrt(squares), masses / masses.sum()

    return Sizes(law, K_NORM_FAMILY)


def _line(
    exponent: Callable[[NDArray[np.float64]], NDArray[np.float64]], reach: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    whole = np.arange(int(reach) + 2.0)
    masses = np.exp(exponent(whole)) * np.where(whole > 0, 2, 1)
    return whole, masses / masses.sum()


PARALLEL_COUNTERS = 25
"""How many scalar counters share one nonce, as the coordinates of a vector."""

LEAF = 1 << 10
"""How far a leaf moves a sum, in steps of the lattice: so far that noise has the law of continuous noise."""

PLANS: dict[str, tuple[Plan, int]] = {
    "binary-tree": (BinaryTree(budget=PureEpsilon(EPSILON), horizon=15, sensitivity=LEAF), 5_000),
    "negative-digit-tree": (NegativeDigitTree(budget=PureEpsilon(EPSILON), horizon=112, sensitivity=LEAF), 5_000),
    "gaussian-binary-tree": (BinaryTree(budget=BUDGET, horizon=15, sensitivity=LEAF), 2_000),
    "buffered-toeplitz": (BufferedToeplitz(budget=BUDGET, horizon=15, sensitivity=LEAF), 2_000),
}
"""The attacked counters by the names of their rows, each with the runs of the quick version."""


def audit_counter(plan: Plan) -> NeighbourTest:
    """Attack one coordinate of a counter by its first leaf."""
    key, reading, wide = fresh_key(), reading_of(plan, plan.horizon), in_parallel(plan)
    score = Reading.linear_score if isinstance(plan.budget, Concentrated) else Reading.clipped_score

    def scores(present: bool) -> NDArray[np.float64]:
        counter, seen = wide.open(key, fresh_address(plan.mechanism)), []
        for time in reading.times:
            leaves = np.zeros((time - counter.leaves, PARALLEL_COUNTERS), dtype=np.int64)
            leaves[0] = LEAF * (present and not counter.leaves)
            counter.add(leaves)
            seen.append(counter.release().values)
        return score(reading, np.array(seen)[..., None], LEAF)

    family = reading_family(plan, reading, 1)
    return NeighbourTest(side_by_side(scores, PARALLEL_COUNTERS), plan.guarantee().cost, family)


def in_parallel(plan: Plan) -> Plan:
    """The counter with `PARALLEL_COUNTERS` coordinates, which are scalar counters with independent noise.

    Raises:
        HushstreamError: its noise is smaller than the scalar counter's.
    """
    wide = replace(plan, dimension=PARALLEL_COUNTERS)
    if wide.noise.variance < plan.noise.variance:
        raise HushstreamError("audit: expected as much noise on each of many coordinates as on one, got less")
    return wide


def rows_of_mechanisms() -> tuple[Audit, ...]:
    """The audits of all mechanisms, and of one coordinate of each counter."""
    response = RandomisedResponse.of(CATEGORIES, EPSILON)
    bit, noised = LocalReward.of(1, EPSILON, "response"), LocalReward.of(LEVELS, EPSILON, "laplace")
    steps = pure(lambda epsilon: laplace_pair(epsilon, 1, noised.levels).power)
    streams = "two streams that differ in one leaf, all releases seen"

    def ratio(name: str, subject: object, runs: int, score: Callable[[], Score], cost: Cost, family: Family) -> Audit:
        return attacked(name, subject, runs, lambda: NeighbourTest(each_run(score()), cost, family))

    def attacked(name: str, subject: object, runs: int, make: Callable[[], Test]) -> Audit:
        return Audit(name, "mechanism", "two neighbouring inputs, likelihood ratio", runs, make, subjects=(subject,))

    def sized(name: str, draw: Draw, cost: Callable[[], Cost], law: Callable[[], Sizes], draws: int = 10_000) -> Audit:
        about = "mean size of the noise"
        return Audit(name, "mechanism", about, draws, lambda: SizeTest(sizes_of(draw), cost(), law()))

    return (
        ratio("discrete-laplace", discrete_laplace, 1_000, laplace_score, LAPLACE_COST, LAPLACE_FAMILY),
        sized("discrete-laplace-size", laplace_draw, lambda: LAPLACE_COST, laplace_sizes),
        ratio("discrete-gaussian", discrete_gaussian, 1_000, gaussian_score, GAUSSIAN_COST, GAUSSIAN_FAMILY),
        sized("discrete-gaussian-size", gaussian_draw, lambda: GAUSSIAN_COST, gaussian_sizes),
        ratio(
            "randomised-response",
            response,
            1_000,
            lambda: response_score(response),
            response.guarantee().cost,
            response_family(CATEGORIES),
        ),
        ratio("local-reward-response", bit, 1_000, lambda: reward_score(bit), bit.guarantee().cost, LAPLACE_FAMILY),
        ratio("local-reward-laplace", noised, 2_000, lambda: reward_score(noised), noised.guarantee().cost, steps),
        attacked(
            "k-norm",
            discrete_k_norm_joint,
            2_000,
            lambda: NeighbourTest(k_norm_attack(), k_norm_cost(), K_NORM_FAMILY),
        ),
        sized("k-norm-size", k_norm_draw, k_norm_cost, k_norm_sizes, 5_000),
        *(
            Audit(name, "counter", streams, runs, partial(audit_counter, plan), subjects=(plan,))
            for name, (plan, runs) in PLANS.items()
        ),
    )


def run_audits(
    names: Sequence[str] = (),
    effort: Effort = "full",
    false_alarm: float = FALSE_ALARM,
    progress: Progress | None = None,
) -> list[Row]:
    """Run the named audits, or all, in the order of the table.

    Args:
        names: the names of the audits; all if empty.
        effort: how many runs each audit takes.
        false_alarm: the probability, for each row, that an honest mechanism fails.
        progress: called with (rows done, rows in all, what is being done).

    Raises:
        HushstreamError: an unknown name, or a false-alarm rate outside (0, 1).
    """
    if not 0 < false_alarm < 1:
        raise HushstreamError(f"audit: expected a false alarm in (0, 1), got {false_alarm}")
    attack = partial(_attack, effort=effort, false_alarm=false_alarm)
    return list(play_all(attack, chosen_audits(names), "audits", progress).values())


def audit_config(config: Any, runs: int = RUNS, false_alarm: float = FALSE_ALARM) -> AuditReport:
    """Attack the releases of a configuration.

    Args:
        config: a configuration of any system.
        runs: releases on each of two neighbours.
        false_alarm: the probability that an honest mechanism fails.

    Raises:
        HushstreamError: the configuration's release has no noise, or ``runs`` or ``false_alarm`` is out of range.
    """
    require_runs(runs, false_alarm)
    return study_of(config.system).audit_config(config, runs, false_alarm)


def chosen_audits(names: Sequence[str]) -> list[str]:
    """The named rows, or all, in the order of the table.

    Raises:
        HushstreamError: an unknown name.
    """
    known = _known()
    for name in names:
        if name not in known:
            near = "".join(f", did you mean {one}?" for one in get_close_matches(name, known, n=1))
            raise HushstreamError(f"audit: expected a name that `hushstream audit` lists, got {name!r}{near}")
    return [name for name in known if not names or name in names]


def _attack(name: str, effort: Effort, false_alarm: float) -> Row:
    return make_audit(name)(effort, false_alarm)


def make_audit(name: str) -> Audit:
    """A known row, whose test is not made yet."""
    return replace(_known()[name])


def audit_names() -> tuple[str, ...]:
    """The names of all rows, in the order of the table."""
    return tuple(_known())


@cache
def audits_by_system() -> Mapping[str, tuple[Audit, ...]]:
    """The rows of each system, after those of the mechanisms that all share, in the order of the table."""
    return {"all": rows_of_mechanisms(), **{name: study.audits() for name, study in studies().items()}}


@cache
def _known() -> Mapping[str, Audit]:
    return {audit.name: audit for audit in chain.from_iterable(audits_by_system().values())}
