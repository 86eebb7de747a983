"""Conversions and filters: never rounded down, with Google's dp-accounting as the oracle."""

import math
from fractions import Fraction

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.privacy.amounts import DELTA_ONE, Cost, delta_units
from hushstream.privacy.conversions import (
    ORDERS,
    largest_pure_epsilon,
    pure_curve,
    pure_to_renyi_micro,
    pure_to_rho_micro,
    renyi_to_epsilon_micro,
    rho_curve,
    rho_to_epsilon_micro,
    rho_to_renyi_micro,
)
from hushstream.privacy.errors import BadAmount, LedgerError
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.ledger import BasicFilter, Debit, Exhausted, Ledger

LIMIT = Cost(5_000_000, delta_units("1e-6"))
micros = st.integers(1, 20_000_000)
orders = st.sampled_from(ORDERS)
deltas = st.integers(3, 60).map(lambda bits: DELTA_ONE >> bits)


def _value(fraction):
    return mpmath.mpf(fraction.numerator) / fraction.denominator


@given(micros)
def test_rho_of_a_pure_epsilon_is_never_rounded_down(micro):
    rho = pure_to_rho_micro(micro)
    assert Fraction(rho, 10**6) >= Fraction(micro, 10**6) ** 2 / 2 > Fraction(rho - 1, 10**6)


@given(micros, orders)
def test_renyi_of_a_pure_epsilon_is_that_of_randomised_response_rounded_up(micro, order):
    price = pure_to_renyi_micro(micro, order)
    with mpmath.workprec(4000):
        epsilon = _value(Fraction(micro, 10**6))
        sines = mpmath.sinh(order * epsilon) - mpmath.sinh((order - 1) * epsilon)
        exact = mpmath.log(sines / mpmath.sinh(epsilon)) / (order - 1) * 10**6
        assert price >= exact
        assert price <= micro
        assert price < exact + 1
    assert price <= rho_to_renyi_micro(pure_to_rho_micro(micro), order)


@given(st.integers(0, 10**8), orders, deltas)
def test_epsilon_of_a_renyi_divergence_is_never_rounded_down(micro, order, delta):
    with mpmath.workprec(300):
        share = _value(Fraction(delta, DELTA_ONE))
        exact = _value(Fraction(micro, 10**6)) + mpmath.log(1 / share) / (order - 1)
        exact += mpmath.log(1 - mpmath.mpf(1) / order) - mpmath.log(order) / (order - 1)
        price = renyi_to_epsilon_micro(micro, order, delta)
        assert price >= exact * 10**6
        assert price < max(0, exact * 10**6) + 1


def _curve_to_epsilon_micro(curve, delta):
    """The smallest epsilon at ``delta`` over `ORDERS`, for divergences that all hold together."""
    return min(renyi_to_epsilon_micro(price, order, delta) for price, order in zip(curve, ORDERS, strict=True))


def test_composed_laplace_releases_stay_above_the_tightest_account():
    """Privacy loss distributions give the least epsilon for a fixed schedule: ours may not be below it."""
    accountant = PLDAccountant()
    accountant.compose(dp_accounting.LaplaceDpEvent(10.0), 40)
    tightest = accountant.get_epsilon(1e-6)
    by_curve = _curve_to_epsilon_micro([40 * price for price in pure_curve(100_000)], delta_units(1e-6)) / 1e6
    by_rho = rho_to_epsilon_micro(40 * pure_to_rho_micro(100_000), delta_units(1e-6)) / 1e6
    assert tightest <= by_curve <= by_rho * (1 + 1e-2)
    assert by_curve < 4.0


def test_no_rho_or_curve_costs_nothing_and_a_curve_has_a_price_at_every_order():
    assert rho_to_epsilon_micro(0, delta_units(1e-6)) == 0
    assert rho_curve(3) == tuple(3 * order for order in ORDERS)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pure_to_rho_micro(-1),
        lambda: pure_to_rho_micro(0.5),
        lambda: pure_to_renyi_micro(True, 2),
        lambda: rho_to_renyi_micro(1, 1),
        lambda: rho_to_renyi_micro(1, 2.5),
        lambda: renyi_to_epsilon_micro(1, 2, 0),
        lambda: renyi_to_epsilon_micro(1, 2, DELTA_ONE),
    ],
)
def test_what_is_no_amount_is_refused(call):
    with pytest.raises(BadAmount, match="expected"):
        call()


@given(st.integers(0, 10**12))
def test_the_largest_epsilon_of_a_rho_fits_and_the_next_one_does_not(rho):
    epsilon = largest_pure_epsilon(rho)
    assert pure_to_rho_micro(epsilon) <= rho < pure_to_rho_micro(epsilon + 1)


