"""The sound form of sharing: a domain predicts with the published model, and has one continual counter.

A counted slot adds its gradient at the published model to the open leaf. After B slots the noised running sum is
released, with a debit. Models are read before a batch's records, so the whole batch is predicted by one version. A new
epoch has a new counter: earlier releases stay, and later leaves, the open one first, are summed under new noise. No
slot is in two counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.records import InputSlice, Output, TopicPartition
from hushstream.engine.state.declared import FIXED, DeclaresFields, Field, integer, optional_part, own_part, rows
from hushstream.engine.state.parts import READER
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.pdol.algorithm.counters import Counters
from hushstream.systems.pdol.algorithm.gradient import predictions, scores
from hushstream.systems.pdol.algorithm.local import NodePredictors
from hushstream.systems.pdol.algorithm.node import NodeState
from hushstream.systems.pdol.algorithm.rows import Slot, labelled
from hushstream.systems.pdol.deployment import TRACK, PdolSystem
from hushstream.systems.pdol.nodes.home import HomeMachine, Slots, home_state


class CounterSharing(DeclaresFields):
    """Noised sums of the gradients of one domain."""

    fields: ClassVar[Mapping[str, Field]] = {
        "reader": own_part(READER),
        "version": integer("int"),
        "model_phase": integer(),
        "model": rows("<i4", disk="weights"),
        "predictors": optional_part("predictors"),
        "node": own_part(),
    }
    derived: ClassVar[Mapping[str, str]] = {
        "_slots": FIXED,
        "_first": FIXED,
    }
    state = home_state("a domain's state", "NodeState", fields)
    phase_ends: TopicPartition = ("releases", 0)

    def __init__(self, system: PdolSystem, partition: int) -> None:
        """Begin before the first model; `open_noise` opens the counter."""
        config = system.config
        self.reader = ModelReader(system, 0, TRACK, "LinearModel")
        self.model: NDArray[np.int32] = np.zeros(config.records.dimension, dtype=np.int32)
        self.version = 0
        self.model_phase = -1
        """The last phase that the current model contains."""
        nodes = config.nodes_of(partition)
        self.predictors: NodePredictors | None = None
        if config.prediction.place == "node":
            self.predictors = NodePredictors(len(nodes), config.records.dimension, config.prediction)
        self.node: NodeState
        self._slots = config.slots_of(partition)
        self._first = nodes.start
        """The domain's first node."""

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
    def draws_ahead(self) -> bool:
        return self.node.draws_ahead

    @property
    def predicts_in_floats(self) -> bool:
        return self.predictors is not None

    def predictor_phase(self, ended_phase: int) -> int:
        return self.model_phase

    # Noise.

    def open_noise(self, home: HomeMachine) -> None:
        self.node = NodeState(home.partition, _counters(home), self._slots)

    def redraw_noise(self, home: HomeMachine) -> None:
        self.node.redraw(_counters(home))

    # A batch.

    def on_broadcast(self, part: InputSlice) -> Mapping[str, int]:
        """See `Sharing.on_broadcast`: versions of the model."""
        adopted = 0
        for record in self.reader.read(part):
            self.model = np.frombuffer(record.fields["weights"], "<i4").astype(np.int32)
            self.version, self.model_phase = record.fields["version"], record.fields["phase"]
            adopted += 1
        return {Outcome.MODEL_ADOPTED: adopted} if adopted else {}

    def predictions(self, slots: Slots) -> Sequence[int] | None:
        """See `Sharing.predictions`: by the published model alone, if nodes have no experts."""
        if self.predictors is not None:
            return None
        labels: list[int] = predictions(scores(slots.rows, self.model)).tolist()
        return labels

    def predict(self, slots: Slots, place: int) -> tuple[int, bytes]:
        """See `Sharing.predict`: by a vote of the node's experts."""
        assert self.predictors is not None
        row = slots.rows.part(place, place + 1)
        predicted = self.predictors.predict(self._local(slots.nodes[place]), row, self.model)[0]
        return int(predicted[-1]), predicted.tobytes()

    def learn(self, slot: Slot, label: int) -> None:
        """See `Sharing.learn`: the node's own learners are in the edge zone."""
        if self.predictors is not None and slot.features is not None:
            rows, votes = labelled([slot._replace(label=label)]), np.frombuffer(slot.votes, np.int8)[None, :-1]
            self.predictors.learn(self._local(slot.node), rows, self.model, votes)

    def _local(self, node: int) -> NDArray[np.int64]:
        """The node's number within its domain."""
        return np.array([node - self._first])

    # Slots that are counted, and the leaf that they fill.

    @property
    def until_release(self) -> int:
        """See `Sharing.until_release`: a full leaf is released."""
        return self._slots - self.node.slots

    def add(self, slots: Sequence[Slot]) -> None:
        """See `Sharing.add`: adds their gradients to the leaf, all at once."""
        if slots:
            self.node.fold(labelled(slots), self.model)

    def release(self, home: HomeMachine, slots: Sequence[Slot]) -> tuple[bytes, Output]:
        """See `Sharing.release`: the noised running sum."""
        self.add(slots)
        made = self.node.release(home.events.to_bytes(16, "little"))
        release_id = home.release_id(made.generation, made.leaves)
        fields = {
            "release_id": release_id,
            "config_digest": home.system.digest,
            "mechanism": home.system.config.sharing.counter,
            "domain": made.domain,
            "epoch": home.epoch.number,
            "generation": made.generation,
            "leaf": made.leaves,
            "slots": made.slots,
            "last": made.last,
            "sums": made.values.astype("<i8").tobytes(),
            **home.system.stated[home.system.as_stated(home.key.reproducible)],
        }
        return release_id, Output("releases", 0, home.chain.encode("GradientSum", fields))

    def drop(self) -> None:
        self.node.drop_leaf()

    def skip(self, releases: int) -> None:
        self.node.skip(releases)


def _counters(home: HomeMachine) -> Counters:
    """The domain's counters under the noise of this epoch."""
    return home.system.counters(home.key, home.nonce, home.epoch.number, home.partition)


def counter_home(system: PdolSystem, partition: int, key: Key, ring: KeyRing | None = None) -> HomeMachine:
    """A domain in the sound form; arguments as `HomeMachine`."""
    return HomeMachine(system, partition, CounterSharing(system, partition), key, ring)
