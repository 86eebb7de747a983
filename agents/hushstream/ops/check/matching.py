"""Compares an output partition with the records that the journals require.

Every expected output must be there as often as it is expected, or more often (repeats). The first occurrences must come
in the order of the journal. No other record may be there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.check.journal import Expected, value_digest
from hushstream.ops.log_copy import PartitionCopy
from hushstream.schemas.topics import Topic

REPEATS_KNOWN = 1 << 16
"""How many explained outputs of a growing partition are remembered, to recognize repeats. A worker that starts repeats
the outputs that it had not noted as sent, some thousands at most."""


@dataclass(slots=True)
class Writer:
    """The outputs of one journal on one partition, in the order in which they must come, each at least once.

    Attributes:
        expected: the outputs that are not found yet, and those between them that were found.
        last: the offsets of the journal's last records, whose outputs a worker that ended may not have sent.
    """

    journal: TopicPartition
    expected: list[Expected] = field(default_factory=list)
    last: Collection[int] = ()
    next: int = 0
    """The number after the last output that was found."""
    found: set[int] = field(default_factory=set)
    gone: int = 0
    """How many outputs before ``expected`` were found, and are no longer kept."""
    first: int | None = None
    """The number of the first output that was found."""

    @property
    def end(self) -> int:
        """The number of the output that is expected next."""
        return self.gone + len(self.expected)

    def missing(self) -> list[tuple[int, Expected]]:
        """The outputs that were not found, with their numbers."""
        return [(n, one) for n, one in enumerate(self.expected, self.gone) if n not in self.found]


class Matcher:
    """Compares one output partition with its writers' journals, while both grow.

    Attributes:
        tally: takes the counts and findings.
        writers: the writers of the partition, by journal.
    """

    def __init__(
        self,
        tally: Tally,
        topic: Topic,
        writers: Iterable[Writer],
        also_allowed: frozenset[bytes],
        unexplained: float = 0,
    ) -> None:
        """Begin at the beginning of the partition.

        Args:
            tally: takes the counts and findings.
            topic: the partition's topic.
            writers: the writers of the partition.
            also_allowed: digests of values that anyone may append (ticks).
            unexplained: the offset up to which there may be outputs of journal records before the checkpoints; after it
                such outputs may only be repeats.
        """
        self.tally = tally
        self.writers = {writer.journal: writer for writer in writers}
        self.unexplained = unexplained
        self._topic, self._also_allowed = topic, also_allowed
        self._places: dict[bytes, list[tuple[Writer, int]]] = {}
        """The writers that must send a value, and the numbers of that output; mostly one writer and one number."""
        self._known: dict[bytes, None] = {}
        """The digests of outputs that were found and are no longer kept, the oldest first; they may be repeated."""
        for writer in self.writers.values():
            self._place(writer, writer.gone)

    def expect(self, journal: TopicPartition, outputs: Sequence[Expected]) -> None:
        """Add outputs that follow from a journal."""
        writer = self.writers[journal]
        first = writer.end
        writer.expected += outputs
        self._place(writer, first)

    def _place(self, writer: Writer, first: int) -> None:
        for number in range(first, writer.end):
            if number not in writer.found:
                digest = writer.expected[number - writer.gone].digest
                self._places.setdefault(digest, []).append((writer, number))

    def count(self, record: InputRecord, low: int) -> bool:
        """Count a record of the partition, whose log begins at ``low``; False if no journal explains it."""
        digest = value_digest(record.value)
        if digest in self._places:
            self._count(self._places[digest], record.offset, low)
        elif record.offset < self.unexplained:
            self.tally.count(Status.SKIPPED)
            self._known[digest] = None
        elif digest in self._known:
            self.tally.count(Status.REPEATED)
        elif digest in self._also_allowed:
            self.tally.count(Status.EQUAL)
        else:
            return False
        return True

    def _count(self, places: Sequence[tuple[Writer, int]], offset: int, low: int) -> None:
        due = next(((writer, number) for writer, number in places if number not in writer.found), None)
        if due is None:
            self.tally.count(Status.REPEATED)
            return
        writer, number = due
        writer.found.add(number)
        writer.first = number if writer.first is None else min(writer.first, number)
        if offset < self.unexplained:
            # It may be an equal output from before the checkpoint, so its position says nothing about the order.
            self.tally.count(Status.EQUAL)
            return
        late = number < writer.next
        # Equal values cannot be told apart, so they say nothing about order.
        if len(places) == 1:
            writer.next = max(writer.next, number + 1)
        # A log that lost its beginning may hold a repeat without its first.
        if late and len(places) == 1 and low == 0:
            reason = f"it came later than what follows it in {_name(writer.journal)}"
            self.tally.find(Status.CHANGED, offset, reason)
        else:
            self.tally.count(Status.EQUAL)

    def find_missing(self, part: PartitionCopy, consistent: bool) -> None:
        """Find the outputs that are missing at the end of the partition; ``consistent`` is `LogCopy.consistent`."""
        for writer in self.writers.values():
            first = writer.end if writer.first is None else writer.first
            for number, expected in writer.missing():
                beyond = number >= writer.next
                if expected.offset is None and beyond:
                    # The output follows from inputs that the role may not have read yet.
                    continue
                reason = _missing(writer, expected)
                if part.low > 0 and number < first:
                    self.tally.find(Status.UNCHECKABLE, None, f"{reason}: the log begins at offset {part.low}")
                elif beyond and not consistent:
                    why = "the copy was taken while the deployment worked"
                    self.tally.find(Status.UNCHECKABLE, None, f"{reason}: {why}")
                elif beyond and expected.offset in writer.last:
                    said = "a worker ended before it had sent it; the next one of the role will"
                    self.tally.find(Status.UNSENT, None, f"{reason}: {said}")
                else:
                    self.tally.find(Status.CHANGED, None, reason)

    # For growing logs.

    def overdue(self, ended: Mapping[TopicPartition, int], deleted: int) -> None:
        """Report, once, outputs that must be there by now and are missing; forget those that were found.

        Args:
            ended: for each journal, the offset up to which all outputs were sent before this partition was read to its
                end.
            deleted: the offset up to which retention had deleted the partition when reading began.
        """
        for writer in self.writers.values():
            before = ended.get(writer.journal, 0)
            for number, expected in writer.missing():
                if number >= writer.next and (expected.offset is None or expected.offset >= before):
                    continue
                reason = _missing(writer, expected)
                if deleted and (writer.first is None or number < writer.first):
                    self.tally.find(Status.UNCHECKABLE, None, f"{reason}: the log began at offset {deleted}")
                else:
                    self.tally.find(Status.CHANGED, None, reason)
                writer.found.add(number)
            self._forget(writer)

    def _forget(self, writer: Writer) -> None:
        count = 0
        while count < len(writer.expected) and writer.gone + count in writer.found:
            digest = writer.expected[count].digest
            places = [place for place in self._places.pop(digest, ()) if place != (writer, writer.gone + count)]
            if places:
                self._places[digest] = places
            self._known.pop(digest, None)
            self._known[digest] = None
            writer.found.discard(writer.gone + count)
            count += 1
        del writer.expected[:count]
        writer.gone += count
        writer.next = max(writer.next, writer.gone)
        while len(self._known) > REPEATS_KNOWN:
            del self._known[next(iter(self._known))]

    def begin_anew(self, journal: TopicPartition, unexplained: float) -> None:
        """Drop the expected outputs of a journal, which is followed from a later checkpoint now."""
        writer = self.writers[journal]
        for number, expected in enumerate(writer.expected, writer.gone):
            places = [place for place in self._places.pop(expected.digest, ()) if place != (writer, number)]
            if places:
                self._places[expected.digest] = places
        writer.gone = writer.next = writer.end
        writer.expected.clear()
        writer.found.clear()
        self.unexplained = max(self.unexplained, unexplained)

    @property
    def waiting(self) -> int:
        """How many expected outputs are not found yet."""
        return sum(len(writer.missing()) for writer in self.writers.values())

    @property
    def known(self) -> Iterable[bytes]:
        """The digests of outputs that were found and may be repeated, the oldest first."""
        found = (w.expected[number - w.gone].digest for w in self.writers.values() for number in sorted(w.found))
        return (*self._known, *found)

    def restore_known(self, digests: Iterable[bytes]) -> None:
        """Take the digests that an earlier process knew."""
        self._known.update(dict.fromkeys(digests))


def match(
    tally: Tally,
    topic: Topic,
    part: PartitionCopy,
    writers: Sequence[Writer],
    also_allowed: frozenset[bytes],
    complete: bool,
    consistent: bool,
    unexplained: float = 0,
) -> None:
    """Compare one output partition in a copy with its writers' journals.

    Args:
        tally, topic, writers, also_allowed, unexplained: see `Matcher`.
        part: the partition.
        complete: whether every writer's journal could be followed to its end.
        consistent: `LogCopy.consistent`.
    """
    matcher = Matcher(tally, topic, writers, also_allowed, unexplained)
    for record in part.records:
        if not matcher.count(record, part.low):
            unexplained_record(tally, record.offset, complete)
    matcher.find_missing(part, consistent)


UNEXPLAINED = (
    "no journal record explains it; a note covers records of journals only, so find out who may write here "
    "(`hushstream topics check`)"
)
"""Why a record of an output topic is reported, and what an operator can do: `logs check` does not list it."""


def unexplained_record(tally: Tally, offset: int, complete: bool) -> None:
    """Report a record that no journal explains; ``complete`` is that of `match`."""
    if complete:
        tally.find(Status.CHANGED, offset, UNEXPLAINED)
    else:
        tally.find(Status.UNCHECKABLE, offset, "a journal that may explain it could not be followed")


def _missing(writer: Writer, expected: Expected) -> str:
    return f"what follows from {_name(writer.journal)} offset {expected.offset} is missing"


def _name(source: TopicPartition) -> str:
    return f"{source[0]}/{source[1]}"
