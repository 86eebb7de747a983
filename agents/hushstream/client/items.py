"""The items of a deployment by name: changes its catalogue, and names the rows of its decisions.

A client reads the whole topic of changes in order, by the same rules as learners (`hushstream.engine.catalogue`). So it
knows the item of each decision from the offset up to which the learner had read. If each party has a catalogue, a
client changes its own party's and reads all, because a decision may be for an item of another party. Items of several
parties are called ``PARTY/ID``.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.client.decisions import vector_of
from hushstream.client.logs import EventLog
from hushstream.engine.catalogue import (
    OF,
    BadItem,
    Cap,
    Catalogue,
    CatalogueItem,
    ItemChange,
    ItemRefused,
    StaleCatalogue,
    UnknownItem,
    values_of,
)
from hushstream.engine.declare.requests import BadContext, ContextRules, RequestRefused, UnknownArm
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.records import InputSlice
from hushstream.features.schema import FeatureSchema
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import CONTROLS

_ANY_TIME_MS = 1 << 62
"""Log time that a change is given while it is not in the log yet. Only its true log time decides whether a row is free
again."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the catalogue.

    Attributes:
        item: its id, as the application names it.
        title: the name that people read.
        features: its public features by name.
        offered: whether it may be shown; else it is retired.
        version: version of the catalogue with which it came into its row.
        since: version of the catalogue since which it is offered, or retired.
        pinned: whether it is shown before all items that are not pinned, wherever a request allows it.
        cap: how often one user is shown it at most; None without a cap.
    """

    item: str
    title: str = ""
    features: Mapping[str, Any] = field(default_factory=dict)
    offered: bool = True
    version: int = 0
    since: int = 0
    pinned: bool = False
    cap: Cap | None = None


class Put(NamedTuple):
    """What became of items that were put into the catalogue.

    Attributes:
        version: of the catalogue with all of them.
        added, changed, restored, retired, unchanged: how many items are new, were on offer with another title, other
            features or other rules, were retired before, were on offer before, and are as they were.
    """

    version: int
    added: int
    changed: int
    restored: int
    retired: int
    unchanged: int


class Items:
    """The catalogue of one deployment, or of a party of it; `hushstream.client.Client.items`."""

    def __init__(self, log: EventLog, rules: ContextRules | None, party: str = "") -> None:
        """Over a client's log; nothing is read yet.

        Args:
            log: of the client.
            rules: of the deployment; None where they are not known.
            party: party of these items, if each party has its own.
        """
        self._log = log
        own = None if rules is None else rules.catalogues.get(party, rules.catalogue)
        self._reader = None if own is None else ItemReader(own)
        others = () if rules is None else (one for name, one in rules.catalogues.items() if name != party)
        self._others = {one.party: ItemReader(one) for one in others}
        self.all_read = False
        """Whether catalogues of other parties were read, too."""
        self._reading = asyncio.Lock()
        self._highs: list[int] = []
        """For each record that counted, the next offset after it; the number of these records is the version."""
        self._since: dict[str, int] = {}
        """The version of the last change of each item, by its name among the items of all parties."""

    @property
    def named(self) -> bool:
        """Whether items have names here."""
        return self._reader is not None

    @property
    def version(self) -> int:
        """Version of the catalogue, as far as it was read."""
        return self._catalogue.version

    @property
    def catalogues(self) -> Mapping[str, Catalogue]:
        """The own catalogue by its party, as far as it was read; none if items have no names."""
        return {} if self._reader is None else {self._catalogue.rules.party: self._catalogue}

    @property
    def features(self) -> FeatureSchema | None:
        """The declared public features of items; None if none are declared."""
        return self._catalogue.rules.features

    async def list(self) -> Sequence[Item]:
        """All offered items, and retired items whose row has no new item yet, by row.

        Raises:
            RequestRefused: items have no names here.
        """
        await self.refresh()
        return self.known()

    def known(self) -> Sequence[Item]:
        """What `list` gives, as far as the catalogue was read."""
        return [self._item(one, self._catalogue) for one in self._catalogue.items()]

    def holds(self, item: str) -> bool:
        """Whether there is an item with this name, as far as the catalogue was read; it may be retired.

        Raises:
            RequestRefused: items have no names here.
        """
        try:
            reader, name = self._named(item)
        except UnknownArm:
            return False
        return reader.catalogue.holds(name)

    def offers(self, item: str) -> bool:
        """Whether an item may be shown, as far as the catalogue was read.

        Raises:
            RequestRefused: items have no names here.
        """
        try:
            reader, name = self._named(item)
            return reader.catalogue.item(name).offered
        except (UnknownArm, UnknownItem):
            return False

    def find(self, item: str) -> Item | None:
        """An item that has a row, as far as the catalogue was read; it may be retired. None if there is none.

        Raises:
            RequestRefused: items have no names here.
        """
        try:
            return self._item(self._catalogue.item(item), self._catalogue)
        except UnknownItem:
            return None

    async def add(self, item: str, title: str = "", features: Mapping[str, Any] | None = None) -> int:
        """Offer a new item, or a retired one again; returns the version of the catalogue with it.

        Learners show it from their next batch on, and learn from its rewards from then on. No worker restarts, and no
        epsilon is spent.

        Args:
            item: its id, 1 to 128 bytes of UTF-8.
            title: the name that people read, at most 256 bytes.
            features: its public features by name, as ``items.features`` declares them.

        Raises:
            RepeatedItem, CatalogueFull, BadItem: the item cannot be added.
            StaleCatalogue: somebody else changed the catalogue at the same time; try again.
            RequestRefused: items have no names here.
        """
        return await self.add_all([Item(item, title, features or {})])

    async def add_all(self, items: Iterable[Item]) -> int:
        """Offer many items, in order; as `add`. Nothing is sent where one of them cannot be added.

        They are one record and one version, or a few where one record cannot hold them. If somebody else changes the
        catalogue meanwhile, the records before stay.
        """
        return await self._change([_offer(one) for one in items])

    async def put(self, items: Iterable[Item], retire: Iterable[str] = ()) -> Put:
        """Offer items as they are given here, and stop showing others; whichever of them are known.

        One that is on offer keeps its row and what was learned about it when it changes. Records and
        versions are those of `add_all`, and nothing is sent where one of them cannot be taken.

        Raises:
            BadItem: an item is there twice; otherwise as `add` and `retire`.
        """
        await self.refresh()
        listed, gone = list(items), list(dict.fromkeys(retire))
        given = {one.item: one for one in listed}
        if len(given) < len(listed) or given.keys() & set(gone):
            twice = next(one for one, times in Counter([*(one.item for one in listed), *gone]).items() if times > 1)
            raise BadItem(f"item: expected each item once, either to offer or to retire, got {_called(twice)} twice")
        counts, changes = Counter[str](), list[ItemChange]()
        for one in given.values():
            known, wanted = self.find(one.item), _offer(one)
            offered = known is not None and known.offered
            if known is not None and offered and _offer(known) == wanted:
                counts["unchanged"] += 1
                continue
            if offered:
                changes.append(_retire(one.item))
            changes.append(wanted)
            counts["changed" if offered else "added" if known is None else "restored"] += 1
        for item in gone:
            known = self.find(item)
            retired = known is not None and not known.offered
            counts["unchanged" if retired else "retired"] += 1
            changes += [] if retired else [_retire(item)]
        version = await self._change(changes)
        return Put(version, *(counts[name] for name in Put._fields[1:]))

    async def retire(self, item: str) -> int:
        """Show an item no more; returns the version of the catalogue without it.

        Rewards of earlier decisions still count. Decide by stock, contracts and released models. Do not decide by
        clicks: the catalogue is public, so retiring what nobody clicked would publish who clicked what.

        Raises:
            UnknownItem: there is no such item, or it is retired.
            StaleCatalogue: somebody else changed the catalogue at the same time; try again.
            RequestRefused: items have no names here.
        """
        return await self._change([_retire(item)])

    def left_out(self) -> Sequence[str]:
        """Items of the deployment's initial model that have no row here, as far as the catalogue was read.

        Raises:
            RequestRefused: items have no names here.
        """
        return self._catalogue.left_out()

    async def refresh(self) -> Mapping[int, ItemRefused]:
        """Read what was changed since; returns which records do not count and why, by offset.

        Raises:
            RequestRefused: items have no names here.
            HushstreamError: the topic cannot be read.
        """
        own = self._require_reader()
        async with self._reading:
            return await self._read_on(own)

    async def refresh_all(self) -> None:
        """Read what was changed since, also of the items of other parties; errors as in `refresh`."""
        await self.refresh()
        async with self._reading:
            for reader in self._others.values():
                await self._read_on(reader)
        self.all_read = True

    async def _read_on(self, reader: ItemReader) -> Mapping[int, ItemRefused]:
        low = reader.position
        records = await self._log.read(*reader.topic, low)
        refused = {}
        high = records[-1].offset + 1 if records else low
        for read in reader.read(InputSlice(*reader.topic, low, high, records)):
            if not read.changes:
                continue
            try:
                reader.catalogue.take_all(read.changes, read.log_time_ms)
            except ItemRefused as error:
                refused[read.offset] = error
            else:
                names = (reader.catalogue.rules.named(one.item) for one in read.changes)
                self._since |= dict.fromkeys(names, read.changes[0].version)
                if reader is self._reader:
                    self._highs.append(read.offset + 1)
        return refused

    # The rest is what a client needs for its decisions.

    @property
    def position(self) -> int:
        """Next offset to read of the catalogue's topic; 0 if items have no names."""
        return 0 if self._reader is None else self._reader.position

    def knows(self, arm: int, position: int) -> bool:
        """Whether this client knows the item that an arm names for a learner that had read up to ``position``."""
        if self._reader is None:
            return True
        other = self._other_of(arm)
        if other is None:
            return self._reader.position >= position
        return bool(other.catalogue.entries[arm - other.catalogue.rules.first])

    def of_decision(self, arm: int, position: int) -> tuple[str | None, int]:
        """The item that an arm names for a learner that had read up to ``position``, and its catalogue version.

        None and 0 if items have no names. An item of another party keeps its arm for ever; its version is that with
        which it entered.

        Raises:
            UnknownItem: the arm had no item at that version, as far as the catalogue was read.
        """
        if self._reader is None:
            return None, 0
        other = self._other_of(arm)
        reader = self._reader
        version = reader.catalogue.rules.version_after(bisect_right(self._highs, position))
        if other is not None:
            reader, version = other, other.catalogue.version
        rules = reader.catalogue.rules
        found = reader.catalogue.of_row(arm - rules.first, version)
        return rules.named(found.item), version if other is None else found.entered

    def offered(self) -> Sequence[Item]:
        """The offered items of all parties, with their ids as decisions name them, as far as the catalogue was read.

        Raises:
            RequestRefused: items have no names here.
        """
        readers = (self._require_reader(), *self._others.values())
        return [
            replace(self._item(one, reader.catalogue), item=reader.catalogue.rules.named(one.item))
            for reader in sorted(readers, key=lambda one: one.catalogue.rules.first)
            for one in reader.catalogue.items()
            if one.offered
        ]

    def _item(self, one: CatalogueItem, catalogue: Catalogue) -> Item:
        since = self._since[catalogue.rules.named(one.item)]
        features = values_of(one.features)
        return Item(one.item, one.title, features, one.offered, one.entered, since, one.pinned, one.cap)

    def _other_of(self, arm: int) -> ItemReader | None:
        """The reader of the party whose item an arm is; None if it is this client's own party."""
        found = (reader for reader in self._others.values() if arm in reader.catalogue.rules.arms)
        return next(found, None)

    async def arm_of(self, item: int | str) -> int:
        """The arm of an item, given as decisions name it; if items have no names, the number itself.

        Raises:
            UnknownArm: there is no such item, or a number was given instead of an id, or an id instead of a number.
        """
        if self._reader is None:
            if isinstance(item, str):
                raise UnknownArm("item: expected a number, got text (ids are known from the deployment's folder)")
            return item
        if not isinstance(item, str):
            raise UnknownArm("item: expected the id of an item of the catalogue, got a number")
        reader, name = self._named(item)
        if not reader.catalogue.holds(name):
            async with self._reading:
                await self._read_on(reader)
        try:
            return reader.catalogue.rules.arms[reader.catalogue.item(name).row]
        except UnknownItem as error:
            raise UnknownArm(str(error)) from None

    def _named(self, item: str) -> tuple[ItemReader, str]:
        """The reader of the party that has this item, and the item's id in that party's catalogue."""
        own = self._require_reader()
        party, name = own.catalogue.rules.party, item
        if not party:
            return own, item
        asked, _, name = item.partition(OF)
        reader = own if asked == party else self._others.get(asked)
        if reader is None:
            known = ", ".join(sorted((party, *self._others)))
            raise UnknownArm(f"item: expected PARTY/ID with one of {known} as the party, got another")
        return reader, name

    async def matrix_of(self, context: Mapping[str, Any], rules: ContextRules | None) -> NDArray[np.float32]:
        """The features of items, given by id, as one vector: row after row of the catalogue, zeros for other items.

        Raises:
            UnknownArm: there is no such item.
            BadContext: no item is given, or one has a wrong number of features.
        """
        if rules is None or rules.item_numbers is None or not self.named:
            raise BadContext("context: expected numbers, as items have no names here, got names with values")
        numbers = rules.item_numbers
        if not context:
            raise BadContext("context: expected the features of one item at least, by its id, got none")
        found = np.zeros((rules.arms, numbers), dtype="<f4")
        for item, features in context.items():
            vector = vector_of(features)
            if len(vector) != numbers:
                raise BadContext(f"context: expected {numbers} numbers for each item, got {len(vector)}")
            found[await self.arm_of(item)] = vector
        return found.reshape(-1)

    @property
    def _catalogue(self) -> Catalogue:
        return self._require_reader().catalogue

    def _require_reader(self) -> ItemReader:
        if self._reader is None:
            raise RequestRefused(
                "items: expected a deployment whose items have names (`items.named`), and a client that was given its "
                "folder, got another"
            )
        return self._reader

    async def _change(self, changes: Sequence[ItemChange]) -> int:
        await self.refresh()
        catalogue = self._catalogue
        expected = Catalogue(catalogue.rules)
        expected.load(catalogue.dump())
        records: list[tuple[int, bytes]] = []
        for low, high in _runs(changes):
            version = expected.version + 1
            made = [one._replace(version=version) for one in changes[low:high]]
            try:
                _require_lines(made)
                expected.take_all(made, _ANY_TIME_MS)
            except ItemRefused as error:
                raise _of_many(error, changes, low + error.number, "nothing was sent") from None
            items = [{name: getattr(one, name) for name in _ON_THE_WIRE} for one in made]
            fields = {"version": version, "items": items, "config_digest": catalogue.rules.config_digest}
            records.append((low, codec.encode("ItemChanges", fields)))
        # All are under way at once: one that waited for the one before would cost a round trip for each record.
        offsets = await asyncio.gather(*(self._log.append(catalogue.rules.topic, 0, one) for _, one in records))
        refused = await self._until(max(offsets, default=-1))
        for (low, _), offset in zip(records, offsets, strict=True):
            if offset in refused:
                raise _of_many(refused[offset], changes, low + refused[offset].number, "those before it stand")
        return catalogue.version

    async def _until(self, offset: int) -> Mapping[int, ItemRefused]:
        """Read until an acknowledged offset was read; returns which records do not count and why, by offset."""
        refused: dict[int, ItemRefused] = {}
        while self.position <= offset:
            refused |= await self.refresh()
        return refused


