"""The ledger: every debit is entered before its release, amounts add exactly, nothing is overspent (rule 4).

This is the filter's logic in memory. Where it is durable, the role's journal holds the debits and this object
is rebuilt from them; a scope has one writer, because it lives where its counter or window lives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import add
from typing import Any, Protocol, runtime_checkable

from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import BadAmount, LedgerError, PrivacyError

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Debit:
    """The price of one release.

    Attributes:
        scope: the budget that pays.
        mechanism: what was released.
        cost: its price.
        relation: neighbour relation of the price.
        unit: what the price protects.
        curve: prices at the fixed orders of a zCDP or Renyi filter, in its own units, rounded up; empty for
            basic composition.
    """

    scope: str
    mechanism: str
    cost: Cost
    relation: str
    unit: str
    curve: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One immutable line of the ledger: the id of the release and its debit."""

    entry_id: bytes
    debit: Debit


class BudgetExceeded(PrivacyError):
    """A release would overspend its scope; nothing was charged and nothing may be released."""

    def __init__(self, scope: str, asked: Cost, left: Cost) -> None:
        super().__init__(f"budget of {scope}: asked {asked}; left {left}")
        self.scope = scope
        self.asked = asked
        self.left = left


@runtime_checkable
class Filter(Protocol):
    """Decides whether one more debit fits, from the exact sum of all prices before it in the scope.

    Basic composition, zCDP and Renyi accounting at fixed orders all add: a price is a vector of integers, and
    the ledger keeps the sum. A filter (Rogers, Roth, Ullman, Vadhan 2016) is sound for adaptively chosen debits,
    since it compares the sum with a limit that was fixed beforehand, before each release.
    """

    def price(self, debit: Debit) -> tuple[int, ...]:
        """The debit as a vector of non-negative integers, of one length for all debits."""

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether a scope may have this sum; the empty sum is ()."""

    def cost(self, total: tuple[int, ...]) -> Cost:
        """The (epsilon, delta) that a sum amounts to."""

    def left(self, total: tuple[int, ...]) -> Cost:
        """The largest single cost that would still be admitted."""


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
        """(epsilon in millionths, delta in units of 2^-80)."""
        return debit.cost.epsilon_micro, debit.cost.delta_units

    def admits(self, total: tuple[int, ...]) -> bool:
        """Whether both sums stay within the limit."""
        return self.cost(total).fits(self.limit)

    def cost(self, total: tuple[int, ...]) -> Cost:
        """Both sums."""
        return Cost(*total) if total else Cost(0)

    def left(self, total: tuple[int, ...]) -> Cost:
        """The limit less both sums."""
        return self.limit - self.cost(total)


class Ledger:
    """Entries by scope, each scope under one filter. Not thread-safe: one writer per scope."""

    __slots__ = ("_entries", "_filters", "_totals")

    def __init__(self, filters: Mapping[str, Filter]) -> None:
        """Open an empty ledger.

        Args:
            filters: one per scope; a scope without one has no budget and is refused.
        """
        self._filters = dict(filters)
        self._entries: dict[str, dict[bytes, Debit]] = {scope: {} for scope in self._filters}
        self._totals: dict[str, tuple[int, ...]] = dict.fromkeys(self._filters, ())

    def charge(self, debit: Debit, entry_id: bytes) -> Entry:
        """Enter a debit, before its release. The same entry again (a replay) changes nothing.

        Args:
            debit: the price, with its scope.
            entry_id: names the release; a release has one price for ever.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged.
            LedgerError: an unknown scope, or another debit under the same id.
        """
        entries = self._scope(debit.scope)
        present = entries.get(entry_id)
        if present is not None:
            if present != debit:
                raise LedgerError(
                    f"ledger entry {entry_id.hex()} in {debit.scope}: expected the debit that it has"
                    f" ({present.mechanism}, {present.cost}), got another ({debit.mechanism}, {debit.cost})"
                )
            return Entry(entry_id, present)
        limit = self._filters[debit.scope]
        if not limit.admits(self._total_with(debit)):
            raise BudgetExceeded(debit.scope, debit.cost, limit.left(self._totals[debit.scope]))
        return self._enter(debit, entry_id)

    def spent(self, scope: str) -> Cost:
        """What a scope has spent.

        Raises:
            LedgerError: an unknown scope.
        """
        self._scope(scope)
        return self._filters[scope].cost(self._totals[scope])

    def left(self, scope: str) -> Cost:
        """What a scope can still spend.

        Raises:
            LedgerError: an unknown scope.
        """
        self._scope(scope)
        return self._filters[scope].left(self._totals[scope])

    def entries(self, scope: str) -> tuple[Entry, ...]:
        """All entries of a scope, oldest first."""
        return tuple(Entry(entry_id, debit) for entry_id, debit in self._scope(scope).items())

    def scopes(self) -> tuple[str, ...]:
        """All scopes, in the order of their filters."""
        return tuple(self._filters)

    def dump(self) -> bytes:
        """The entries as canonical JSON; the limits are configuration and not part of it."""
        lines = [
            {"entry_id": entry_id.hex(), **asdict(debit)}
            for entries in self._entries.values()
            for entry_id, debit in entries.items()
        ]
        return json.dumps({"format": _FORMAT, "entries": lines}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def restore(cls, data: bytes, filters: Mapping[str, Filter], high_water: Mapping[str, int]) -> Ledger:
        """Rebuild a ledger from `dump`.

        Args:
            data: the dump.
            filters: the limits now in force; entries beyond a lowered limit are kept, further ones refused.
            high_water: for each scope the number of entries known to exist (from the journal).

        Raises:
            LedgerError: damaged, of another format, of an unknown scope, or older than the high-water mark.
        """
        ledger = cls(filters)
        for entry_id, debit in _parse(data):
            if entry_id in ledger._scope(debit.scope):
                raise LedgerError(f"ledger: expected each entry once, got {entry_id.hex()} twice")
            ledger._enter(debit, entry_id)
        for scope, known in high_water.items():
            held = len(ledger._scope(scope))
            if held < known:
                raise LedgerError(
                    f"ledger of {scope}: expected at least {known} entries (its high-water mark), got {held};"
                    " an older ledger would spend the difference again"
                )
        return ledger

    def _enter(self, debit: Debit, entry_id: bytes) -> Entry:
        self._totals[debit.scope] = self._total_with(debit)
        self._entries[debit.scope][entry_id] = debit
        return Entry(entry_id, debit)

    def _total_with(self, debit: Debit) -> tuple[int, ...]:
        price = self._filters[debit.scope].price(debit)
        total = self._totals[debit.scope] or (0,) * len(price)
        return tuple(map(add, total, price))

    def _scope(self, scope: str) -> dict[bytes, Debit]:
        if scope not in self._entries:
            raise LedgerError(f"ledger: expected a scope with a budget, got {scope}")
        return self._entries[scope]


def _parse(data: bytes) -> list[tuple[bytes, Debit]]:
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise LedgerError(f"ledger: expected format {_FORMAT}, got {document['format']!r}")
        entries: list[tuple[bytes, Debit]] = []
        for line in document["entries"]:
            fields = dict(line)
            entry_id = bytes.fromhex(fields.pop("entry_id"))
            cost = Cost(**fields.pop("cost"))
            entries.append((entry_id, Debit(cost=cost, curve=tuple(fields.pop("curve")), **fields)))
    except (ValueError, TypeError, KeyError, AttributeError, BadAmount) as error:
        raise LedgerError(f"ledger: expected the entries that a ledger wrote, got {type(error).__name__}") from None
    return entries
