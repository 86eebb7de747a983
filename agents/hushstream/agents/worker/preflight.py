"""Checks before a worker joins its group that a broker answers, the topics fit, and its rights suffice."""

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
    """The topics of a role, by logical name; known without a machine, and so without a key.

    Attributes:
        inputs: the co-partitioned inputs; the first one is the home topic.
        journal: what it writes ahead of everything else.
        writes: everything it writes besides its journal.
        broadcasts: what each of its machines reads beside its inputs.
        partitions: how many partitions the inputs must have; None accepts what is there.
        declared: how each of them is declared, by name.
        marks: where it notes how far it has released; None for a role that adds no noise and spends no allowance.
        state: where what it has in memory is published; None for one that has nowhere to.
        evidence: those of ``writes`` on which it alone writes what leaves its zone: a new journal finds them empty.
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
        """What it writes for itself and reads again, one partition for each home."""
        return tuple(name for name in (self.journal, self.marks, self.state) if name is not None)

    @property
    def reads(self) -> frozenset[str]:
        """Everything it reads, its own journal among it."""
        return frozenset((*self.inputs, *self.own, *self.broadcasts))

    @property
    def followed(self) -> frozenset[str]:
        """Broadcasts of which every record counts: kept whole, but for what `hushstream.ops.trim` deletes of them."""
        declared = self.declared
        return frozenset(n for n in self.broadcasts if n in declared and declared[n].retention_ms is None)

    @property
    def recomputed(self) -> frozenset[str]:
        """What its outputs are recomputed from and compared with: not marks and states, which follow from no log."""
        return self.all - {self.marks, self.state}

    @property
    def all(self) -> frozenset[str]:
        """Everything it reads or writes."""
        return self.reads.union(self.writes)


async def check_topics(settings: WorkerSettings, topics: RoleTopics) -> int:
    """Check that all topics of a role exist, agree, are kept as declared, and may be read and written.

    Returns:
        The number of home partitions.

    Raises:
        BrokerUnreachable: no broker answered in time.
        BrokerVersionWrong: it speaks another version of the protocol.
        TopicMissing: one does not exist.
        PartitionCountWrong: an input, or what it writes for itself, has another number of partitions than it must.
        AccessDenied: an access rule is missing.
        TopicSettingsWrong: a topic loses records earlier than declared, or takes only smaller ones.
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
    """What a role does with each topic, as the broker's operations (`hushstream.agents.kafka.acl_check`)."""
    # Where idle time is counted in ticks, a role also writes to its own input.
    ticks = {name for name in topics.inputs if name in topics.declared and topics.declared[name].ticks}
    writes = {*topics.writes, *topics.own, *ticks}
    return {
        name: {DESCRIBE_CONFIGS} | ({READ} if name in topics.reads else set()) | ({WRITE} if name in writes else set())
        for name in topics.all
    }


async def answered(settings: WorkerSettings, ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a broker that may still be starting."""
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
