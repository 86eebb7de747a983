"""One batch of a domain in the sound form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.machine import InputSlice, Output, TopicPartition
from hushstream.engine.outcomes import Outcome
from hushstream.systems.pdol.gradient import predictions, scores
from hushstream.systems.pdol.home_fold import HomeFold
from hushstream.systems.pdol.incoming import Slots
from hushstream.systems.pdol.slot import Slot, labelled

if TYPE_CHECKING:
    from hushstream.systems.pdol.node_machine import NodeMachine


class NodeFold(HomeFold):
    """See `HomeFold`."""

    def __init__(self, machine: NodeMachine, journaled: NDArray[np.int8] | None, adopting: bool) -> None:
        """See `HomeFold`; where ``adopting``, a leaf that fills is dropped."""
        super().__init__(machine, journaled, adopting)
        self._domain = machine
        self._counted: list[Slot] = []

    @property
    def phase_ends(self) -> TopicPartition:
        return ("releases", 0)

    def hear(self, part: InputSlice) -> None:
        """See `HomeFold.hear`: versions of the model."""
        machine = self._domain
        for record in machine.reader.read(part):
            machine.model = np.frombuffer(record.fields["weights"], "<i4").astype(np.int32)
            machine.model_version, machine.model_phase = record.fields["version"], record.fields["phase"]
            self.counts[Outcome.MODEL_ADOPTED] += 1

    def prepare(self, slots: Slots) -> None:
        self._scored: list[int] = predictions(scores(slots.rows, self._domain.model)).tolist()

    def predict(self, slots: Slots, place: int) -> tuple[int, bytes]:
        """See `HomeFold.predict`: by the published model, or by the vote of the node's experts."""
        machine = self._domain
        if machine.predictors is None:
            return self._scored[place], b""
        row = slots.rows.part(place, place + 1)
        said = machine.predictors.predict(self._local(slots.nodes[place]), row, machine.model)[0]
        return int(said[-1]), said.tobytes()

    def learn(self, slot: Slot, label: int) -> None:
        """See `HomeFold.learn`: the node's own learners are in the edge zone."""
        machine = self._domain
        if machine.predictors is not None and slot.said and slot.features is not None:
            rows, said = labelled([slot._replace(label=label)]), np.frombuffer(slot.said, np.int8)[None, :-1]
            machine.predictors.learn(self._local(slot.node), rows, machine.model, said)

    def _local(self, node: int) -> NDArray[np.int64]:
        """The node's number within its domain."""
        machine = self._domain
        return np.array([node - machine.system.config.nodes_of(machine.partition).start])

    def take(self, slot: Slot) -> None:
        self._counted.append(slot)
        if len(self._counted) == self._domain.node.room:
            self.flush()

    def flush(self) -> None:
        """See `HomeFold.flush`: slots go into the leaf, and a full one leaves."""
        if not self._counted:
            return
        node = self._domain.node
        node.fold(labelled(self._counted), self._domain.model)
        self._counted = []
        if node.room:
            return
        if self._adopting:
            node.drop_leaf()
        else:
            self._release()

    def _release(self) -> None:
        machine = self._domain
        asked = self.charge()
        release = machine.node.release(machine.events.to_bytes(16, "little"))
        release_id = self.release_id(release.generation, release.leaves)
        fields = machine.system.release_fields(release, release_id, machine.epoch.number, machine.key.reproducible)
        self.released(asked, release_id, Output("releases", 0, machine.chain.encode("GradientSum", fields)))
