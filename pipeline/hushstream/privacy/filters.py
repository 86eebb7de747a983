"""Filters that compose more tightly than sums of (epsilon, delta): zCDP, and Renyi at fixed orders (rule 4).

Both keep a vector of whole numbers, and both take every debit:

- with a curve of two numbers, (rho in millionths, delta beside it): zCDP;
- with a curve of ``len(ORDERS) + 1`` numbers, Renyi divergences in millionths and the delta beside them (the zCDP
  filter takes such a debit by its (epsilon, delta), as a curve at some orders bounds no rho);
- without a curve, by its (epsilon, delta): eps^2/2, or the curve of a pure epsilon, with delta beside it.

The delta beside a curve (truncation errors, or that of an (epsilon, delta) price) adds up and has a limit of its own.
It is not the delta at which an epsilon is printed.

Guarantee:
    Sound for adaptively chosen mechanisms and prices, as the limits were fixed beforehand: Renyi at one order (Feldman,
    Zrnic 2021, Theorem 4.3); zCDP, which is that at every order; and approximate zCDP with deltas that add (Whitehouse,
    Ramdas, Rogers, Wu 2023, Theorem 1). A filter that admits releases while any one of many orders fits would not be
    sound, because different runs would end within different orders. So the order is a setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from hushstream.privacy.amounts import Cost
from hushstream.privacy.conversions import (
    ORDERS,
    largest_pure_epsilon,
    pure_curve,
    pure_to_renyi_micro,
    pure_to_rho_micro,
    renyi_to_epsilon_micro,
    rho_curve,
    rho_to_epsilon_micro,
)
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.ledger import Debit

_MOST = 1 << 62
"""Upper end of a search; it is above any price."""


@dataclass(frozen=True, slots=True)
class ConcentratedFilter:
    """zCDP: rhos add.

    Attributes:
        rho_micro: limit, in millionths.
        truncation_units: limit of the deltas beside it, in units of 2^-80.
        delta_units: delta at which an epsilon is printed, above 0.
    """

    rho_micro: int
    truncation_units: int
    delta_units: int

    @classmethod
    def for_cost(cls, limit: Cost) -> ConcentratedFilter:
        """The largest rho whose epsilon stays within ``limit``, at half its delta; truncation has the other half.

        Raises:
            LedgerError: a delta below 2 units, which no zCDP gives.
        """
        half = _half_delta(limit)
        rho = _largest(lambda rho: rho_to_epsilon_micro(rho, half) <= limit.epsilon_micro)
        return cls(rho, limit.delta_units - half, half)

    def price(self, debit: Debit) -> tuple[int, ...]:
        """The debit as (rho in millionths, delta beside it)."""
        if len(debit.curve) == 2:
            return debit.curve
        _require_curve(debit)
        return pure_to_rho_micro(debit.cost.epsilon_micro), debit.cost.delta_units

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether both sums stay within their limits."""
        return not total or (total[0] <= self.rho_micro and total[1] <= self.truncation_units)

    def cost(self, total: tuple[int, ...]) -> Cost:
        """The epsilon at the filter's delta; and this delta plus the delta beside the curve."""
        if not any(total):
            return Cost(0)
        epsilon = rho_to_epsilon_micro(total[0], self.delta_units)
        return Cost(epsilon, total[1] + (self.delta_units if epsilon else 0))

    def left(self, total: tuple[int, ...]) -> Cost:
        """The largest single (epsilon, delta) that would still be admitted; prices in zCDP may be larger."""
        rho, truncation = total or (0, 0)
        return Cost(largest_pure_epsilon(max(0, self.rho_micro - rho)), max(0, self.truncation_units - truncation))

    def part(self, share: Fraction) -> ConcentratedFilter:
        """See `LimitFilter.part`: rho and the rest are divided, the delta of printing is common to all."""
        return replace(self, rho_micro=int(self.rho_micro * share), truncation_units=int(self.truncation_units * share))

    def within(self, total: tuple[int, ...]) -> ConcentratedFilter:
        rho, truncation = min(self.rho_micro, total[0]), min(self.truncation_units, total[1])
        return replace(self, rho_micro=rho, truncation_units=truncation)


