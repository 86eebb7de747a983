"""Checks, before a worker joins its group, that a broker answers, the topics fit, and the worker's rights suffice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from aiokafka.errors import KafkaError

from hushstream.agents.errors import BrokerUnreachable, PartitionCountWrong, TopicMissing
from hushstream.agents.kafka.acl_check import DESCRIBE_CONFIGS, READ, WRITE, check_rights
from hushstream.agents.kafka.broker_check import check_version, why_unreachable
from hushstream.agents.kafka.logs import partition_counts
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.declared import check_declared
from hushstream.privacy.amounts import count_text
from hushstream.schemas.topics import Topic

T = TypeVar("T")

_RETRY_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class RoleTopics:
    """The topics of a role, by logical name. They are known without a machine, so no key is needed.

    Attributes:
        inputs: the co-partitioned inputs; the first one is the home topic.
        journal: the topic that the role writes before everything else.
        writes: all topics that the role writes, without its journal.
        broadcasts: the topics that each machine reads in full, besides its inputs.
        partitions: how many partitions the inputs must have; None accepts any number.
        declared: the declaration of each topic, by name.
        marks: the topic of its release marks; None for a role that adds no noise and spends no allowance.
        state: the topic of its published states; None if it has none.
        evidence: those of ``writes`` that leave the zone and that no other role writes. They are evidence of earlier
            releases: when a new journal begins they must be empty.
    """

    inputs: tuple[str, ...]
    journal: str
    writes: tuple[str, ...] = ()
    broadcasts: tuple[str, ...] = ()
    partitions: int | None = None
    declared: Mapping[str, Topic] = field(default_factory=dict)
    marks: str | None = None
    evidence: tuple[str, ...] = ()
    state: str | None = None

    @property
    def own(self) -> tuple[str, ...]:
        """The topics that the role writes for itself and reads again, with one partition for each home partition."""
        return tuple(name for name in (self.journal, self.marks, self.state) if name is not None)

    @property
    def reads(self) -> frozenset[str]:
        """All topics that the role reads, with its own journal."""
        return frozenset((*self.inputs, *self.own, *self.broadcasts))

    @property
    def followed(self) -> frozenset[str]:
        """Broadcasts of which every record is needed; only `hushstream.ops.trim` deletes records of them."""
        declared = self.declared
        return frozenset(n for n in self.broadcasts if n in declared and declared[n].retention_ms is None)

    @property
    def recomputed(self) -> frozenset[str]:
        """The topics from which its outputs are recomputed, and with which they are compared; not marks and states."""
        return self.all - {self.marks, self.state}

    @property
    def all(self) -> frozenset[str]:
        """All topics that the role reads or writes."""
        return self.reads.union(self.writes)


async def check_topics(settings: WorkerSettings, topics: RoleTopics) -> int:
    """Check that all topics of a role exist, agree, have the declared settings, and may be read and written.

    Returns:
        The number of home partitions.

    Raises:
        BrokerUnreachable: no broker answered in time.
        BrokerVersionWrong: the broker speaks another version of the protocol.
        TopicMissing: a topic does not exist.
        PartitionCountWrong: an input, or a topic that the role writes for itself, has a wrong number of partitions.
        AccessDenied: an access rule is missing.
        TopicSettingsWrong: a topic deletes records earlier than declared, or takes only smaller ones.
    """
    wanted = sorted(topics.all)
    await answered(settings, lambda: check_version(settings.cluster, settings.connect_timeout_seconds))
    needed = {settings.physical(name): operations for name, operations in operations_of(topics).items()}
    await answered(settings, lambda: check_rights(settings.cluster, needed, settings.group))
    counts = await answered(settings, lambda: partition_counts(settings, wanted))
    for name in wanted:
        if counts[name] == 0:
            raise TopicMissing(
                f"topic {settings.physical(name)} does not exist (or may not be described); create the topics first"
            )
    partitions = topics.partitions if topics.partitions is not None else counts[topics.inputs[0]]
    for name in (*topics.inputs, *topics.own):
        if counts[name] != partitions:
            raise PartitionCountWrong(
                f"topic {settings.physical(name)}: expected {count_text(partitions, 'partition')}, found {counts[name]}"
            )
    await answered(settings, lambda: check_declared(settings, topics.declared))
    return partitions


def operations_of(topics: RoleTopics) -> Mapping[str, set[int]]:
    """The broker's operations that a role needs on each topic (`hushstream.agents.kafka.acl_check`)."""
    # A role that measures idle time in ticks also writes ticks to its own input.
    ticks = {name for name in topics.inputs if name in topics.declared and topics.declared[name].ticks}
    writes = {*topics.writes, *topics.own, *ticks}
    return {
        name: {DESCRIBE_CONFIGS} | ({READ} if name in topics.reads else set()) | ({WRITE} if name in writes else set())
        for name in topics.all
    }


async def answered(settings: WorkerSettings, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a broker until it answers (it may be starting); raises `BrokerUnreachable` after the connect timeout."""
    deadline = time.monotonic() + settings.connect_timeout_seconds
    while True:
        try:
            async with asyncio.timeout(settings.connect_timeout_seconds):
                return await ask()
        except (KafkaError, OSError, TimeoutError) as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                why = await why_unreachable(settings.cluster, settings.connect_timeout_seconds)
                raise BrokerUnreachable(
                    f"no broker at {settings.bootstrap} answered within "
                    f"{settings.connect_timeout_seconds:g} s ({type(error).__name__}){why}"
                ) from None
            await asyncio.sleep(_RETRY_SECONDS)
