"""Every audit by name, and the run of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from hushstream.counting import Plan
from hushstream.privacy.audit import FALSE_ALARM
from hushstream.privacy.audit_laws import laplace_pair, pure
from hushstream.privacy.coins import bernoulli
from hushstream.privacy.exponential import exponential_choice, exponential_guarantee
from hushstream.privacy.gaussian import discrete_gaussian
from hushstream.privacy.guarantee import tuples_guarantee
from hushstream.privacy.k_norm import discrete_k_norm_joint
from hushstream.privacy.noise import discrete_laplace
from hushstream.privacy.response import RandomisedResponse
from hushstream.privacy.rewards import LocalReward
from hushstream.replay.audits import counters, mechanisms
from hushstream.replay.audits.row import Audit, Effort, Row, Run
from hushstream.replay.studies.colin.audits import paper as colin_paper
from hushstream.replay.studies.colin.audits import releases as collaborative
from hushstream.replay.studies.p2b.audits import attacks, releases
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig, Mechanism, NoiseLaw, Trust
from hushstream.systems.p2b.configuration import LiftConfig, ReleaseConfig
from hushstream.systems.p2b.promise import PAPER_THRESHOLD

SAMPLING, THRESHOLD = 0.5, 5
WORST_CROWD = 5
"""Other reports in a crowd for which sampled tuples with threshold 5 tell the most at epsilon ln 2."""

POPULAR = 30
"""Reports of others under the code of the unique tuple."""

HORIZON = 32

LIFT = LiftConfig(holdout=0.5, epsilon=3.0, decisions_per_user=3, releases=HORIZON)

FEATURES = 4
"""Entries of a reward's features, all equal: the furthest that a reward moves L1 sums."""

COLLABORATIVE_EPSILON = 8.0
"""At so large an epsilon few runs find half the noise, Gaussian noise too."""

COUNTERS: Mapping[NoiseLaw, Mapping[Mechanism, int]] = {
    "laplace": {"negative-digit": HORIZON, "binary": 3, "honaker": 3},
    "k-norm": {"negative-digit": HORIZON, "binary": 3, "honaker": 3},
    "gaussian": {"negative-digit": HORIZON, "binary": 3, "honaker": 3, "blt": 4},
}
"""Horizons of the counters that a collaborative configuration may name: of the trees two levels."""

K_NORM_RUNS = 600
"""K-norm vectors are slow to draw, and the fewest runs find half of them."""


def all_audits() -> tuple[Audit, ...]:
    """Every audit, in the order of the table."""
    return (*_mechanisms(), *_counters(), *_releases(), *_collaborative(), *_attacks())


def run_audits(names: Sequence[str] = (), effort: Effort = "full", false_alarm: float = FALSE_ALARM) -> Iterator[Row]:
    """Run the named audits, or all, one by one.

    Raises:
        HushstreamError: an unknown name, or a false-alarm rate outside (0, 1).
    """
    if not 0 < false_alarm < 1:
        raise HushstreamError(f"audit: expected a false alarm in (0, 1), got {false_alarm}")
    for audit in _chosen(names):
        yield audit(effort, false_alarm)


def count_audits(names: Sequence[str] = ()) -> int:
    """How many rows `run_audits` gives.

    Raises:
        HushstreamError: an unknown name.
    """
    return len(_chosen(names))


def _chosen(names: Sequence[str]) -> list[Audit]:
    known = {audit.name: audit for audit in all_audits()}
    for name in names:
        if name not in known:
            raise HushstreamError(f"audit: expected one of {', '.join(known)}, got {name!r}")
    return [audit for audit in known.values() if not names or audit.name in names]


