"""The ledger: every debit is entered before its release, amounts add exactly, and no limit is exceeded (rule 4).

It keeps only the sum of each scope, so its size does not grow with the releases. The entries are in a role's journal
records; the same code rebuilds the ledger from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import add
from typing import Protocol, runtime_checkable

from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import LedgerError


@dataclass(frozen=True, slots=True)
class Debit:
    """The price of one release.

    Attributes:
        scope: the budget that pays.
        mechanism: the mechanism of the release.
        cost: its price.
        relation: neighbour relation of the price.
        unit: what the price protects.
        curve: the price in the units of zCDP or Renyi accounting, rounded up (see `hushstream.privacy.filters`);
            empty when (epsilon, delta) is all that is known.
    """

    scope: str
    mechanism: str
    cost: Cost
    relation: str
    unit: str
    curve: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A release would exceed the limit of its scope.

    Nothing was charged and nothing may be released. It is an answer and no error: a role reports it and continues
    without a release.

    Attributes:
        scope: the budget that would have paid.
        asked: the price of the release.
        left: the largest single price that the scope would still admit.
    """

    scope: str
    asked: Cost
    left: Cost

    def __str__(self) -> str:
        """One line for people."""
        if self.asked == Cost(0):
            return f"budget of {self.scope}: asked one more release; what was charged covers no more"
        return f"budget of {self.scope}: asked {self.asked}; left {self.left}"


@runtime_checkable
class Filter(Protocol):
    """Decides whether one more debit fits, from the exact sum of all prices before it in the scope.

    Basic composition, zCDP and Renyi accounting at fixed orders all add: a price is a vector of integers, and the
    ledger keeps the sum. A filter (Rogers, Roth, Ullman, Vadhan 2016) is sound for adaptively chosen debits, because
    before each release it compares the sum with a limit that was fixed beforehand.
    """

    def price(self, debit: Debit) -> tuple[int, ...]:
        """The debit as a vector of non-negative integers, of one length for all debits."""

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether a scope may have this sum; the empty sum is ()."""

    def cost(self, total: tuple[int, ...]) -> Cost:
        """The (epsilon, delta) of a sum."""

    def left(self, total: tuple[int, ...]) -> Cost:
        """The largest single cost that would still be admitted."""


class LimitFilter(Filter, Protocol):
    """A filter whose limit can be divided among scopes that compose sequentially, and lowered to a planned sum."""

    def part(self, share: Fraction) -> LimitFilter:
        """The same filter with ``share`` of the limit, rounded down: parts that add up to 1 stay within the whole."""

    def within(self, total: tuple[int, ...]) -> LimitFilter:
        """The same filter with a sum of prices as its limit."""


@dataclass(frozen=True, slots=True)
class BasicFilter:
    """Basic composition: epsilons add, deltas add, both exactly.

    Guarantee:
        A sequence of adaptively chosen mechanisms with prices (e_i, d_i) is (sum e_i, sum d_i)-DP; as the sums are
        compared with a fixed limit before each release, this holds for adaptively chosen prices too (Rogers et
        al. 2016, section 3).
    """

    limit: Cost

    def price(self, debit: Debit) -> tuple[int, ...]:
        """The debit as (epsilon in millionths, delta in units of 2^-80)."""
        return debit.cost.epsilon_micro, debit.cost.delta_units

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether both sums stay within the limit."""
        return not total or (total[0] <= self.limit.epsilon_micro and total[1] <= self.limit.delta_units)

    def cost(self, total: tuple[int, ...]) -> Cost:
        """Both sums."""
        return Cost(*total) if total else Cost(0)

    def left(self, total: tuple[int, ...]) -> Cost:
        """The limit less both sums."""
        return self.limit - self.cost(total)

    def part(self, share: Fraction) -> BasicFilter:
        return BasicFilter(Cost(int(self.limit.epsilon_micro * share), int(self.limit.delta_units * share)))

    def within(self, total: tuple[int, ...]) -> BasicFilter:
        return BasicFilter(Cost(min(self.limit.epsilon_micro, total[0]), min(self.limit.delta_units, total[1])))


