"""What is checked before a worker joins its group: a broker answers, and the topics fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiokafka.errors import KafkaError

from hushstream.agents.errors import BrokerUnreachable, PartitionCountWrong, TopicMissing
from hushstream.agents.logs import partition_counts
from hushstream.agents.settings import WorkerSettings
from hushstream.roles.machine import Machine

_RETRY_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class RoleTopics:
    """The topics of a role, by logical name.

    Attributes:
        inputs: the co-partitioned inputs; the first one is the home topic.
        writes: everything it writes besides its journal.
        partitions: how many partitions the inputs must have; None accepts what is there.
    """

    inputs: tuple[str, ...]
    writes: tuple[str, ...] = ()
    partitions: int | None = None


async def check_topics(settings: WorkerSettings, topics: RoleTopics, make_machine: Callable[[int], Machine]) -> int:
    """Check that all topics of a role exist and agree.

    Returns:
        The number of home partitions.

    Raises:
        BrokerUnreachable: no broker answered in time.
        TopicMissing: one does not exist.
        PartitionCountWrong: an input, or the journal, has another number of partitions than it must.
    """
    sample = make_machine(0)
    wanted = {*topics.inputs, *topics.writes, sample.journal[0], *(name for name, _ in sample.broadcasts)}
    counts = await _counts(settings, sorted(wanted))
    for name in sorted(wanted):
        if counts[name] == 0:
            raise TopicMissing(
                f"topic {settings.physical(name)} does not exist (or may not be described); create the topics first"
            )
    partitions = topics.partitions if topics.partitions is not None else counts[topics.inputs[0]]
    for name in (*topics.inputs, sample.journal[0]):
        if counts[name] != partitions:
            raise PartitionCountWrong(
                f"topic {settings.physical(name)}: expected {partitions} partitions, found {counts[name]}"
            )
    return partitions


async def _counts(settings: WorkerSettings, topics: list[str]) -> dict[str, int]:
    deadline = time.monotonic() + settings.connect_timeout_seconds
    while True:
        try:
            async with asyncio.timeout(settings.connect_timeout_seconds):
                return await partition_counts(settings, topics)
        except (KafkaError, ConnectionError, TimeoutError) as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise BrokerUnreachable(
                    f"no broker at {settings.bootstrap} answered within "
                    f"{settings.connect_timeout_seconds:g} s ({type(error).__name__}){_hint(settings)}"
                ) from None
            await asyncio.sleep(_RETRY_SECONDS)


def _hint(settings: WorkerSettings) -> str:
    if settings.security.protocol == "PLAINTEXT":
        return ""
    return "; a wrong password, or a certificate that is absent or not trusted, looks the same"
