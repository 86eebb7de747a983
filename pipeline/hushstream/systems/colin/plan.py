"""The plan of a collaborative deployment: noise against signal in one user's sums.

After n rewards a user's sum b of features times reward bears noise of variance s^2 a coordinate; A is exact. Let
features of length L be spread evenly over d coordinates. Then A is about m = n L^2 / d on the diagonal, and an entry of
theta is known with variance V = (m r + s^2) / m^2, r the variance of a reward. A user's mean rewards for different arms
have the standard deviation u, so an entry has the prior variance u^2 / L^2. The share of an arm's value that is known
is c = u^2/L^2 / (u^2/L^2 + V). What an argmax over arms gains is proportional to the deviation of what is known,
sqrt(c). A user alone, who learns from their own exact rewards, has c_0: V with s = 0. So sharing gains sqrt(c / c_0)
times what users alone gain.

k identical users with ties act as one user with k times the rewards and the noise of k sums: V is divided by k. If
their tastes are independent, what is learned of them is their mean, of which one's own taste is the k-th part: the mean
correlates by 1/sqrt(k) with it, so sharing gains sqrt(c / c_0) / sqrt(k) times what users alone gain. Nobody knows
beforehand how similar neighbours are, how far their rewards differ over arms, and how much they scatter. The upper end
is where sharing helps most: all users of the graph are identical (for colin and goblin; linucb has no ties), rewards
scatter as much as any in [0, 1] can (r = 1/4), and of the assumed spreads the one that makes the most of it (the
smallest, of which users alone learn least, where noise does not decide). The lower end is where it helps least:
independent tastes, and rewards of an arm always are its mean (r = 0). The expected value takes k = 1, which is never
better than a user alone. So the forecast is "will not" or "may", and never "will". In drawn worlds users alone gain up
to a tenth less, and sharing down to half as much, than these formulas have it (`MARGINS`).

Where sharing does not pay and the expected value is below `LEAST_SHARE`, noise decides: in replays of 200 rewards a
user, behind a trusted counter at epsilon 1, choices are no better than random ones (`hushstream experiment joining
--system colin`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hushstream.engine.declare.declaration import Note
from hushstream.engine.declare.plan import DAYS, Audience, Plan, Point, Range, first_day, lives_of, ranged
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.colin.configuration import (
    GRID_BITS,
    CollaborativeConfig,
    best_counter,
    mean_variance,
    noised_once,
    plan_of,
)
from hushstream.systems.colin.release import release_guarantee

ASSUMED_SPREAD, ASSUMED_RATE = 0.15, 0.5
"""Deviation of a user's mean rewards over arms, and the mean reward."""

FACTORS = (math.sqrt(0.5), 1.0, math.sqrt(2.0))
"""All spreads times these make the range."""

MARGINS = (0.5, 1.1)
"""Factors of the range's ends, fitted on 186 drawn worlds of 4 to 95 users: it holds the gain of 180 of them, and
of 73 of 80 others."""

MOST_SCATTER = 0.25
"""The largest variance of a reward in [0, 1]."""

MOST_USERS = 16_384
"""Largest number of users for one aggregator, however few features there are."""

LEAST_SHARE = 0.5
"""Below this share of what users alone gain, noise dominates what is learned."""

_COUNTER_KB, _LEARNER_KB, _STATE_KB = (3.8, 9.5), (6.3, 18.0), (1.4, 2.6)
_RELEASE_BYTES, _MODEL_BYTES = 14, 45
"""Measured (deploy/docs/sizing.md, colin): bytes a user and feature of a step and of a model, at d = 10."""


def sum_noise(config: CollaborativeConfig, rewards: int) -> float:
    """s^2: mean variance of the noise in one entry of a user's sum over their first rewards."""
    release, features = config.release, config.features
    if release.mechanism == "exact" or rewards < 1:
        return 0.0
    if release.mechanism == "noisy-reward":
        return noised_once(release, features, rewards)
    counter = plan_of(release, features)
    return counter.mean_square(min(rewards, counter.horizon)) * 4.0**-GRID_BITS


def share(config: CollaborativeConfig, rewards: int, spread: float, scatter: float, alike: int = 1) -> float:
    """What sharing gains over what a user alone gains, after a number of clean rewards of each of ``alike`` users.

    Rewards have the variance ``scatter`` around their arm's mean. A user alone learns from those of dark visits as
    well.
    """
    known = rewards * config.features.norm**2 / config.features.dimension
    signal, noise = (spread / config.features.norm) ** 2, sum_noise(config, rewards)
    sampling = known * scatter
    shared = signal / (signal + (sampling + noise) / alike / known**2)
    return math.sqrt(shared * (signal + config.learner.clean_share * sampling / known**2) / signal)


