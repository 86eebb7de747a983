"""Refuses a partition whose input was deleted before it was folded, unless an operator accepts the loss.

A role that was down for longer than its input is kept has lost input, and nothing brings it back. The refusal names the
lost records, and the word with which an operator accepts the loss (`--accept-loss`). The worker then writes a note into
its journal, beside the chain (`hushstream.engine.journal.notes`), and folds the records that are left. The range of the
next batch begins where it would have begun without the loss, and holds only the existing records. Its digest is over
these, so recoveries and `verify` compute the same. If no note covers the range, both refuse it as before.

Before the note is written, the worker publishes the partition's state, unless that is done already. The next owner
then goes on from this state. From an older state it would have to read the lost records, and would be refused.

The loss costs no privacy. Nothing was released from input that was not folded. A slot that was charged at the edge but
is never counted costs its user the same as a counted one.

*Loss words.* The words with which an operator accepts losses (`--accept-loss`): their form, and which of them a worker
has needed.

A word names one refusal: a partition of the role with a journal that is behind its marks, and the generation that it
gets; or a partition of the role with an input, and the offsets that were lost.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hushstream.agents.errors import InputsDeleted, replaced
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.journal import Sender, journaled, last_record, sequence_of
from hushstream.agents.recovery.snapshots import HoldsStateKeys, RecoveredMachine
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.notes import LOST, Note, NoteSeal
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputSlice, Output, TopicPartition
from hushstream.privacy.amounts import count_text

FORM = "PARTITION:JOURNAL:GENERATION or PARTITION:TOPIC/PARTITION:FROM-TO, as a refusal names it"
_WORD = re.compile(r"[0-9]+:([0-9a-f]+|new):[0-9]+|[0-9]+:[A-Za-z0-9._-]+/[0-9]+:[0-9]+-[0-9]+")
ALL_AT_ONCE = "give the words of all partitions in one start"
"""A worker that is started with one word is refused for the next partition, and may have stopped others meanwhile."""


def journal_word(partition: int, journal: str, generation: int) -> str:
    """The word that accepts a journal against its marks."""
    return f"{partition}:{journal}:{generation}"


def input_word(partition: int, source: TopicPartition, low: int, first: int) -> str:
    """The word that accepts the loss of an input's records with ``low <= offset < first``."""
    return f"{partition}:{source[0]}/{source[1]}:{low}-{first}"


def is_word(text: str) -> bool:
    """Whether a text has the form of such a word."""
    return _WORD.fullmatch(text) is not None


@dataclass(slots=True)
class NeededWords:
    """Notes which of an operator's words a worker has needed."""

    _settled: set[str] = field(default_factory=set)

    def accepts(self, word: str, given: Collection[str]) -> bool:
        """Whether the operator has given this word; notes that it was needed."""
        if word not in given:
            return False
        self._settled.add(word)
        return True

    def not_needed(self, partition: int, given: Collection[str]) -> tuple[str, ...]:
        """The given words for a partition that were not needed when it was opened; each is returned once."""
        words = tuple(w for w in given if w.startswith(f"{partition}:") and w not in self._settled)
        self._settled.update(words)
        return words


logger = logging.getLogger(__name__)

