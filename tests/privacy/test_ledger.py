import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.ledger import LOST, BasicFilter, Debit, Entry, Exhausted, Filter, Ledger

LIMIT = Cost(3_000_000, 1000)
ONE = Cost(1_000_000, 400)


def _ledger(limit=LIMIT):
    return Ledger({"deployment": BasicFilter(limit), "window": BasicFilter(limit)})


def _debit(cost=ONE, scope="deployment", mechanism="slot-sums"):
    return Debit(scope, mechanism, cost, "null-slot", "one slot of one user")


def _id(number):
    return number.to_bytes(16, "big")


def test_what_does_not_fit_is_refused_with_scope_asked_and_left_and_charges_nothing():
    ledger = _ledger()
    ledger.try_debit(_debit(), _id(1))
    ledger.try_debit(_debit(), _id(2))
    answer = ledger.try_debit(_debit(), _id(3))
    assert answer == Exhausted("deployment", ONE, Cost(1_000_000, 200))
    assert str(answer).startswith("budget of deployment: asked epsilon 1, ")
    assert "; left epsilon 1, " in str(answer)
    assert ledger.spent("deployment") == ONE + ONE
    ledger.try_debit(_debit(Cost(1_000_000, 200)), _id(4))
    assert ledger.left("deployment") == Cost(0)
    assert ledger.left("window") == LIMIT


@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 700)), max_size=12))
def test_no_order_of_charges_overspends_a_scope(prices):
    ledger = _ledger()
    admitted = Cost(0)
    for number, price in enumerate(prices):
        if (admitted + Cost(*price)).fits(LIMIT):
            assert ledger.try_debit(_debit(Cost(*price)), _id(number)) == _debit(Cost(*price))
            admitted += Cost(*price)
        else:
            assert isinstance(ledger.try_debit(_debit(Cost(*price)), _id(number)), Exhausted)
    assert ledger.spent("deployment") == admitted
    assert admitted.fits(LIMIT)


def test_a_replayed_charge_changes_nothing_and_a_changed_one_is_refused():
    ledger = _ledger()
    assert ledger.try_debit(_debit(), _id(1)) == ledger.try_debit(_debit(), _id(1)) == _debit()
    assert ledger.spent("deployment") == ONE
    for other in (_debit(Cost(1)), _debit(mechanism="tuples")):
        with pytest.raises(LedgerError, match="expected the debit that it has"):
            ledger.try_debit(other, _id(1))
    (first,) = ledger.entries("deployment")
    assert first == Entry(_id(1), _debit())
    with pytest.raises(FrozenInstanceError):
        first.debit.cost.epsilon_micro = 0


def test_a_full_scope_still_repeats_what_it_has_charged():
    ledger = _ledger(ONE)
    ledger.try_debit(_debit(), _id(1))
    assert ledger.try_debit(_debit(), _id(1)) == _debit()
    assert isinstance(ledger.try_debit(_debit(), _id(2)), Exhausted)


def test_a_scope_without_a_budget_is_refused():
    for call in (
        lambda: _ledger().try_debit(_debit(scope="elsewhere"), _id(1)),
        lambda: _ledger().spent("elsewhere"),
        lambda: _ledger().left("elsewhere"),
    ):
        with pytest.raises(LedgerError, match="expected a scope with a budget, got elsewhere"):
            call()
    assert _ledger().scopes() == ("deployment", "window")


def test_a_ledger_reads_back_entry_for_entry():
    ledger = _ledger()
    ledger.try_debit(_debit(Cost(1, 999)), _id(1))
    ledger.try_debit(_debit(scope="window"), _id(2))
    again = Ledger.restore(ledger.dump(), {s: BasicFilter(LIMIT) for s in ledger.scopes()}, ledger.marks())
    assert again.dump() == ledger.dump()
    assert again.entries("window") == ledger.entries("window")
    with pytest.raises(LedgerError, match="expected the debit that it has"):
        again.try_debit(_debit(), _id(1))


def _older():
    """A ledger, its filters and marks, and the dump of one entry before."""
    ledger = _ledger()
    ledger.try_debit(_debit(), _id(1))
    old = ledger.dump()
    ledger.try_debit(_debit(), _id(2))
    return ledger, {s: BasicFilter(LIMIT) for s in ledger.scopes()}, ledger.marks(), old


