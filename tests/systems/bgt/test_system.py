"""BGTplanner as it is declared: where content stands, what is promised and foretold, and what cannot be deployed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from onlooker import watched

from hushstream.agents.worker.deployment import KeySource, load, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.plan import Audience
from hushstream.engine.values import ConfigurationError
from hushstream.ops.statement import statement_of
from hushstream.privacy.promises.promise import NOT_PRIVATE, Form
from hushstream.replay.runners.direct import DirectDriver, MemoryLog
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import BgtConfig, ModelConfig, ReleaseConfig, ScaleConfig
from hushstream.systems.bgt.guarantee import bgt_contents, deviation_of, epoch_guarantee, rho_micro
from hushstream.systems.bgt.plan import LEAST_GAIN, MOST_SPREAD, expected_errors, plan, remaining_variance
from hushstream.systems.bgt.server import ItemSums, biases_of, joined
from hushstream.systems.bgt.system import ERASURE, KIND, declare

SEEDS = (1, 2, 3)
NONCE = bytes(range(32))


def played(films, content, seed, **release):
    """A deployment in which one rating is ``content`` and all else is the same; under keys of this seed."""
    system = declare(films.make_system(public_dataset=True, **release))
    clock = iter(range(10**12, 10**13, 100))
    log = MemoryLog(lambda: next(clock))
    driver = DirectDriver(log, all_machines(system, KeySource(seed=seed)), NONCE)

    def put(schema, **fields):
        log.append("ratings", 0, codec.encode(schema, fields))
        driver.pump()

    for user in range(12):
        items = np.arange(user, user + 6)
        values = 1.0 + (items + user) % 5
        values[0] = content if not user else values[0]
        put("Ratings", user=f"u{user}", items=items.astype("<i4").tobytes(), values=values.astype("<f8").tobytes())
    for phase in range(3):
        put("Seal", phase=phase, origin=-1, config_digest=bytes(16), after_click=-1)
        items = np.arange(30, 34, dtype="<i4").tobytes()
        put("RatingQuery", event_id=f"q{phase}", user="u0", items=items, after_round=phase)
    return system, log


@cache
def seen(films, noise="gaussian"):
    return watched(lambda rating, seed: played(films, rating, seed, noise=noise)[1], (1, 5), SEEDS, columns=False)


@pytest.mark.parametrize("noise", ["gaussian", "exact"])
def test_a_rating_stands_unnoised_where_it_is_said_to_and_nowhere_else(films, noise):
    """Predictions before any model would be of the user alone; after noised rounds they follow from noise, too."""
    unnoised = seen(films, noise).unnoised
    clear = {content.topic for content in bgt_contents(films.make_config(noise=noise)) if content.form is Form.CLEAR}
    assert unnoised <= clear
    assert {"ratings"} | ({"releases", "models"} if noise == "exact" else set()) <= unnoised


def test_under_one_key_a_rating_moves_contents_sums_and_what_follows_from_them_alone(films):
    moved = seen(films).moved
    assert moved["updates"] <= {"content", "top", "gains", "kind", "kept"}
    assert moved["releases"] <= {"sums", "kind", "kept"}
    assert moved["journal-collector"] <= {"head", "history", "chain", "kind", "parameters"}
    assert moved["predictions"] <= {"head", "chain", "values"}
    assert moved["ledger"] == set()


def test_the_statement_says_who_sees_ratings_and_what_an_erasure_leaves(films, tmp_path):
    text = str(statement_of(prepare(tmp_path, films.make_config())).as_json())
    assert "rater workers see ratings in clear" in text
    assert "the user's reports are null from then on" in text
    assert "sealed on state-rater" in " ".join(ERASURE.waits), "a published state outlives the next snapshot"
    assert "zero-out" in text


def test_public_features_are_prepared_once_and_are_in_the_digest(films, tmp_path):
    config = films.make_config(features=2)
    with pytest.raises(ConfigurationError, match="expected --features with the items' public features, got none"):
        prepare(tmp_path / "none", config)
    given = {"features": ("items.csv", "0,1,0.5\n3,-1,2\n")}
    made = prepare(tmp_path / "one", config, given)
    assert load(tmp_path / "one").digest == made.digest
    assert made.core.features[[0, 3]].tolist() == [[1.0, 0.5], [-1.0, 2.0]]
    other = prepare(tmp_path / "other", config, {"features": ("items.csv", "0,1,0.5\n")})
    assert other.digest != made.digest
    with pytest.raises(ConfigurationError, match="expected the given features or none, got others"):
        prepare(tmp_path / "other", config, given)
    for line in ("40,1,1", "0,1", "0,x,1", "0,nan,1", "0,1,1\n0,1,1", "-1,1,1"):
        with pytest.raises(ConfigurationError, match=r"items.csv, line \d: expected an item from 0 to 39"):
            prepare(tmp_path / "bad", config, {"features": ("items.csv", line)})
    with pytest.raises(ConfigurationError, match="expected no --features"):
        prepare(tmp_path / "unasked", films.make_config(), given)


def test_a_model_that_fits_no_record_is_refused_before_anything_runs(films):
    most = films.BgtConfig("films", 24_576)
    KIND.check(most)
    with pytest.raises(ConfigurationError, match=r"items\.capacity: expected at most 24576"):
        KIND.check(films.BgtConfig("films", 24_577))


def test_what_is_said_before_anything_runs_names_from_how_many_users_on_it_pays(films):
    facts = {fact.name: fact for fact in KIND.facts(films.BgtConfig("films", 1682), None)}
    assert facts["users_to_gain"].value < facts["users_for_factors"].value
    assert "where items differ by 0.1, nothing is gained over the device alone below" in facts["users_to_gain"].text
    assert facts["users_for_factors"].text.startswith("Where tastes are as strong as in films")
    strict = films.BgtConfig("films", 1682, release=films.ReleaseConfig(epsilon=0.1))
    assert KIND.facts(strict, None)[0].value > facts["users_to_gain"].value
    assert KIND.notes(strict)
    assert not KIND.facts(films.make_config(noise="exact"), None)


NAN, INF = float("nan"), float("inf")


def config_of(epsilon: float, **release) -> BgtConfig:
    return BgtConfig("x", 1682, release=ReleaseConfig(epsilon=epsilon, **release))


@pytest.mark.parametrize(("epsilon", "rho"), [(10.0, 1.6702), (3.0, 0.2108), (1.0, 0.0283)])
def test_the_three_rounds_share_out_the_rho_of_epsilon_at_half_of_delta(epsilon, rho):
    config = config_of(epsilon)
    parts = [rho_micro(number, config.release) / 1e6 for number in range(3)]
    assert sum(parts) == pytest.approx(rho, abs=1e-4)
    assert [part / sum(parts) for part in parts] == pytest.approx([0.3, 0.3, 0.4], abs=1e-3)
    promise = epoch_guarantee(config)
    assert promise.cost.epsilon_micro <= epsilon * 1e6
    assert promise.cost.epsilon_micro > 0.999 * epsilon * 1e6
    assert promise.marks == ()


@pytest.mark.parametrize("epsilon", [10.0, 3.0, 1.0])
def test_accountants_of_others_find_no_more(epsilon):
    """dp-accounting composes Gaussian mechanisms of the noise that is drawn: RDP at all orders, and exact PLD."""
    config = config_of(epsilon)
    promise = epoch_guarantee(config)
    multipliers = [1 / math.sqrt(2 * rho_micro(number, config.release) / 1e6) for number in range(3)]
    assert multipliers[0] == pytest.approx(deviation_of(0, "items", config), rel=1e-12)
    orders = [1 + step / 50 for step in range(1, 1000)] + list(range(22, 2000, 5))
    for accountant, least in ((RdpAccountant(orders), 0.97), (PLDAccountant(), 0.85)):
        for multiplier in multipliers:
            accountant.compose(GaussianDpEvent(multiplier))
        theirs = accountant.get_epsilon(5e-6)
        assert least * epsilon < theirs <= promise.cost.epsilon_micro / 1e6 + 1e-6


def test_slots_of_a_user_against_other_slots_cost_four_times_the_rho():
    against = epoch_guarantee(config_of(10.0)).replace_one.epsilon_micro / 1e6
    orders = [1 + step / 50 for step in range(1, 1000)]
    accountant = RdpAccountant(orders)
    for number in range(3):
        accountant.compose(GaussianDpEvent(1 / math.sqrt(8 * rho_micro(number, config_of(10.0).release) / 1e6)))
    assert accountant.get_epsilon(5e-6) <= against + 1e-6
    assert against == pytest.approx(24.18, abs=0.01)


def test_sums_without_noise_promise_nothing():
    promise = epoch_guarantee(config_of(1.0, noise="exact"))
    assert promise.marks == (NOT_PRIVATE,)
    assert promise.unnoised == ("releases", "models", "rounds")
    assert promise.cost.delta_units == 1 << 80


def test_where_ratings_are_open_follows_from_the_deployment():
    assert any("operator" in fact for fact in epoch_guarantee(config_of(1.0)).not_protected)
    assert not any("operator" in fact for fact in epoch_guarantee(replace(config_of(1.0), kind="edge")).not_protected)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ReleaseConfig(epsilon=21), "from 0.1 to 20"),
        (lambda: ReleaseConfig(shares=(0.5, 0.5, 0.5)), "release.shares"),
        (lambda: ReleaseConfig(shares=(1.0, 0.0, 0.0)), "release.shares"),
        (lambda: ReleaseConfig(clip=1.5), "release.clip"),
        (lambda: ReleaseConfig(pairs=0), "release.pairs"),
        (lambda: ReleaseConfig(top=1), "release.top"),
        (lambda: ModelConfig(edge_margin=0.9), "model.edge_margin"),
        (lambda: ModelConfig(rating_variance=INF), "model.rating_variance"),
        (lambda: ScaleConfig(5, 1), "scale.highest"),
        (lambda: ScaleConfig(middle=2), "scale.middle"),
    ],
)
def test_impossible_configurations_are_refused_by_name(make, match):
    with pytest.raises(ConfigurationError, match=match):
        make()


def test_the_plan_foretells_when_nothing_is_gained_and_when_factors_pay():
    """Ratios as in MovieLens-100K (.37 at epsilon 10: no factors) and in a set of 6,040 users (2.4: factors)."""
    small, large = expected_errors(config_of(10.0), 943, 85), expected_errors(config_of(10.0), 6040, 130)
    assert small.ratio == pytest.approx(0.366, abs=0.01)
    assert large.ratio == pytest.approx(2.35, abs=0.05)
    assert "will not be found" in small.factors_text
    assert "likely to be found" in large.factors_text
    assert large.shared < small.shared < small.local
    assert not expected_errors(config_of(0.2), 30, 10).pays


@pytest.mark.parametrize(
    ("users", "epsilon", "beats"), [(60, 3.0, None), (150, 1.0, None), (2000, 0.1, None), (2000, 3.0, True)]
)
def test_a_plan_says_will_only_where_more_than_counts_of_noise_decide(users, epsilon, beats):
    """In drawn worlds of 400 items with 32 ratings a user RMSE fell by .0003 +- .0010, .0002 +- .0007, .0012 +- .0006
    and .0200 +- .0020. Where items differ by .02, 2,000 users at epsilon 3 gained .0003 +- .0002, so a verdict says
    from which difference on it pays."""
    config = BgtConfig("x", 400, release=ReleaseConfig(epsilon=epsilon))
    found = plan(config, Audience(users, 32, 365.0, visit_days=1.0))
    assert found.beats is beats
    assert "where users agree about items, and these differ by 0." in found.verdict
    least = float(found.verdict.rsplit("differ by ", 1)[1].split()[0])
    sure, enough = ((True, MOST_SPREAD), 2 * LEAST_GAIN) if beats else ((False,), LEAST_GAIN)
    gains = [expected_errors(config, users, 32, one, *sure).gain for one in (least, least - 0.01)]
    assert gains[0] >= enough > gains[1]


def test_a_plan_says_where_its_days_its_range_and_its_word_do_not_hold():
    """Ten seeds each: ten users lost .0124 +- .0024, of whom .0048 was said to be the most; of equally popular items
    that differ by .08, 1,000 users gained .0006 +- .0007 where "will" was said."""
    found = plan(BgtConfig("x", 400, release=ReleaseConfig(epsilon=3.0)), Audience(2000, 32, 365.0, visit_days=1.0))
    assert found.beats
    assert "whose mean is scale.middle, scatter by at most 0.25, and popularity falls as assumed." in found.verdict
    assumed = "\n".join(found.assumed)
    for said in ("as 1/(rank + 10)", "hold this for one release, lucky or not", "ratings that users have made by then"):
        assert said in assumed


def test_the_first_days_of_a_plan_are_of_the_ratings_that_users_have_made_by_then():
    """In ten seeds 400 users who make 50 ratings in 30 days lost .0079 +- .0020 on day 6; of users with all of their
    ratings the plan said better from day 1. On days 7, 30 and 90 of drawn audiences the range held to .005 179 of
    180 gains where 50 users or more had come."""
    slow, fast = (plan(config_of(3.0), Audience(400, 50, 30.0, visit_days=days)).first_day for days in (30.0, 0.1))
    assert fast[1] <= 6 < slow[1]


def test_the_plan_of_devices_is_that_of_hosted_raters():
    kinds = (config_of(3.0), replace(config_of(3.0), kind="edge", settle_seconds=60.0))
    plans = [plan(one, Audience(2000, 32, 365.0, visit_days=1.0)) for one in kinds]
    assert (plans[0].values, plans[0].verdict) == (plans[1].values, plans[1].verdict)


def test_a_plan_does_not_say_will_where_users_who_are_alike_have_as_much_alone() -> None:
    """Of 40 drawn worlds ten gained less than a range that took own means for noisy ones, and one "will" was a loss."""
    config = BgtConfig("x", 484, release=ReleaseConfig(epsilon=4.3))
    found = plan(config, Audience(261, 10, 365.0, visit_days=1.0))
    alone, ours = found.values["each device alone"], found.values["this deployment"]
    assert alone.low < ours.low
    assert alone.middle > ours.middle + LEAST_GAIN
    assert found.beats is None


@pytest.mark.parametrize(("users", "epsilon"), [(60, 0.5), (60, 3.0), (2000, 0.1), (2000, 3.0)])
def test_the_expected_gain_of_biases_is_that_of_the_servers_estimate_mixed_by_devices(users, epsilon):
    """100 draws of both sums of items, and 50 devices each that weigh the estimate by 32 ratings of their own. Taking
    noised counts for exact ones, one sum for both, or the best weight for known is further off."""
    config = BgtConfig("x", 400, release=ReleaseConfig(epsilon=epsilon))
    draw, first, third = np.random.default_rng(5), *(deviation_of(number, "items", config) for number in (0, 2))
    popularity = 1.0 / (np.arange(400) + 10.0)
    popularity /= popularity.sum()
    counts = np.minimum(users, users * 32 * popularity)
    counts *= min(1.0, config.release.clip / (32 * (config.release.count_weight**2 + 0.187**2 + 0.01)) ** 0.5)
    left = []
    for _ in range(100):
        biases = draw.normal(0, 0.1, 400)
        exact = counts * biases + draw.normal(0, 1, 400) * np.sqrt(counts * 0.187**2)
        copies = [
            ItemSums(
                counts + draw.normal(0, one / config.release.count_weight, 400), exact + draw.normal(0, one, 400), one
            )
            for one in (first, third)
        ]
        found = biases_of(joined(*copies), np.zeros((400, 0)), config).biases
        found -= popularity @ found
        items, spread = draw.choice(400, (50, 32), p=popularity), popularity @ found**2
        local, gap = biases[items] + draw.normal(0, 0.187, items.shape), found[items]
        weight = ((local * gap).sum(axis=1) + 16 * spread) / ((gap**2).sum(axis=1) + 20 * spread)
        left.append(
            ((biases - np.clip(weight, 0, 1)[:, None] * found) ** 2 @ popularity).mean() - popularity @ biases**2
        )
    gained = 0.01 - remaining_variance(config, users, 32, 0.01, 0.187**2)
    assert -np.mean(left) == pytest.approx(gained, rel=0, abs=0.0003)


def test_a_plan_refuses_no_users():
    with pytest.raises(ConfigurationError, match="users"):
        expected_errors(config_of(1.0), 0, 10)
