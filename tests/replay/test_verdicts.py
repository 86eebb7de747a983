"""What an evaluation says first: whether to deploy the shared private model, from intervals that hold together.

Worlds whose truth is known follow; there an additive model of contributors' noised rows stands in for the shared
private model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from described import described

from hushstream.features.schema import declare
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.replay.logged.evaluate import Interval
from hushstream.replay.logged.gains import LOGGING, NEEDED, OWN, SINGLE, Gains, Halves, advice, finding, gains
from hushstream.replay.logged.log import LoggedDataset
from hushstream.replay.logged.models import crosses_that_help, effects, expected_rewards
from hushstream.replay.logged.values import visits_of
from hushstream.replay.report.parts import Comparison, gain_kept
from hushstream.replay.studies.p2b.evaluation import beyond_additive, one_arm, references, verdict

ARMS, USERS, ROWS = 3, 60, 10
TASTES = np.array([0.4, 0.3, 0.3])
PROMISED = slot_sums_guarantee(epsilon=1)
BETTER, WORSE, EQUAL = Interval(0.01, 0.03), Interval(-0.03, -0.01), Interval(-0.01, 0.02)


def _log(seed: int, users: int = USERS) -> LoggedDataset:
    """Ten rows a user, whose one favourite arm earns .9 and every other .1; arms are shown at random."""
    draw = np.random.default_rng(seed)
    favourite = np.repeat(draw.choice(ARMS, users, p=TASTES), ROWS)
    shown = draw.integers(0, ARMS, users * ROWS)
    return LoggedDataset(
        name="tastes",
        arms=ARMS,
        users=np.repeat([f"u{user}" for user in range(users)], ROWS),
        timestamps_ms=np.arange(users * ROWS),
        **described(np.ones((users * ROWS, 1))),
        chosen=shown,
        rewards=(draw.random(users * ROWS) < np.where(shown == favourite, 0.9, 0.1)).astype(np.float64),
        propensities=np.full(users * ROWS, 1 / ARMS),
    )


def _judged(log: LoggedDataset, policy: str = "arm 0", **others: str) -> Gains:
    policies = {f"arm {arm}": one_arm(np.full(len(log), arm), ARMS) for arm in range(ARMS)}
    return gains(
        log, policies, np.full((len(log), ARMS), 0.4), policy, {SINGLE: "arm 1", OWN: "arm 2"}, exact="", **others
    )


@cache
def judged_log(seed: int, users: int = USERS) -> Gains:
    """What is judged of one of these logs, for all tests that draw many."""
    return _judged(_log(seed, users))


def test_the_intervals_of_all_differences_hold_at_once_in_95_of_100_logs():
    """400 logs: at 95 % fewer than 366 hold with a chance of 2e-3, and the seeds are fixed. Taking a user's rows for
    independent ones leaves 61 %, and intervals of 95 % each 86 %."""
    means = 0.1 + 0.8 * TASTES
    truth = {LOGGING: means[0] - means.mean(), SINGLE: means[0] - means[1], OWN: means[0] - means[2]}
    truth[LOGGING] = means[0] - (0.1 + 0.8 / ARMS)
    held = 0
    for seed in range(400):
        found = judged_log(seed).differences
        held += all(found[name][1].low <= true <= found[name][1].high for name, true in truth.items())
    assert held >= 366


def test_a_gain_below_what_a_verdict_names_is_missed_more_often_than_shown():
    """Of 60 logs of 60 users at most 30 + 18 show it, of 60 of 1,000 users at least 30 - 18: by chance 2e-6 each."""
    truth, shown = 0.8 * (TASTES[0] - TASTES[1]), {}
    for users in (60, 1000):
        judged = [judged_log(seed, users) for seed in range(60)]
        assert {found.missed > truth for found in judged} == {users == 60}
        shown[users] = sum(finding(found.differences[SINGLE][1]) == "significantly better" for found in judged)
    assert shown[60] <= 48
    assert shown[1000] >= 12
    for single, gain in ((BETTER, "0.0150 a decision, 30.0 %"), (Interval(-0.03, 0.03), "0.0300 a decision, 60.0 %")):
        said = " ".join(verdict(_gains((EQUAL, single, EQUAL)), PROMISED))
        assert f"A gain below {gain} of what the log earns, is missed by such a log more often" in said
    wide = _gains((Interval(0.05, 0.35), EQUAL, EQUAL))
    assert wide.missed == pytest.approx(0.015), "what beats the logging policy anyhow only misses one over the item"


@pytest.mark.parametrize(("rows", "told"), [(0, False), (40, False), (USERS * ROWS, True)])
def test_trees_that_differ_in_few_rows_are_not_said_to_gain(rows, told):
    """In 9 of 50 logs of a world whose effects add up its form "left" what trees gained; 39 intervals held."""
    log = _log(1)
    exact, trees = (one_arm(np.full(len(log), arm), ARMS) for arm in (0, 1))
    trees = np.where(np.arange(len(log))[:, None] < rows, trees, exact)
    policies = {"non-private": exact, "nonlinear": trees, "popular": exact, "cold": trees}
    expected, others = np.full((len(log), ARMS), 0.4), {SINGLE: "popular", OWN: "cold"}
    found = gains(log, policies, expected, "non-private", others, "non-private", "nonlinear")
    assert (found.left is not None) == told
    assert ("too few rows to compare" in " ".join(beyond_additive(found, ()))) == (not told)


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        ((BETTER, BETTER), "deploy"),
        ((BETTER, EQUAL), "no gain shown"),
        ((EQUAL, EQUAL), "no gain shown"),
        ((BETTER, None), "no verdict"),
        ((None, None), "no verdict"),
        ((EQUAL, None), "no verdict"),
        ((BETTER, WORSE), "do not deploy"),
        ((EQUAL, WORSE), "do not deploy"),
        ((WORSE, WORSE), "do not deploy"),
        ((WORSE, None), "do not deploy"),
    ],
)
def test_deployed_is_only_what_beats_the_logging_policy_and_the_best_single_item(intervals, said):
    for order in (intervals, intervals[::-1]):
        assert advice(dict(zip(NEEDED, order, strict=True))) == said


def _gains(intervals: tuple[Interval | None, ...], kept: Comparison | None = None) -> Gains:
    names = (LOGGING, SINGLE, OWN)
    found = {name: None if one is None else (sum(one) / 2, one) for name, one in zip(names, intervals, strict=True)}
    rewards = {LOGGING: 0.05, "warm_private": 0.07, "popular": 0.06, "cold": 0.055, "non-private": 0.08}
    left = {name: (12.0, 3) for name, one in zip(("popular", "cold"), intervals[1:], strict=True) if one is None}
    halves = {name: Halves(one, one) for name, one in found.items() if one is not None and name in NEEDED}
    return Gains(
        "warm_private",
        900,
        {k: v for k, v in rewards.items() if k not in left},
        found,
        halves,
        kept,
        None,
        left,
        room=(0.01, BETTER),
    )


def test_no_verdict_contradicts_itself_in_any_case_of_its_intervals():
    """All 64 cases of three comparisons: one advice each, the first words; gain words only with a gain."""
    first = {
        "deploy": "Deploy: ",
        "more users first": "Get more users first: ",
        "do not deploy": "Do not deploy: ",
        "no gain shown": "No gain is shown: ",
        "no verdict": "No verdict: ",
    }
    for intervals in product((BETTER, WORSE, EQUAL, None), repeat=3):
        found = _gains(intervals)
        said = " ".join(verdict(found, PROMISED))
        assert said.startswith(first[found.advice]), intervals
        own = finding(intervals[2])
        assert sum(said.count(one) for one in first.values()) == 1, said
        assert ("significantly better" in said) == (found.advice in ("deploy", "more users first")), said
        assert ("significantly worse" in said) == (found.advice == "do not deploy"), said
        assert found.advice != "deploy" or own in ("significantly better", "not known"), said
        assert said.count("users' own learning, by which they may earn as much") == (own == "no significant difference")
        assert said.count("worth less than users' own learning") == (own == "significantly worse"), said
        assert "users earn as much" not in said, "no difference that is shown is not none that there is"
        assert "{" not in said


@pytest.mark.parametrize(
    ("left", "crosses", "said"),
    [
        (EQUAL, [("hat", "shoe")], "no gain beyond its form is shown. What the additive model misses depends on pairs"),
        (
            None,
            [("hat", "shoe")],
            "What the additive model misses depends on pairs of features; declare as crosses: hat",
        ),
        (BETTER, [("hat", "shoe")], "its form leaves that gain. What the additive model misses depends on pairs of"),
        (BETTER, [], "its form leaves that gain. No pair of features explains it."),
        (EQUAL, [], "than the additive model: no gain beyond its form is shown."),
        (None, [], ""),
    ],
)
def test_a_pair_of_features_that_decides_is_named_where_trees_miss_it(left, crosses, said):
    """In a world of an exclusive or (2,000 visits) trees show nothing, while the test of pairs finds the pair."""
    found = replace(_gains((BETTER, BETTER, EQUAL)), left=None if left is None else (0.01, left))
    assert said in " ".join(beyond_additive(found, crosses))
    assert bool(beyond_additive(found, crosses)) == bool(said)


def test_a_verdict_gives_the_rewards_and_the_share_of_the_gain_that_is_kept():
    found = verdict(_gains((BETTER, BETTER, BETTER), Comparison(0.6, 0.4, 0.9)), PROMISED)
    said = " ".join(found)
    assert found[0] == (
        "Deploy: the shared private model is significantly better than the logging policy and the best single item."
    )
    assert "It earns 0.0700 a decision: 0.0200 more (+0.0100 to +0.0300) than the " in said
    assert "than the 0.0600 of the best single item; " in said
    assert "of users' own learning (95 % intervals that hold together)" in said
    exact = "0.0800, 0.0100 more (+0.0100 to +0.0300) (an additive model of the exact rewards, with the same features)"
    assert f"Without privacy a model that users do not go on teaching would earn {exact}" in said
    assert found[-1].endswith("of that gain over own learning 60 % is kept (40 % to 90 %).")
    alone = verdict(_gains((BETTER, BETTER, EQUAL), Comparison(0.6, 0.4, 0.9)), PROMISED)
    assert alone[-1].endswith("(40 % to 90 %, by itself, not together with the intervals above).")
    wide = verdict(_gains((BETTER, BETTER, EQUAL), Comparison(0.7, -0.5, 5.6)), PROMISED)
    assert wide[-1].endswith("how much of that gain over own learning is kept is not known (-50 % to 560 %).")
    assert "%" not in verdict(_gains((BETTER, BETTER, EQUAL)), PROMISED)[-1], "no share of nothing"


def test_a_replay_from_a_seed_says_what_its_noise_leaves_open():
    said = verdict(_gains((BETTER, BETTER, BETTER)), PROMISED.under_key(reproducible=True))[-1]
    assert said.startswith("The noise of this replay comes from a seed; intervals do not cover it")


@pytest.mark.parametrize("users", [1, 5])
def test_too_few_rows_or_one_user_alone_give_no_verdict(users):
    found = _judged(_log(2, users=users))
    assert (found.advice, found.kept, set(found.rewards)) == ("no verdict", None, {LOGGING})
    assert set(found.left_out) == {"arm 0", "arm 1", "arm 2"}
    (said,) = verdict(found, PROMISED)
    assert said.startswith(f"No verdict: too few of the {users * ROWS} rows show")
    assert verdict(_judged(_log(2), "warm_private"), PROMISED) == (
        "No verdict: the shared private model was not played.",
    )


def test_the_share_that_is_kept_is_covered_in_95_of_100_draws_and_absent_where_there_is_no_gain():
    """1,000 draws of 80 users with 5 rows each that share a user's level: 95 % is within .93 to .97 with a chance of
    .996 (taking rows for independent ones covers less). Where nothing is gained without privacy, a share is printed in
    at most 4 % of draws (2.5 % are expected)."""
    held = printed = 0
    for seed in range(1_000):
        draw = np.random.default_rng(seed)
        users = np.repeat(np.arange(80), 5)
        own, noise = draw.normal(1, 1, 400), draw.normal(0, 0.3, (2, 80))[:, users]
        found = gain_kept(own + 0.12 + noise[0], own + 0.2 + noise[1], own, users)
        held += found is None or found.low <= 0.6 <= found.high
        printed += gain_kept(own + noise[0], own + noise[1], own, users) is not None
    assert 930 <= held <= 970
    assert printed <= 40


ITEMS, COLOURS = 4, ("blue", "green", "red", "sand")
SCHEMA = declare({name: {"kind": "category", "vocabulary": list(COLOURS)} for name in ("hat", "shoe")})
FLAT = np.full((4, 4, ITEMS), 0.2)
OWN_ITEM = np.eye(4)[:, None, :]
WORLDS: dict[str, np.ndarray] = {
    "none": FLAT,
    "one for all": FLAT + 0.25 * np.eye(ITEMS)[2],
    "small": FLAT + 0.1 * OWN_ITEM,
    "large": FLAT + 0.5 * OWN_ITEM,
    "nonlinear": FLAT + 0.5 * np.stack([[np.eye(4)[(hat + shoe) % 4] for shoe in range(4)] for hat in range(4)]),
    "ended": FLAT + 0.5 * OWN_ITEM,
    "turned": FLAT + 0.5 * OWN_ITEM,
    "odds": 1 / (1 + np.exp(3 - 2 * OWN_ITEM - 2 * OWN_ITEM.swapaxes(0, 1))),
}
"""By name: chances of a click (hat, shoe, item), of "ended" and "turned" in the first half of the time."""
LATER = {"ended": FLAT, "turned": FLAT + 0.3 * np.roll(OWN_ITEM, 1, axis=0)}
"""Chances in the second half, where they are others."""


def made(world: str, seed: int, users: int, each: int = 5) -> LoggedDataset:
    """A log of users whose clicks depend on one another; items are shown by a skewed policy."""
    draw = np.random.default_rng([seed, 1])
    rows = users * each
    hat, shoe = draw.integers(0, 4, (2, rows))
    policy = np.where(np.arange(ITEMS) == hat[:, None] % 2, 0.4, 0.2)
    chosen = (draw.random(rows)[:, None] > np.cumsum(policy, axis=1)).sum(axis=1).clip(0, ITEMS - 1)
    mood = np.repeat(draw.choice([0.7, 1.3], users), each)
    columns = {"hat": [COLOURS[one] for one in hat], "shoe": [COLOURS[one] for one in shoe]}
    visits, contexts = visits_of(SCHEMA, columns, ("made", [str(row) for row in range(rows)]))
    clicked, later = draw.random(rows), (draw.random(rows) < 0.5) & (world in LATER)
    chances = np.where(later, LATER.get(world, FLAT)[hat, shoe, chosen], WORLDS[world][hat, shoe, chosen])
    log = LoggedDataset(
        name=world,
        arms=ITEMS,
        users=np.repeat(np.arange(users).astype(str), each),
        timestamps_ms=np.arange(rows) + rows * later,
        contexts=contexts,
        chosen=chosen,
        rewards=(clicked < mood * chances).astype(np.float64),
        propensities=policy[np.arange(rows), chosen],
        schema=SCHEMA,
        visits=visits,
    )
    return log.in_time_order()


def split(log: LoggedDataset) -> tuple[LoggedDataset, LoggedDataset]:
    """The rows of the first six tenths of the users, and those of the others."""
    taught = log.user_numbers < 0.6 * (log.user_numbers.max() + 1)
    return log.select(taught), log.select(~taught)


def judged(world: str, seed: int, users: int) -> Gains:
    """The stand-in of the shared private model beside the references; a user's own learning is a random choice."""
    log = made(world, seed, users)
    taught, part = split(log)
    policies = references(taught, part, seed)
    draw = np.random.default_rng([seed, 2])
    noised = taught.contexts + draw.normal(0, 0.05, taught.contexts.shape).astype(np.float32)
    columns = {name: getattr(taught, name) for name in LoggedDataset.__slots__}
    policies["private"] = references(LoggedDataset(**{**columns, "contexts": noised}), part, seed)["non-private"]
    policies["cold"] = one_arm(draw.integers(0, ITEMS, len(part)), ITEMS)
    expected = expected_rewards(log, seed)[log.user_numbers >= 0.6 * users]
    against = {SINGLE: "popular", OWN: "cold"}
    return gains(part, policies, expected, "private", against, "non-private", "nonlinear")