_ON_THE_WIRE = tuple(name for name in ItemChange._fields if name != "version")

MOST_BYTES_OF_CHANGES = 512 * 1024
"""The most that the texts of one record's changes take together: records stay below a broker's usual limit."""


def _runs(changes: Sequence[ItemChange]) -> Iterator[tuple[int, int]]:
    """The changes of each record, as a range: as many as one record may hold."""
    low = size = 0
    for high, one in enumerate(changes):
        # Four bytes a character at most; what is no text is refused later.
        each = 16 + 4 * sum(len(text) for text in (one.item, one.title, one.features) if isinstance(text, str))
        if high > low and size + each > MOST_BYTES_OF_CHANGES:
            yield low, high
            low, size = high, 0
        size += each
    if low < len(changes):
        yield low, len(changes)


def _require_lines(changes: Sequence[ItemChange]) -> None:
    for number, change in enumerate(changes):
        if not all(isinstance(text, str) for text in (change.item, change.title)):
            error = BadItem("item: expected an id and a title as text, got something else")
        elif CONTROLS.search(change.item + change.title):
            error = BadItem("item: expected an id and a title in one line, got a control character")
        else:
            continue
        error.number = number
        raise error


_SHOWN = 40
"""The most characters of an id that a message shows."""


def printable(text: str) -> str:
    """Text that is safe to print: control characters, which items of another writer may hold, become escapes."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def _offer(item: Item) -> ItemChange:
    """The change that offers an item as it is given; its version is still to be known."""
    return ItemChange(item.item, 0, True, item.title, _text(item), item.pinned, *(item.cap or (0, 0)))


def _retire(item: str) -> ItemChange:
    return ItemChange(item, 0, False)


def _text(item: Item) -> str:
    if not item.features:
        return ""
    try:
        return json.dumps(item.features, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise BadItem(f"features: expected plain values by name, got others ({_called(item.item)})") from None


def _of_many(error: ItemRefused, changes: Sequence[ItemChange], number: int, left: str) -> HushstreamError:
    """The error of one of many changes, which names its item: ids are public, and places tell nothing of a table."""
    if isinstance(error, StaleCatalogue):
        error = StaleCatalogue("catalogue: expected nobody else to change it, somebody did at the same time; try again")
    if len(changes) == 1:
        return error
    return type(error)(f"{error} ({_called(changes[number].item)}, change {number + 1} of {len(changes)}; {left})")


def _called(item: object) -> str:
    """An item's id as a message shows it."""
    return f"item {printable(str(item))[:_SHOWN]!r}"