FILTERS = {
    "basic": BasicFilter(LIMIT),
    "zcdp": ConcentratedFilter.for_cost(LIMIT),
    "renyi": RenyiFilter.for_cost(LIMIT),
    "renyi-4": RenyiFilter.for_cost(LIMIT, 4),
}
prices = st.one_of(
    st.builds(lambda e, d: (Cost(e, d), ()), st.integers(0, 400_000), st.integers(0, 1 << 56)),
    st.builds(lambda r, d: (Cost(rho_to_epsilon_micro(r, 1 << 60), d), (r, d)), st.integers(0, 90_000), st.just(9)),
)


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=30, deadline=None)
@given(st.lists(prices, max_size=12))
def test_no_order_of_debits_overspends_and_what_is_spent_never_falls(name, debits):
    ledger = Ledger({"scope": FILTERS[name]})
    before = ledger.spent("scope")
    for cost, curve in debits:
        left = ledger.left("scope")
        answer = ledger.try_debits([Debit("scope", "m", cost, "r", "u", curve)])
        now = ledger.spent("scope")
        assert now.epsilon_micro >= before.epsilon_micro
        assert now.delta_units >= before.delta_units
        assert now.fits(LIMIT)
        if isinstance(answer, Exhausted):
            assert answer == Exhausted("scope", cost, left)
            assert now == before
        before = now


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 400_000), max_size=10))
def test_what_is_said_to_be_left_is_admitted_and_not_a_millionth_more(name, epsilons):
    filter_ = FILTERS[name]
    ledger = Ledger({"scope": filter_})
    for epsilon in epsilons:
        ledger.try_debits([Debit("scope", "m", Cost(epsilon), "r", "u")])
    left = ledger.left("scope")
    more = Cost(left.epsilon_micro + 1, left.delta_units)
    assert isinstance(ledger.try_debits([Debit("scope", "m", more, "r", "u")]), Exhausted)
    assert ledger.try_debits([Debit("scope", "m", left, "r", "u")]) is None


def test_a_tighter_filter_promises_what_the_oracle_promises_for_the_same_releases():
    accountant = RdpAccountant(orders=list(ORDERS))
    accountant.compose(dp_accounting.GaussianDpEvent(math.sqrt(1 / (2 * 0.001))), 100)
    filter_ = FILTERS["renyi"]
    ledger = Ledger({"scope": filter_})
    for _ in range(100):
        ledger.try_debits([Debit("scope", "m", Cost(10**6), "r", "u", (1_000, 0))])
    oracle = accountant.get_epsilon(filter_.delta_units / DELTA_ONE)
    assert ledger.spent("scope").epsilon_micro / 1e6 >= oracle - 1e-9


@pytest.mark.parametrize("length", [1, 3, len(ORDERS)])
def test_a_curve_of_another_length_is_refused(length):
    debit = Debit("scope", "m", Cost(1), "r", "u", (1,) * length)
    for name in ("zcdp", "renyi"):
        with pytest.raises(LedgerError, match="expected a curve of 0, 2 or"):
            Ledger({"scope": FILTERS[name]}).try_debits([debit])


def test_a_renyi_debit_is_taken_by_both_filters():
    curve = (*rho_curve(1_000), 5)
    debit = Debit("scope", "m", Cost(300_000, 7), "r", "u", curve)
    assert FILTERS["renyi"].price(debit) == curve
    assert FILTERS["zcdp"].price(debit) == (pure_to_rho_micro(300_000), 7)


def test_a_budget_that_no_tighter_filter_can_keep_is_refused():
    for make in (ConcentratedFilter.for_cost, RenyiFilter.for_cost):
        with pytest.raises(LedgerError, match="delta of at least 2 units"):
            make(Cost(10**6, 1))
    with pytest.raises(LedgerError, match="expected an order of"):
        RenyiFilter(9, 1, 1, 1)
    with pytest.raises(LedgerError, match="expected an epsilon that order 2 reaches"):
        RenyiFilter.for_cost(Cost(1, 1 << 40), 2)


@pytest.mark.parametrize("name", FILTERS)
def test_parts_of_a_limit_stay_within_it_together(name):
    filter_ = FILTERS[name]
    small, large = filter_.part(Fraction(1, 3)), filter_.part(Fraction(2, 3))
    spent = [0, 0]
    for index, part in enumerate((small, large)):
        ledger = Ledger({"scope": part})
        while ledger.try_debits([Debit("scope", "m", Cost(20_000, 7), "r", "u")]) is None:
            spent[index] += 1
    price = filter_.price(Debit("scope", "m", Cost(20_000, 7), "r", "u"))
    assert filter_.admits(tuple(sum(spent) * one for one in price))
    assert 0 < spent[0] < spent[1]


@pytest.mark.parametrize("name", FILTERS)
def test_a_limit_lowered_to_a_plan_admits_the_plan_and_not_one_more(name):
    filter_ = FILTERS[name]
    price = filter_.price(Debit("scope", "m", Cost(20_000, 7), "r", "u"))
    planned = filter_.within(tuple(3 * part for part in price))
    assert planned.admits(tuple(3 * part for part in price))
    assert not planned.admits(tuple(4 * part for part in price))
    assert filter_.within(tuple(10**30 * part for part in price)) == filter_
