"""What journals say must be on an output partition, against what is there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hushstream.engine.records import TopicPartition
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.check.journal import Expected, output_digest
from hushstream.ops.log_copy import PartitionCopy
from hushstream.schemas.topics import Topic


@dataclass(slots=True)
class Writer:
    """One journal's outputs on one partition: they came in this order, each at least once.

    Attributes:
        last: offsets of the journal's last records, of which a worker that ended may not have sent what follows.
    """

    journal: TopicPartition
    expected: Sequence[Expected]
    last: Collection[int] = ()
    next: int = 0
    """Behind the last one that was found."""
    found: set[int] = field(default_factory=set)


_Places = dict[bytes, list[tuple[Writer, int]]]
"""Who expects a value, and as which of their outputs; mostly one writer and once."""


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
    """Compare one output partition with what its writers' journals say.

    Every expected output must be there as often as it is expected, or more often (repeats). What was sent
    once came in the order of its journal. Anything else has no reason to be there.

    Args:
        tally: counts and findings go here.
        topic: what the partition is of.
        part: the partition.
        writers: who writes to it.
        also_allowed: digests of values that anyone may append (ticks).
        complete: whether every writer's journal could be followed to its end.
        quiet: `LogCopy.quiet`.
        unexplained: up to which offset there may be what followed from records before the checkpoints at which
            journals began to be followed; behind it that may only be repeated.
    """
    places, before = _places(writers), set[bytes]()
    for record in part.records:
        digest = output_digest(topic, record.value)
        if digest in places:
            _meet(tally, places[digest], record.offset, part.low, record.offset < unexplained)
        elif record.offset < unexplained:
            tally.count(Status.SKIPPED)
            before.add(digest)
        elif digest in before:
            tally.count(Status.REPEATED)
        elif digest in also_allowed:
            tally.count(Status.EQUAL)
        elif complete:
            tally.find(Status.CHANGED, record.offset, "no journal record explains it")
        else:
            tally.find(Status.UNCHECKABLE, record.offset, "a journal that may explain it could not be followed")
    for writer in writers:
        _miss(tally, writer, part, quiet)


def _places(writers: Sequence[Writer]) -> _Places:
    found: _Places = {}
    for writer in writers:
        for index, expected in enumerate(writer.expected):
            found.setdefault(expected.digest, []).append((writer, index))
    return found


def _meet(tally: Tally, places: Sequence[tuple[Writer, int]], offset: int, low: int, early: bool) -> None:
    due = next(((writer, index) for writer, index in places if index not in writer.found), None)
    if due is None:
        tally.count(Status.REPEATED)
        return
    writer, index = due
    writer.found.add(index)
    if early:
        # It may be equal to what came before the checkpoint, so its place says nothing.
        tally.count(Status.EQUAL)
        return
    late = index < writer.next
    # Equal values cannot be told apart, so they say nothing about order.
    if len(places) == 1:
        writer.next = max(writer.next, index + 1)
    # A log that lost its beginning may hold a repeat without its first.
    if late and len(places) == 1 and low == 0:
        tally.find(Status.CHANGED, offset, f"it came later than what follows it in {_name(writer.journal)}")
    else:
        tally.count(Status.EQUAL)


def _miss(tally: Tally, writer: Writer, part: PartitionCopy, quiet: bool) -> None:
    first = min(writer.found, default=len(writer.expected))
    for index, expected in enumerate(writer.expected):
        if index in writer.found:
            continue
        beyond = index >= writer.next
        if expected.offset is None and beyond:
            # It follows from inputs that the role may not have read yet.
            continue
        reason = f"what follows from {_name(writer.journal)} offset {expected.offset} is missing"
        if part.low > 0 and index < first:
            tally.find(Status.UNCHECKABLE, None, f"{reason}: the log begins at offset {part.low}")
        elif beyond and not quiet:
            tally.find(Status.UNCHECKABLE, None, f"{reason}: the copy was taken while the deployment worked")
        elif beyond and expected.offset in writer.last:
            said = "a worker ended before it had sent it; the next one of the role will"
            tally.find(Status.UNSENT, None, f"{reason}: {said}")
        else:
            tally.find(Status.CHANGED, None, reason)


def _name(source: TopicPartition) -> str:
    return f"{source[0]}/{source[1]}"