_AT_ONCE = 256
_CLOCKS_APART_MS = 60_000
"""Log times of two topics come from their leaders' clocks. A difference up to this does not show a replaced log.

However long a role waited for input, the log times of one log cannot show it: they are compared only with those of a
journal record that covers the offset, and this record was appended later than what it covers. What stays is leaders
whose clocks are further apart, and only where no digest can be compared."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Decides which lost input of one worker's home partitions an operator has accepted as lost.

    Attributes:
        settings: the worker's; they hold the operator's words.
        keys: give the zone's keys.
        sender: sends the notes.
        publish: publishes the state of a machine, so that other workers can go on from it.
        words: notes which of the operator's words were needed.
    """

    settings: WorkerSettings
    keys: HoldsStateKeys
    sender: Sender
    publish: Callable[[RecoveredMachine], Awaitable[None]]
    words: NeededWords
    _seals: dict[int, NoteSeal] = field(default_factory=dict)

    async def accepted(
        self, recovered: RecoveredMachine, reader: LogReader, source: TopicPartition, first: int, journaled: int
    ) -> bool:
        """Whether an operator has accepted that the input before ``first`` which a machine has not folded is lost.

        Args:
            recovered: the machine, on its journal.
            reader: an opened reader, which forgets the partitions that it had open.
            source: the input.
            first: the first offset of its log.
            journaled: the journal's last record. If the machine is behind it, the unreplayed records may cover the
                input: then only an earlier acceptance counts.

        Raises:
            InputsDeleted: nobody has accepted the loss; says what is lost, and what an operator can do.
        """
        low = recovered.machine.positions().get(source, 0)
        if any(note.kind == LOST and note.covers(source, low, first) for note in await self._notes(recovered, reader)):
            return True
        if journaled > recovered.sequence:
            return False
        after_ms, before_ms = await _times(recovered.machine, recovered.journal_offset, reader, source, first)
        partition = recovered.machine.journal[1]
        word = input_word(partition, source, low, first)
        if not self.words.accepts(word, self.settings.accept_loss):
            kept = f"the first that is kept is of {_moment(before_ms)}" if before_ms else "none is kept"
            lost, them = _deleted(first - low)
            raise InputsDeleted(
                f"{source[0]}/{source[1]}: must be read from offset {low}, but the log begins at {first}; {lost} "
                f"folded (the last journal record is of {_moment(after_ms)}, {kept}). Bring the topic back; or, to go "
                f"on without {them}, start this worker with --accept-loss {word} (nothing will follow from {them}, "
                "and `verify` will report the loss; if deletion requests are lost too, send these again, `hushstream "
                f"forget`). If other partitions are refused too, {ALL_AT_ONCE}"
            )
        await self.publish(recovered)
        note = Note(LOST, source, low, first, after_ms, before_ms)
        value = self._seal(partition).pack(note)
        await (await self.sender.send(Output(*recovered.machine.journal, value)))
        logger.warning(
            "partition %d: went on without %s/%d offsets %d to %d by the operator's word",
            partition, *source, low, first - 1,
        )  # fmt: skip
        return True

    async def require_same_logs(
        self, recovered: RecoveredMachine, reader: LogReader, firsts: Mapping[TopicPartition, int]
    ) -> None:
        """Refuse inputs that were deleted and created again, and are longer now than what was folded of them.

        Such a topic has other records at the old offsets. The offsets do not show that, and the new records below the
        folded offset would be skipped silently. The digest in the last journal record shows it, if the logs still hold
        all the records that it was made from. Otherwise the log time of the first record shows it: that record was
        appended long after the journal record that covers it. Records of a window that is still open are folded, and
        no journal record covers them: they may be as young as they like.

        Args:
            recovered: the machine, on its journal.
            reader: an opened reader, which forgets the partitions that it had open.
            firsts: the first offsets of the logs that begin below what the machine has folded of them.

        Raises:
            TopicsReplaced: an input was replaced; says what an operator can do.
        """
        machine, last = recovered.machine, None
        place = recovered.sequence, recovered.journal_offset
        if firsts and recovered.sequence:
            last = await last_record(reader, machine, *place)
        found = await other_log(machine, last, recovered.journal_offset, reader, firsts)
        if found is not None:
            source, why = found
            folded = await journaled(reader, machine, *place)
            raise replaced(self.settings.command, source, folded[source], why)

    async def _notes(self, recovered: RecoveredMachine, reader: LogReader) -> Sequence[Note]:
        """The notes in the journal after the last record that the machine contains."""
        machine = recovered.machine
        journal = machine.journal
        first, end = (await reader.first_offsets([journal]))[journal], (await reader.end_offsets([journal]))[journal]
        reader.open({journal: first})
        seal = self._seal(journal[1])
        notes: list[Note] = []
        high, found_last = end, False
        while high > first and not found_last:
            low = max(first, high - _AT_ONCE)
            for record in reversed(await reader.read(journal, low, high)):
                if (
                    record.offset < recovered.journal_offset
                    and sequence_of(machine, record.value) == recovered.sequence
                ):
                    found_last = True
                    break
                note = seal.unpack(record.value)
                notes += [] if note is None else [note]
            high = low
        return notes

    def _seal(self, partition: int) -> NoteSeal:
        return self._seals.setdefault(
            partition, NoteSeal(self.settings.deployment, self.settings.role, partition, self.keys.state_keys())
        )


