"""One output partition of a role that is checked as it goes on, and all of them together."""

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
    """One output partition.

    Attributes:
        source: topic and partition.
        matcher: compares it with the journals.
        alone: whether nobody but this role's partitions writes there: then nothing is there without a reason.
        early: whether records may come before the journal record that explains them (dead letters).
        start: the offset at which it began to be read.
        deleted: up to which offset retention had deleted it then.
        position: the offset that is read next.
        parked: records that no journal explains yet, by offset, with the ends of the inputs when they were met: a
            journal that has come there and does not explain them never will.
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
        """Read on to an end.

        Args:
            reader: of the logs.
            end: where it ended before the journals' ends were looked at.
            inputs: where the inputs ended behind these.
            behind: whether a journal has not been followed to its end: then what nothing explains is left for later.
            complete: whether all journals could be followed.
        """
        while self.position < end:
            stop = min(end, self.position + _PORTION_OFFSETS)
            for record in await reader.read(self.source, self.position, stop):
                if not self.matcher.meet(record, self.start) and not self._bear(record, inputs, behind, complete):
                    self.position = record.offset
                    return
            self.position = stop

    def _bear(self, record: InputRecord, inputs: Mapping[TopicPartition, int], behind: bool, complete: bool) -> bool:
        """What becomes of a record that nothing explains; False where it is met again later."""
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
        """Meet again what nothing explained, and find what nothing will, as the inputs were folded so far."""
        for offset, (record, ends) in list(self.parked.items()):
            if self.matcher.meet(record, self.start):
                del self.parked[offset]
            elif all(folded.get(source, 0) >= end for source, end in ends.items()):
                unexplained_record(self.matcher.tally, offset, complete)
                del self.parked[offset]

    @property
    def checked(self) -> int:
        """Up to which offset everything was explained, or found."""
        return min(self.parked, default=self.position)

    def as_json(self) -> dict[str, Any]:
        """What an auditor that goes on needs to know of it."""
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
    """Everything that a role writes besides its journal."""

    def __init__(self, system: System, role: Role) -> None:
        """Nothing is known yet."""
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
        """More follows from a journal."""
        for source, outputs in expected.items():
            self.parts[source].matcher.expect(journal, outputs)

    def of_journal(self, journal: TopicPartition) -> list[OutputPartition]:
        """Those that a journal's home partition writes to."""
        return [part for part in self.parts.values() if journal in part.matcher.writers]

    @property
    def tallies(self) -> Iterable[Tally]:
        """What was found on each."""
        return [part.matcher.tally for part in self.parts.values()]

    def as_json(self) -> dict[str, Any]:
        """What an auditor that goes on needs to know of all."""
        return {f"{source[0]}/{source[1]}": part.as_json() for source, part in self.parts.items()}

    def restore(self, kept: Mapping[str, Any], journals: Collection[TopicPartition]) -> None:
        """Go on from what `as_json` gave, as far as it is of these journals."""
        for source, part in self.parts.items():
            found = kept[f"{source[0]}/{source[1]}"]
            part.start, part.deleted, part.position = found["start"], found["deleted"], found["position"]
            part.matcher.unexplained = found["unexplained"]
            known = bytes.fromhex(found["known"])
            part.matcher.know_again(known[at : at + _DIGEST_BYTES] for at in range(0, len(known), _DIGEST_BYTES))
            for journal in part.matcher.writers:
                if journal in journals:
                    name = f"{journal[0]}/{journal[1]}"
                    waiting = [Expected(bytes.fromhex(digest), offset) for digest, offset in found["waiting"][name]]
                    part.matcher.expect(journal, waiting)
