"""Amounts in whole units, and the ledger that adds them up to a limit."""

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.privacy import amounts
from hushstream.privacy.amounts import DELTA_ONE, Cost, delta_units
from hushstream.privacy.conversions import rho_curve
from hushstream.privacy.errors import BadAmount, LedgerError, PrivacyError
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.keys import encode
from hushstream.privacy.ledger import BasicFilter, ChargeFilter, Debit, Exhausted, Filter, Ledger

LIMIT = Cost(3_000_000, 1000)
ONE = Cost(1_000_000, 400)


def _ledger(limit=LIMIT):
    return Ledger({"deployment": BasicFilter(limit), "window": BasicFilter(limit)})


def _debit(cost=ONE, scope="deployment", mechanism="slot-sums"):
    return Debit(scope, mechanism, cost, "zero-out", "one report of one user")


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
    assert str(refused) == "budget of epoch/0/0: asked one more release; what was charged covers no more"
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
    price = Debit("node", "gaussian", Cost(1), "zero-out", "one slot", curve=(6,))
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

    def debit(truncation):
        curve = {"by its cost": (), "by rho": (1, truncation), "by a curve": (*rho_curve(1), truncation)}[priced]
        return replace(_debit(Cost(1_000, truncation)), curve=curve)

    more_than_half = limit.truncation_units // 2 + 1
    assert ledger.try_debits([debit(more_than_half)]) is None
    refused = ledger.try_debits([debit(more_than_half)])
    assert isinstance(refused, Exhausted)
    assert refused.left.delta_units == limit.truncation_units - more_than_half
    assert ledger.spent("deployment").delta_units == more_than_half + limit.delta_units
    for _ in range(100):
        assert ledger.try_debits([debit(0)]) is None


fractions = st.fractions(min_value=0, max_value=1)


@given(st.fractions(min_value=0, max_value=1000), fractions)
def test_amounts_never_round_down_and_never_by_a_whole_unit(epsilon, delta):
    micro, units = amounts.epsilon_micro(epsilon), amounts.delta_units(delta)
    assert 0 <= amounts.epsilon_value(micro) - epsilon < Fraction(1, 1_000_000)
    assert 0 <= amounts.delta_value(units) - delta < Fraction(1, 2**80)


@pytest.mark.parametrize("value", ["0.1", 0.1, Decimal("0.1"), Fraction(1, 10), "1/10", " 0.1 "])
def test_every_way_to_write_a_tenth_is_the_same_amount(value):
    assert amounts.epsilon_micro(value) == 100_000
    assert amounts.delta_units(value) == math.ceil(Fraction(2**80, 10))


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -1, "x", "", Decimal("NaN"), Decimal("Infinity"), None, True, 1j, "1/0"],
)
def test_what_is_no_amount_is_refused(value):
    with pytest.raises(BadAmount, match="expected a"):
        amounts.epsilon_micro(value)
    with pytest.raises(BadAmount, match="expected a"):
        amounts.delta_units(value)


def test_a_delta_above_one_and_a_fractional_price_are_refused():
    with pytest.raises(BadAmount, match="from 0 to 1"):
        amounts.delta_units(1.5)
    for wrong in ((-1, 0), (0, -1), (1.0, 0), (True, 0)):
        with pytest.raises(BadAmount, match="whole number"):
            Cost(*wrong)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, DELTA_ONE)), max_size=20))
def test_prices_add_exactly(pairs):
    total = sum((Cost(*pair) for pair in pairs), Cost(0))
    assert total == Cost(sum(e for e, _ in pairs), sum(d for _, d in pairs))
    assert total - total == Cost(0)
    assert total.fits(total)
    assert not Cost(total.epsilon_micro + 1).fits(total)
    assert not Cost(0, total.delta_units + 1).fits(total)


@given(st.integers(0, DELTA_ONE), st.integers(1, 6))
def test_a_shown_delta_is_not_below_the_true_one_by_more_than_a_part_in_a_billion(units, digits):
    shown = Fraction(amounts.delta_text(units, digits))
    true = amounts.delta_value(units)
    assert shown >= true * (1 - Fraction(1, 10**9))
    assert shown - true <= true * Fraction(10) ** (1 - digits)


@given(st.integers(0, 10**20))
def test_a_shown_epsilon_is_exact_and_its_float_never_below(micro):
    assert Fraction(amounts.epsilon_text(micro)) == amounts.epsilon_value(micro)
    assert amounts.exact(amounts.epsilon_float(micro)) >= amounts.epsilon_value(micro)


@pytest.mark.parametrize(
    ("units", "text"),
    [(0, "0"), (DELTA_ONE, "1"), (DELTA_ONE + 1, "1"), (1, "8.28e-25"), (DELTA_ONE - 1, "1.00e0")],
)
def test_the_ends_of_delta_are_shown_plainly(units, text):
    assert amounts.delta_text(units) == text


@pytest.mark.parametrize("text", ["1.00e-6", "1.00e-5", "3.00e-7", "1.23e-10", "9.99e-1"])
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_a_typed_delta_and_a_sum_of_such_print_as_what_was_typed(text, times):
    """1e-6 is no whole number of units: rounded up it exceeds itself by less than one, and once read 1.01e-6."""
    part = Fraction(text) / times
    assert amounts.delta_text(times * amounts.delta_units(part)) == text


@given(fractions)
def test_float_up_is_the_next_float_at_or_above(value):
    up = amounts.float_up(value)
    assert Fraction(up) >= value
    assert Fraction(math.nextafter(up, -1)) < value


@given(st.integers(0, 2**90))
def test_the_journal_form_of_delta_reads_back_and_has_no_leading_zero(units):
    data = amounts.delta_to_bytes(units)
    assert amounts.delta_from_bytes(data) == units
    assert data[:1] != b"\x00"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (20, "20 seconds"),
        (1, "1 second"),
        (60, "1 minute"),
        (3599, "59.98 minutes"),
        (3600, "1 hour"),
        (86400, "24 hours"),
    ],
)
def test_a_duration_is_said_in_the_largest_unit_that_it_holds_one_of(seconds, said):
    assert amounts.duration_text(seconds) == said


leaves = st.one_of(st.binary(max_size=6), st.text("ab\x00", max_size=4), st.integers(-(2**70), 2**70), st.none())
parts = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
sequences = st.lists(parts, max_size=5).map(tuple)


def _typed(value):
    return (type(value).__name__, tuple(map(_typed, value)) if isinstance(value, tuple) else value)


@given(sequences, sequences)
def test_two_different_sequences_never_encode_alike(first, second):
    assert (encode(*first) == encode(*second)) == (_typed(first) == _typed(second))


@given(sequences)
def test_what_was_encoded_can_be_read_back_in_one_way(sequence):
    assert _decode(encode(*sequence)) == sequence


def _decode(data):
    values = []
    while data:
        tag, size = data[:1], int.from_bytes(data[1:9], "little")
        payload, data = data[9 : 9 + size], data[9 + size :]
        assert len(payload) == size
        values.append(
            {
                b"b": lambda p: p,
                b"s": lambda p: p.decode(),
                b"i": lambda p: int.from_bytes(p, "big", signed=True),
                b"n": lambda p: None,
                b"t": _decode,
            }[tag](payload)
        )
    return tuple(values)


@pytest.mark.parametrize("part", [True, 1.5, [1], {"a": 1}])
def test_a_part_whose_encoding_would_be_unclear_is_refused(part):
    with pytest.raises(PrivacyError, match="expected bytes, str, int, None or a tuple"):
        encode("x", part)