@dataclass(frozen=True, slots=True)
class ChargeFilter:
    """The filter of one charge: it admits the price once, and the releases that this price pays for.

    Attributes:
        limit: the price.
        releases: number of releases that it pays for (a counter is calibrated to this number); None: any number.
    """

    limit: Cost
    releases: int | None

    def price(self, debit: Debit) -> tuple[int, ...]:
        """The debit as (epsilon in millionths, delta in units of 2^-80, 1 release)."""
        return debit.cost.epsilon_micro, debit.cost.delta_units, 1

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether the price is paid at most once, and the number of releases is within the limit."""
        if not total:
            return True
        epsilon_micro, delta_units, releases = total
        paid_once = epsilon_micro <= self.limit.epsilon_micro and delta_units <= self.limit.delta_units
        return paid_once and (self.releases is None or releases <= self.releases)

    def cost(self, total: tuple[int, ...]) -> Cost:
        """Both sums."""
        return Cost(*total[:2]) if total else Cost(0)

    def left(self, total: tuple[int, ...]) -> Cost:
        """The limit less both sums; zero if no release is left."""
        return self.limit - self.cost(total)


class Ledger:
    """The sum of each scope, under one filter each. Not thread-safe: one writer per scope.

    A scope is the deployment, one epoch of one counter, or one window. Each has one writer, the role of its counter or
    window. A scope that is opened later (``window/0/7``) gets the filter of its kind, the part before the first slash.
    It is closed after its last debit.
    """

    __slots__ = ("_filters", "_kinds", "_totals")

    def __init__(self, filters: Mapping[str, Filter], kinds: Mapping[str, Filter] | None = None) -> None:
        """Open an empty ledger.

        Args:
            filters: one per scope that is known beforehand.
            kinds: one per kind of scope; every new scope of the kind has this budget. A scope with neither is refused.
        """
        self._filters = dict(filters)
        self._kinds = dict(kinds or {})
        self._totals: dict[str, tuple[int, ...]] = dict.fromkeys(self._filters, ())

    def try_debits(self, debits: Sequence[Debit]) -> Exhausted | None:
        """Enter debits of one release in different scopes, before the release: all of them, or none.

        Returns:
            None if they were entered: the release may be sent. `Exhausted` names the first scope whose limit would be
                exceeded; then nothing was charged.

        Raises:
            LedgerError: an unknown scope, or two debits in one.
        """
        sums, refused = self._with(debits)
        if refused is None:
            self._totals |= sums
        return refused

    def refusal(self, debits: Sequence[Debit]) -> Exhausted | None:
        """What `try_debits` would return; this changes nothing.

        Raises:
            LedgerError: as `try_debits`.
        """
        return self._with(debits)[1]

    def take(self, debits: Sequence[Debit]) -> None:
        """Enter debits from the journal, whatever the limits: they were charged and released before.

        Raises:
            LedgerError: as in `try_debits`.
        """
        self._totals |= self._with(debits)[0]

    def close(self, scope: str) -> None:
        """Forget a scope after its last debit."""
        self._totals.pop(scope, None)

    def spent(self, scope: str) -> Cost:
        """What a scope has spent.

        Raises:
            LedgerError: an unknown scope.
        """
        return self._filter(scope).cost(self._totals.get(scope, ()))

    def left(self, scope: str) -> Cost:
        """What a scope can still spend.

        Raises:
            LedgerError: an unknown scope.
        """
        return self._filter(scope).left(self._totals.get(scope, ()))

    def totals(self) -> dict[str, tuple[int, ...]]:
        """The sum of each open scope, exactly; the limits are configuration and not part of it."""
        return dict(self._totals)

    def resume(self, totals: Mapping[str, tuple[int, ...]]) -> None:
        """Continue from `totals`. Sums above a lowered limit are kept, and further debits are refused.

        Raises:
            LedgerError: an unknown scope, or a sum that is none of its filter.
        """
        for scope, total in totals.items():
            width = len(self._filter(scope).price(Debit(scope, "", Cost(0), "", "")))
            if len(total) not in (0, width) or min(total, default=0) < 0:
                raise LedgerError(f"ledger of {scope}: expected {width} sums of at least 0, got {len(total)}")
        self._totals = {**dict.fromkeys(self._filters, ()), **totals}

    def _with(self, debits: Sequence[Debit]) -> tuple[dict[str, tuple[int, ...]], Exhausted | None]:
        """The sums of the scopes of some debits with these added, and the first one that its limit does not admit."""
        sums: dict[str, tuple[int, ...]] = {}
        refused = None
        for debit in debits:
            scope, limit = debit.scope, self._filter(debit.scope)
            if scope in sums:
                raise LedgerError("ledger: expected debits of different scopes, got two of one")
            before, price = self._totals.get(scope, ()), limit.price(debit)
            sums[scope] = tuple(map(add, before, price)) if before else price
            if refused is None and not limit.admits(sums[scope]):
                refused = Exhausted(scope, debit.cost, limit.left(before))
        return sums, refused

    def _filter(self, scope: str) -> Filter:
        found = self._filters.get(scope) or self._kinds.get(scope.partition("/")[0])
        if found is None:
            raise LedgerError(f"ledger: expected a scope with a budget, got {scope}")
        return found
