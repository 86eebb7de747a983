import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.privacy import amounts
from hushstream.privacy.amounts import DELTA_ONE, Cost
from hushstream.privacy.errors import BadAmount

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
def test_a_duration_is_said_in_the_largest_unit_that_it_holds_one_of(seconds: float, said: str) -> None:
    assert amounts.duration_text(seconds) == said