def alike(config: CollaborativeConfig, users: int) -> int:
    """Number of users of a graph that may act as one."""
    return 1 if config.learner.algorithm == "linucb" else users


def gained(config: CollaborativeConfig, rewards: int, rate: float, tied: int, factor: float) -> float:
    """The end of the range for a factor of `FACTORS`: ``tied`` users are alike above 1, independent below."""
    if not rewards:
        return 0.0
    if factor == 1:
        return share(config, rewards, ASSUMED_SPREAD, rate * (1 - rate))
    ends = [factor * ASSUMED_SPREAD for factor in FACTORS]
    if factor < 1:
        return MARGINS[0] * share(config, rewards, ends[0], 0.0) / math.sqrt(tied)
    return MARGINS[1] * max(share(config, rewards, spread, MOST_SCATTER, tied) for spread in ends)


def noise_against_signal(config: CollaborativeConfig, rewards: int, spread: float) -> float:
    """Deviation of the noise over that of the signal, in an entry of a user's sum."""
    known = rewards * config.features.norm**2 / config.features.dimension
    return math.sqrt(sum_noise(config, rewards)) / (known * spread / config.features.norm)


def plan(config: CollaborativeConfig, nodes: int, audience: Audience) -> Plan:
    """The plan for a deployment with a number of users in its graph."""
    rate = ASSUMED_RATE if audience.rate is None else audience.rate
    most = config.release.rewards_per_user

    def rewards(day: float) -> int:
        return min(most, round(config.learner.clean_share * audience.of_one(day)))

    tied = alike(config, nodes if nodes > 1 else audience.users)

    def at(day: float, factor: float) -> float:
        return gained(config, rewards(day), rate, tied, factor)

    ends = ranged(lambda factor: at(DAYS[-1], factor), FACTORS)
    beats, verdict = _verdict(ends, config)
    if (matrix := _matrix_bytes(config, audience.users)) > MOST_BYTES:
        beats, verdict = (
            False,
            f"It cannot run: the aggregator's matrix takes {matrix / 1e6:,.0f} MB, at most 2,147 fit.",
        )
    last = rewards(DAYS[-1])
    ratio = noise_against_signal(config, max(1, last), ASSUMED_SPREAD)

    def first(factor: float) -> int | None:
        return first_day(lambda day: at(day, factor) > 1.0)

    days = [first(factor) for factor in reversed(FACTORS)]
    return Plan(
        system=config.system,
        measure="gain, as a multiple of what users alone gain",
        gain="what users alone gain",
        values={"this deployment": ends},
        beats=beats,
        verdict=verdict,
        points=tuple(Point(day, rewards(day), ranged(partial(at, day), FACTORS)) for day in DAYS),
        first_day=(days[0], days[1], days[2]),
        unit="rewards a user",
        paid="reward",
        noise=(
            f"an entry of a user's sum: noise {ratio:.3g} times as large as the signal after "
            f"{count_text(last, 'reward', ',')}",
            noise_taken(config),
        ),
        lives=lives_of(rewards, lambda count: _prices(config, nodes, count)),
        sizes=_sizes(config, audience),
        assumed=(
            f"a user's mean rewards over arms have the standard deviation {ASSUMED_SPREAD:g} around {rate:g}",
            f"low end of the range: {count_text(tied, 'user', ',')} tied together have independent tastes, so others "
            "mislead, and rewards do not scatter; high end: one taste, and clicks; spreads 1.41 times less or more",
            *([_HELD] if config.release.mechanism == "noisy-reward" and config.learner.clean_share == 1 else []),
            "features are spread evenly over their coordinates; a user alone learns from their own exact rewards",
            f"each user makes {count_text(audience.visits, 'visit')} in "
            f"{count_text(audience.days, 'day', 'g')}, and each brings a reward",
        ),
    )


