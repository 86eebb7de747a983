"""One batch of a home: what records, labels and ends of phases do to it, and what follows from them."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.budget import debit_fields
from hushstream.engine.machine import InputSlice, Output, Step, TopicPartition
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.refusals import WHOLE_RECORD
from hushstream.engine.spending import Asked
from hushstream.schemas.rows import id_fault, plain
from hushstream.systems.pdol.edge import within_allowance
from hushstream.systems.pdol.home import HomeMachine
from hushstream.systems.pdol.incoming import ASKED, KINDS, TOLD, Incoming, Slots, labels_of, named
from hushstream.systems.pdol.outcomes import PdolOutcome, PdolRefusal
from hushstream.systems.pdol.slot import Features, Past, Slot

_EVENTS = 1 << 128


class HomeFold(ABC):
    """A batch on its way.

    Attributes:
        outputs: what is released after the journal record.
        dead: dead letters.
        counts: events by outcome.
    """

    def __init__(self, machine: HomeMachine, journaled: NDArray[np.int8] | None = None, adopting: bool = False) -> None:
        """Begin.

        Args:
            machine: it is changed.
            journaled: what the journal says was predicted, where floats may differ by a rounding.
            adopting: nothing is released, as what it was is out already.
        """
        self._machine = machine
        self._journaled = journaled
        self._adopting = adopting
        self.outputs: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()
        self._event_ids: list[str] = []
        self._predicted: list[int] = []
        self._repeated: list[bool] = []
        self._debits: list[dict[str, Any]] = []
        self._released = 0

    @abstractmethod
    def hear(self, part: InputSlice) -> None:
        """Take what others published."""

    @abstractmethod
    def prepare(self, slots: Slots) -> None:
        """The records of the batch are known, and nothing of it was folded yet."""

    @abstractmethod
    def predict(self, slots: Slots, place: int) -> tuple[int, bytes]:
        """The label of the batch's record of this place, and what the node's experts said, if there are any."""

    def learn(self, slot: Slot, label: int) -> None:  # noqa: B027 - a home without learners of its own
        """A label has come: nothing that is released may follow from that before the slot is counted."""

    @abstractmethod
    def take(self, slot: Slot) -> None:
        """A slot is counted."""

    def flush(self) -> None:  # noqa: B027 - a home that takes each slot for itself has nothing to do
        """No more slots are counted for now."""

    @property
    @abstractmethod
    def phase_ends(self) -> TopicPartition:
        """Where ends of phases are passed on, and who joins and leaves."""

    def run(self, covered: Sequence[InputSlice]) -> None:
        """Fold what others published, then records."""
        source = self._machine.inputs[0]
        for part in covered:
            if (part.topic, part.partition) == source:
                self._fold_records(part)
            else:
                self.hear(part)

    def fields(self) -> dict[str, Any]:
        """What the journal record holds beside its head."""
        return {
            "event_ids": self._event_ids,
            "predicted": np.array(self._predicted, dtype=np.int8).tobytes(),
            "repeated": np.array(self._repeated, dtype=np.uint8).tobytes(),
            "model_version": self._machine.version,
            "releases": self._released,
            "debits": self._debits,
        }

    def step(self, journal: bytes | None, turns: bool) -> Step:
        """What the driver sends; ``turns`` where the zone's next key is in force from here on."""
        return Step(journal, tuple(self.outputs), tuple(self.dead), self.counts, turns)

    # Records.

    def _fold_records(self, part: InputSlice) -> None:
        machine = self._machine
        decoded = machine.decode(part)
        asked = [one for one in decoded if one.name in ASKED]
        if asked:
            self._slots = Slots.of(asked, machine.system.config.records.dimension)
            self.prepare(self._slots)
        place = 0
        for one in decoded:
            if one.name in ASKED:
                for row, (event_id, user) in enumerate(named(one)):
                    self._record(one, row, place + row, event_id, user)
                place += one.rows
            else:
                self._other(one)
        self.flush()
        machine.position = part.high

    def _other(self, one: Incoming) -> None:
        if one.name not in KINDS:
            self._refuse(one.name, one)
        elif one.name in TOLD:
            for row, ((event_id, user), label) in enumerate(zip(named(one), labels_of(one), strict=True)):
                self._label(one, row, event_id, user, label)
        elif one.name == "Seal":
            self._phase_end(one)
        elif one.name == "Membership":
            self._join_or_leave(one)
        else:
            self._forget(one)

    def _record(self, one: Incoming, row: int, place: int, event_id: str, user: str) -> None:
        machine, node = self._machine, self._slots.nodes[place]
        reason = self._id_fault(event_id, user) or self._stranger(node)
        if reason is not None:
            self._refuse(str(reason), one, row)
            return
        tag, past = machine.tag(user), machine.past.get(event_id)
        if past is None:
            self._take_up(event_id, tag, node, place)
        elif past.user == tag:
            self._note(event_id, past.predicted, repeated=True)
            self.counts[PdolOutcome.REPEATED_RECORD] += 1
        else:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one, row)

    def _take_up(self, event_id: str, tag: bytes, node: int, place: int) -> None:
        machine, features = self._machine, self._slots.features(place)
        predicted, said = (0, b"") if features is None else self.predict(self._slots, place)
        predicted = self._as_journaled(predicted)
        self._answer(event_id, tag, predicted)
        if features is None:
            self.counts[PdolOutcome.NULL_RECORD] += 1
        if not within_allowance(machine.spent, tag, machine.system.config.records.records_per_user):
            self.counts[Outcome.ALLOWANCE_SPENT] += 1
            features = None
        self._wait(event_id, node, tag, features, said)

    @staticmethod
    def _id_fault(event_id: str, user: str) -> str | None:
        if plain(event_id) and plain(user):
            return None
        return id_fault(event_id) or id_fault(user)

    def _stranger(self, node: int) -> PdolRefusal | None:
        machine = self._machine
        known = 0 <= node < machine.system.config.nodes and machine.system.home_of(node) == machine.partition
        if not known:
            return PdolRefusal.UNKNOWN_NODE
        return PdolRefusal.ABSENT_NODE if node in machine.absent else None

    def _as_journaled(self, predicted: int) -> int:
        """What the journal says was predicted, if it does."""
        if self._journaled is None:
            return predicted
        journaled = int(self._journaled[len(self._predicted)])
        self._machine.float_ties += journaled != predicted
        return journaled

    def _answer(self, event_id: str, tag: bytes, predicted: int) -> None:
        self._machine.past.put(event_id, Past(tag, predicted))
        self._note(event_id, predicted, repeated=False)
        self.counts[PdolOutcome.PREDICTED] += 1

    def _note(self, event_id: str, predicted: int, *, repeated: bool) -> None:
        self._event_ids.append(event_id)
        self._predicted.append(predicted)
        self._repeated.append(repeated)

    def _wait(self, event_id: str, node: int, tag: bytes, features: Features | None, said: bytes) -> None:
        """A slot is due: it is counted when so many more have come."""
        machine = self._machine
        machine.pending[event_id] = Slot(node, tag, features, 0, said)
        while len(machine.pending) > machine.system.config.records.label_slots:
            self._settle(*machine.pending.popitem(last=False))

    # Labels.

    def _label(self, one: Incoming, row: int, event_id: str, user: str, label: int) -> None:
        machine = self._machine
        past, slot = machine.past.get(event_id), machine.pending.get(event_id)
        whose = slot.user if slot is not None else None if past is None else past.user
        if whose is None:
            self._refuse(PdolRefusal.LABEL_WITHOUT_RECORD, one, row)
        elif whose != machine.tag(user):
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one, row)
        elif label not in (1, -1):
            self._refuse(PdolRefusal.UNKNOWN_LABEL, one, row)
        elif slot is None:
            self.counts[PdolOutcome.LATE_LABEL] += 1
        elif slot.label:
            self.counts[PdolOutcome.REPEATED_LABEL] += 1
        else:
            machine.pending[event_id] = slot._replace(label=label)
            self.counts[PdolOutcome.LABELLED] += 1
            self.learn(slot, label)

    # Who takes part, ends of phases, and erasures.

    def _join_or_leave(self, one: Incoming) -> None:
        """Slots that are open when their node leaves are counted as all others; what it comes with later is refused."""
        machine, node, present = self._machine, one.fields["node"], one.fields["present"]
        if self._stranger(node) is PdolRefusal.UNKNOWN_NODE:
            self._refuse(PdolRefusal.UNKNOWN_NODE, one)
            return
        machine.absent = machine.absent - {node} if present else machine.absent | {node}
        fields = {"node": node, "present": present, "config_digest": machine.system.digest}
        if not self._adopting:
            self.outputs.append(Output(*self.phase_ends, machine.chain.encode("Membership", fields)))
        self.counts[PdolOutcome.MEMBERSHIP] += 1

    def _phase_end(self, one: Incoming) -> None:
        machine, phase = self._machine, one.fields["phase"]
        if phase <= machine.ended_phase or one.fields["origin"] != -1:
            self._refuse(Refusal.BAD_PHASE, one)
            return
        machine.ended_phase = phase
        while machine.pending:
            self._settle(*machine.pending.popitem(last=False))
        self.flush()
        fields = {
            "phase": phase,
            "origin": machine.partition,
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        if not self._adopting:
            self.outputs.append(Output(*self.phase_ends, machine.chain.encode("Seal", fields)))
        self.counts[Outcome.PHASE_END] += 1

    def _forget(self, one: Incoming) -> None:
        """What waits of a person becomes null; that a slot is due stays, and so does what they have spent."""
        machine = self._machine
        if one.fields["config_digest"] != machine.system.digest:
            self._refuse(Refusal.OTHER_CONFIGURATION, one)
            return
        tag = machine.tag(one.fields["user"])
        for event_id, slot in machine.pending.items():
            if slot.user == tag:
                machine.pending[event_id] = slot._replace(features=None, said=b"")
        self.counts[Outcome.FORGOTTEN] += 1

    # Slots that are counted, and what leaves.

    def _settle(self, event_id: str, slot: Slot) -> None:
        machine = self._machine
        machine.events = (machine.events + machine.event_name(event_id)) % _EVENTS
        self.counts[Outcome.SLOT] += 1
        self.take(slot)

    def charge(self) -> Asked:
        """Debit a release that is about to be made; where it is refused, nothing may leave."""
        asked = self._machine.spending.ask(self._machine.charge())
        self._debits.append(debit_fields(asked.debit))
        return asked

    def released(self, asked: Asked, release_id: bytes, output: Output) -> None:
        """Send a release if it was paid for, and the entry that says so."""
        if asked.refused is None:
            self.outputs.append(output)
            self._released += 1
        self.counts[Outcome.RELEASE if asked.refused is None else Outcome.RELEASE_WITHHELD] += 1
        self._enter(release_id, asked)

    def _enter(self, release_id: bytes, asked: Asked) -> None:
        """The ledger's copy of the debit that opened a charge, or of nothing, where its price was refused."""
        if not asked.opens:
            return
        machine = self._machine
        entry = machine.system.ledger_entry(release_id, asked.debit, machine.key.reproducible)
        self.outputs.append(Output("ledger", machine.partition, machine.chain.encode("LedgerEntry", entry)))

    def release_id(self, *place: int) -> bytes:
        """The opaque id of what is released at a place, under the noise of the epoch."""
        machine = self._machine
        named = struct.pack(f"<{len(place) + 2}q", machine.partition, machine.epoch.number, *place)
        return machine.key.digest("release-id", machine.nonce, named)

    def _refuse(self, reason: str, one: Incoming, row: int = WHOLE_RECORD) -> None:
        machine, record, place = self._machine, one.record, one.place(row)
        source = machine.inputs[0]
        self.dead.append(machine.letters.letter(reason, *source, record.offset, place, record.value))
        self.counts[Outcome.REJECTED] += 1
