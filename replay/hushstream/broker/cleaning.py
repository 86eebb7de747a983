"""Retention and compaction, as the topics' settings ask for them; only where a disk keeps the data.

*Retention* deletes whole batches from the front of a log: older than `retention.ms`, or with `retention.bytes` behind.

*Compaction* deletes whole batches each of whose records has a later one under its key. A batch of several records stays
as long as one of them counts, so batches are never rewritten. The last batch of a log stays, and the last one of each
producer: its sequence number is read from there. Tombstones stay too.
"""

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator

from aiokafka.record.memory_records import MemoryRecords

from hushstream.broker.batches import read_header
from hushstream.broker.errors import RequestRefused
from hushstream.broker.store import PartitionLog, TopicStore

log = logging.getLogger(__name__)

CLEAN_SECONDS = 60.0
_AT_ONCE = 16
_OFFSET = struct.Struct(">q")


async def clean_repeatedly(store: TopicStore) -> None:
    """Clean all logs at intervals, until cancelled; what the disk refuses is tried again."""
    while True:
        await asyncio.sleep(CLEAN_SECONDS)
        try:
            await clean(store, time.time_ns() // 1_000_000)
        except RequestRefused as refused:
            log.warning("retention and compaction wait: %s", refused.message)


async def clean(store: TopicStore, now_ms: int) -> None:
    """Delete from all logs what their topics' settings do not keep.

    Raises:
        RequestRefused: the disk refuses, or a topic was deleted meanwhile.
    """
    for topic in list(store.topics.values()):
        for number, kept in enumerate(topic.partitions):
            if not topic.config.compacted:
                first = kept.expired_before(now_ms, *topic.config.retention)
                if first > kept.start_offset:
                    await store.delete_before(topic.name, number, first)
            elif kept.due_for_compaction(now_ms, *topic.config.compaction):
                end = kept.next_offset
                await store.drop(topic.name, number, await _superseded(kept, end))
                kept.cleaned_offset = end


async def _superseded(kept: PartitionLog, end: int) -> dict[int, int]:
    """The batches before an offset of which no record counts any more: their last offsets, each with its first."""
    keys: dict[int, tuple[int, list[bytes | None]]] = {}
    newest: dict[bytes | None, int] = {}
    of_producers: dict[int, int] = {}
    async for batch in _batches(kept, end):
        header, first = read_header(batch), _OFFSET.unpack_from(batch)[0]
        last = first + header.record_count - 1
        of_producers[header.producer_id] = last
        keys[last] = (first, _keys(batch))
        newest.update(dict.fromkeys(keys[last][1], last))
    stays = {*of_producers.values(), *list(keys)[-1:]}
    return {
        last: first
        for last, (first, found) in keys.items()
        if last not in stays and found and None not in found and all(newest[key] > last for key in found)
    }


async def _batches(kept: PartitionLog, end: int) -> AsyncIterator[bytes]:
    offset = kept.start_offset
    while offset < end:
        batches, following = kept.batches_after(offset, _AT_ONCE)
        if following == offset:
            return
        offset = following
        for batch in batches:
            yield batch
        await asyncio.sleep(0)  # clients wait meanwhile


def _keys(batch: bytes) -> list[bytes | None]:
    """The keys of a batch's records; none if it cannot be opened, so that it stays."""
    try:
        opened = MemoryRecords(batch).next_batch()
        return [] if opened is None else [None if one.key is None else bytes(one.key) for one in opened]
    except (RuntimeError, ValueError, struct.error, IndexError):
        return []