def test_an_older_ledger_is_refused_at_the_high_water_mark():
    ledger, filters, marks, old = _older()
    assert marks == {"deployment": (2_000_000, 800)}
    with pytest.raises(LedgerError, match=r"expected at least epsilon 2, .* \(its high-water mark\), got epsilon 1,"):
        Ledger.restore(old, filters, marks)
    assert Ledger.restore(ledger.dump(), filters, marks).spent("deployment") == ONE + ONE
    with pytest.raises(LedgerError, match="expected a mark of 2 sums, got 3"):
        Ledger.restore(old, filters, {"deployment": (1, 2, 3)})


def test_an_older_ledger_can_be_charged_at_its_high_water_mark_once():
    _, filters, marks, old = _older()
    charged = Ledger.restore(old, filters, marks, older="charge")
    assert charged.spent("deployment") == ONE + ONE
    assert [entry.debit.mechanism for entry in charged.entries("deployment")] == ["slot-sums", LOST]
    again = Ledger.restore(charged.dump(), filters, marks)
    assert again.spent("deployment") == ONE + ONE
    assert isinstance(again.try_debit(_debit(), _id(3)), Exhausted)


def test_every_new_scope_of_a_kind_has_the_budget_of_its_kind_for_itself():
    ledger = Ledger({"deployment": BasicFilter(LIMIT)}, {"window": BasicFilter(ONE)})
    for window in range(3):
        scope = f"window/{window}"
        assert ledger.left(scope) == ONE
        assert ledger.try_debit(_debit(scope=scope), _id(1)) == _debit(scope=scope)
        assert isinstance(ledger.try_debit(_debit(scope=scope), _id(2)), Exhausted)
    assert ledger.spent("deployment") == Cost(0)
    again = Ledger.restore(
        ledger.dump(), {"deployment": BasicFilter(LIMIT)}, ledger.marks(), {"window": BasicFilter(ONE)}
    )
    assert again.dump() == ledger.dump()
    with pytest.raises(LedgerError, match="expected a scope with a budget, got epoch/1"):
        ledger.left("epoch/1")


def test_a_lowered_limit_keeps_the_entries_and_refuses_further_ones():
    ledger = _ledger()
    ledger.try_debit(_debit(), _id(1))
    ledger.try_debit(_debit(), _id(2))
    low = Ledger.restore(ledger.dump(), {"deployment": BasicFilter(ONE), "window": BasicFilter(ONE)}, {})
    assert low.left("deployment") == Cost(0)
    assert isinstance(low.try_debit(_debit(Cost(1)), _id(3)), Exhausted)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: b"",
        lambda d: d[:-1],
        lambda d: b"[]",
        lambda d: b"\xff" + d,
        lambda d: json.dumps({**json.loads(d), "format": 2}).encode(),
        lambda d: d.replace(b'"epsilon_micro":1000000', b'"epsilon_micro":-1'),
        lambda d: d.replace(b'"epsilon_micro":1000000', b'"epsilon_micro":0.5'),
        lambda d: d.replace(b'"unit"', b'"other"'),
        lambda d: d.replace(b'"curve":[]', b'"curve":[-1]'),
        lambda d: json.dumps({"format": 1, "entries": json.loads(d)["entries"] * 2}).encode(),
        lambda d: d.replace(b'"scope":"deployment"', b'"scope":"nowhere"'),
    ],
)
def test_a_damaged_ledger_is_refused(damage):
    ledger = _ledger()
    ledger.try_debit(_debit(), _id(1))
    with pytest.raises(LedgerError, match="ledger"):
        Ledger.restore(damage(ledger.dump()), {"deployment": BasicFilter(LIMIT), "window": BasicFilter(LIMIT)}, {})


def test_another_kind_of_filter_fits_without_a_change_of_the_ledger():
    """A zCDP-like filter: it adds the curve that debits carry and refuses on its own limit."""

    class Additive:
        def price(self, debit):
            return debit.curve

        def admits(self, total):
            return sum(total) <= 10

        def cost(self, total):
            return Cost(sum(total))

        def left(self, total):
            return Cost(10 - sum(total))

    assert isinstance(Additive(), Filter)
    ledger = Ledger({"node": Additive()})
    price = Debit("node", "gaussian", Cost(1), "null-slot", "one slot", curve=(6,))
    ledger.try_debit(price, _id(1))
    assert isinstance(ledger.try_debit(price, _id(2)), Exhausted)
    assert Ledger.restore(ledger.dump(), {"node": Additive()}, {}).entries("node") == ledger.entries("node")
