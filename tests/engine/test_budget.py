"""Budgets: what a machine spends, when it is refused, and what may run live."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fractions import Fraction

import pytest

from hushstream.engine.configuration import PrivacyConfig
from hushstream.engine.noise.budget import BudgetConfig, filter_of
from hushstream.engine.noise.spending import ChargeKey, OwnScope, Spending, SpendingTerms
from hushstream.engine.records import InputRange, ReplayMismatch
from hushstream.engine.system import require_person_promised, require_private
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee, tuples_guarantee
from hushstream.privacy.promises.page import conversion_lines, conversion_rows
from hushstream.privacy.promises.sentence import ledger_words
from hushstream.schemas import codec
from hushstream.systems.colin.configuration import collaborative_digest
from hushstream.systems.p2b.slots import Report

SMALL = {"rows": 4, "horizon": 64, "rewards_per_user": 32}
LIFT = {"own": 0.4, "epsilon": 2.0, "decisions_per_user": 5, "every_seconds": 120.0, "releases": 7}


def fits(related, filter_name, limit=(3.0, 1e-6), **release):
    budget = BudgetConfig(*limit, filter_name)
    return related.make_system(release={**SMALL, "epochs": 1000, **release}, budget=budget).budgets[0].fits


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
        assert f"pays for {terms.fits} of 1000 planned epochs of noise, then releases stop" in stated.as_text()
        roomy = related.make_system(release={**SMALL, "epsilon": 0.05, "epochs": 4}, budget=budget)
        assert roomy.budgets[0].fits == 4, "a budget lets nobody pay more often than is planned"
        assert roomy.guarantee().redraws.most == 4


def test_more_is_planned_than_fits_and_less_is_done(related, rigs):
    system = related.make_system(release={**SMALL, "epochs": 9}, budget=BudgetConfig(2.5, 1e-6))
    assert (system.budgets[0].planned, system.budgets[0].fits) == (9, 2)
    assert system.guarantee().redraws.most == 2
    assert "pays for 2 of 9 planned epochs of noise, then releases stop" in system.budgets[0].as_text()
    users = rigs.make_system(slot={"lifetime_slots": 9, "after_interactions": 3}, budget=BudgetConfig(2.5, 1e-6))
    assert users.lifetime_slots == users.edge_terms().lifetime_slots == 2
    assert users.guarantee().lifetime.units == 2
    assert users.guarantee().lifetime.cost.fits(BudgetConfig(2.5, 1e-6).limit)


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
    with pytest.raises(ConfigurationError, match=r"one report of one user at least .* got basic with epsilon 0\.9,"):
        rigs.make_system(budget=tight)
    with pytest.raises(ConfigurationError, match=r"the lift in its share of 0\.1 at least \(epsilon 2,"):
        rigs.make_system(measurement=LIFT, budget=BudgetConfig(5.0, 1e-6, lift=0.1))
    with pytest.raises(ConfigurationError, match="a limit that covers one report"):
        rigs.make_system(release={"mode": "paper", "sampling": 0.5}, budget=BudgetConfig(5.0, 1e-6))


def test_what_the_lift_may_spend_is_a_share_and_both_parts_stay_within_the_whole(rigs):
    budget = BudgetConfig(8.0, 1e-6, lift=0.25)
    system = rigs.make_system(measurement=LIFT, slot={"lifetime_slots": 9, "after_interactions": 3}, budget=budget)
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
        ({"measurement": LIFT, "budget": BudgetConfig(8.0, 1e-6)}, "privacy.lifetime.measurement"),
        ({"budget": BudgetConfig(8.0, 1e-6, lift=0.2)}, "privacy.lifetime.measurement"),
    ],
)
def test_a_share_goes_with_a_measurement_and_with_nothing_else(rigs, changes, field):
    with pytest.raises(
        ConfigurationError, match=f"^{field}: expected a share above 0 exactly where something is measured"
    ):
        rigs.make_system(**changes)


def test_a_collaborative_system_has_no_lift_and_exact_sums_no_budget(related):
    with pytest.raises(ConfigurationError, match=r"^budget\.lift: expected 0"):
        related.make_system(budget=BudgetConfig(8.0, 1e-6, lift=0.2))
    with pytest.raises(ConfigurationError, match=r"^privacy\.lifetime: expected none for exact sums"):
        related.make_system(release={**SMALL, "mechanism": "exact"}, budget=BudgetConfig(8.0, 1e-6))


def test_every_field_of_a_budget_moves_the_digest(related):
    base = related.make_config(budget=BudgetConfig(8.0, 1e-6))
    others = [BudgetConfig(9.0, 1e-6), BudgetConfig(8.0, 1e-7), BudgetConfig(8.0, 1e-6, "zcdp"), None]
    digests = {collaborative_digest(replace(base, budget=budget), b"") for budget in (base.budget, *others)}
    assert len(digests) == 5


# Conversions.


def test_a_price_of_epsilon_and_delta_together_is_not_converted():
    assert conversion_rows(tuples_guarantee(50, "0.5")) == ()
    assert conversion_lines(tuples_guarantee(50, "0.5"), ()) == [
        "None: this mechanism is accounted for by epsilon and delta together."
    ]


@pytest.mark.parametrize(("epsilon", "rows"), [(0.5, 2), (4.0, 1)])
def test_a_life_that_is_promised_nothing_has_no_conversion(related, epsilon, rows):
    """128 of one user would be pure epsilon 128, though the truncation error on top of each delta is 1 there."""
    promise = related.make_system(release={**SMALL, "epsilon": epsilon}).guarantee()
    assert (promise.lifetime.cost.delta_units >= DELTA_ONE) == (rows == 1)
    found = conversion_rows(promise)
    assert [row.covers for row in found] == ["one reward", "all 32 of one user"][:rows]
    lines = conversion_lines(promise, found)
    assert ("pay a delta of 1: nothing is guaranteed, under any definition." in lines[-1]) == (rows == 1)


PRICE = Debit("", "tree", Cost(1_000_000, 7), "relation", "unit")


def terms(own="epoch", releases=None, fits=2):
    limit = BasicFilter(Cost(fits * 1_000_000, fits * 7))
    return SpendingTerms(own, PRICE, releases, PRICE, limit)


def played(spending, places):
    results = map(spending.try_charge, places)
    return [(one.debit.cost.epsilon_micro, one.refused is None, one.opens) for one in results]


PAID, COVERED, REFUSED, STILL = (1_000_000, True, True), (0, True, False), (0, False, True), (0, False, False)


def test_an_epoch_is_paid_once_and_its_steps_are_covered():
    spending = Spending(terms(), 3)
    assert played(spending, [ChargeKey(0)] * 4) == [PAID, COVERED, COVERED, COVERED]
    assert spending.try_charge(ChargeKey(0)).debit.scope == "epoch/3/0"
    assert spending.spent == PRICE.cost


def test_steps_of_an_epoch_whose_price_was_refused_stay_withheld_and_cost_nothing():
    spending = Spending(terms(), 0)
    redraws = [ChargeKey(epoch, 0, epoch) for epoch in range(3)]
    assert played(spending, redraws) == [PAID, PAID, REFUSED]
    assert played(spending, [redraws[2]] * 3) == [STILL] * 3
    charge_result = spending.try_charge(redraws[2])
    assert (charge_result.debit.scope, charge_result.debit.cost) == ("epoch/0/2/renewal/2", Cost(0))
    assert str(charge_result.refused) == f"budget of deployment/0: asked {PRICE.cost}; left {Cost(0)}"
    assert spending.refusal(redraws[2]) == charge_result.refused
    assert spending.spent == PRICE.cost + PRICE.cost
    assert spending.redraws == 2


def test_an_epoch_that_a_turned_key_begins_is_paid_for_its_own_units_and_renews_nothing():
    spending = Spending(terms(fits=1), 0)
    assert played(spending, [ChargeKey(0), ChargeKey(1), ChargeKey(1), ChargeKey(2)]) == [PAID, PAID, COVERED, PAID]
    assert spending.spent == PRICE.cost
    assert played(spending, [ChargeKey(3, 0, 1), ChargeKey(4, 0, 1)]) == [REFUSED, REFUSED], (
        "a refused redraw stays refused"
    )


def test_windows_lie_side_by_side_and_each_pays_its_own_scope():
    spending = Spending(terms("window", 1, fits=1), 0)
    assert played(spending, [ChargeKey(0, window) for window in range(50)]) == [PAID] * 50
    assert spending.spent == PRICE.cost
    assert spending.try_charge(ChargeKey(0, 50)).debit.scope == "window/0/50"
    assert spending.try_charge(ChargeKey(0, 50)).refused is not None, "no window is released twice"


def test_a_charge_pays_for_so_many_releases_and_no_more():
    spending = Spending(terms(releases=3), 0)
    assert played(spending, [ChargeKey(0)] * 5) == [PAID, COVERED, COVERED, STILL, STILL]
    assert "asked one more release" in str(spending.refusal(ChargeKey(0)))


def test_a_price_beyond_the_whole_limit_is_refused_from_the_first_release_on():
    spending = Spending(terms(fits=0), 0)
    assert played(spending, [ChargeKey(0)] * 2 + [ChargeKey(1, 0, 1)]) == [REFUSED, STILL, REFUSED]
    assert spending.spent == Cost(0)


@pytest.mark.parametrize("composition", [BasicFilter, ConcentratedFilter.for_cost, RenyiFilter.for_cost])
def test_a_renewal_brings_the_incarnations_of_which_this_journal_has_no_record(composition):
    """Two lives in one go cost what they cost one after the other, in the units of each filter."""
    one_life = replace(terms(), limit=composition(Cost(30_000_000, 1 << 60)))
    behind, whole = Spending(one_life, 0), Spending(one_life, 0)
    assert played(behind, [ChargeKey(1, 0, 2)]) == [PAID]
    assert played(whole, [ChargeKey(0), ChargeKey(1, 0, 1), ChargeKey(2, 0, 2)]) == [PAID] * 3
    assert behind.spent == whole.spent
    assert behind.redraws == whole.redraws == 3
    again = Spending(one_life, 0)
    again.load(behind.dump())
    assert again.refusal(ChargeKey(2, 0, 3)) == whole.refusal(ChargeKey(3, 0, 3))
    assert played(Spending(terms(fits=2), 0), [ChargeKey(1, 0, 2)]) == [REFUSED], "and out of the same limit"


def test_what_was_asked_last_is_never_undercut():
    spending = Spending(terms(), 0)
    spending.try_charge(ChargeKey(2))
    for call in (spending.try_charge, spending.refusal):
        with pytest.raises(LedgerError, match="or a later charge, got"):
            call(ChargeKey(1))


def test_what_the_journal_says_was_paid_is_taken_whatever_the_limit():
    spending = Spending(terms(fits=1), 0)
    spending.try_charge(ChargeKey(0), already_paid=True)
    spending.try_charge(ChargeKey(1, 0, 1), already_paid=True)
    assert (spending.spent, spending.redraws) == (PRICE.cost + PRICE.cost, 2)
    assert played(spending, [ChargeKey(2, 0, 2)]) == [REFUSED]


def test_the_state_is_small_whatever_was_released_and_comes_back_whole():
    one, many = Spending(terms("window", 1), 0), Spending(terms("window", 1), 0)
    played(one, [ChargeKey(0, 0)])
    played(many, [ChargeKey(0, window) for window in range(2_000)])
    assert len(many._ledger.totals()) == len(one._ledger.totals()) == 2
    for spending, places in (
        (many, [ChargeKey(0, 2_000), ChargeKey(1, 0, 1)]),
        (Spending(terms(), 0), [ChargeKey(5)] * 2),
    ):
        again = Spending(spending.terms, 0)
        again.load(spending.dump())
        assert again.dump() == spending.dump()
        assert played(again, places) == played(spending, places)
        assert again.dump() == spending.dump()
    with pytest.raises(LedgerError, match="expected 2 sums"):
        one.load({**one.dump(), "deployment": [b"\1"]})


# In machines.


def test_machines_say_whether_they_spend(rigs, related):
    assert rigs.ShufflerRig().machine.charged == related.CounterRig().machine.charged == Cost(0)
    assert rigs.AggregatorRig().machine.charged is None


def test_windows_withheld_at_the_end_of_a_counter_are_replayed_and_resumed_with_the_same_bytes(rigs):
    system = rigs.make_system(release={"window_slots": 4, "sums": "counter", "windows": 2})
    rig = rigs.ShufflerRig(system)
    states = [rig.machine.snapshot()]
    for window in range(5):
        for number in range(4):
            rig.slot(4 * window + number, Report(number, 0, 1))
        rig.fold()
        states.append(rig.machine.snapshot())
    debits = [record["debit"] for record in rig.seen.journals]
    price = system.guarantee().epsilon_micro
    assert [debit["epsilon_micro"] for debit in debits] == [price, 0, 0, 0, 0]
    assert {debit["scope"] for debit in debits} == {"epoch/0/0"}
    assert len(rig.seen.releases("window-sums")) == len(rig.seen.releases("ledger")) == 2
    assert rig.seen.counts["release_withheld"] == 3
    for known in range(6):
        machine = rigs.ShufflerMachine(system, 0, rig.key)
        machine.start(rig.genesis)
        machine.restore(states[known])
        for value in rig.journal[known:]:
            step = machine.replay(value, [rig.slice(part) for part in machine.recovery_ranges(value)])
            assert step.journal is None
            assert bool(step.releases) == (machine.chain.sequence <= 2)
        assert machine.snapshot() == states[-1]
        assert "epoch/0/0: asked one more release" in str(machine.refused)


def test_a_worker_that_forgot_what_was_spent_contradicts_its_journal_and_sends_nothing(rigs):
    """The fault that the journal is there for: what a snapshot lost would be released beyond the budget."""
    rig = rigs.ShufflerRig(rigs.make_system(release={"window_slots": 4, "sums": "fresh"}))
    for number in range(12):
        rig.slot(number, Report(number % 4, 0, 1))
    price = rig.system.guarantee().price
    rig.machine.releases.spending = Spending(replace(rig.system.slot_terms, limit=BasicFilter(Cost(0))), 0)
    rig.fold()
    assert not rig.seen.releases("window-sums")
    assert rig.seen.counts["release_withheld"] == 3
    forgetful = rigs.ShufflerMachine(rig.system, 0, rig.key)
    forgetful.start(rig.genesis)
    assert forgetful.refused is None, f"it would pay {price} that is not there"
    with pytest.raises(ReplayMismatch, match="nothing is sent"):
        forgetful.replay(rig.journal[0], [rig.slice(part) for part in forgetful.recovery_ranges(rig.journal[0])])


def test_a_mismatch_puts_back_what_was_spent(related):
    values = {**related.DEFAULTS["release"], "epochs": 3}
    rig = related.CounterRig(related.make_system(release=values), related.SECRET)
    for number in range(2):
        rig.rewards(number, related.some_rewards(number, 4))
    rig.fold()
    rig.altered(0, contexts=bytes(4 * 4 * related.DIMENSION))
    machine = rig.fresh()
    machine.start(rig.genesis)
    before = machine.spending.dump()
    slices = [rig.slice(part) for part in machine.recovery_ranges(rig.journal[0])]
    with pytest.raises(ReplayMismatch):
        machine.replay(rig.journal[0], slices)
    assert machine.spending.dump() == before
    assert machine.spending.spent == Cost(0)
    machine.reopen(rig.journal[0], slices)
    assert machine.spending.spent == rig.system.guarantee().price, "the journal says it was paid and released"


def test_two_states_of_one_journal_count_each_others_epochs(related):
    """One state renewed the noise; another that adopts its record must not have room for one redraw more."""
    values = {**related.DEFAULTS["release"], "epochs": 2}
    rig = related.CounterRig(related.make_system(release=values), related.SECRET)
    rig.rewards(0, related.some_rewards(0, 4))
    rig.fold()
    unaware = rig.machine.snapshot()
    rig.altered(0, contexts=bytes(4 * 4 * related.DIMENSION))
    seeing = rig.fresh()
    seeing.start(rig.genesis)
    related.recover(rig, seeing)
    rig.rewards(1, related.some_rewards(1, 4))
    (step,) = seeing.fold([rig.slice(InputRange("rewards", 0, seeing.position, seeing.position + 1))])
    assert codec.decode(step.journal)[1]["debit"]["scope"] == "epoch/0/1/renewal/1"
    assert step.releases
    rig.journal.append(step.journal)
    other = rig.fresh()
    other.start(rig.genesis)
    other.restore(unaware)
    related.recover(rig, other, rig.journal[1:])
    assert other.spending.redraws == 2
    assert other.refused is not None
    price = rig.system.guarantee().price
    assert other.spending.spent == replace(
        price, epsilon_micro=2 * price.epsilon_micro, delta_units=2 * price.delta_units
    )


SOUND = slot_sums_guarantee(1)
NOTHING = Cost(MICRO, DELTA_ONE)


@dataclass(frozen=True)
class Config:
    privacy: PrivacyConfig
    deployment: str = "shop"
    system: str = "toy"


@pytest.mark.parametrize("question", ["cost", "replace_one"])
def test_a_unit_that_pays_delta_one_is_refused_although_it_is_what_is_stated(question):
    """A toy once copied another system's function and was deployed at delta 1: `guarantee` alone said so."""
    toy = replace(SOUND, **{question: NOTHING})
    assert toy.private_as_stated
    for promises in (toy, replace(SOUND, lift=toy)):
        with pytest.raises(ConfigurationError, match="one that guarantees a unit something, got slot-sums: one"):
            require_private(promises, "toy.yaml")
    require_private(SOUND, "toy.yaml")


