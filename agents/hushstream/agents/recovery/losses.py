"""Refuses a partition whose input was deleted before it was folded, unless an operator accepts the loss.

A role that was down for longer than its input is kept has lost some input, and nothing brings it back. The refusal
names what is lost, and the word with which an operator accepts the loss (`--accept-loss`). The worker then writes a
note beside the chain of its journal (`hushstream.engine.journal.notes`) and folds what is left. The range of the next
batch begins where it would have begun without the loss, and holds only the records that are there. Its digest says so,
so recoveries and `verify` compute the same; where no note covers the range, both refuse it as before.

Before the note is written the state that the partition goes on with is published, where that has not been done: whoever
takes the partition up later finds it there. From an older state it would have to read what is lost, and be refused.

The loss costs no privacy. Nothing was released from input that was not folded, and a slot that was charged at the edge
and is not counted costs its user what it would have cost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hushstream.agents.errors import InputsDeleted, begun_later, other_records
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.journal import Sender
from hushstream.agents.recovery.journal_forks import last_record, sequence_of
from hushstream.agents.recovery.recovered_machine import HoldsStateKeys, RecoveredMachine
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.notes import LOST, Note, NoteSeal
from hushstream.engine.records import InputSlice, Output, TopicPartition
from hushstream.privacy.amounts import count_text

logger = logging.getLogger(__name__)

_AT_ONCE = 256
_CLOCKS_APART_MS = 60_000
"""Log times of two topics are of their leaders' clocks: a log is no other one as those differ."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What operators have accepted to be lost of the inputs of one worker's home partitions.

    Attributes:
        settings: of the worker; they hold an operator's words.
        keys: of the zone.
        sender: where notes go.
        publish: publishes the state of a machine, so that other workers go on from there too.
    """

    settings: WorkerSettings
    keys: HoldsStateKeys
    sender: Sender
    publish: Callable[[RecoveredMachine], Awaitable[None]]
    _seals: dict[int, NoteSeal] = field(default_factory=dict)

    async def accepted(
        self, recovered: RecoveredMachine, reader: LogReader, source: TopicPartition, first: int, journaled: int
    ) -> bool:
        """Whether the input before ``first`` that a machine has not folded is lost by an operator's word.

        Args:
            recovered: the machine, on its journal.
            reader: opened; it forgets what it had open.
            source: the input.
            first: where its log begins.
            journaled: the journal's last record. Where the machine is behind it, the input may be in what it has not
                replayed: then only what was accepted before is lost.

        Raises:
            InputsDeleted: it is not; says what is lost, and what an operator can do.
        """
        low = recovered.machine.positions().get(source, 0)
        if any(note.kind == LOST and note.covers(source, low, first) for note in await self._notes(recovered, reader)):
            return True
        if journaled > recovered.sequence:
            return False
        after_ms, before_ms = await _times(recovered, reader, source, first)
        partition = recovered.machine.journal[1]
        word = f"{partition}:{source[0]}/{source[1]}:{low}-{first}"
        if word not in self.settings.accept_loss:
            kept = f"the first that is kept is of {_moment(before_ms)}" if before_ms else "none is kept"
            raise InputsDeleted(
                f"{source[0]}/{source[1]}: must be read from offset {low}, but the log begins at {first}; those "
                f"{first - low} records were deleted before they were folded (the last journal record is of "
                f"{_moment(after_ms)}, {kept}). Bring the topic back; or, to go on without them, start this worker "
                f"with --accept-loss {word}: nothing will follow from them, and tombstones of users among them have to "
                f"be sent again (`hushstream forget`); `verify` will say so"
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
        """Refuse inputs that were deleted and made again, and have grown beyond what was folded of them.

        Such a topic has other records at the old offsets. No offset tells, and the new records below would be missed in
        silence. The digest in the last journal record tells, as long as the logs hold all that it was made from.
        Where they do not, a first record that was appended long after the journal says that it was folded does.

        Args:
            recovered: the machine, on its journal.
            reader: opened; it forgets what it had open.
            firsts: where those logs begin that begin below what the machine has folded of them.

        Raises:
            TopicsReplaced: says what an operator can do.
        """
        found = await _last_inputs(recovered, reader) if firsts and recovered.sequence else None
        told = set() if found is None else found.newest_ms.keys() & firsts.keys()
        folded = recovered.machine.positions()
        times = {
            source: await _times(recovered, reader, source, first)
            for source, first in firsts.items()
            if found is None or not found.intact or source not in told
        }
        if told and found is not None and not found.intact and not found.taken_out:
            # One digest covers all inputs: log times say which it was, where the clocks of two leaders agree.
            source = max(told, key=lambda one: found.newest_ms[one] - times[one][0])
            raise other_records(self.settings.command, source, folded[source])
        for source, (folded_ms, first_ms) in times.items():
            if folded_ms and first_ms > folded_ms + _CLOCKS_APART_MS:
                moments = (_moment(first_ms), _moment(folded_ms))
                raise begun_later(self.settings.command, source, folded[source], firsts[source], *moments)

    async def _notes(self, recovered: RecoveredMachine, reader: LogReader) -> Sequence[Note]:
        """The notes that stand behind the last record of the chain that the machine contains."""
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


@dataclass(frozen=True, slots=True)
class _LastInputs:
    """What the logs hold now where the last journal record says that it was made from.

    Attributes:
        intact: whether that is what it was made from.
        taken_out: whether it need not be: what a forgotten user wrote was taken out, or the key has changed since.
        newest_ms: log time of the newest record of each log of which it holds some.
    """

    intact: bool
    taken_out: bool
    newest_ms: Mapping[TopicPartition, int]


async def _last_inputs(recovered: RecoveredMachine, reader: LogReader) -> _LastInputs | None:
    """What the last journal record of a machine was made from; None where that is not there any more."""
    machine = recovered.machine
    value = await last_record(reader, machine, recovered.sequence, recovered.journal_offset)
    if value is None:
        return None
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


async def _times(recovered: RecoveredMachine, reader: LogReader, source: TopicPartition, first: int) -> tuple[int, int]:
    """Log times of the last journal record, and of the first input that is kept; 0 where there is none."""
    journal = recovered.machine.journal
    begun = (await reader.first_offsets([journal]))[journal]
    end = (await reader.end_offsets([source]))[source]
    reader.open({journal: begun, source: first})
    last = await reader.read(journal, max(begun, recovered.journal_offset - 1), recovered.journal_offset)
    kept = await reader.read(source, first, first + 1) if end > first else []
    return (last[-1].timestamp_ms if last else 0, kept[0].timestamp_ms if kept else 0)


def in_words(note: Note) -> str:
    """Of what a note says: topic, offsets, how many records, and between which log times they were appended."""
    topic, partition = note.source
    return (
        f"{topic}/{partition} offsets {note.low} to {note.high - 1} "
        f"({count_text(note.high - note.low, 'record')}, appended between "
        f"{_moment(note.after_ms)} and {_moment(note.before_ms)})"
    )


def _moment(log_time_ms: int) -> str:
    return datetime.fromtimestamp(log_time_ms / 1000, UTC).isoformat(timespec="seconds") if log_time_ms else "?"
