from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.privacy.amounts import Cost, delta_units
from hushstream.privacy.conversions import rho_curve
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.ledger import BasicFilter, ChargeFilter, Debit, Exhausted, Filter, Ledger

LIMIT = Cost(3_000_000, 1000)
ONE = Cost(1_000_000, 400)


def _ledger(limit=LIMIT):
    return Ledger({"deployment": BasicFilter(limit), "window": BasicFilter(limit)})


def _debit(cost=ONE, scope="deployment", mechanism="slot-sums"):
    return Debit(scope, mechanism, cost, "null-slot", "one slot of one user")


def test_what_does_not_fit_is_refused_with_scope_asked_and_left_and_charges_nothing():
    ledger = _ledger()
    assert ledger.try_debits([_debit()]) is None
    assert ledger.try_debits([_debit()]) is None
    answer = ledger.try_debits([_debit()])
    assert answer == Exhausted("deployment", ONE, Cost(1_000_000, 200))
    assert str(answer).startswith("budget of deployment: asked epsilon 1, ")
    assert "; left epsilon 1, " in str(answer)
    assert ledger.spent("deployment") == ONE + ONE
    assert ledger.try_debits([_debit(Cost(1_000_000, 200))]) is None
    assert ledger.left("deployment") == Cost(0)
    assert ledger.left("window") == LIMIT


@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 700)), max_size=12))
def test_no_order_of_charges_overspends_a_scope(prices):
    ledger = _ledger()
    admitted = Cost(0)
    for price in prices:
        fits = (admitted + Cost(*price)).fits(LIMIT)
        assert (ledger.refusal([_debit(Cost(*price))]) is None) == fits
        assert (ledger.try_debits([_debit(Cost(*price))]) is None) == fits
        if fits:
            admitted += Cost(*price)
    assert ledger.spent("deployment") == admitted
    assert admitted.fits(LIMIT)


def test_debits_of_one_release_are_all_entered_or_none():
    ledger = Ledger({"deployment": BasicFilter(ONE + ONE)}, {"window": BasicFilter(ONE)})
    both = [_debit(scope="window/0/0"), _debit()]
    assert ledger.try_debits(both) is None
    refused = ledger.try_debits(both)
    assert refused == Exhausted("window/0/0", ONE, Cost(0))
    assert ledger.spent("deployment") == ONE, "the scope that had room was not charged either"
    assert ledger.try_debits([_debit(scope="window/0/1"), _debit()]) is None
    assert ledger.try_debits([_debit(scope="window/0/2"), _debit()]) == Exhausted("deployment", ONE, Cost(0))
    assert ledger.spent("window/0/2") == Cost(0)
    with pytest.raises(LedgerError, match="different scopes, got two of one"):
        ledger.try_debits([_debit(), _debit()])


def test_a_scope_without_a_budget_is_refused():
    for call in (
        lambda: _ledger().try_debits([_debit(scope="elsewhere")]),
        lambda: _ledger().spent("elsewhere"),
        lambda: _ledger().left("elsewhere"),
        lambda: _ledger().resume({"elsewhere": (1, 1)}),
    ):
        with pytest.raises(LedgerError, match="expected a scope with a budget, got elsewhere"):
            call()


def test_every_new_scope_of_a_kind_has_the_budget_of_its_kind_for_itself():
    ledger = Ledger({"deployment": BasicFilter(LIMIT)}, {"window": BasicFilter(ONE)})
    for window in range(3):
        scope = f"window/0/{window}"
        assert ledger.left(scope) == ONE
        assert ledger.try_debits([_debit(scope=scope)]) is None
        assert isinstance(ledger.try_debits([_debit(scope=scope)]), Exhausted)
    assert ledger.spent("deployment") == Cost(0)


def test_closed_scopes_leave_nothing_behind():
    ledger = Ledger({"deployment": BasicFilter(LIMIT)}, {"window": BasicFilter(ONE)})
    for window in range(1000):
        ledger.try_debits([_debit(scope=f"window/0/{window}")])
        ledger.close(f"window/0/{window}")
    assert ledger.totals() == {"deployment": ()}


def test_a_charge_is_paid_once_and_pays_for_its_releases_and_no_more():
    ledger = Ledger({}, {"epoch": ChargeFilter(ONE, 3)})
    covered = _debit(Cost(0), "epoch/0/0")
    assert ledger.try_debits([_debit(scope="epoch/0/0")]) is None
    assert isinstance(ledger.try_debits([_debit(scope="epoch/0/0")]), Exhausted)
    assert ledger.try_debits([covered]) is None
    assert ledger.try_debits([covered]) is None
    refused = ledger.try_debits([covered])
    assert str(refused) == "budget of epoch/0/0: asked one more release; the price that was paid covers no more"
    assert ledger.spent("epoch/0/0") == ONE
    endless = Ledger({"epoch": ChargeFilter(ONE, None)})
    assert all(endless.try_debits([_debit(Cost(0), "epoch")]) is None for _ in range(100))


def test_a_ledger_goes_on_from_its_sums():
    ledger = Ledger({"deployment": BasicFilter(LIMIT)}, {"window": BasicFilter(ONE)})
    ledger.try_debits([_debit(Cost(1, 1 << 79)), _debit(scope="window/0/3")])
    ledger.try_debits([_debit(Cost(1, 999)), _debit(scope="window/0/3")])
    again = Ledger({"deployment": BasicFilter(LIMIT)}, {"window": BasicFilter(ONE)})
    again.resume(ledger.totals())
    assert again.totals() == ledger.totals()
    low = Ledger({"deployment": BasicFilter(Cost(0, 5))}, {"window": BasicFilter(ONE)})
    low.resume(ledger.totals())
    assert low.left("deployment") == Cost(0)
    assert isinstance(low.try_debits([_debit(Cost(1))]), Exhausted)
    low.take([_debit(Cost(1))])
    assert low.spent("deployment").epsilon_micro == ledger.spent("deployment").epsilon_micro + 1, (
        "taken, as it happened"
    )
    for wrong in ((1,), (1, 2, 3), (-1, 2)):
        with pytest.raises(LedgerError, match="expected 2 sums of at least 0"):
            again.resume({"deployment": wrong})


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
    assert ledger.try_debits([price]) is None
    assert isinstance(ledger.try_debits([price]), Exhausted)


@pytest.mark.parametrize("priced", ["by its cost", "by rho", "by a curve"])
@pytest.mark.parametrize("kind", [ConcentratedFilter, RenyiFilter])
def test_deltas_beside_a_curve_are_charged_and_have_a_limit_of_their_own(kind, priced):
    """Two halves and a bit of what tables may be off by do not fit, where epsilon has room for a hundred more."""
    if (kind, priced) == (ConcentratedFilter, "by a curve"):
        priced = "by rho"  # this filter reads no other curve
    limit = kind.for_cost(Cost(3_000_000, delta_units(1e-6)))
    ledger = Ledger({"deployment": limit})

    def debit(residue):
        curve = {"by its cost": (), "by rho": (1, residue), "by a curve": (*rho_curve(1), residue)}[priced]
        return replace(_debit(Cost(1_000, residue)), curve=curve)

    more_than_half = limit.residue_units // 2 + 1
    assert ledger.try_debits([debit(more_than_half)]) is None
    refused = ledger.try_debits([debit(more_than_half)])
    assert isinstance(refused, Exhausted)
    assert refused.left.delta_units == limit.residue_units - more_than_half
    assert ledger.spent("deployment").delta_units == more_than_half + limit.delta_units
    for _ in range(100):
        assert ledger.try_debits([debit(0)]) is None
