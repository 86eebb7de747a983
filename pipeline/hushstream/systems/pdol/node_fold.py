"""One batch of a domain: what models, records, labels and ends of phases do to it, and what follows from them."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.budget import debit_fields
from hushstream.engine.machine import InputRecord, InputSlice, Output, Step
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.spending import Asked
from hushstream.schemas.rows import id_fault
from hushstream.systems.pdol.edge import within_allowance
from hushstream.systems.pdol.gradient import predictions, scores
from hushstream.systems.pdol.incoming import KINDS, Incoming, Slots, labelled
from hushstream.systems.pdol.node import NodeRelease
from hushstream.systems.pdol.outcomes import PdolOutcome, PdolRefusal
from hushstream.systems.pdol.rows import Rows, null_rows
from hushstream.systems.pdol.slot import Past, Slot

if TYPE_CHECKING:
    from hushstream.systems.pdol.node_machine import NodeMachine

_EVENTS = 1 << 128


class NodeFold:
    """A batch on its way.

    Attributes:
        outputs: what is released after the journal record.
        dead: dead letters.
        counts: events by outcome.
    """

    def __init__(self, machine: NodeMachine, journaled: NDArray[np.int8] | None = None, adopting: bool = False) -> None:
        """Begin.

        Args:
            machine: it is changed.
            journaled: what the journal says was predicted, where floats may differ by a rounding.
            adopting: nothing is released: a leaf that fills is dropped, as what it was is out already.
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
        self._settled: list[tuple[Rows, int]] = []
        self._released = 0

    def run(self, covered: Sequence[InputSlice]) -> None:
        """Fold models, then records."""
        for part in covered:
            if part.topic == "models":
                self._adopt(part)
            else:
                self._fold_records(part)

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

    def step(self, journal: bytes | None) -> Step:
        """What the driver sends."""
        return Step(journal, tuple(self.outputs), tuple(self.dead), self.counts)

    def _adopt(self, part: InputSlice) -> None:
        machine = self._machine
        for record in machine.reader.read(part):
            machine.model = np.frombuffer(record.fields["weights"], "<i4").astype(np.int32)
            machine.version, machine.model_phase = record.fields["version"], record.fields["phase"]
            self.counts[Outcome.MODEL_ADOPTED] += 1

    # Records.

    def _fold_records(self, part: InputSlice) -> None:
        machine = self._machine
        decoded = machine.decode(part)
        asked = [one.fields for one in decoded if one.name == "Record"]
        if asked:
            self._slots = Slots.of(asked, machine.system.config.records.dimension)
            self._scored = predictions(scores(self._slots.rows, machine.model))
        place = 0
        for one in decoded:
            if one.name == "Record":
                self._record(one, place)
                place += 1
            else:
                self._other(one)
        self._count()
        machine.position = part.high

    def _other(self, one: Incoming) -> None:
        if one.name not in KINDS:
            self._refuse(one.name, one.record)
        elif one.name == "Label":
            self._label(one)
        elif one.name == "Seal":
            self._seal(one)
        else:
            self._forget(one)

    def _record(self, one: Incoming, place: int) -> None:
        machine, fields = self._machine, one.fields
        event_id, user, node = fields["event_id"], fields["user"], fields["node"]
        reason = id_fault(event_id) or id_fault(user) or self._stranger(node)
        if reason is not None:
            self._refuse(str(reason), one.record)
            return
        tag, past = machine.tag(user), machine.past.get(event_id)
        if past is not None:
            self._repeat(one, past.user == tag, past.predicted)
            return
        row, good = self._slots.rows.part(place, place + 1), bool(self._slots.good[place])
        said = self._said(node, row) if good else b""
        predicted = self._prediction(place, said) if good else 0
        self._answer(event_id, tag, predicted)
        if not good:
            self.counts[PdolOutcome.NULL_RECORD] += 1
        cap = machine.system.config.records.records_per_user
        if not within_allowance(machine.spent, [tag], cap)[0]:
            self.counts[Outcome.ALLOWANCE_SPENT] += 1
            row = null_rows(1)
        self._wait(event_id, node, tag, row, said)

    def _stranger(self, node: int) -> PdolRefusal | None:
        machine = self._machine
        known = node in machine.system.config.nodes_of(machine.partition)
        return None if known else PdolRefusal.UNKNOWN_NODE

    def _repeat(self, one: Incoming, own: bool, predicted: int) -> None:
        if not own:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one.record)
            return
        self._note(one.fields["event_id"], predicted, repeated=True)
        self.counts[PdolOutcome.REPEATED_RECORD] += 1

    def _prediction(self, place: int, said: bytes) -> int:
        """By the published model, or by the vote of the node's experts."""
        if not said:
            return int(self._scored[place])
        vote = int(np.frombuffer(said, np.int8)[-1])
        if self._journaled is None:
            return vote
        journaled = int(self._journaled[len(self._predicted)])
        self._machine.float_ties += journaled != vote
        return journaled

    def _said(self, node: int, row: Rows) -> bytes:
        machine = self._machine
        if machine.predictors is None:
            return b""
        said: bytes = machine.predictors.predict(self._local(node), row, machine.model)[0].tobytes()
        return said

    def _local(self, node: int) -> NDArray[np.int64]:
        """The node's number within its domain."""
        machine = self._machine
        return np.array([node - machine.system.config.nodes_of(machine.partition).start])

    def _answer(self, event_id: str, tag: bytes, predicted: int) -> None:
        self._machine.past.put(event_id, Past(tag, predicted))
        self._note(event_id, predicted, repeated=False)
        self.counts[PdolOutcome.PREDICTED] += 1

    def _note(self, event_id: str, predicted: int, *, repeated: bool) -> None:
        self._event_ids.append(event_id)
        self._predicted.append(predicted)
        self._repeated.append(repeated)

    def _wait(self, event_id: str, node: int, tag: bytes, row: Rows, said: bytes) -> None:
        """A slot is due: it is counted when so many more have come."""
        machine = self._machine
        machine.pending[event_id] = Slot(node, tag, row, 0, said)
        while len(machine.pending) > machine.system.config.records.label_slots:
            self._settle(*machine.pending.popitem(last=False))

    # Labels.

    def _label(self, one: Incoming) -> None:
        machine, fields = self._machine, one.fields
        event_id, label = fields["event_id"], fields["label"]
        past, slot = machine.past.get(event_id), machine.pending.get(event_id)
        whose = slot.user if slot is not None else None if past is None else past.user
        if whose is None:
            self._refuse(PdolRefusal.LABEL_WITHOUT_RECORD, one.record)
        elif whose != machine.tag(fields["user"]):
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one.record)
        elif label not in (1, -1):
            self._refuse(PdolRefusal.UNKNOWN_LABEL, one.record)
        elif slot is None:
            self.counts[PdolOutcome.LATE_LABEL] += 1
        elif slot.label:
            self.counts[PdolOutcome.REPEATED_LABEL] += 1
        else:
            machine.pending[event_id] = slot._replace(label=label)
            self.counts[PdolOutcome.LABELLED] += 1
            self._learn(slot, label)

    def _learn(self, slot: Slot, label: int) -> None:
        """The node's own learners, in the edge zone: nothing that is released depends on them."""
        predictors, machine = self._machine.predictors, self._machine
        if predictors is None or not slot.said:
            return
        rows = labelled([(slot.rows, label)])
        if rows.labels[0]:
            said = np.frombuffer(slot.said, np.int8)[None, :-1]
            predictors.learn(self._local(slot.node), rows, machine.model, said)

    # Ends of phases, and erasures.

    def _seal(self, one: Incoming) -> None:
        machine, phase = self._machine, one.fields["phase"]
        if phase <= machine.sealed_phase or one.fields["origin"] != -1:
            self._refuse(Refusal.BAD_PHASE, one.record)
            return
        machine.sealed_phase = phase
        while machine.pending:
            self._settle(*machine.pending.popitem(last=False))
        self._count()
        fields = {
            "phase": phase,
            "origin": machine.partition,
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        if not self._adopting:
            self.outputs.append(Output("releases", 0, machine.chain.encode("Seal", fields)))
        self.counts[Outcome.SEAL] += 1

    def _forget(self, one: Incoming) -> None:
        """What waits of a person becomes null; that a slot is due stays, and so does what they have spent."""
        machine = self._machine
        if one.fields["config_digest"] != machine.system.digest:
            self._refuse(Refusal.OTHER_CONFIGURATION, one.record)
            return
        tag = machine.tag(one.fields["user"])
        for event_id, slot in machine.pending.items():
            if slot.user == tag:
                machine.pending[event_id] = slot._replace(rows=null_rows(1), said=b"")
        self.counts[Outcome.FORGOTTEN] += 1

    # Slots that are counted.

    def _settle(self, event_id: str, slot: Slot) -> None:
        machine = self._machine
        machine.events = (machine.events + machine.event_name(event_id)) % _EVENTS
        self._settled.append((slot.rows, slot.label))
        self.counts[Outcome.SLOT] += 1
        if len(self._settled) == machine.node.room:
            self._count()

    def _count(self) -> None:
        """Slots that have settled go into the leaf, and a full one leaves."""
        if not self._settled:
            return
        machine = self._machine
        machine.node.fold(labelled(self._settled), machine.model)
        self._settled = []
        if machine.node.room:
            return
        if self._adopting:
            machine.node.drop_leaf()
        else:
            self._release()

    def _release(self) -> None:
        machine = self._machine
        asked = machine.spending.ask(machine.charge())
        release = machine.node.release(machine.events.to_bytes(16, "little"))
        self._debits.append(debit_fields(asked.debit))
        place = struct.pack("<qqqq", machine.partition, machine.epoch.number, release.generation, release.leaves)
        release_id = machine.key.digest("release-id", machine.nonce, place)
        if asked.refused is None:
            self._send(release, release_id)
        else:
            self.counts[Outcome.RELEASE_WITHHELD] += 1
        self._enter(release_id, asked)

    def _send(self, release: NodeRelease, release_id: bytes) -> None:
        machine = self._machine
        fields = machine.system.release_fields(release, release_id, machine.epoch.number, machine.key.reproducible)
        self.outputs.append(Output("releases", 0, machine.chain.encode("GradientSum", fields)))
        self._released += 1
        self.counts[Outcome.RELEASE] += 1

    def _enter(self, release_id: bytes, asked: Asked) -> None:
        """The ledger's copy of the debit that opened a charge, or of nothing, where its price was refused."""
        if not asked.opens:
            return
        machine = self._machine
        entry = machine.system.ledger_entry(release_id, asked.debit, machine.key.reproducible)
        self.outputs.append(Output("ledger", machine.partition, machine.chain.encode("LedgerEntry", entry)))

    def _refuse(self, reason: str, record: InputRecord) -> None:
        machine = self._machine
        source = machine.inputs[0]
        self.dead.append(machine.letters.letter(reason, *source, record.offset, value=record.value))
        self.counts[Outcome.REJECTED] += 1