def _mechanisms() -> tuple[Audit, ...]:
    ratio, size = mechanisms.likelihood_ratio, mechanisms.sizes
    laplace = mechanisms.LAPLACE_COST, mechanisms.LAPLACE_FAMILY
    gaussian = mechanisms.GAUSSIAN_COST, mechanisms.GAUSSIAN_FAMILY
    epsilon = mechanisms.EPSILON
    response = RandomisedResponse.of(mechanisms.CATEGORIES, epsilon)
    bit, noised = LocalReward.of(1, epsilon, "response"), LocalReward.of(mechanisms.LEVELS, epsilon, "laplace")
    choice = exponential_guarantee(mechanisms.CANDIDATES, epsilon, 1).cost
    one, steps = pure(lambda e: laplace_pair(e).power), pure(lambda e: laplace_pair(e, 1, noised.levels).power)
    return (
        _mechanism("discrete-laplace", discrete_laplace, 1_000, ratio(mechanisms.laplace_score(), *laplace)),
        _size("discrete-laplace-size", size(mechanisms.laplace_draw, laplace[0], mechanisms.laplace_sizes())),
        _mechanism("discrete-gaussian", discrete_gaussian, 1_000, ratio(mechanisms.gaussian_score(), *gaussian)),
        _size("discrete-gaussian-size", size(mechanisms.gaussian_draw, gaussian[0], mechanisms.gaussian_sizes())),
        _mechanism("k-norm", discrete_k_norm_joint, 2_000, mechanisms.audit_k_norm()),
        _size("k-norm-size", size(mechanisms.k_norm_draw, mechanisms.K_NORM_COST, mechanisms.k_norm_sizes()), 5_000),
        _mechanism(
            "randomised-response",
            response,
            1_000,
            ratio(
                mechanisms.response_score(response),
                response.guarantee().cost,
                mechanisms.response_family(mechanisms.CATEGORIES),
            ),
        ),
        _mechanism("local-reward-response", bit, 1_000, ratio(mechanisms.reward_score(bit), bit.guarantee().cost, one)),
        _mechanism(
            "local-reward-laplace",
            noised,
            2_000,
            ratio(mechanisms.reward_score(noised), noised.guarantee().cost, steps),
        ),
        _mechanism(
            "exponential",
            exponential_choice,
            2_000,
            ratio(mechanisms.choice_score(), choice, mechanisms.choice_family()),
        ),
    )


def _counters() -> tuple[Audit, ...]:
    binary, digits, honaker, buffered = counters.BINARY, counters.NEGATIVE_DIGIT, counters.HONAKER, counters.BUFFERED
    return (
        _counter("binary-tree", binary, 5_000, counters.audit_tree(binary)),
        _counter("negative-digit-tree", digits, 5_000, counters.audit_tree(digits)),
        _counter("honaker-tree", honaker, 2_000, counters.audit_linear(honaker, counters.honaker_family(honaker))),
        _counter("buffered-toeplitz", buffered, 2_000, counters.audit_linear(buffered, counters.gaussian_family())),
    )


def _releases() -> tuple[Audit, ...]:
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=HORIZON)
    tuples = ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=THRESHOLD)
    crowds = ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=PAPER_THRESHOLD)
    paper = ReleaseConfig(mode="paper", sampling=SAMPLING)
    slot, unique = "a report against null in one slot", "a tuple that nobody else has, under a popular code"
    crowd, attack = releases.audit_tuples_release(releases.p2b(tuples), WORST_CROWD), releases.audit_unique_tuple
    return (
        _slot_sums("slot-sums-fresh", fresh, 3_000),
        _slot_sums("slot-sums-sampled", replace(fresh, sampling=SAMPLING), 3_000),
        _slot_sums("slot-sums-counter", running, 2_000),
        _slot_sums("slot-sums-counter-sampled", replace(running, sampling=SAMPLING), 3_000),
        Audit("tuples", "release", slot, 5_000, crowd, factor=10, subjects=(tuples, bernoulli)),
        Audit("tuples-unique", "release", unique, 1_000, attack(releases.p2b(crowds), POPULAR), subjects=(crowds,)),
        Audit(
            "paper",
            "release",
            unique,
            1_000,
            attack(releases.p2b(paper), POPULAR),
            paper_claim=tuples_guarantee(PAPER_THRESHOLD, SAMPLING).cost,
            subjects=(paper,),
        ),
        _lift("lift", LIFT, 1_500),
    )