def advised(world: str, logs: int, users: int) -> Counter[str]:
    """How often each advice is given."""
    return Counter(judged(world, seed, users).advice for seed in range(logs))


@pytest.mark.parametrize(
    ("world", "crosses", "users"),
    [("nonlinear", [("hat", "shoe")], 600), ("large", [], 600), ("odds", [], 6_000)],
)
def test_a_cross_is_named_where_a_pair_of_features_decides_and_nowhere_else(world, crosses, users):
    """4 logs each. The pair of "nonlinear" was found in 24 of 24 other logs; in an additive world one is named in 5 %
    of logs at most, so in 2 of 4 with a chance of .014. The log-odds of "odds" add up, its chances do not: beyond a
    sum of chances the pair is named in 4 of 4."""
    found = [crosses_that_help(*split(made(world, seed, users))) for seed in range(4)]
    assert sum(one == crosses for one in found) >= (4 if crosses else 3)


def test_effects_are_what_the_world_has():
    """Deviations over four items of which one is better, by world, from 20,000 rows: of items' own effects and of hats.
    The seed is fixed; in four others no figure is off by more than .014."""
    truth = {"none": (0.0, 0.0), "one for all": (0.25, 0.0), "large": (0.0, 0.5)}
    for world, (own, hat) in truth.items():
        items, blocks = effects(made(world, 5, 4_000))
        assert items == pytest.approx(own * 0.75**0.5 / 2, abs=0.02), world
        assert blocks["hat"] == pytest.approx(hat * 0.75**0.5 / 2, abs=0.02), world
        assert blocks["shoe"] < 0.02, world


