"""What a home shares: a domain predicts with the published model, and has one continual counter.

A counted slot adds its moments, or its gradient at the published model, to the open leaf. After B slots the noised
running sum is released, with a debit. Models are read before a batch's records, so the whole batch is predicted by one
version. A new epoch has a new counter: earlier releases stay, and later leaves, the open one first, are summed under
new noise. No slot is in two counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.records import InputSlice, TopicPartition
from hushstream.engine.state.declared import (
    FIXED,
    READER,
    DeclaresFields,
    Field,
    integer,
    optional_part,
    own_part,
    rows,
)
from hushstream.systems.pdol.algorithm.aggregate import Model
from hushstream.systems.pdol.algorithm.counters import Counters, NodeState
from hushstream.systems.pdol.algorithm.local import SHOWN, NodePredictors
from hushstream.systems.pdol.algorithm.moments import takes_moments
from hushstream.systems.pdol.algorithm.rows import Rows, Slot, labelled, predictions, scores
from hushstream.systems.pdol.guarantee import TRACK, PdolSystem


class CounterSharing(DeclaresFields):
    """Noised sums of the moments or gradients of one domain."""

    fields: ClassVar[Mapping[str, Field]] = {
        "reader": own_part(READER),
        "version": integer("int"),
        "model_phase": integer(),
        "model": rows("<i4", disk="weights"),
        "predictors": optional_part("predictors"),
        "node": own_part(),
    }
    derived: ClassVar[Mapping[str, str]] = {
        "_dimension": FIXED,
        "_slots": FIXED,
        "_first": FIXED,
    }

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
            self.predictors = NodePredictors(len(nodes), config.records.dimension)
        self.node: NodeState
        self._dimension = config.records.dimension
        self._slots = config.slots_of(partition)
        self._first = nodes.start
        """The domain's first node."""

    @property
    def readers(self) -> Sequence[ModelReader]:
        """Readers of published models."""
        return (self.reader,)

    @property
    def read(self) -> Mapping[TopicPartition, int]:
        """Next offset of each broadcast."""
        return {self.reader.topic: self.reader.position}

    @property
    def predicts_in_floats(self) -> bool:
        """Whether a replayed prediction may differ by a rounding."""
        return self.predictors is not None or takes_moments(self._dimension)

    # Noise.

    def open_noise(self, partition: int, counters: Counters) -> None:
        """Begin before the first slot, under the noise of the home's epoch."""
        self.node = NodeState(partition, counters, self._slots)

    # A batch.

    def on_broadcast(self, part: InputSlice) -> Mapping[str, int]:
        """Take versions of the model; returns their number by outcome."""
        adopted = 0
        for record in self.reader.read(part):
            self._adopt(record.fields)
            adopted += 1
        return {Outcome.MODEL_ADOPTED: adopted} if adopted else {}

    def _adopt(self, fields: Mapping[str, Any]) -> None:
        """Take over a version of the model; a home solves sums of moments, in floats of its own machine."""
        moments = takes_moments(self._dimension)
        weights = np.frombuffer(fields["weights"], "<i8" if moments else "<i4")
        solved = Model(fields["version"], weights, fields["releases"], fields["deviation"]).solved(self._dimension)
        self.model, self.version, self.model_phase = solved.weights, fields["version"], fields["phase"]
        if self.predictors is not None:
            self.predictors.adopt(solved)

    def predictions(self, records: Rows) -> Sequence[int] | None:
        """The labels of a batch by the published model alone; None if nodes have experts, who learn within it."""
        if self.predictors is not None:
            return None
        labels: list[int] = predictions(scores(records, self.model)).tolist()
        return labels

    def predict(self, node: int, record: Rows, coin: float) -> tuple[int, bytes]:
        """What the node's experts predict for a record under its guard, and their votes.

        The coin is uniform in [0, 1), and this event's own.
        """
        assert self.predictors is not None
        votes = self.predictors.predict(self._local(node), record, self.model, np.array([coin]))[0]
        return int(votes[SHOWN]), votes.tobytes()

    def learn(self, slot: Slot, label: int) -> None:
        """Let the node's experts, who are in the edge zone, learn from a label, if they predicted the record.

        No release may depend on a label before its slot is counted.
        """
        if self.predictors is None:
            return
        node, votes = self._local(slot.node), np.frombuffer(slot.votes, np.int8)[None]
        self.predictors.close(node, np.array([label], np.int8), votes)
        if slot.features is not None:
            self.predictors.learn(node, labelled([slot._replace(label=label)]), self.model, votes)

    def _local(self, node: int) -> NDArray[np.int64]:
        """The node's number within its domain."""
        return np.array([node - self._first])

    # Slots that are counted, and the leaf that they fill.

    @property
    def until_release(self) -> int:
        """After how many counted slots the next release follows: a full leaf is released."""
        return self._slots - self.node.slots

    def add(self, slots: Sequence[Slot]) -> None:
        """Add the moments or gradients of counted slots to the leaf, all at once; no release follows them yet."""
        if slots:
            self.node.fold(labelled(slots), self.model)