@pytest.mark.parametrize("question", ["cost", "exchange"])
def test_a_life_that_is_promised_nothing_is_asked_for_in_words(question):
    life = replace(SOUND.lifetime, units=500, **{question: NOTHING})
    promises = replace(SOUND, lifetime=life)
    with pytest.raises(
        ConfigurationError, match=r"Either lower privacy.epsilon, or .*privacy: \{person: unprotected\}"
    ):
        require_person_promised(Config(PrivacyConfig()), promises, "toy.yaml")
    require_person_promised(Config(PrivacyConfig("unprotected")), promises, "toy.yaml")
    require_person_promised(Config(PrivacyConfig()), SOUND, "toy.yaml")


@pytest.mark.parametrize(("epsilon", "left"), [(1, "so only single reports are protected"), (20, "is guaranteed, too")])
def test_single_units_are_called_protected_only_where_they_are(epsilon, left):
    """At epsilon 20 "only single units are protected" stood beside "next to nothing"."""
    promise = slot_sums_guarantee(epsilon, lifetime_slots=400)
    with pytest.raises(ConfigurationError) as refused:
        require_person_promised(Config(PrivacyConfig()), promise, "toy.yaml")
    assert left in str(refused.value)
    assert ("are protected" in str(refused.value)) == (epsilon == 1)


def test_a_ledgers_amounts_are_said_to_be_the_smaller_price_and_the_other_one_stands_beside():
    told = ledger_words(SOUND.unit, SOUND.unit_prices)
    assert f"costs {SOUND.cost}, and under replace-one {SOUND.replace_one}" in told
    public = replace(SOUND, any_content=True)
    assert "counts in replace-one; that it came, and when, is public" in ledger_words(public.unit, public.unit_prices)
