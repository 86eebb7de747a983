"""Compares an output partition with the records that the journals require.

Every expected output must be there as often as it is expected, or more often (repeats). What was sent once came in the
order of its journal. Anything else has no reason to be there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.check.journal import Expected, output_digest
from hushstream.ops.log_copy import PartitionCopy
from hushstream.schemas.topics import Topic

REPEATS_KNOWN = 1 << 16
"""Explained outputs of one partition that are known again where logs go on without end: a worker that starts repeats
what it had not noted as sent, some thousands at most."""


@dataclass(slots=True)
class Writer:
    """One journal's outputs on one partition: they came in this order, each at least once.

    Attributes:
        expected: those that are waited for, and those between them that were found.
        last: offsets of the journal's last records, of which a worker that ended may not have sent what follows.
    """

    journal: TopicPartition
    expected: list[Expected] = field(default_factory=list)
    last: Collection[int] = ()
    next: int = 0
    """Behind the last one that was found."""
    found: set[int] = field(default_factory=set)
    gone: int = 0
    """How many before ``expected`` were found, and are not kept."""
    first: int | None = None
    """The first one that was found."""

    @property
    def end(self) -> int:
        """The number of the output that is expected next."""
        return self.gone + len(self.expected)

    def missing(self) -> list[tuple[int, Expected]]:
        """What was not found, with its number."""
        return [(n, one) for n, one in enumerate(self.expected, self.gone) if n not in self.found]


class Matcher:
    """Compares one output partition with its writers' journals, while both go on.

    Attributes:
        tally: counts and findings go here.
        writers: who writes to the partition, by journal.
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
            tally: counts and findings go here.
            topic: what the partition is of.
            writers: who writes to it.
            also_allowed: digests of values that anyone may append (ticks).
            unexplained: up to which offset there may be what followed from records before the checkpoints at which
                journals began to be followed; behind it that may only be repeated.
        """
        self.tally = tally
        self.writers = {writer.journal: writer for writer in writers}
        self.unexplained = unexplained
        self._topic, self._also_allowed = topic, also_allowed
        self._places: dict[bytes, list[tuple[Writer, int]]] = {}
        """Who expects a value, and as which of their outputs; mostly one writer and once."""
        self._known: dict[bytes, None] = {}
        """What was there before, and may be repeated: outputs that are not kept, the oldest first."""
        for writer in self.writers.values():
            self._place(writer, writer.gone)

    def expect(self, journal: TopicPartition, outputs: Sequence[Expected]) -> None:
        """More follows from a journal."""
        writer = self.writers[journal]
        first = writer.end
        writer.expected += outputs
        self._place(writer, first)

    def _place(self, writer: Writer, first: int) -> None:
        for number in range(first, writer.end):
            if number not in writer.found:
                digest = writer.expected[number - writer.gone].digest
                self._places.setdefault(digest, []).append((writer, number))

    def meet(self, record: InputRecord, low: int) -> bool:
        """Count a record of the partition, whose log begins at ``low``; False where nothing explains it."""
        digest = output_digest(self._topic, record.value)
        if digest in self._places:
            self._meet(self._places[digest], record.offset, low)
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

    def _meet(self, places: Sequence[tuple[Writer, int]], offset: int, low: int) -> None:
        due = next(((writer, number) for writer, number in places if number not in writer.found), None)
        if due is None:
            self.tally.count(Status.REPEATED)
            return
        writer, number = due
        writer.found.add(number)
        writer.first = number if writer.first is None else min(writer.first, number)
        if offset < self.unexplained:
            # It may be equal to what came before the checkpoint, so its place says nothing.
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

    def miss(self, part: PartitionCopy, quiet: bool) -> None:
        """Find what is missing at the end of the partition; ``quiet`` is `LogCopy.quiet`."""
        for writer in self.writers.values():
            first = writer.end if writer.first is None else writer.first
            for number, expected in writer.missing():
                beyond = number >= writer.next
                if expected.offset is None and beyond:
                    # It follows from inputs that the role may not have read yet.
                    continue
                reason = _missing(writer, expected)
                if part.low > 0 and number < first:
                    self.tally.find(Status.UNCHECKABLE, None, f"{reason}: the log begins at offset {part.low}")
                elif beyond and not quiet:
                    why = "the copy was taken while the deployment worked"
                    self.tally.find(Status.UNCHECKABLE, None, f"{reason}: {why}")
                elif beyond and expected.offset in writer.last:
                    said = "a worker ended before it had sent it; the next one of the role will"
                    self.tally.find(Status.UNSENT, None, f"{reason}: {said}")
                else:
                    self.tally.find(Status.CHANGED, None, reason)

    # Where logs go on.

    def overdue(self, ended: Mapping[TopicPartition, int], deleted: int) -> None:
        """Find what ought to be there by now, once, and forget what was found.

        Args:
            ended: of each journal, up to which offset everything that followed was on its topic before this partition
                was read to its end.
            deleted: up to which offset retention had deleted the partition when it began to be read.
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
        """A journal is followed from a later checkpoint: what was expected of it before is not known any more."""
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
        """How many outputs are expected and not there yet."""
        return sum(len(writer.missing()) for writer in self.writers.values())

    @property
    def known(self) -> Iterable[bytes]:
        """Digests of what was there and may be repeated, the oldest first."""
        found = (w.expected[number - w.gone].digest for w in self.writers.values() for number in sorted(w.found))
        return (*self._known, *found)

    def know_again(self, digests: Iterable[bytes]) -> None:
        """What an earlier process knew."""
        self._known.update(dict.fromkeys(digests))


def match(
    tally: Tally,
    topic: Topic,
    part: PartitionCopy,
    writers: Sequence[Writer],
    also_allowed: frozenset[bytes],
    complete: bool,
    quiet: bool,
    unexplained: float = 0,
) -> None:
    """Compare one output partition, as a copy holds it, with what its writers' journals say.

    Args:
        tally, topic, writers, also_allowed, unexplained: see `Matcher`.
        part: the partition.
        complete: whether every writer's journal could be followed to its end.
        quiet: `LogCopy.quiet`.
    """
    matcher = Matcher(tally, topic, writers, also_allowed, unexplained)
    for record in part.records:
        if not matcher.meet(record, part.low):
            unexplained_record(tally, record.offset, complete)
    matcher.miss(part, quiet)


def unexplained_record(tally: Tally, offset: int, complete: bool) -> None:
    """Find a record that nothing explains; ``complete`` as `match` has it."""
    if complete:
        tally.find(Status.CHANGED, offset, "no journal record explains it")
    else:
        tally.find(Status.UNCHECKABLE, offset, "a journal that may explain it could not be followed")


def _missing(writer: Writer, expected: Expected) -> str:
    return f"what follows from {_name(writer.journal)} offset {expected.offset} is missing"


def _name(source: TopicPartition) -> str:
    return f"{source[0]}/{source[1]}"
