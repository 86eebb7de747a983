"""Frozen logs from which records were deleted before they were folded: what is true of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from hushstream.engine.records import TopicPartition
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import partition_of

Log = list[tuple[int, bytes]]

GONE = (0, b"")
"""In the place of a record that is lost, so that all others keep their offsets; no role folds anything of it."""


def without(frozen: Any, source: TopicPartition, low: int, high: int) -> Any:
    """The frozen logs of a system without the records from ``low`` up to ``high`` of one partition.

    An event of which every context is lost is never decided. Of the records that must be refused no more are lost than
    records.
    """
    topic, home = source
    log = [*frozen.logs[source][:low], *[GONE] * (high - low), *frozen.logs[source][high:]]
    changed: dict[str, Any] = {"logs": {**frozen.logs, source: log}}
    if topic == "contexts":
        left = _asked_for((value for _, value in log), home, len(frozen.events))
        changed["events"] = {**frozen.events, home: [event for event in frozen.events[home] if event in left]}
    if topic in ("contexts", "clicks"):
        changed["dead"] = {**frozen.dead, home: max(0, frozen.dead[home] - (high - low))}
    made = copy(frozen)
    vars(made).update(changed)
    return made


def _asked_for(contexts: Iterable[bytes], home: int, partitions: int) -> set[str]:
    """The events of all contexts that can be read, of users whose home partition is ``home``; others are refused."""
    found: set[str] = set()
    for value in contexts:
        try:
            name, fields = codec.decode(value)
        except CodecError:
            continue
        if name == "Context":
            rows = [(fields["event_id"], fields["user"])]
        elif name == "ContextBatch":
            rows = list(zip(fields["event_ids"], fields["users"], strict=True))
        else:
            continue
        found.update(event for event, user in rows if partition_of(user, partitions) == home)
    return found
