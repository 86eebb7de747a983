"""What a worker commits to its group: input offsets, and the last journal record whose outputs were all acknowledged.

The offsets say from where input must be read again; they may be far behind, at the beginning of an open window. So each
commit also carries a mark, ``hushstream/1 <journal> <sequence>``: the outputs of every record of that journal up to
that sequence number were acknowledged. The next owner sends the outputs of all records above it again, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from aiokafka import TopicPartition as BrokerPartition
from aiokafka.errors import KafkaError

from hushstream.agents.kafka.administration import administering
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.marks import Mark

_FORM = "hushstream/1"
_ATTEMPTS = 10


def journal_name(genesis: bytes) -> str:
    """A short name of a journal, made from its first record, so that the marks of another journal are ignored."""
    return blake2b(genesis, digest_size=8).hexdigest()


def journal_label(journal: str, generation: int) -> str:
    """The name of a journal in commits. It changes when an operator accepts a journal that is behind its marks."""
    return f"{journal}.{generation}" if generation else journal


def pack_mark(journal: str, sequence: int) -> str:
    """The metadata of a commit; ``journal`` is a label."""
    return f"{_FORM} {journal} {sequence}"


def committed_mark(metadata: str | None) -> Mark | None:
    """The journal and the record up to which all outputs were sent, from a commit's metadata; None without a mark."""
    parts = (metadata or "").split(" ")
    if len(parts) != 3 or parts[0] != _FORM or not parts[2].isdecimal():
        return None
    name, _, generation = parts[1].partition(".")
    return Mark(name, int(parts[2]), int(generation) if generation.isdecimal() else 0)


def read_mark(metadata: str | None, journal: str) -> int:
    """The sequence number in a mark of the journal with this label; 0 if the metadata has no such mark."""
    mark = committed_mark(metadata)
    return mark.sequence if mark is not None and journal_label(mark.journal, mark.generation) == journal else 0


async def committed_marks(
    settings: WorkerSettings, sources: Iterable[tuple[str, int]]
) -> Mapping[tuple[str, int], str]:
    """The metadata that the group last committed, for logical topic partitions.

    Raises:
        KafkaError: the coordinator did not answer after several attempts.
    """
    wanted = list(sources)
    async with administering(settings.cluster) as admin:
        places = [BrokerPartition(settings.physical(topic), partition) for topic, partition in wanted]
        for attempt in range(_ATTEMPTS):
            try:
                found = await admin.list_consumer_group_offsets(settings.group, partitions=places)
                break
            except KafkaError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.2 * (attempt + 1))
        return {
            source: found[place].metadata
            for source, place in zip(wanted, places, strict=True)
            if place in found and found[place].offset >= 0
        }
