"""Reads topics of marks in a copy of the logs, by the rule of the workers (`hushstream.agents.recovery.marks`).

The rule needs record keys: a foreign record has replaced a mark only if it has the key of a mark. Copies of a running
deployment keep the keys of these topics. Exports and logs in memory keep none. There a foreign record counts as one
that may have replaced a mark, and the finding says so, unless a note names the record: `topics repair` saw its key.
"""

from __future__ import annotations

from collections.abc import Callable

from hushstream.agents.recovery.marks import MarkWalk, ReadMarks
from hushstream.engine.declare.declaration import System
from hushstream.engine.journal.marks import Mark
from hushstream.ops.log_copy import PartitionCopy


def mark_topics(system: System) -> tuple[str, ...]:
    """The topics of the roles' release marks."""
    return tuple(role.marks for role in system.roles if role.marks is not None)


def copied_marks(
    part: PartitionCopy,
    unpack: Callable[[bytes], Mark | None],
    role: str,
    home: int,
    noted: Callable[[int], bool] = lambda offset: False,
) -> ReadMarks:
    """Read the marks of one home partition.

    Args:
        part: the copy of the partition.
        unpack: opens the record of a mark (`MarkSeal.unpack`, or `read_public` without the zone's key).
        role: the role that writes the marks.
        home: its home partition.
        noted: whether a note names the record at an offset; it is asked only where keys were not kept.
    """
    walk = MarkWalk(unpack, role, home)
    if part.keys is None:
        for record in part.records:
            if not noted(record.offset):
                walk.take_without_key(record.offset, record.value)
    else:
        for record, key in zip(part.records, part.keys, strict=True):
            walk.take(record.offset, record.value, key)
    return walk.end(part.low)