@pytest.mark.parametrize("world", ["none", "one for all"])
def test_no_gain_is_claimed_where_there_is_none(world):
    """8 small logs in CI, 200 by the slow mark: of an honest 5 % more than 2 of 8 have a chance of .006. A verdict
    against the logging policy alone says "deploy" in most logs of "one for all"."""
    found = advised(world, 8, 300)
    assert found["deploy"] + found["more users first"] <= 2


@pytest.mark.parametrize("world", ["ended", "turned"])
def test_a_gain_that_ended_is_measured_first_and_its_change_is_said(world):
    """Over the whole log it is significant in each of 4; a claim for the later half is wrong in 5 % of logs at most, so
    in 2 of 4 with a chance of .014."""
    found = [judged(world, seed, 600) for seed in range(4)]
    assert all(finding(one.differences[name][1]) == "significantly better" for one in found for name in NEEDED)
    assert Counter(one.advice for one in found)["measure first"] >= 3
    assert all(found[0].halves[name].change[1].high < 0.0 for name in NEEDED)
    said = " ".join(verdict(found[0], PROMISED))
    assert said.startswith("Measure first: ")
    assert "but not in the later half of the log" in said
    later, ends = found[0].halves[LOGGING].later
    shown = f"In the later half of the log it earns {later:+.4f} ({ends.low:+.4f} to {ends.high:+.4f}) against"
    assert shown in said
    assert "From the earlier to the later half" in said


