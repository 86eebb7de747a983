"""What a budget admits, before anything runs: how much of what is planned fits, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction

import pytest

from hushstream.engine.noise.budget import BudgetConfig, filter_of, largest_that
from hushstream.engine.noise.spending import ChargeKey, OwnScope
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, delta_units
from hushstream.privacy.bounds import exp_above, exp_below
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.ledger import BasicFilter
from hushstream.privacy.mechanisms.guarantee import tuples_guarantee
from hushstream.privacy.promises.conversion_table import DELTAS, conversion_lines, conversion_rows
from hushstream.systems.colin.configuration import collaborative_digest

SMALL = {"rows": 4, "horizon": 64, "rewards_per_user": 32}
LIFT = {"holdout": 0.4, "epsilon": 2.0, "decisions_per_user": 5, "every_seconds": 120.0, "releases": 7}


def fits(related, filter_name, limit=(3.0, 1e-6), **release):
    budget = BudgetConfig(*limit, filter_name)
    return related.make_system(release={**SMALL, "epochs": 1000, **release}, budget=budget).budgets[0].fits


@pytest.mark.parametrize(
    "release",
    [{"epsilon": 0.05}, {"epsilon": 0.05, "noise": "gaussian", "delta": 1e-9}],
    ids=["laplace", "gaussian"],
)
def test_at_one_limit_zcdp_and_renyi_admit_more_epochs_than_sums_of_epsilon(related, release):
    basic = fits(related, "basic", **release)
    assert basic == 60
    for name in ("zcdp", "renyi"):
        assert fits(related, name, **release) > 2 * basic


def test_a_gaussian_counter_is_priced_by_its_rho_and_not_by_the_epsilon_that_it_prints(related):
    budget = BudgetConfig(3.0, 1e-6, "zcdp")
    terms = related.make_system(
        release={**SMALL, "epsilon": 0.05, "noise": "gaussian", "delta": 1e-9}, budget=budget
    ).spending_terms
    rho, beside = terms.life.curve
    assert rho_to_epsilon_micro(rho, delta_units(1e-9)) <= terms.life.cost.epsilon_micro <= 50_000
    pure = replace(terms.life, curve=())
    assert terms.limit.price(terms.life)[0] < terms.limit.price(pure)[0] / 10
    # The tables' error is weighed with the budget's epsilon: (1 + e^3) t, where the guarantee has (1 + e^0.05) t.
    residue = terms.life.cost.delta_units - delta_units(1e-9)
    ratio = (1 + exp_above(Fraction(3))) / (1 + exp_below(Fraction(1, 20)))
    assert beside == -(-residue * ratio // 1)


def test_the_headline_is_what_all_epochs_cost_under_the_budgets_filter(related):
    for name in ("basic", "zcdp"):
        budget = BudgetConfig(3.0, 1e-6, name)
        system = related.make_system(release={**SMALL, "epsilon": 0.05, "epochs": 1000}, budget=budget)
        promised, terms = system.guarantee(), system.spending_terms
        assert promised.cost == terms.ceiling
        assert promised.cost.fits(budget.limit)
        assert promised.price.epsilon_micro == 50_000
        assert promised.redraws.most == terms.fits == system.budgets[0].fits
        assert promised.lifetime.cost.epsilon_micro == terms.fits * 32 * 50_000
        stated = system.budgets[0]
        assert stated.as_json() | {"fits": terms.fits, "planned": 1000, "filter": name} == stated.as_json()
        assert f"epochs of noise: 1000 planned, {terms.fits} fit, releases stop there" in stated.as_text()
        roomy = related.make_system(release={**SMALL, "epsilon": 0.05, "epochs": 4}, budget=budget)
        assert roomy.budgets[0].fits == 4, "a budget lets nobody pay more often than is planned"
        assert roomy.guarantee().redraws.most == 4


def test_without_a_budget_what_is_planned_is_the_limit(related, rigs):
    system = related.make_system(release={**SMALL, "epochs": 4})
    price = system.guarantee().price
    assert system.spending_terms.limit == BasicFilter(Cost(4 * price.epsilon_micro, 4 * price.delta_units))
    assert (system.budgets[0].planned, system.budgets[0].fits) == (4, 4)
    slots = rigs.make_system(slot={"lifetime_slots": 3, "after_interactions": 3})
    assert slots.slot_terms.limit == BasicFilter(slots.guarantee().lifetime.cost)
    assert (slots.lifetime_slots, slots.slot_terms.fits) == (3, 1)


def test_more_is_planned_than_fits_and_less_is_done(related, rigs):
    system = related.make_system(release={**SMALL, "epochs": 9}, budget=BudgetConfig(2.5, 1e-6))
    assert (system.budgets[0].planned, system.budgets[0].fits) == (9, 2)
    assert system.guarantee().redraws.most == 2
    assert "epochs of noise: 9 planned, 2 fit, releases stop there" in system.budgets[0].as_text()
    users = rigs.make_system(slot={"lifetime_slots": 9, "after_interactions": 3}, budget=BudgetConfig(2.5, 1e-6))
    assert users.lifetime_slots == users.edge_terms().lifetime_slots == 2
    assert users.guarantee().lifetime.units == 2
    assert users.guarantee().lifetime.cost.fits(BudgetConfig(2.5, 1e-6).limit)


def test_slots_of_one_user_may_meet_so_zcdp_has_room_for_fewer(rigs):
    slots = {"lifetime_slots": 50, "after_interactions": 3}
    counts = {
        name: rigs.make_system(
            slot=slots, release={"epsilon": 0.2}, budget=BudgetConfig(4.0, 1e-6, name)
        ).lifetime_slots
        for name in ("basic", "zcdp", "renyi")
    }
    assert counts["basic"] == 20
    assert 1 <= counts["zcdp"] < 20
    assert 1 <= counts["renyi"] < 20


def test_windows_lie_side_by_side_and_a_counter_over_windows_is_one_charge(rigs):
    fresh = rigs.make_system(release={"window_slots": 4, "sums": "fresh"})
    running = rigs.make_system(release={"window_slots": 4, "sums": "counter", "windows": 50})
    assert fresh.slot_terms.own_scope(3, ChargeKey(0, 17)) == "window/3/17"
    assert (fresh.slot_terms.releases, running.slot_terms.releases) == (1, 50)
    assert running.slot_terms.own_scope(3, ChargeKey(2)) == "epoch/3/2"
    assert running.slot_terms.own_scope(3, ChargeKey(2, 0, 1)) == "epoch/3/2/renewal/1"
    assert "any number of windows" in fresh.budgets[0].as_text()
    assert "at most 50 windows" in running.budgets[0].as_text()


@pytest.mark.parametrize(
    ("scope", "kind", "found"),
    [
        ("epoch/0/12", "epoch", (0, 12, 0, "")),
        ("epoch/2/12/renewal/3", "epoch", (2, 12, 3, "")),
        ("epoch/2/12/renewal/3/00ff", "epoch", (2, 12, 3, "00ff")),
        ("window/1/7/renewal/1/ab", "window", (1, 7, 1, "ab")),
        ("lift/4/renewal/2/ab", "lift", (4, 0, 2, "ab")),
        ("window/1/7", "window", (1, 7, 0, "")),
        ("lift/4", "lift", (4, 0, 0, "")),
    ],
)
def test_the_name_of_a_scope_is_read_back(scope, kind, found):
    assert OwnScope.of(scope, kind) == found
    for other in (
        "epoch/0/1/renewal/1/xy",
        "epoch/0",
        "epoch/0/1/2",
        "epoch/x/1",
        "lift/0/1",
        "window/1",
        "",
        "epoch/0/1/renewal/x",
    ):
        wrong = kind if other.startswith(kind) else "epoch" if kind != "epoch" else "lift"
        with pytest.raises(ValueError, match=r"expected a scope of kind|invalid literal|non-hexadecimal"):
            OwnScope.of(other, wrong)


def test_a_budget_with_room_for_nothing_is_refused_and_says_what_is_needed(related, rigs):
    tight = BudgetConfig(0.9, 1e-6)
    with pytest.raises(
        ConfigurationError,
        match=r"^privacy\.lifetime: expected a limit that covers one epoch of noise at least \(epsilon 1,",
    ):
        related.make_system(release=SMALL, budget=tight)
    with pytest.raises(ConfigurationError, match=r"one slot of one user at least .* got basic with epsilon 0\.9,"):
        rigs.make_system(budget=tight)
    with pytest.raises(ConfigurationError, match=r"the lift in its share of 0\.1 at least \(epsilon 2,"):
        rigs.make_system(lift=LIFT, budget=BudgetConfig(5.0, 1e-6, lift=0.1))
    with pytest.raises(ConfigurationError, match="a limit that covers one slot"):
        rigs.make_system(release={"mode": "paper", "sampling": 0.5}, budget=BudgetConfig(5.0, 1e-6))


def test_what_the_lift_may_spend_is_a_share_and_both_parts_stay_within_the_whole(rigs):
    budget = BudgetConfig(8.0, 1e-6, lift=0.25)
    system = rigs.make_system(lift=LIFT, slot={"lifetime_slots": 9, "after_interactions": 3}, budget=budget)
    slots, lift = system.budgets
    assert (slots.fits, lift.fits, lift.releases) == (6, 1, 7)
    together = system.slot_terms.life.cost + system.lift_terms.life.cost
    assert together.fits(budget.limit)
    assert "A share of 0.25 is the lift's." in slots.as_text()
    for name in ("basic", "zcdp", "renyi"):
        whole = filter_of(BudgetConfig(8.0, 1e-6, name))
        parts = [filter_of(BudgetConfig(8.0, 1e-6, name), Fraction(share)) for share in ("1/4", "3/4")]
        for field, value in asdict(whole).items():
            if field not in ("order", "delta_units") and not isinstance(value, dict):
                assert sum(asdict(part)[field] for part in parts) <= value


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lift": LIFT, "budget": BudgetConfig(8.0, 1e-6)}, "privacy.lifetime.holdout"),
        ({"budget": BudgetConfig(8.0, 1e-6, lift=0.2)}, "privacy.lifetime.holdout"),
    ],
)
def test_a_share_goes_with_a_hold_out_and_with_nothing_else(rigs, changes, field):
    with pytest.raises(ConfigurationError, match=f"^{field}: expected a share above 0 exactly where holdout.share is"):
        rigs.make_system(**changes)


def test_a_collaborative_system_has_no_lift_and_exact_sums_no_budget(related):
    with pytest.raises(ConfigurationError, match=r"^budget\.lift: expected 0"):
        related.make_system(budget=BudgetConfig(8.0, 1e-6, lift=0.2))
    with pytest.raises(ConfigurationError, match=r"^privacy\.lifetime: expected none for exact sums"):
        related.make_system(release={**SMALL, "mechanism": "exact"}, budget=BudgetConfig(8.0, 1e-6))


def test_at_the_edge_too_the_headline_is_what_the_planned_epochs_cost(related):
    system = related.make_system(release={**SMALL, "noise_at": "learner"}, budget=BudgetConfig(8.0, 1e-6))
    assert system.guarantee().redraws is None
    assert system.guarantee().epsilon_micro == 1_000_000
    twice = related.make_system(release={**SMALL, "noise_at": "learner", "epochs": 2}, budget=BudgetConfig(8.0, 1e-6))
    assert twice.guarantee().redraws.most == 2
    assert twice.guarantee().epsilon_micro == 2_000_000


def test_limits_are_rounded_down_and_prices_up():
    assert BudgetConfig(1.0000009, 1e-6).limit.epsilon_micro == 1_000_000
    assert BudgetConfig(1, 1e-6) == BudgetConfig(1.0, 1e-6)
    assert BudgetConfig(1.0, 1e-6).limit.delta_units < delta_units(1e-6)
    with pytest.raises(ConfigurationError, match=r"^privacy\.lifetime\.delta: expected at least 2e-24"):
        BudgetConfig(1.0, 1e-24, "zcdp")


def test_every_field_of_a_budget_moves_the_digest(related):
    base = related.make_config(budget=BudgetConfig(8.0, 1e-6))
    others = [BudgetConfig(9.0, 1e-6), BudgetConfig(8.0, 1e-7), BudgetConfig(8.0, 1e-6, "zcdp"), None]
    digests = {collaborative_digest(replace(base, budget=budget), b"") for budget in (base.budget, *others)}
    assert len(digests) == 5


@pytest.mark.parametrize("largest", [0, 1, 2, 999, 1000])
def test_the_largest_number_that_fits_is_found(largest):
    assert largest_that(lambda count: count <= largest, 1000) == largest


# Conversions.


def test_a_pure_price_is_shown_as_rho_and_as_epsilon_at_the_usual_deltas(related):
    one, many = conversion_rows(related.make_system(release={**SMALL, "epsilon": 0.1}).guarantee())
    assert (one.covers, one.pure_micro, one.rho_micro) == ("one reward", 100_000, 5_000)
    assert (many.covers, many.pure_micro, many.rho_micro) == ("all 32 of one user", 3_200_000, 5_120_000)
    for row in (one, many):
        assert list(row.at_micro) == sorted(row.at_micro)
        assert all(micro <= row.pure_micro for micro in row.at_micro)
        assert list(row.as_json()["epsilon_at_delta"]) == list(DELTAS)


def test_a_gaussian_price_has_a_rho_that_grows_with_the_square_of_a_users_events_and_with_epochs(related):
    release = {**SMALL, "noise": "gaussian", "epsilon": 0.5, "delta": 1e-6}
    one, many = conversion_rows(related.make_system(release=release).guarantee())
    assert one.pure_micro is None
    assert many.rho_micro == 32**2 * one.rho_micro
    assert one.at_micro[DELTAS.index("1e-6")] <= MICRO // 2
    assert one.at_micro[1] == rho_to_epsilon_micro(one.rho_micro, delta_units("1e-6"))
    three, _ = conversion_rows(related.make_system(release={**release, "epochs": 3}).guarantee())
    assert three.rho_micro == 3 * one.rho_micro
    assert three.at_micro[1] < 3 * one.at_micro[1]


def test_a_price_of_epsilon_and_delta_together_is_not_converted():
    assert conversion_rows(tuples_guarantee(50, "0.5")) == ()
    assert conversion_lines(tuples_guarantee(50, "0.5"), ()) == [
        "None: this mechanism is priced by epsilon and delta together."
    ]


@pytest.mark.parametrize(("epsilon", "rows"), [(0.5, 2), (4.0, 1)])
def test_a_life_that_is_promised_nothing_has_no_conversion(related, epsilon, rows):
    """128 of one user would be pure epsilon 128, though the residue that comes on top of each delta is 1 there."""
    promise = related.make_system(release={**SMALL, "epsilon": epsilon}).guarantee()
    assert (promise.lifetime.cost.delta_units >= DELTA_ONE) == (rows == 1)
    found = conversion_rows(promise)
    assert [row.covers for row in found] == ["one reward", "all 32 of one user"][:rows]
    lines = conversion_lines(promise, found)
    assert ("pay a delta of 1: nothing is promised, in any currency." in lines[-1]) == (rows == 1)
