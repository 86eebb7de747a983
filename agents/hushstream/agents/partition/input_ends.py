"""Checks whether the input logs of a running partition still hold what was folded of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiokafka.errors import KafkaError

from hushstream.agents.errors import Command, TopicsReplaced, replaced
from hushstream.agents.kafka.intake import InputBuffer
from hushstream.engine.records import TopicPartition

logger = logging.getLogger(__name__)

EndOffsets = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]


async def wiped(
    buffers: Sequence[InputBuffer],
    fetched_end: Callable[[TopicPartition], int | None],
    end_offsets: EndOffsets,
    command: Command,
) -> TopicsReplaced | None:
    """The error for which a partition must stop, or None: an input log ends before the offset it was folded up to.

    Such a log was wiped while the worker was running. The end that the last fetch saw may be too low for a moment after
    another broker has become the leader, so the broker is asked before the partition stops.
    """
    ends = {buffer.source: fetched_end(buffer.source) for buffer in buffers}
    short = [b for b in buffers if (end := ends[b.source]) is not None and end < b.low]
    if not short:
        return None
    try:
        now = await end_offsets([buffer.source for buffer in short])
    except (KafkaError, ConnectionError, TimeoutError) as error:
        logger.warning("%s: the ends of its inputs could not be read (%s)", short[0].source, type(error).__name__)
        return None
    found = next((buffer for buffer in short if now[buffer.source] < buffer.low), None)
    return None if found is None else replaced(command, found.source, found.low, now[found.source])
