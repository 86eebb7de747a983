"""What machines ask before each release: jointly admitted scopes, refusals, and state that does not grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hushstream.engine.machine import releasing
from hushstream.engine.noise.spending import ChargeKey, Spending, SpendingTerms
from hushstream.engine.records import InputRange, ReplayMismatch
from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.schemas import codec
from hushstream.systems.p2b.contribution.slots import Report

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
    assert releasing(rigs.AggregatorRig().machine) is None


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
    assert len(rig.seen.releases("crowds")) == len(rig.seen.releases("ledger")) == 2
    assert rig.seen.counts["release_withheld"] == 3
    for known in range(6):
        machine = rigs.ShufflerMachine(system, 0, rig.key)
        machine.start(rig.genesis)
        machine.restore(states[known])
        for value in rig.journal[known:]:
            step = machine.replay(value, [rig.slice(part) for part in machine.recovery_ranges(value)])
            assert step.journal == value
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
    assert not rig.seen.releases("crowds")
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
