"""Privacy amounts as integers that only ever round up: epsilon in millionths, delta in units of 2^-80.

A float stands for its shortest decimal, as it was typed: 0.1 is exactly 100,000 millionths. Its binary value is
slightly larger, and would be rounded up to one more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeAlias

from hushstream.privacy.errors import BadAmount

MICRO = 1_000_000
DELTA_BITS = 80
DELTA_ONE = 1 << DELTA_BITS
"""Delta 1 in units of 2^-80."""
LEAST_EPSILON = 1 / MICRO
"""The unit of epsilon. A smaller epsilon would be charged as one unit, which may be many times too much."""

_PRINTED_SLACK = Fraction(1, 10**9)

Number: TypeAlias = int | float | str | Decimal | Fraction


@dataclass(frozen=True, slots=True)
class Cost:
    """A privacy price: epsilon in millionths, delta in units of 2^-80; adds exactly (basic composition)."""

    epsilon_micro: int
    delta_units: int = 0

    def __post_init__(self) -> None:
        """Refuse negative or fractional amounts."""
        for name, value in (("epsilon_micro", self.epsilon_micro), ("delta_units", self.delta_units)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise BadAmount(f"{name}: expected a whole number >= 0, got {value!r}")

    def __add__(self, other: Cost) -> Cost:
        """Basic composition: both amounts add."""
        return Cost(self.epsilon_micro + other.epsilon_micro, self.delta_units + other.delta_units)

    def __sub__(self, other: Cost) -> Cost:
        """The rest of a budget; never below zero."""
        return Cost(
            max(0, self.epsilon_micro - other.epsilon_micro),
            max(0, self.delta_units - other.delta_units),
        )

    def fits(self, limit: Cost) -> bool:
        """Whether both amounts stay within ``limit``."""
        return self.epsilon_micro <= limit.epsilon_micro and self.delta_units <= limit.delta_units

    def __str__(self) -> str:
        """Both amounts, rounded up, for people."""
        return f"epsilon {epsilon_text(self.epsilon_micro)}, delta {delta_text(self.delta_units)}"


def exact(value: Number, name: str = "amount") -> Fraction:
    """The exact rational of a value.

    Raises:
        BadAmount: not a number, or not finite.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
            raise BadAmount(f"{name}: expected a number, got {type(value).__name__}")
        if isinstance(value, Fraction):
            return value
        if isinstance(value, float):
            return Fraction(Decimal(repr(float(value))))
        if isinstance(value, str):
            return Fraction(value.strip())
        return Fraction(value)
    except (ValueError, OverflowError, InvalidOperation, ZeroDivisionError):
        raise BadAmount(f"{name}: expected a finite number, got {value!r}") from None


def epsilon_micro(value: Number) -> int:
    """Epsilon in millionths, rounded up.

    Raises:
        BadAmount: negative or not finite.
    """
    epsilon = exact(value, "epsilon")
    if epsilon.numerator < 0:
        raise BadAmount(f"epsilon: expected a number >= 0, got {value!r}")
    return -(-epsilon.numerator * MICRO // epsilon.denominator)


def delta_units(value: Number) -> int:
    """Delta in units of 2^-80, rounded up.

    Raises:
        BadAmount: not in [0, 1].
    """
    delta = exact(value, "delta")
    if not 0 <= delta <= 1:
        raise BadAmount(f"delta: expected a number from 0 to 1, got {value!r}")
    return math.ceil(delta * DELTA_ONE)


def epsilon_value(micro: int) -> Fraction:
    """The exact epsilon of an amount in millionths."""
    return Fraction(micro, MICRO)


def delta_value(units: int) -> Fraction:
    """The exact delta of an amount in units of 2^-80."""
    return Fraction(units, DELTA_ONE)


def float_up(value: Fraction) -> float:
    """The smallest float that is not below ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def epsilon_float(micro: int) -> float:
    """Epsilon as a float that prints as the exact decimal; beyond 15 digits it is rounded up."""
    value = epsilon_value(micro)
    if micro < 10**15:
        return float(value)
    shown = float_up(value)
    # The shortest decimal that reads back as this float may lie below it.
    while Fraction(Decimal(repr(shown))) < value:
        shown = math.nextafter(shown, math.inf)
    return shown


def count_text(count: float, noun: str, form: str = "") -> str:
    """A number with its noun: ``1 record``, ``20 records``.

    Args:
        count: the number.
        noun: in the singular.
        form: format of the number.
    """
    number = format(count, form)
    return f"{number} {noun if number == '1' else _PLURALS.get(noun, f'{noun}s')}"


_PLURALS = {"leaf": "leaves"}


def duration_text(seconds: float) -> str:
    """A duration in the largest unit of which it has at least one: ``20 seconds``, ``1 hour``, ``1.5 hours``."""
    size, unit = next((one for one in ((3600, "hour"), (60, "minute")) if seconds >= one[0]), (1, "second"))
    return count_text(seconds / size, unit, ",.4g")


def ratio_text(numerator: int, denominator: int) -> str:
    """A scale of noise in words: a number with four digits or a whole number, never a fraction."""
    value = numerator / denominator
    return f"{value:.4g}" if numerator % denominator and value < 1000 else f"{value:.0f}"


def epsilon_text(micro: int) -> str:
    """Epsilon as an exact decimal with at most six places."""
    whole, rest = divmod(micro, MICRO)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def delta_text(units: int, digits: int = 3) -> str:
    """Delta in scientific notation with ``digits`` significant digits, rounded up; at most 1 is shown.

    An amount is a decimal that was rounded up to a whole unit, or a sum of such amounts. If it exceeds a decimal by
    less than a part in 10^9, it prints as this decimal, so that 1e-6 is not shown as 1.01e-6.
    """
    if units == 0:
        return "0"
    if units >= DELTA_ONE:
        return "1"
    value = delta_value(units) * (1 - _PRINTED_SLACK)
    exponent = math.floor(math.log10(value))
    mantissa = math.ceil(value * Fraction(10) ** (digits - 1 - exponent))
    if mantissa >= 10**digits:
        mantissa, exponent = 10 ** (digits - 1), exponent + 1
    head = f"{mantissa}"
    return f"{head[0]}.{head[1:]}e{exponent:d}" if digits > 1 else f"{head}e{exponent:d}"


def delta_to_bytes(units: int) -> bytes:
    """Delta as the journal stores it: big-endian unsigned, no leading zeros, empty for zero."""
    return units.to_bytes((units.bit_length() + 7) // 8, "big")


def delta_from_bytes(value: bytes) -> int:
    """The inverse of `delta_to_bytes`, in units of 2^-80."""
    return int.from_bytes(value, "big")
