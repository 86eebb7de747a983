"""Checks the growing output partitions of a role."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.check.journal import Expected
from hushstream.ops.check.matching import Matcher, Writer, unexplained_record
from hushstream.ops.check.verify import also_allowed
from hushstream.schemas.topics import PartitionRule

_PORTION_OFFSETS = 512
_DIGEST_BYTES = 16


@dataclass(slots=True)
class OutputPartition:
    """Checks one output partition.

    Attributes:
        source: topic and partition.
        matcher: compares the partition with the journals.
        alone: whether only this role's partitions write there; then their journals must explain every record.
        early: whether records may come before the journal record that explains them (dead letters).
        start: the offset at which reading began.
        deleted: the offset up to which retention had deleted records at that time.
        position: the next offset to read.
        parked: records that no journal explains yet, by offset, with the ends of the inputs when they were read. If a
            journal has covered these ends and does not explain the record, it never will.
    """

    source: TopicPartition
    matcher: Matcher
    alone: bool
    early: bool
    start: int = 0
    deleted: int = 0
    position: int = 0
    parked: dict[int, tuple[InputRecord, Mapping[TopicPartition, int]]] = field(default_factory=dict)

    async def go_on(
        self, reader: LogReader, end: int, inputs: Mapping[TopicPartition, int], behind: bool, complete: bool
    ) -> None:
        """Read and check the next records, up to an end.

        Args:
            reader: a reader that has the partition open.
            end: the partition's end, read before the journals' ends.
            inputs: the inputs' ends, read after the journals' ends.
            behind: whether a journal is not followed to its end yet: then an unexplained record is read again later.
            complete: whether all journals could be followed.
        """
        while self.position < end:
            stop = min(end, self.position + _PORTION_OFFSETS)
            for record in await reader.read(self.source, self.position, stop):
                if not self.matcher.count(record, self.start) and not self._judge(record, inputs, behind, complete):
                    self.position = record.offset
                    return
            self.position = stop

    def _judge(self, record: InputRecord, inputs: Mapping[TopicPartition, int], behind: bool, complete: bool) -> bool:
        """Handle a record that no journal explains; False if it is to be read again later."""
        if not self.alone:
            self.matcher.tally.count(Status.SKIPPED)
        elif behind:
            return False
        elif self.early:
            self.parked[record.offset] = (record, dict(inputs))
        else:
            unexplained_record(self.matcher.tally, record.offset, complete)
        return True

    def begin(self, since: int, low: int) -> None:
        """Begin to read at an offset; the log begins at ``low``."""
        self.start = self.position = max(since, low)
        self.deleted = low if since < low else 0

    def settle(self, folded: Mapping[TopicPartition, int], complete: bool) -> None:
        """Compare parked records again, and report those that no journal can explain any more.

        Args:
            folded: the offsets up to which the journals cover the inputs.
            complete: whether all journals could be followed.
        """
        for offset, (record, ends) in list(self.parked.items()):
            if self.matcher.count(record, self.start):
                del self.parked[offset]
            elif all(folded.get(source, 0) >= end for source, end in ends.items()):
                unexplained_record(self.matcher.tally, offset, complete)
                del self.parked[offset]

    @property
    def checked(self) -> int:
        """The offset up to which every record was explained or reported."""
        return min(self.parked, default=self.position)

    def as_json(self) -> dict[str, Any]:
        """The state that the next process needs to go on with this partition."""
        waiting = {
            f"{topic}/{partition}": [[one.digest.hex(), one.offset] for _, one in writer.missing()]
            for (topic, partition), writer in self.matcher.writers.items()
        }
        known = b"".join(self.matcher.known).hex()
        return {
            "start": self.start, "deleted": self.deleted, "position": self.checked,
            "unexplained": self.matcher.unexplained, "waiting": waiting, "known": known,
        }  # fmt: skip


class Outputs:
    """Checks all output partitions of a role; its journal is not among them."""

    def __init__(self, system: System, role: Role) -> None:
        """Begin without any expected output."""
        self._system, self._role = system, role
        self.parts: dict[TopicPartition, OutputPartition] = {}
        for name in role_topics(role, system).writes:
            for partition in range(system.partitions[name]):
                self._begin((name, partition))

    def _begin(self, source: TopicPartition) -> None:
        system, role = self._system, self._role
        topic = topic_of(system, source[0])
        at_home = topic.partition_rule is PartitionRule.HOME
        homes = [source[1]] if at_home else range(system.homes(role))
        writing = [Writer((role.journal, home)) for home in homes if home < system.homes(role)]
        ticked = also_allowed(topic, system)
        others = [one for one in system.roles if source[0] in role_topics(one, system).writes and one.name != role.name]
        alone = not others and system.devices.get(source[0]) != "Write"
        matcher = Matcher(Tally(role.name, source), topic, writing, ticked)
        self.parts[source] = OutputPartition(source, matcher, alone, topic.holds_dead_letters)

    def expect(self, journal: TopicPartition, expected: Mapping[TopicPartition, Sequence[Expected]]) -> None:
        """Add outputs that follow from a journal."""
        for source, outputs in expected.items():
            self.parts[source].matcher.expect(journal, outputs)

    def of_journal(self, journal: TopicPartition) -> list[OutputPartition]:
        """The output partitions to which a journal's home partition writes."""
        return [part for part in self.parts.values() if journal in part.matcher.writers]

    @property
    def tallies(self) -> Iterable[Tally]:
        """The counts and findings of each partition."""
        return [part.matcher.tally for part in self.parts.values()]

    def as_json(self) -> dict[str, Any]:
        """The state that the next process needs to go on with all partitions."""
        return {f"{source[0]}/{source[1]}": part.as_json() for source, part in self.parts.items()}

    def restore(self, kept: Mapping[str, Any], journals: Collection[TopicPartition]) -> None:
        """Go on from a state of `as_json`, for the outputs of these journals."""
        for source, part in self.parts.items():
            found = kept[f"{source[0]}/{source[1]}"]
            part.start, part.deleted, part.position = found["start"], found["deleted"], found["position"]
            part.matcher.unexplained = found["unexplained"]
            known = bytes.fromhex(found["known"])
            part.matcher.restore_known(known[at : at + _DIGEST_BYTES] for at in range(0, len(known), _DIGEST_BYTES))
            for journal in part.matcher.writers:
                if journal in journals:
                    name = f"{journal[0]}/{journal[1]}"
                    waiting = [Expected(bytes.fromhex(digest), offset) for digest, offset in found["waiting"][name]]
                    part.matcher.expect(journal, waiting)
