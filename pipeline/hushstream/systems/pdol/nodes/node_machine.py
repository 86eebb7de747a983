"""The role of a domain in the sound form: it predicts at the published model, and is the home of one continual counter.

A slot that is counted enters the open leaf with its gradient at the published model; after B slots the noised running
sum leaves, with a debit. The models of a batch are read before its records, so all of it is predicted at one version.

An epoch is another counter: what the one before released stands, and later leaves, the open one first, are summed under
noise of their own. No slot is in two counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.records import InputSlice, Output, TopicPartition
from hushstream.engine.state.declared import integer, optional_part, own_part, rows
from hushstream.engine.state.parts import READER
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.pdol.algorithm.counters import Counters
from hushstream.systems.pdol.algorithm.gradient import predictions, scores
from hushstream.systems.pdol.algorithm.local import NodePredictors
from hushstream.systems.pdol.algorithm.node import NodeState
from hushstream.systems.pdol.algorithm.slot import Slot, labelled
from hushstream.systems.pdol.deployment import TRACK, PdolSystem
from hushstream.systems.pdol.nodes.home import HomeFold, HomeMachine, home_state
from hushstream.systems.pdol.nodes.incoming import Slots


class NodeMachine(HomeMachine):
    """One domain."""

    state = home_state(
        "a domain's state",
        "NodeState",
        reader=own_part(READER),
        model_version=integer("int", disk="version"),
        model_phase=integer(),
        model=rows("<i4", disk="weights"),
        predictors=optional_part("predictors"),
        node=own_part(),
    )

    def __init__(self, system: PdolSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        self.reader = ModelReader(system, 0, TRACK, "LinearModel")
        self.model: NDArray[np.int32] = np.zeros(system.config.records.dimension, dtype=np.int32)
        self.model_version = 0
        self.model_phase = -1
        """The last phase that the model in use knows of."""
        super().__init__(system, partition, key, ring)
        self.predictors = self._open_predictors()

    def _open_predictors(self) -> NodePredictors | None:
        config = self.system.config
        if config.prediction.place != "node":
            return None
        return NodePredictors(len(config.nodes_of(self.partition)), config.records.dimension, config.prediction)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return (self.reader.topic,)

    @property
    def readers(self) -> Sequence[ModelReader]:
        return (self.reader,)

    @property
    def read(self) -> Mapping[TopicPartition, int]:
        return {self.reader.topic: self.reader.position}

    @property
    def held_phase(self) -> int:
        return self.model_phase

    @property
    def version(self) -> int:
        return self.model_version

    @property
    def draws_ahead(self) -> bool:
        return self.node.reaches_ahead

    @property
    def predicts_in_floats(self) -> bool:
        return self.predictors is not None

    def open_noise(self) -> None:
        self.node = NodeState(self.partition, self._counters(), self.system.config.slots_of(self.partition))

    def redraw_noise(self) -> None:
        self.node.redraw(self._counters())

    def skip(self, releases: int) -> None:
        self.node.skip(releases)

    def begin_fold(self, journaled: NDArray[np.int8] | None = None, adopting: bool = False) -> HomeFold:
        return NodeFold(self, journaled, adopting)

    def _counters(self) -> Counters:
        """The domain's counters under the noise of this epoch."""
        return self.system.counters(self.key, self.nonce, self.epoch.number, self.partition)


class NodeFold(HomeFold):
    """One batch of a domain in the sound form."""

    def __init__(self, machine: NodeMachine, journaled: NDArray[np.int8] | None, adopting: bool) -> None:
        """See `HomeFold`; where ``adopting``, a leaf that fills is dropped."""
        super().__init__(machine, journaled, adopting)
        self._domain = machine
        self._counted: list[Slot] = []

    @property
    def phase_ends(self) -> TopicPartition:
        return ("releases", 0)

    def on_broadcast(self, part: InputSlice) -> None:
        """See `HomeFold.on_broadcast`: versions of the model."""
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
        if len(self._counted) == self._domain.node.capacity_left:
            self.flush()

    def flush(self) -> None:
        """See `HomeFold.flush`: slots go into the leaf, and a full one leaves."""
        if not self._counted:
            return
        node = self._domain.node
        node.fold(labelled(self._counted), self._domain.model)
        self._counted = []
        if node.capacity_left:
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