def warnings(config: CollaborativeConfig) -> tuple[Note, ...]:
    """Warnings of a plan, for all rewards of a user that ever count."""
    most = config.release.rewards_per_user
    found = ranged(partial(gained, config, most, ASSUMED_RATE, alike(config, MOST_USERS)), FACTORS)
    beats, verdict = _verdict(found, config)
    useless = Note(f"with {count_text(most, 'reward', ',')} of a user, all that count: {verdict}", "useless")
    release, features = config.release, config.features
    noisier = release.mechanism != "noisy-reward" and noised_once(release, features, most) < sum_noise(config, most)
    noised = Note(f"release.mechanism: {noise_taken(config)}; auto takes noisy-reward")
    return (*((useless,) if beats is False else ()), *((noised,) if noisier else ()))


def noise_taken(config: CollaborativeConfig) -> str:
    """Which mechanism adds the noise, and what another one would add; from settings alone."""
    release, features = config.release, config.features
    if release.mechanism == "exact":
        return "no noise is added"
    most = release.rewards_per_user
    once, counter = math.sqrt(noised_once(release, features, most)), release
    if release.mechanism == "noisy-reward":
        counter = best_counter(release)
    summed = math.sqrt(mean_variance(plan_of(counter, features)))
    entry = f"in an entry of a sum of {count_text(most, 'reward', ',')}"
    if release.mechanism == "noisy-reward":
        return f"noise on each reward, once, with deviation {once:.3g} {entry} ({counter.mechanism}: {summed:.3g})"
    return f"{counter.mechanism} adds noise with deviation {summed:.3g} {entry} (on each reward, once: {once:.3g})"


_DARK = (
    " Visits that share nothing (dark visits) follow each user's own exact rewards too. In three simulated worlds of "
    "mostly like tastes (epsilon 1, ten seeds) the mean regret was at most 1 % of a random policy's above that of "
    "users alone (`hushstream experiment joining --system colin`). If linked users' tastes differ, it can be far more."
)


_HELD = "nine of ten simulated worlds lay within this range: 4 to 64 users, 50 to 200 rewards each, epsilon .5 to 10"


def _verdict(ends: Range, config: CollaborativeConfig) -> tuple[bool | None, str]:
    mixed = config.learner.clean_share < 1
    dark = _DARK if mixed else ""
    gained = f"it gains {ends.middle:.2f} ({ends.low:.2f} to {ends.high:.2f}) times what users alone gain"
    if ends.high > 1.0:
        return None, f"It may or may not beat own learning, depending on how alike users are: {gained}.{dark}"
    if mixed:
        return None, f"The shared model alone will not beat own learning: {gained}.{dark}"
    lost = "noise decides what is shown, perhaps no better than random" if ends.middle < LEAST_SHARE else "keep apart"
    return False, f"It will not beat own learning, however alike users are: {gained}; {lost}."


def _prices(config: CollaborativeConfig, nodes: int, rewards: int) -> Prices:
    release = config.release
    fewer = replace(release, rewards_per_user=rewards, horizon=release.leaves)
    return release_guarantee(fewer, config.features, nodes, config.budget).life_prices


MOST_BYTES = 1 << 31
"""An aggregator refuses a larger matrix."""


def _matrix_bytes(config: CollaborativeConfig, users: int) -> int:
    return 8 * (users * config.features.dimension) ** 2


def _sizes(config: CollaborativeConfig, audience: Audience) -> Mapping[str, str]:
    parts, users, wide = config.partitions, audience.users, config.features.dimension
    steps = config.learner.clean_share * audience.visited(365.0) / config.release.rows
    return {
        "partitions": f"learner {parts.learner}: at most so many workers share the work; one aggregator",
        "learner, memory": f"{users * _LEARNER_KB[0] / 1000:,.0f} to {users * _LEARNER_KB[1] / 1000:,.0f} MB "
        "(20 to 60 rewards a user)",
        "counter, memory": f"{users * _COUNTER_KB[0] / 1000:,.0f} to {users * _COUNTER_KB[1] / 1000:,.0f} MB "
        "(10 to 25 features)",
        "aggregator, memory": f"{_matrix_bytes(config, users) / 1e6:,.0f} MB: one matrix over all users' features",
        "learner, state on disk": f"{users * _STATE_KB[0] / 1000:,.1f} to {users * _STATE_KB[1] / 1000:,.1f} MB",
        "broker, kept for ever": f"{steps * users * wide * _MODEL_BYTES / 1e6:,.0f} MB of models in a year of "
        f"{count_text(steps, 'step', ',.0f')}, for each copy",
        "broker, kept for 90 days": f"{steps / 365 * 90 * users * wide * _RELEASE_BYTES / 1e6:,.0f} MB of releases",
    }