async def other_log(
    machine: Machine,
    last: bytes | None,
    journal_offset: int,
    reader: LogReader,
    firsts: Mapping[TopicPartition, int],
) -> tuple[TopicPartition, str] | None:
    """Find an input that is not the log that was folded, as `Losses.require_same_logs` describes it.

    Args:
        machine: reads journal records, and makes digests under the key of the last one; it need not have its state.
        last: the last record of its journal; None if there is none beside the genesis, or it was deleted.
        journal_offset: the journal's next offset after it.
        reader: an opened reader, which forgets the partitions that it had open.
        firsts: the first offsets of the logs to compare; each is below what was folded.

    Returns:
        The input, and what shows it, as the rest of a sentence; None if there is no such input.
    """
    covered = {(part.topic, part.partition): part.high for part in machine.entry(last).inputs} if last else {}
    firsts = {source: first for source, first in firsts.items() if first < covered.get(source, 0)}
    found = None if last is None else await _last_inputs(machine, last, reader)
    told = set() if found is None else found.newest_ms.keys() & firsts.keys()
    times = {
        source: await _times(machine, journal_offset, reader, source, first)
        for source, first in firsts.items()
        if found is None or not found.intact or source not in told
    }
    if told and found is not None and not found.intact and not found.taken_out:
        # One digest covers all inputs, so log times must show which input it was; the leaders' clocks may differ.
        source = max(told, key=lambda one: found.newest_ms[one] - times[one][0])
        made_from = "those that the last journal record was made from"
        return source, f", but the records before it are not {made_from}; the topic was replaced"
    for source, (folded_ms, first_ms) in times.items():
        if folded_ms and first_ms > folded_ms + _CLOCKS_APART_MS:
            late = f"offset {firsts[source]} is of {_moment(first_ms)}"
            return source, f" by {_moment(folded_ms)}, but {late}; the topic was replaced"
    return None


@dataclass(frozen=True, slots=True)
class _LastInputs:
    """The records that the logs hold now in the input ranges of the last journal record.

    Attributes:
        intact: whether they are the records that the journal record was made from.
        taken_out: whether they may differ: a forgotten user's records were removed, or the key has changed since.
        newest_ms: the log time of the newest of these records in each log that has some.
    """

    intact: bool
    taken_out: bool
    newest_ms: Mapping[TopicPartition, int]


async def _last_inputs(machine: Machine, value: bytes, reader: LogReader) -> _LastInputs | None:
    """Read the input ranges of a machine's last journal record; None if records of them were deleted."""
    entry = machine.entry(value)
    ranges = {(part.topic, part.partition): part for part in entry.inputs}
    firsts, ends = await reader.first_offsets(ranges), await reader.end_offsets(ranges)
    if any(p.low < p.high and (p.low < firsts[source] or p.high > ends[source]) for source, p in ranges.items()):
        return None
    reader.open({source: part.low for source, part in ranges.items()})
    slices = [
        InputSlice(*part, records=tuple(await reader.read(source, part.low, part.high)))
        for source, part in ranges.items()
    ]
    taken_out = entry.key_rotated or not all(record.value for part in slices for record in part.records)
    newest_ms = {(part.topic, part.partition): part.records[-1].timestamp_ms for part in slices if part.records}
    return _LastInputs(entry.input_digest == machine.input_digest(slices), taken_out, newest_ms)


def _deleted(count: int) -> tuple[str, str]:
    """Say that records were deleted too early; returns the words, and the pronoun for them."""
    if count == 1:
        return "1 record was deleted before it was", "it"
    return f"{count} records were deleted before they were", "them"


async def _times(
    machine: Machine, journal_offset: int, reader: LogReader, source: TopicPartition, first: int
) -> tuple[int, int]:
    """The log times of the last journal record, and of the first existing record of the input; 0 if there is none."""
    journal = machine.journal
    begun = (await reader.first_offsets([journal]))[journal]
    end = (await reader.end_offsets([source]))[source]
    reader.open({journal: begun, source: first})
    last = await reader.read(journal, max(begun, journal_offset - 1), journal_offset)
    kept = await reader.read(source, first, first + 1) if end > first else []
    return (last[-1].timestamp_ms if last else 0, kept[0].timestamp_ms if kept else 0)


def in_words(note: Note) -> str:
    """Say what a note covers: topic, offsets, number of records, and the log times between which they were appended."""
    topic, partition = note.source
    return (
        f"{topic}/{partition} offsets {note.low} to {note.high - 1} "
        f"({count_text(note.high - note.low, 'record')}, appended between "
        f"{_moment(note.after_ms)} and {_moment(note.before_ms)})"
    )


def _moment(log_time_ms: int) -> str:
    return datetime.fromtimestamp(log_time_ms / 1000, UTC).isoformat(timespec="seconds") if log_time_ms else "?"
