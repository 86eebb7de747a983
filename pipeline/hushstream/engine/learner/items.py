"""The catalogue of items at a learner.

Every learner reads the whole topic (of its party, if each party has one), merged with its other inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from hushstream.engine.catalogue import Catalogue, CatalogueRules, ItemChange, ItemRefused, changes_of
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.learner.arrivals import cut
from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError


class ReadChange(NamedTuple):
    """A record of the topic: its log time and offset, and the changes in it, or why it holds none."""

    log_time_ms: int
    offset: int
    changes: Sequence[ItemChange]
    reason: str = ""


class ItemReader:
    """Follows the topic of items for one learner.

    Attributes:
        topic: the topic of changes.
        position: the next offset to read.
        catalogue: the catalogue after all changes that were applied.
    """

    def __init__(self, rules: CatalogueRules) -> None:
        """Begin before the first change."""
        self.topic: TopicPartition = (rules.topic, 0)
        self.position = 0
        self.catalogue = Catalogue(rules)
        self._latest_ms = 0

    def read(self, part: InputSlice) -> Iterator[ReadChange]:
        """Each record of a slice, in log order. A log time below the predecessor's is replaced by it."""
        for record in part.records:
            self._latest_ms = max(self._latest_ms, record.timestamp_ms)
            yield self._decoded(record)
        self.position = part.high

    def dump(self) -> bytes:
        """Position and catalogue, for a snapshot."""
        place = json.dumps([self.position, self._latest_ms]).encode()
        return len(place).to_bytes(4, "little") + place + self.catalogue.dump()

    def load(self, dumped: bytes) -> None:
        """Restore what `dump` gave.

        Raises:
            HushstreamError: not such bytes.
        """
        end = 4 + int.from_bytes(dumped[:4], "little")
        try:
            self.position, self._latest_ms = json.loads(dumped[4:end])
        except (ValueError, TypeError):
            raise HushstreamError("snapshot: expected a place in the catalogue, got other bytes") from None
        self.catalogue.load(dumped[end:])

    def _decoded(self, record: InputRecord) -> ReadChange:
        place = (self._latest_ms, record.offset)
        try:
            _, fields = codec.decode(record.value, frozenset({"ItemChanges"}))
        except CodecError as error:
            return ReadChange(*place, (), error.reason)
        if fields["config_digest"] != self.catalogue.rules.config_digest:
            return ReadChange(*place, (), Refusal.OTHER_CONFIGURATION)
        changes = changes_of(fields)
        return ReadChange(*place, changes, "" if changes else Refusal.ITEM_REFUSED)


def catalogue_of(rules: CatalogueRules, part: InputSlice) -> Catalogue:
    """The catalogue after a slice from the beginning of the topic. Changes that do not count are left out."""
    reader = ItemReader(rules)
    for read in reader.read(part):
        if read.changes:
            with suppress(ItemRefused):
                reader.catalogue.take_all(read.changes, read.log_time_ms)
    return reader.catalogue


def until_next_change(
    slices: Sequence[InputSlice], places: tuple[TopicPartition, TopicPartition], now_ms: int
) -> tuple[Sequence[InputSlice], bool]:
    """Cut slices at the first change of the catalogue behind the first context; also returns whether anything was cut.

    So a batch decides under one version of the catalogue, after all changes up to the end of its range, and its journal
    record names this range. Changes at the log time of a context come before it.

    Args:
        slices: the input that has arrived.
        places: topic and partition of contexts, and of changes.
        now_ms: log time that contexts have reached.
    """
    given = {(part.topic, part.partition): part for part in slices}
    asked, changes = (given.get(place) for place in places)
    if asked is None or changes is None or not asked.records or not changes.records:
        return slices, False
    first_ms = max(now_ms, asked.records[0].timestamp_ms)
    times = accumulate((record.timestamp_ms for record in changes.records), max)
    later = next(
        ((at_ms, one.offset) for at_ms, one in zip(times, changes.records, strict=True) if at_ms > first_ms), None
    )
    if later is None:
        return slices, False
    at_ms, offset = later
    reached = accumulate((record.timestamp_ms for record in asked.records), max)
    end = next((one.offset for one_ms, one in zip(reached, asked.records, strict=True) if one_ms >= at_ms), asked.high)
    kept = dict(zip(places, (cut(asked, end), cut(changes, offset)), strict=True))
    return [kept.get(place, part) for place, part in given.items()], end < asked.high