@dataclass(frozen=True, slots=True)
class RenyiFilter:
    """Renyi divergences add at every order; the limit is at one order, fixed beforehand.

    Attributes:
        order: one of `ORDERS`.
        divergence_micro: limit at that order, in millionths.
        truncation_units: limit of the deltas beside the curve, in units of 2^-80.
        delta_units: delta at which an epsilon is printed, above 0.
    """

    order: int
    divergence_micro: int
    truncation_units: int
    delta_units: int

    def __post_init__(self) -> None:
        """Refuse an order that no curve has."""
        if self.order not in ORDERS:
            raise LedgerError(f"Renyi filter: expected an order of {ORDERS}, got {self.order!r}")

    @classmethod
    def for_cost(cls, limit: Cost, order: int | None = None) -> RenyiFilter:
        """The largest divergence whose epsilon stays within ``limit``, at half its delta.

        Args:
            limit: (epsilon, delta) of the scope; truncation errors have the other half of delta.
            order: order of the limit; by default the order at which most zCDP releases fit.

        Raises:
            LedgerError: a delta below 2 units, or an epsilon that the order does not reach.
        """
        half = _half_delta(limit)

        def reach(order: int) -> int:
            return _largest(lambda price: renyi_to_epsilon_micro(price, order, half) <= limit.epsilon_micro)

        best = max(ORDERS, key=lambda one: reach(one) / one) if order is None else order
        divergence = reach(best)
        if divergence == 0:
            raise LedgerError(f"Renyi filter: expected an epsilon that order {best} reaches, got {limit}")
        return cls(best, divergence, limit.delta_units - half, half)

    def price(self, debit: Debit) -> tuple[int, ...]:
        """Divergences in millionths at all `ORDERS`, and the delta beside them."""
        if len(debit.curve) == 2:
            return *rho_curve(debit.curve[0]), debit.curve[1]
        _require_curve(debit)
        return debit.curve or (*pure_curve(debit.cost.epsilon_micro), debit.cost.delta_units)

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether the sum at the filter's order and the deltas beside it stay within their limits."""
        return not total or (self._at_order(total) <= self.divergence_micro and total[-1] <= self.truncation_units)

    def cost(self, total: tuple[int, ...]) -> Cost:
        """The epsilon at the filter's order and delta; and this delta plus the delta beside the curve."""
        if not any(total):
            return Cost(0)
        at_order = self._at_order(total)
        epsilon = renyi_to_epsilon_micro(at_order, self.order, self.delta_units) if at_order else 0
        return Cost(epsilon, total[-1] + (self.delta_units if epsilon else 0))

    def left(self, total: tuple[int, ...]) -> Cost:
        """The largest single (epsilon, delta) that would still be admitted; prices with a curve may be larger."""
        spent, truncation = (self._at_order(total), total[-1]) if total else (0, 0)
        unspent = self.divergence_micro - spent
        epsilon = _largest(lambda epsilon: pure_to_renyi_micro(epsilon, self.order) <= unspent) if unspent > 0 else 0
        return Cost(epsilon, max(0, self.truncation_units - truncation))

    def part(self, share: Fraction) -> RenyiFilter:
        """See `LimitFilter.part`: divergence and the rest are divided, the delta of printing is common to all."""
        divergence, truncation = int(self.divergence_micro * share), int(self.truncation_units * share)
        return replace(self, divergence_micro=divergence, truncation_units=truncation)

    def within(self, total: tuple[int, ...]) -> RenyiFilter:
        divergence = min(self.divergence_micro, self._at_order(total))
        truncation = min(self.truncation_units, total[-1])
        return replace(self, divergence_micro=divergence, truncation_units=truncation)

    def _at_order(self, total: tuple[int, ...]) -> int:
        return total[ORDERS.index(self.order)]


def _require_curve(debit: Debit) -> None:
    if len(debit.curve) not in (0, len(ORDERS) + 1):
        raise LedgerError(
            f"debit of {debit.mechanism}: expected a curve of 0, 2 or {len(ORDERS) + 1} costs, got {len(debit.curve)}"
        )


def _half_delta(limit: Cost) -> int:
    if limit.delta_units < 2:
        raise LedgerError(f"budget: expected a delta of at least 2 units of 2^-80 for zCDP or Renyi, got {limit}")
    return limit.delta_units // 2


def _largest(holds: Callable[[int], bool]) -> int:
    """The largest whole number for which a monotone condition holds; 0 if for none."""
    low, high = 0, 1
    while high < _MOST and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
