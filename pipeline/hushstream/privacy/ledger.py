"""The ledger: every debit is entered before its release, amounts add exactly, nothing is overspent (rule 4).

This is the filter's logic in memory: all that the direct runner needs. Where it is durable, the role's journal
or a `hushstream.privacy.ledger_file.LedgerFile` holds the debits, and this object is rebuilt from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import add
from typing import Any, Literal, Protocol, runtime_checkable

from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import BadAmount, LedgerError

LOST = "lost before the high-water mark"
"""Mechanism of an entry that stands for entries which an older ledger lacks."""

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
class Entry:
    """One immutable line of the ledger: the id of the release and its debit."""

    entry_id: bytes
    debit: Debit


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A release would overspend its scope: nothing was charged and nothing may be released.

    It is an answer, not an error: a role says so and goes on without releasing.

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
        return f"budget of {self.scope}: asked {self.asked}; left {self.left}"


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
    """Entries by scope, each scope under one filter. Not thread-safe: one writer per scope.

    A scope is the deployment, one epoch of one counter, or one window: each has one writer, because it lives where
    its counter or window lives. Scopes that come with time (``window/7``) take the filter of their kind,
    which is what stands before the slash.
    """

    __slots__ = ("_entries", "_filters", "_kinds", "_totals")

    def __init__(self, filters: Mapping[str, Filter], kinds: Mapping[str, Filter] | None = None) -> None:
        """Open an empty ledger.

        Args:
            filters: one per scope that is known beforehand.
            kinds: one per kind of scope; every new scope of the kind has that budget for itself. A scope with
                neither has no budget and is refused.
        """
        self._filters = dict(filters)
        self._kinds = dict(kinds or {})
        self._entries: dict[str, dict[bytes, Debit]] = {scope: {} for scope in self._filters}
        self._totals: dict[str, tuple[int, ...]] = dict.fromkeys(self._filters, ())

    def try_debit(self, debit: Debit, entry_id: bytes) -> Debit | Exhausted:
        """Enter a debit, before its release. The same entry again (a replay) changes nothing.

        Args:
            debit: the price, with its scope.
            entry_id: names the release; a release has one price for ever.

        Returns:
            The debit when it is in the ledger now: the release may go out. `Exhausted` when it does not fit:
            nothing was charged.

        Raises:
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
            return present
        limit = self._filters[debit.scope]
        if not limit.admits(self._total_with(debit)):
            return Exhausted(debit.scope, debit.cost, limit.left(self._totals[debit.scope]))
        self._enter(debit, entry_id)
        return debit

    def holds(self, scope: str, entry_id: bytes) -> bool:
        """Whether a release was charged.

        Raises:
            LedgerError: an unknown scope.
        """
        return entry_id in self._scope(scope)

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
            entry_as_json(Entry(entry_id, debit))
            for entries in self._entries.values()
            for entry_id, debit in entries.items()
        ]
        return json.dumps({"format": _FORMAT, "entries": lines}, sort_keys=True, separators=(",", ":")).encode()

    def marks(self) -> dict[str, tuple[int, ...]]:
        """The sum of each scope that has spent: kept apart from the ledger, it shows an older one (rule 4)."""
        return {scope: total for scope, total in self._totals.items() if any(total)}

    @classmethod
    def restore(
        cls,
        data: bytes,
        filters: Mapping[str, Filter],
        marks: Mapping[str, tuple[int, ...]],
        kinds: Mapping[str, Filter] | None = None,
        older: Literal["refuse", "charge"] = "refuse",
    ) -> Ledger:
        """Rebuild a ledger from `dump`.

        Args:
            data: the dump.
            filters: the limits now in force; entries beyond a lowered limit are kept, further ones refused.
            marks: the largest sums that are known to have been spent (`marks`).
            kinds: see `Ledger`.
            older: what to do with a ledger that is below a mark: refuse it, or charge what is missing.

        Raises:
            LedgerError: damaged, of another format, of an unknown scope, or older than its high-water mark.
        """
        ledger = cls(filters, kinds)
        for entry in _parse(data):
            ledger.take(entry)
        ledger.raise_to(marks, older)
        return ledger

    def raise_to(self, marks: Mapping[str, tuple[int, ...]], older: Literal["refuse", "charge"]) -> tuple[Entry, ...]:
        """Compare with the high-water marks, and refuse this ledger or enter what it lacks.

        Returns:
            The entries that were made, one for each scope below its mark; budgets may be overspent by them.

        Raises:
            LedgerError: below a mark and ``older`` is ``refuse``, or a mark of another kind of filter.
        """
        made = []
        for scope, known in marks.items():
            self._scope(scope)
            held = self._totals[scope] or (0,) * len(known)
            if len(held) != len(known):
                raise LedgerError(f"ledger of {scope}: expected a mark of {len(held)} sums, got {len(known)}")
            missing = tuple(max(0, mark - sum_) for mark, sum_ in zip(known, held, strict=True))
            if not any(missing):
                continue
            limit = self._filters[scope]
            if older == "refuse":
                raise LedgerError(
                    f"ledger of {scope}: expected at least {limit.cost(known)} spent (its high-water mark), got"
                    f" {limit.cost(held)}; an older ledger would spend the difference again"
                )
            debit = Debit(
                scope, LOST, limit.cost(missing), "that of the lost entries", "that of the lost entries", missing
            )
            entry_id = hashlib.blake2b(repr((scope, known)).encode(), digest_size=16).digest()
            made.append(self._enter(debit, entry_id))
        return tuple(made)

    def take(self, entry: Entry) -> None:
        """Enter what was charged and released before, whatever the limits now are: a journal or file is read back.

        Raises:
            LedgerError: an unknown scope, or an entry that is there already.
        """
        if self.holds(entry.debit.scope, entry.entry_id):
            raise LedgerError(f"ledger: expected each entry once, got {entry.entry_id.hex()} twice")
        self._enter(entry.debit, entry.entry_id)

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
            limit = self._kinds.get(scope.partition("/")[0])
            if limit is None:
                raise LedgerError(f"ledger: expected a scope with a budget, got {scope}")
            self._filters[scope], self._entries[scope], self._totals[scope] = limit, {}, ()
        return self._entries[scope]


def entry_as_json(entry: Entry) -> dict[str, Any]:
    """One entry as plain values."""
    return {"entry_id": entry.entry_id.hex(), **asdict(entry.debit)}


def entry_from_json(line: Mapping[str, Any]) -> Entry:
    """The inverse of `entry_as_json`.

    Raises:
        LedgerError: not the values of an entry.
    """
    try:
        fields = dict(line)
        entry_id = bytes.fromhex(fields.pop("entry_id"))
        cost = Cost(**fields.pop("cost"))
        curve = tuple(fields.pop("curve"))
        if not all(isinstance(price, int) and not isinstance(price, bool) and price >= 0 for price in curve):
            raise LedgerError("ledger: expected whole prices >= 0 in a curve, got others")
        return Entry(entry_id, Debit(cost=cost, curve=curve, **fields))
    except (ValueError, TypeError, KeyError, AttributeError, BadAmount) as error:
        raise LedgerError(f"ledger: expected the entries that a ledger wrote, got {type(error).__name__}") from None


def _parse(data: bytes) -> list[Entry]:
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise LedgerError(f"ledger: expected format {_FORMAT}, got {document['format']!r}")
        return [entry_from_json(line) for line in document["entries"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"ledger: expected the entries that a ledger wrote, got {type(error).__name__}") from None
