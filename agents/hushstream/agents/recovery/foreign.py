"""Skips and counts records in a worker's own topics that no chain and no key of its zone holds, and logs them once.

Anybody with write access to a topic can put anything there. Readers skip foreign records, so nothing stops. But such a
record shows that somebody holds a right that they should not have, so the owner of the topic counts it and an alert
fires.
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
    """The foreign records that one worker has read.

    Attributes:
        count: called with the topic for each record that was not met before.
        is_note: whether a record of a home partition's journal is an operator's note.
        remedy: the command that lists such records.
    """

    count: Callable[[str], None] = lambda topic: None
    is_note: Callable[[int, bytes], bool] = lambda partition, value: False
    remedy: str = "hushstream topics repair"
    _met: dict[TopicPartition, set[int]] = field(default_factory=dict)

    def in_journal(self, journal: TopicPartition, offset: int, value: bytes) -> None:
        """A record of a journal was read that is none of its chain."""
        if not self.is_note(journal[1], value):
            self.met(journal, offset, len(value), "a journal record")

    def met(self, place: TopicPartition, offset: int, size: int, why: str) -> None:
        """A foreign record was read; the same one is read again by each recovery, and counts once.

        Args:
            place: logical topic and partition.
            offset: of the record.
            size: of its value, in bytes.
            why: what was expected in its place.
        """
        known = self._met.setdefault(place, set())
        if offset in known:
            return
        if len(known) >= _REMEMBERED:
            known.discard(min(known))  # or whoever goes on writing them fills this worker's memory
        known.add(offset)
        self.count(place[0])
        logger.warning(
            "%s/%d offset %d: skipped a record of %d bytes that is not of this deployment (%s); "
            "`%s` lists them", *place, offset, size, why, self.remedy,
        )  # fmt: skip
