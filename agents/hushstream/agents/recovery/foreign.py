"""Counts the foreign records in a worker's own topics, and logs each once.

A foreign record is in no chain and under no key of the zone: anybody with write access to a topic can put it there.
Readers skip it, so nothing stops. But it shows that somebody has a right that they should not have, so the owner of the
topic counts it, and an alert fires.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from hushstream.engine.records import TopicPartition

logger = logging.getLogger(__name__)

_REMEMBERED = 4096


@dataclass(slots=True)
class ForeignRecords:
    """Counts the foreign records that one worker has read.

    Attributes:
        count: called with the topic, for each foreign record that was not read before.
        is_note: whether a record in a home partition's journal is an operator's note.
        remedy: the command that lists foreign records.
    """

    count: Callable[[str], None] = lambda topic: None
    is_note: Callable[[int, bytes], bool] = lambda partition, value: False
    remedy: str = "hushstream topics repair"
    _met: dict[TopicPartition, set[int]] = field(default_factory=dict)

    def in_journal(self, journal: TopicPartition, offset: int, value: bytes) -> None:
        """Count a record of a journal that is not in its chain, unless it is an operator's note."""
        if not self.is_note(journal[1], value):
            self.add(journal, offset, len(value), "a journal record")

    def add(self, place: TopicPartition, offset: int, size: int, why: str) -> None:
        """Count a foreign record. Each recovery reads it again, but it counts only once.

        Args:
            place: logical topic and partition.
            offset: the record's offset.
            size: the number of bytes of its value.
            why: what was expected instead of it.
        """
        known = self._met.setdefault(place, set())
        if offset in known:
            return
        if len(known) >= _REMEMBERED:
            known.discard(min(known))  # otherwise endless foreign records would fill this worker's memory
        known.add(offset)
        self.count(place[0])
        logger.warning(
            "%s/%d offset %d: skipped a record of %d bytes that is not of this deployment (%s); "
            "`%s` lists them", *place, offset, size, why, self.remedy,
        )  # fmt: skip
