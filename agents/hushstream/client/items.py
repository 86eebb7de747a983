"""The items of a deployment by name: who changes its catalogue, and what the rows of its decisions are called.

What is read here is the topic of changes, whole and in order, by the very rules by which learners read it
(`hushstream.engine.catalogue`); so a client knows of each decision which item it is, from how far its learner had read.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.client.arguments import vector_of
from hushstream.client.logs.event_log import EventLog
from hushstream.engine.catalogue import (
    ITEMS,
    BadItem,
    Catalogue,
    CatalogueItem,
    CatalogueRules,
    ItemChange,
    ItemRefused,
    StaleCatalogue,
    UnknownItem,
    values_of,
)
from hushstream.engine.declare.requests import BadContext, ContextRules, RequestRefused, UnknownArm
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.records import InputSlice
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError

_ANY_TIME_MS = 1 << 62
"""Log time of a change that is not in the log yet: whether a row is free again by then only the log tells."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the catalogue.

    Attributes:
        item: its id, as the application names it.
        title: what people call it.
        features: its public features by name.
        offered: whether it may be shown; else it is retired.
        version: of the catalogue with which it came in.
    """

    item: str
    title: str = ""
    features: Mapping[str, Any] = field(default_factory=dict)
    offered: bool = True
    version: int = 0


class Items:
    """The catalogue of one deployment; `hushstream.client.Client.items`."""

    def __init__(self, log: EventLog, rules: CatalogueRules | None, schema_generation: int) -> None:
        """Over a client's log; nothing is read yet.

        Args:
            log: of the client.
            rules: what the catalogue may hold; None where items have no names, or it is not known that they have.
            schema_generation: in which records are written.
        """
        self._log = log
        self._generation = schema_generation
        self._reader = None if rules is None else ItemReader(rules)
        self._reading = asyncio.Lock()
        self._highs: list[int] = []
        """Behind each change that counted, the next offset: their number is the version."""

    @property
    def named(self) -> bool:
        """Whether items have names here."""
        return self._reader is not None

    @property
    def version(self) -> int:
        """Of the catalogue, as far as it was read."""
        return self._catalogue.version

    async def list(self) -> Sequence[Item]:
        """All items that are offered, and the retired ones whose rows have no other item yet, by row.

        Raises:
            RequestRefused: items have no names here.
        """
        await self.refresh()
        return self.known()

    def known(self) -> Sequence[Item]:
        """What `list` gives, as far as the catalogue was read."""
        return [_item(one) for one in self._catalogue.items()]

    def holds(self, item: str) -> bool:
        """Whether an item has a row, as far as the catalogue was read; it may be retired.

        Raises:
            RequestRefused: items have no names here.
        """
        return self._catalogue.holds(item)

    def find(self, item: str) -> Item | None:
        """An item that has a row, as far as the catalogue was read; it may be retired. None where there is none.

        Raises:
            RequestRefused: items have no names here.
        """
        try:
            return _item(self._catalogue.item(item))
        except UnknownItem:
            return None

    async def add(self, item: str, title: str = "", features: Mapping[str, Any] | None = None) -> int:
        """Offer a new item, or one again that was retired; returns the version of the catalogue with it.

        Learners show it from their next batch on, and what it is rewarded with counts from then on. Nothing restarts,
        and nothing is spent.

        Args:
            item: its id, 1 to 128 bytes of UTF-8.
            title: what people call it, at most 256 bytes.
            features: its public features by name, as ``items.features`` declares them.

        Raises:
            RepeatedItem, CatalogueFull, BadItem: it cannot be added.
            StaleCatalogue: somebody else changed the catalogue at the same time; try again.
            RequestRefused: items have no names here.
        """
        return await self.add_all([Item(item, title, features or {})])

    async def add_all(self, items: Iterable[Item]) -> int:
        """Offer many items, one after the other; as `add`. What was added before an item that is refused stays."""
        return await self._change([(one.item, True, one.title, _text(one.features)) for one in items])

    async def retire(self, item: str) -> int:
        """Show an item no more; returns the version of the catalogue without it.

        What was shown before counts. Decide by stock, contracts and released models: who retires what nobody clicked
        publishes those clicks.

        Raises:
            UnknownItem: there is none, or it is retired.
            StaleCatalogue: somebody else changed the catalogue at the same time; try again.
            RequestRefused: items have no names here.
        """
        return await self._change([(item, False, "", "")])

    async def refresh(self) -> Mapping[int, ItemRefused]:
        """Read what was changed since; returns which records do not count and why, by offset.

        Raises:
            RequestRefused: items have no names here.
            HushstreamError: the topic cannot be read.
        """
        catalogue = self._catalogue
        async with self._reading:
            assert self._reader is not None
            low = self._reader.position
            records = await self._log.read(*self._reader.topic, low)
            refused = {}
            high = records[-1].offset + 1 if records else low
            for read in self._reader.read(InputSlice(*self._reader.topic, low, high, records)):
                if read.change is None:
                    continue
                try:
                    catalogue.take(read.change, read.log_time_ms)
                except ItemRefused as error:
                    refused[read.offset] = error
                else:
                    self._highs.append(read.offset + 1)
            return refused

    # What a client asks for its decisions.

    @property
    def position(self) -> int:
        """Up to which offset of its topic the catalogue was read; 0 where items have no names."""
        return 0 if self._reader is None else self._reader.position

    def knows(self, position: int) -> bool:
        """Whether the catalogue is known that a learner had read up to an offset."""
        return self._reader is None or self._reader.position >= position

    def of_decision(self, row: int, position: int) -> tuple[str | None, int]:
        """The item that a learner which had read up to an offset meant by a row, and the version of the catalogue.

        None, and 0, where items have no names.
        """
        if self._reader is None:
            return None, 0
        version = bisect_right(self._highs, position)
        return self._catalogue.of_row(row, version).item, version

    async def row_of(self, item: int | str) -> int:
        """The row of an item; where items have no names its number is one.

        Raises:
            UnknownArm: there is no such item, or it is named otherwise here.
        """
        if self._reader is None:
            if isinstance(item, str):
                raise UnknownArm("item: expected a number, got text (ids are known from the deployment's folder)")
            return item
        if not isinstance(item, str):
            raise UnknownArm("item: expected the id of an item of the catalogue, got a number")
        try:
            return self._catalogue.item(item).row
        except UnknownItem:
            await self.refresh()
        try:
            return self._catalogue.item(item).row
        except UnknownItem as error:
            raise UnknownArm(str(error)) from None

    async def matrix_of(self, context: Mapping[str, Any], rules: ContextRules | None) -> NDArray[np.float32]:
        """The features of items by their ids, as one vector: row after row of the catalogue, zeros for all others.

        Raises:
            UnknownArm: there is no such item.
            BadContext: no item is named, or one with another number of features.
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
            found[await self.row_of(item)] = vector
        return found.reshape(-1)

    @property
    def _catalogue(self) -> Catalogue:
        if self._reader is None:
            raise RequestRefused(
                "items: expected a deployment whose items have names (`items.named`), and a client that was given its "
                "folder, got another"
            )
        return self._reader.catalogue

    async def _change(self, changes: Sequence[tuple[str, bool, str, str]]) -> int:
        await self.refresh()
        catalogue = self._catalogue
        expected = Catalogue(catalogue.rules)
        expected.load(catalogue.dump())
        offsets = []
        for item, offered, title, features in changes:
            if not all(isinstance(text, str) for text in (item, title)):
                raise BadItem("item: expected an id and a title as text, got something else")
            change = ItemChange(item, expected.version + 1, offered, title, features)
            expected.take(change, _ANY_TIME_MS)
            fields = {**change._asdict(), "config_digest": catalogue.rules.config_digest}
            offsets.append(await self._log.append(ITEMS, 0, codec.encode("Item", fields, self._generation)))
        refused = await self._until(max(offsets, default=-1))
        for number, offset in enumerate(offsets):
            if offset in refused:
                raise _of_many(refused[offset], number, len(offsets))
        return catalogue.version

    async def _until(self, offset: int) -> Mapping[int, ItemRefused]:
        """Read up to an offset that was acknowledged."""
        refused: dict[int, ItemRefused] = {}
        while not self.knows(offset + 1):
            refused |= await self.refresh()
        return refused


def _item(one: CatalogueItem) -> Item:
    return Item(one.item, one.title, values_of(one.features), one.offered, one.entered)


def _text(features: Mapping[str, Any]) -> str:
    if not features:
        return ""
    try:
        return json.dumps(features, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise BadItem("features: expected plain values by name, got others") from None


def _of_many(error: ItemRefused, number: int, count: int) -> HushstreamError:
    if isinstance(error, StaleCatalogue):
        error = StaleCatalogue("catalogue: expected nobody else to change it, somebody did at the same time; try again")
    if count == 1:
        return error
    return type(error)(f"{error} (change {number + 1} of {count}; those before it stand)")
