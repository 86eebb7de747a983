"""Every audit by name, and the run of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hushstream.privacy.audit import FALSE_ALARM, AuditResult
from hushstream.privacy.audit_laws import laplace_pair, pure
from hushstream.privacy.exponential import exponential_guarantee
from hushstream.privacy.guarantee import tuples_guarantee
from hushstream.privacy.response import RandomisedResponse
from hushstream.privacy.rewards import LocalReward
from hushstream.replay.audits import attacks, counters, mechanisms, releases
from hushstream.replay.audits.row import Audit, Effort, Row
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.collaborative_configuration import ContinualConfig
from hushstream.systems.configuration import ReleaseConfig
from hushstream.systems.p2b_promise import PAPER_THRESHOLD

SAMPLING, THRESHOLD = 0.5, 5
WORST_CROWD = 5
"""Other reports in a crowd for which sampled tuples with threshold 5 tell the most at epsilon ln 2."""

POPULAR = 30
"""Reports of others under the code of the unique tuple."""

HORIZON = 32


def all_audits() -> tuple[Audit, ...]:
    """Every audit, in the order of the table."""
    return (*_mechanisms(), *_counters(), *_releases(), *_attacks())


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
        _mechanism("discrete-laplace", 1_000, ratio(mechanisms.laplace_score(), *laplace)),
        _size("discrete-laplace-size", size(mechanisms.laplace_draw, laplace[0], mechanisms.laplace_sizes())),
        _mechanism("discrete-gaussian", 1_000, ratio(mechanisms.gaussian_score(), *gaussian)),
        _size("discrete-gaussian-size", size(mechanisms.gaussian_draw, gaussian[0], mechanisms.gaussian_sizes())),
        _mechanism("k-norm", 2_000, mechanisms.audit_k_norm()),
        _size("k-norm-size", size(mechanisms.k_norm_draw, mechanisms.K_NORM_COST, mechanisms.k_norm_sizes()), 5_000),
        _mechanism(
            "randomised-response",
            1_000,
            ratio(
                mechanisms.response_score(response),
                response.guarantee().cost,
                mechanisms.response_family(mechanisms.CATEGORIES),
            ),
        ),
        _mechanism("local-reward-response", 1_000, ratio(mechanisms.reward_score(bit), bit.guarantee().cost, one)),
        _mechanism(
            "local-reward-laplace", 2_000, ratio(mechanisms.reward_score(noised), noised.guarantee().cost, steps)
        ),
        _mechanism("exponential", 2_000, ratio(mechanisms.choice_score(), choice, mechanisms.choice_family())),
    )


def _counters() -> tuple[Audit, ...]:
    stream = "two streams that differ in one leaf, all releases seen"
    honaker, buffered = counters.HONAKER, counters.BUFFERED
    return (
        Audit("binary-tree", "counter", stream, 5_000, counters.audit_tree(counters.BINARY)),
        Audit("negative-digit-tree", "counter", stream, 5_000, counters.audit_tree(counters.NEGATIVE_DIGIT)),
        Audit(
            "honaker-tree", "counter", stream, 2_000, counters.audit_linear(honaker, counters.honaker_family(honaker))
        ),
        Audit(
            "buffered-toeplitz", "counter", stream, 2_000, counters.audit_linear(buffered, counters.gaussian_family())
        ),
    )


def _releases() -> tuple[Audit, ...]:
    slot, unique = "a report against null in one slot", "a tuple that nobody else has, under a popular code"
    fresh = releases.p2b(ReleaseConfig(levels=2, sums="fresh"))
    sampled = releases.p2b(ReleaseConfig(levels=2, sums="fresh", sampling=SAMPLING))
    running = releases.p2b(ReleaseConfig(sums="counter", windows=HORIZON))
    tuples = releases.p2b(ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=THRESHOLD))
    crowds = releases.p2b(ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=PAPER_THRESHOLD))
    paper = releases.p2b(ReleaseConfig(mode="paper", sampling=SAMPLING))
    return (
        Audit("slot-sums-fresh", "release", slot, 3_000, releases.audit_slot_sums_release(fresh)),
        Audit("slot-sums-sampled", "release", slot, 3_000, releases.audit_slot_sums_release(sampled)),
        Audit("slot-sums-counter", "release", slot, 2_000, releases.audit_slot_sums_release(running)),
        Audit("tuples", "release", slot, 5_000, releases.audit_tuples_release(tuples, WORST_CROWD), factor=10),
        Audit("tuples-unique", "release", unique, 1_000, releases.audit_unique_tuple(crowds, POPULAR)),
        Audit(
            "paper",
            "release",
            unique,
            1_000,
            releases.audit_unique_tuple(paper, POPULAR),
            paper_claim=tuples_guarantee(PAPER_THRESHOLD, SAMPLING).cost,
        ),
        _continual("server-counter", ContinualConfig(horizon=HORIZON, rewards_per_user=HORIZON)),
        _continual("edge-counter", ContinualConfig(trust="edge", horizon=HORIZON, rewards_per_user=HORIZON)),
        Audit(
            "noisy-reward",
            "release",
            "a reward of 1 against 0",
            1_000,
            releases.audit_noisy_reward(
                releases.collaborative(
                    ContinualConfig(
                        trust="edge",
                        mechanism="noisy-reward",
                        horizon=HORIZON,
                        rewards_per_user=HORIZON,
                        reward_levels=mechanisms.LEVELS,
                    )
                )
            ),
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


def _attack(name: str, about: str, runs: int, run: Callable[[int, float], AuditResult]) -> Audit:
    return Audit(name, "attack", about, runs, run, factor=2)


def _mechanism(name: str, runs: int, run: Callable[[int, float], AuditResult]) -> Audit:
    return Audit(name, "mechanism", "two neighbouring inputs, likelihood ratio", runs, run)


def _size(name: str, run: Callable[[int, float], AuditResult], runs: int = 10_000) -> Audit:
    return Audit(name, "mechanism", "mean size of the noise", runs, run)


def _continual(name: str, release: ContinualConfig) -> Audit:
    system = releases.collaborative(release)
    about = "a reward of 1 against 0, all releases seen"
    return Audit(name, "release", about, 6_000, releases.audit_counter_release(system))