def test_a_large_gain_is_found():
    """Power: 90 % are asked for, of which fewer than 2 of 4 have a chance of .004."""
    found = advised("large", 4, 600)
    assert found["deploy"] + found["more users first"] >= 2


def test_the_intervals_of_the_later_half_and_of_the_change_hold_as_they_say():
    """400 logs without a change: of 90 % fewer than 340 hold with a chance of 1e-3, of 97.5 % fewer than 379 with 1e-3.
    Taking a user's rows for independent ones leaves fewer."""
    truth, later, change = 0.8 * TASTES[0] - 0.8 / ARMS, 0, 0
    for seed in range(400):
        found = judged_log(seed).halves[LOGGING]
        later += found.later[1].low <= truth <= found.later[1].high
        change += found.change[1].low <= 0.0 <= found.change[1].high
    assert 340 <= later <= 380
    assert change >= 379


@pytest.mark.slow_statistics
def test_of_200_logs_of_each_world_at_most_5_percent_claim_a_gain_that_is_not_there():
    """False gains were 0, 0 and 1 (an additive model gains nothing from pairs); the power 193 of "large" and 5 of
    "small", of which none may be advised against: at a true rate of 5 % 10 or fewer of 200 have a chance of .58."""
    found = {world: advised(world, 200, 300) for world in WORLDS}
    claimed = {world: one["deploy"] + one["more users first"] for world, one in found.items()}
    for world in ("none", "one for all", "nonlinear"):
        assert claimed[world] <= 10, world
    assert claimed["large"] >= 180
    assert found["small"]["do not deploy"] <= 10
    assert claimed["small"] >= 1
