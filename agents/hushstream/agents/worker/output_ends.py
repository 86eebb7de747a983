"""Where everything ends that a role writes to, as a checkpoint notes it (`hushstream.engine.journal.checkpoints`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hushstream.agents.kafka.logs import LogReader, partition_counts
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.engine.records import TopicPartition
from hushstream.schemas.topics import PartitionRule


@dataclass(frozen=True, slots=True)
class OutputEnds:
    """Asks the broker for the ends of a role's outputs.

    Attributes:
        settings: of the worker.
        topics: of its role.
    """

    settings: WorkerSettings
    topics: RoleTopics
    _counts: dict[str, int] = field(default_factory=dict)

    async def __call__(self, home: int) -> Mapping[TopicPartition, int]:
        """The ends of all partitions that the role of a home partition may have written to, journal and own apart.

        Raises:
            KafkaError: the broker does not say.
        """
        if not self._counts:
            # Frozen with the deployment, so asked for once.
            self._counts.update(await partition_counts(self.settings, set(self.topics.writes)))
        places = [(topic, number) for topic in self.topics.writes for number in self._partitions(topic, home)]
        async with LogReader(self.settings) as reader:
            return await reader.end_offsets(places) if places else {}

    def _partitions(self, topic: str, home: int) -> range:
        declared = self.topics.declared.get(topic)
        if declared is not None and declared.partition_rule is PartitionRule.HOME:
            return range(home, home + 1)
        return range(self._counts[topic])