def _collaborative() -> tuple[Audit, ...]:
    """A row for each counter that a configuration may name, under both trusts, with each noise that it may have."""
    rows = [
        _continual(trust, mechanism, noise)
        for noise, kinds in COUNTERS.items()
        for mechanism in kinds
        for trust in get_args(Trust)
    ]
    return (
        *rows,
        _noisy_reward("noisy-reward", 1.0, 1_000),
        _noisy_reward("noisy-reward-laplace", 3.0, 2_000),
        Audit(
            "colin-paper",
            "release",
            "the first reward, 1 against 0, all releases seen",
            3_000,
            colin_paper.audit_paper_tree(),
            paper_claim=colin_paper.CLAIM,
            subjects=(colin_paper.EXPOSURE,),
        ),
    )


def _attacks() -> tuple[Audit, ...]:
    return (
        _attack(
            "shifted-window", "a slot's content against null, all later windows seen", 120, attacks.shifted_window()
        ),
        _attack("redrawn-noise", "one window released again and again", 500, attacks.redrawn_noise()),
        _attack("two-epsilons", "one cell at two epsilons under one key and nonce", 2_000, attacks.two_epsilons()),
        _attack("two-owners", "two workers on one journal, one lost the slots", 1_000, attacks.two_owners()),
        _attack("injected-reports", "all but one report of a crowd injected", 1_000, attacks.injected_reports()),
        _attack(
            "differenced-metrics", "the public endpoint before and after a click", 150, attacks.differenced_metrics()
        ),
    )


def _attack(name: str, about: str, runs: int, run: Run) -> Audit:
    return Audit(name, "attack", about, runs, run, factor=2)


def _mechanism(name: str, subject: object, runs: int, run: Run) -> Audit:
    return Audit(name, "mechanism", "two neighbouring inputs, likelihood ratio", runs, run, subjects=(subject,))


def _size(name: str, run: Run, runs: int = 10_000) -> Audit:
    return Audit(name, "mechanism", "mean size of the noise", runs, run)


def _counter(name: str, plan: Plan, runs: int, run: Run) -> Audit:
    about = "two streams that differ in one leaf, all releases seen"
    return Audit(name, "counter", about, runs, run, subjects=(plan,))


def _slot_sums(name: str, release: ReleaseConfig, runs: int) -> Audit:
    run = releases.audit_slot_sums_release(releases.p2b(release), HORIZON)
    return Audit(name, "release", "a report against null in one slot", runs, run, subjects=(release,))


def _lift(name: str, lift: LiftConfig, runs: int) -> Audit:
    run = releases.audit_lift(releases.p2b(ReleaseConfig(levels=2), lift))
    about = "all decisions of a user against none, all releases seen"
    return Audit(name, "release", about, runs, run, subjects=(lift,))


def _continual(trust: Trust, mechanism: Mechanism, noise: NoiseLaw) -> Audit:
    horizon = COUNTERS[noise][mechanism]
    release = ContinualConfig(
        trust=trust,
        mechanism=mechanism,
        noise=noise,
        epsilon=COLLABORATIVE_EPSILON,
        horizon=horizon,
        rewards_per_user=horizon,
    )
    # Rewards of one step are one leaf under a trusted server, so there many fit side by side.
    abreast = 25 if trust == "server" and noise != "k-norm" else 1
    features = FeatureConfig(abreast * FEATURES, norm_l1=FEATURES**0.5)
    run = collaborative.audit_counter_release(collaborative.collaborative(release, features), horizon)
    about = "a reward of 1 against 0, all releases seen"
    runs, factor = (K_NORM_RUNS, 2) if noise == "k-norm" else (1_000, 4)
    return Audit(f"{trust}-{mechanism}-{noise}", "release", about, runs, run, factor, subjects=(release,))


def _noisy_reward(name: str, epsilon: float, runs: int) -> Audit:
    """At a small epsilon the law is one bit, at a larger one Laplace noise."""
    release = ContinualConfig(
        trust="edge",
        mechanism="noisy-reward",
        epsilon=epsilon,
        horizon=HORIZON,
        rewards_per_user=HORIZON,
        reward_levels=mechanisms.LEVELS,
    )
    run = collaborative.audit_noisy_reward(collaborative.collaborative(release, FeatureConfig(FEATURES)))
    return Audit(name, "release", "a reward of 1 against 0", runs, run, subjects=(release,))
