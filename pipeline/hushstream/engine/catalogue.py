"""The catalogue of a deployment: which item has which row of its sums, from the log of its changes alone.

The application chooses the ids of its items. Learners, shufflers and aggregators count by *rows*. The configuration
says how many rows there are (``items.capacity``). Noise is added to every row, whether it has an item or not. So adding
or retiring an item costs nothing and changes no promise.

A record holds one change or more, which count together or not at all, and names the version of the catalogue after
them. It counts if this version is the previous one plus 1. If two writers have read the same version, the first record
in the log counts, and the other writer reads again and retries. All readers of the log take the same changes, whoever
wrote them, and so know the same rows.

The row of a retired item is given to another item only after ``reuse_after_ms`` of log time, when no record of the old
item can arrive any more. The row that was retired first is reused first. Where records may wait without a limit, no row
is reused. Versions also show that a record is older than the item of its row: each row has the version at which its
item entered (`Catalogue.entries`), and a slot names the version under which it was decided
(`hushstream.systems.p2b.shuffler`).

*Items that are known beforehand.* Where a deployment begins with a model of another one (`CatalogueRules.known`), its n
items are known by id. Versions begin at n, and row r is kept for item r, which enters it with version r + 1, whenever
it is added. So a reader that knows only the versions can see from version r + 1 in row r that the row has its known
item. New items take the other rows first. Then they take rows of known items that were never added, beginning with the
last row. A known item whose row is taken enters another row, as a new item.

*Rules before the choice* (`CatalogueRules.ruled`). An item may be pinned: where pinned items may be shown, no other is
chosen. It may have a cap: one user is shown it a number of times within a duration, at most
(`hushstream.systems.p2b.edge.agent`).

*Items named by numbers.* Where the application names no items (`CatalogueRules.numbered`), the catalogue begins full:
row r has item "r", which entered with version r + 1, and versions begin at K.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.features.checks import FeatureError
from hushstream.features.kinds import Outcome
from hushstream.features.schema import FeatureSchema
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault

MAX_TITLE_BYTES = 256
MAX_FEATURES_BYTES = 8192
MOST_CAP_SHOWS, LONGEST_CAP_SECONDS = 100, 366 * 86_400
ITEMS = "items"
"""The topic of changes. It has one partition, because the order of the changes decides which of them count. Each party
may have one of its own."""

OF = "/"
"""Separator between the name of a party and the id of its item, if several parties have items."""

_NEVER = 0
"""Version of a row that never had an item."""

Int32 = NDArray[np.int32]
Bools = NDArray[np.bool_]
Float64 = NDArray[np.float64]


class ItemRefused(HushstreamError):
    """A change of the catalogue that does not count.

    Attributes:
        number: its place among the changes of its record.
    """

    number = 0


class BadItem(ItemRefused):
    """An id, a title or features that no item can have."""


class UnknownItem(ItemRefused):
    """There is no such item, or it is retired."""


class RepeatedItem(ItemRefused):
    """There is such an item already."""


class CatalogueFull(ItemRefused):
    """No row is free."""


class StaleCatalogue(ItemRefused):
    """Another writer changed the catalogue first."""


@dataclass(frozen=True, slots=True)
class CatalogueRules:
    """What a catalogue may hold; it follows from the configuration alone.

    Attributes:
        capacity: K, how many rows there are.
        reuse_after_ms: after this time since an item was retired (log time) its row may be given to another item; None
            if a row is never reused.
        config_digest: digest of the deployment's configuration; every change names it.
        features: schema of the items' public features; None if items have none.
        from_requests: whether a request may name an item that is not in the catalogue yet; the item is then added.
        party: the party that has these items, if each party has a catalogue of its own.
        first: number of the arm that the first row is.
        known: ids of the items that are known beforehand, at most K; see the module.
        numbered: whether the catalogue begins with an offered item in every row, named by the row's number.
        ruled: whether items may be pinned or have a cap.
    """

    capacity: int
    reuse_after_ms: int | None
    config_digest: bytes
    features: FeatureSchema | None = None
    from_requests: bool = False
    party: str = ""
    first: int = 0
    known: tuple[str, ...] = ()
    numbered: bool = False
    ruled: bool = False

    @property
    def topic(self) -> str:
        """The topic of changes."""
        from hushstream.schemas.topics import of_party  # imported here: it loads Avro, which devices do not need

        return of_party(ITEMS, self.party)

    @property
    def arms(self) -> range:
        """The numbers of the arms that the rows are."""
        return range(self.first, self.first + self.capacity)

    def version_after(self, records: int) -> int:
        """The version of the catalogue after this number of records that count."""
        return (self.capacity if self.numbered else len(self.known)) + records

    def named(self, item: str) -> str:
        """The name of an item that is unique among the items of all parties."""
        return f"{self.party}{OF}{item}" if self.party else item

    def row_of(self, features: str) -> bytes:
        """The public features of an item as a row of their schema.

        Raises:
            BadItem: no features are declared, or these are others, or have values outside of their vocabularies.
        """
        if self.features is None:
            raise BadItem("features: expected none (`items.features` declares none), got some")
        try:
            found = self.features.encode(values_of(features))
        except FeatureError as error:
            raise BadItem(str(error)) from None
        for name, outcome in found.outcomes.items():
            if outcome is Outcome.UNKNOWN:
                raise BadItem(f"{name}: expected a value of its vocabulary (`items.features`), got another")
        return found.row


class Cap(NamedTuple):
    """How often one user is shown an item at most, and within how many seconds of log time."""

    shows: int
    within_seconds: int


class ItemChange(NamedTuple):
    """A change, as records hold it (schema ``ItemChanges``).

    Attributes:
        item: its id.
        version: version of the catalogue after this change, and after all of its record.
        offered: whether it may be shown from then on; else it is retired.
        title: its name for people.
        features: its public features as a JSON object; empty for none.
        pinned: whether it is shown before all items that are not pinned.
        cap_shows, cap_seconds: its `Cap`; 0 for none.
    """

    item: str
    version: int
    offered: bool
    title: str = ""
    features: str = ""
    pinned: bool = False
    cap_shows: int = 0
    cap_seconds: int = 0


class CatalogueItem(NamedTuple):
    """An item, its row, and the versions at which it entered and left.

    Attributes:
        item, title, features, pinned, cap_shows, cap_seconds: see `ItemChange`.
        row: the row of its sums.
        entered: the version with which it came into this row.
        retired: the version with which it was retired; 0 while it may be shown.
        retired_ms: log time at which it was retired.
    """

    item: str
    title: str
    features: str
    row: int
    entered: int
    retired: int = _NEVER
    retired_ms: int = 0
    pinned: bool = False
    cap_shows: int = 0
    cap_seconds: int = 0

    @property
    def cap(self) -> Cap | None:
        """Its cap, if it has one."""
        return Cap(self.cap_shows, self.cap_seconds) if self.cap_shows else None

    @property
    def offered(self) -> bool:
        """Whether it may be shown."""
        return self.retired == _NEVER

    @property
    def called(self) -> str:
        """Title and id, as people read them."""
        return f"{self.title} ({self.item})" if self.title and self.title != self.item else self.item


_TOLD = ("title", "features", "pinned", "cap_shows", "cap_seconds")
"""What an item has from the change that offers it."""
_UNRULED = CatalogueItem._fields.index("pinned")
"""How many fields of an item are packed where it is neither pinned nor capped."""


class Catalogue:
    """All items that there ever were, as far as the log was read."""

    def __init__(self, rules: CatalogueRules) -> None:
        """Begin empty, or with items that are named by numbers; the first version is that of `CatalogueRules`."""
        rows = range(rules.capacity if rules.numbered else 0)
        self.rules = rules
        self.version = rules.version_after(0)
        self.now_ms = 0
        self.entries: Int32 = np.zeros(rules.capacity, dtype=np.int32)
        """(K,) the version with which each row's item entered; 0 for a row that never had one."""
        self.entries[: len(rows)] = [row + 1 for row in rows]
        self._tenants = {row: [CatalogueItem(str(row), "", "", row, row + 1)] for row in rows}
        """All items that each row has had, oldest first. Rows are in the order in which they were first taken."""
        self._places = {str(row): row for row in rows}
        """The row of each item that still has one, in the order of the rows above; restoring keeps this order."""
        self._offered: Bools = self.entries > 0
        self.full = bool(self._offered.all())
        """Whether every row has an item that may be shown."""
        self.pinned: Bools = np.zeros(rules.capacity, dtype=np.bool_)
        """(K,) which rows have a pinned item that may be shown."""
        self.caps: dict[int, Cap] = {}
        """The caps of items that may be shown, by row."""
        self.narrows = False
        """Whether there is any such pin or cap."""
        unknown = b"" if rules.features is None else rules.features.encode({}).row
        self.features = np.tile(np.frombuffer(unknown, np.uint8), (rules.capacity, 1))
        """(K, row bytes) uint8, the public features of each row's item by their schema; all are missing where it has
        none. No bytes if no features are declared."""

    @property
    def offered(self) -> Bools:
        """(K,) which rows have an item that may be shown."""
        return self._offered

    @property
    def known(self) -> Bools:
        """(K,) which rows have the known item that they are reserved for."""
        return rows_of_known(self.entries, len(self.rules.known))

    def left_out(self) -> list[str]:
        """The items known beforehand that have no row."""
        return [item for item in self.rules.known if item not in self._places]

    def items(self) -> list[CatalogueItem]:
        """The items that have a row, also retired ones, in the order of rows."""
        return [tenants[-1] for _, tenants in sorted(self._tenants.items())]

    def holds(self, item: str) -> bool:
        """Whether an item has a row; it may be retired."""
        return item in self._places

    def item(self, item: str) -> CatalogueItem:
        """An item that has a row; it may be retired.

        Raises:
            UnknownItem: none has this id.
        """
        row = self._places.get(item)
        if row is None:
            raise UnknownItem(f"item: expected one of the catalogue at version {self.version}, got another id")
        return self._tenants[row][-1]

    def of_row(self, row: int, version: int) -> CatalogueItem:
        """The item that a row had at a version of the catalogue.

        Raises:
            UnknownItem: nothing, or the version is not known yet.
        """
        if version <= self.version:
            for tenant in reversed(self._tenants.get(row, ())):
                if tenant.entered <= version:
                    return tenant
        raise UnknownItem(f"row: expected one that had an item at version {version}, got another")

    def _checked(self, change: ItemChange, log_time_ms: int) -> CatalogueItem:
        """The item as a change to the next version would leave it; the catalogue itself does not change."""
        self._require_words(change)
        row = self._places.get(change.item)
        known = None if row is None else self._tenants[row][-1]
        if not change.offered:
            if known is None or not known.offered:
                raise UnknownItem(f"item: expected one that is offered at version {self.version}, got {change.item}")
            return known._replace(retired=change.version, retired_ms=max(self.now_ms, log_time_ms))
        if known is not None and known.offered:
            raise RepeatedItem(f"item: expected an id that is not offered at version {self.version}, got {change.item}")
        told: dict[str, Any] = {name: getattr(change, name) for name in _TOLD}
        if known is not None:
            # The item still has its row, and everything that was learned about it.
            return known._replace(**told, retired=_NEVER, retired_ms=0)
        kept = self._kept_row(change.item)
        if kept is not None:
            return CatalogueItem(change.item, row=kept, entered=kept + 1, **told)
        free = self._free_row(max(self.now_ms, log_time_ms))
        return CatalogueItem(change.item, row=free, entered=change.version, **told)

    def take(self, change: ItemChange, log_time_ms: int) -> CatalogueItem:
        """Apply a change that is alone in its record, and return the item after it; see `take_all`."""
        return self.take_all((change,), log_time_ms)[0]

    def take_all(self, changes: Sequence[ItemChange], log_time_ms: int) -> Sequence[CatalogueItem]:
        """Apply all changes of a record in their order, or none; returns the items after them.

        Args:
            changes: to the same version, one at least.
            log_time_ms: of their record.

        Raises:
            StaleCatalogue: their version does not follow on this one.
            BadItem, UnknownItem, RepeatedItem, CatalogueFull: one of them cannot be taken after those before it.
        """
        version = changes[0].version
        if version != self.version + 1:
            raise StaleCatalogue(f"catalogue: expected a change to version {self.version + 1}, got one to {version}")
        after, found = self._copied(), list[CatalogueItem]()
        for number, change in enumerate(changes):
            try:
                found.append(after._checked(change, log_time_ms))
            except ItemRefused as error:
                error.number = number
                raise
            after._put(found[-1])
        self._become(after)
        self.now_ms, self.version = max(self.now_ms, log_time_ms), version
        return found

    def _copied(self) -> Catalogue:
        """The same catalogue, which may change by itself."""
        made = copy(self)
        made._tenants = {row: list(tenants) for row, tenants in self._tenants.items()}
        made._places, made.features, made.caps = dict(self._places), self.features.copy(), dict(self.caps)
        return made

    def _become(self, other: Catalogue) -> None:
        self.entries, self._tenants, self._places = other.entries, other._tenants, other._places
        self._offered, self.full, self.features = other._offered, other.full, other.features
        self.pinned, self.caps, self.narrows = other.pinned, other.caps, other.narrows

    def dump(self) -> bytes:
        """The catalogue as bytes, without the rules. Equal changes give equal bytes."""
        tenants = [
            one if one.pinned or one.cap_shows else one[:_UNRULED] for row in self._tenants.values() for one in row
        ]
        return json.dumps([self.version, self.now_ms, tenants], separators=(",", ":")).encode()

    def load(self, dumped: bytes) -> None:
        """Restore what `dump` wrote under the same rules.

        Raises:
            HushstreamError: not such bytes, or of other rules.
        """
        fresh = Catalogue(self.rules)
        try:
            fresh.version, fresh.now_ms, tenants = json.loads(dumped)
            for fields in tenants:
                fresh._put(CatalogueItem(*fields))
        except (ValueError, TypeError, IndexError):
            raise HushstreamError("catalogue: expected one of this capacity, got other bytes") from None
        self.version, self.now_ms = fresh.version, fresh.now_ms
        self._become(fresh)

    def _put(self, found: CatalogueItem) -> None:
        row = found.row
        tenants = self._tenants.setdefault(row, [])
        follows = bool(tenants) and tenants[-1].entered != found.entered
        if tenants and not follows:
            tenants.pop()
        tenants.append(found)
        if follows:
            self._places = {row[-1].item: place for place, row in self._tenants.items()}
        else:
            self._places[found.item] = row
        # The arrays are copied, so that arrays that were given out before do not change.
        self.entries, self._offered = self.entries.copy(), self._offered.copy()
        self.entries[row], self._offered[row] = found.entered, found.offered
        self.full = bool(self._offered.all())
        if self.pinned[row] != (found.offered and found.pinned):
            self.pinned = self.pinned.copy()
            self.pinned[row] ^= True
        self.caps.pop(row, None)
        if found.offered and found.cap is not None:
            self.caps[row] = found.cap
        self.narrows = bool(self.caps) or bool(self.pinned.any())
        if self.rules.features is not None:
            self.features[row] = np.frombuffer(self.rules.row_of(found.features), np.uint8)

    def _kept_row(self, item: str) -> int | None:
        """The row that is reserved for an item, unless another item has taken it."""
        known = self.rules.known
        row = known.index(item) if item in known else None
        return row if row is not None and self.entries[row] == _NEVER else None

    def _free_row(self, now_ms: int) -> int:
        capacity, known = self.rules.capacity, len(self.rules.known)
        unused = np.flatnonzero(self.entries == _NEVER)
        if unused.size:
            return int(unused[unused >= known][0] if (unused >= known).any() else unused[-1])
        retired = sorted((one.retired_ms, one.row) for one in self.items() if not one.offered)
        reuse_after_ms = self.rules.reuse_after_ms
        if reuse_after_ms is None:
            raise CatalogueFull(
                f"catalogue: expected a row that never had an item, as no row is reused here, got {capacity} of "
                f"{capacity} that have or had one (capacity)"
            )
        if not retired:
            raise CatalogueFull(
                f"catalogue: expected a free row, got {capacity} of {capacity} with items: retire one, whose row is "
                "free later, or state a larger `items.capacity` for a next generation"
            )
        since_ms, row = retired[0]
        wait_ms = since_ms + reuse_after_ms - now_ms
        if wait_ms > 0:
            raise CatalogueFull(
                f"catalogue: expected a free row, got {capacity - len(retired)} of {capacity} with items and "
                f"{len(retired)} that wait for late records of their retired items; the first is free in "
                f"{-(-wait_ms // 1000)} s"
            )
        return row

    def _require_words(self, change: ItemChange) -> None:
        try:
            for text in (change.item[: MAX_ID_BYTES + 1], change.title[: MAX_TITLE_BYTES + 1]):
                text.encode()
        except UnicodeEncodeError:
            expected = "item: expected an id and a title that UTF-8 can write, got half of a surrogate pair"
            raise BadItem(expected) from None
        if id_fault(change.item) is not None:
            raise BadItem(
                f"item: expected an id of 1 to {MAX_ID_BYTES} bytes in one line, got {len(change.item.encode())}"
            )
        for name, text, most in (
            ("title", change.title, MAX_TITLE_BYTES),
            ("features", change.features, MAX_FEATURES_BYTES),
        ):
            if len(text) > most or len(text.encode()) > most:
                raise BadItem(f"{name}: expected at most {most} bytes, got more")
        if change.features:
            self.rules.row_of(change.features)
        self._require_rules(change.pinned, change.cap_shows, change.cap_seconds)

    def _require_rules(self, pinned: bool, shows: int, seconds: int) -> None:
        if (pinned, shows, seconds) == (False, 0, 0):
            return
        if not self.rules.ruled:
            raise BadItem("item: expected no pin and no cap, as this deployment's items have none, got one")
        if not isinstance(pinned, bool):
            raise BadItem("pinned: expected true or false, got something else")
        numbers = isinstance(shows, int) and isinstance(seconds, int)
        bounded = numbers and 1 <= shows <= MOST_CAP_SHOWS and 1 <= seconds <= LONGEST_CAP_SECONDS
        if not bounded and (shows, seconds) != (0, 0):
            raise BadItem(
                f"cap: expected 1 to {MOST_CAP_SHOWS} shows within 1 to {LONGEST_CAP_SECONDS} whole seconds, got others"
            )


def rows_of_known(entries: Int32, known: int) -> Bools:
    """(K,) which rows have items that are known beforehand, by the versions with which their items entered.

    Args:
        entries: (K,) see `Catalogue.entries`.
        known: how many are.
    """
    rows = np.arange(len(entries))
    return np.asarray((rows < known) & (entries == rows + 1))


def changes_of(fields: Mapping[str, Any]) -> Sequence[ItemChange]:
    """The changes that a record of schema ``ItemChanges`` holds; all are to its version."""
    return tuple(ItemChange(version=fields["version"], **one) for one in fields["items"])


def values_of(features: str) -> Mapping[str, Any]:
    """Public features by name.

    Raises:
        BadItem: the text is no JSON object.
    """
    if not features:
        return {}
    try:
        values = json.loads(features)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise BadItem("features: expected a JSON object of values by name, got another text")
    return values
