"""The role of a domain in the sound form: it predicts at the published model, and is the home of one continual counter.

A slot that is counted enters the open leaf with its gradient at the published model; after B slots the noised running
sum leaves, with a debit. The models of a batch are read before its records, so all of it is predicted at one version.

An epoch is another counter: what the one before released stands, and later leaves, the open one first, are summed under
noise of their own. No slot is in two counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.machine import TopicPartition
from hushstream.engine.models import ModelReader
from hushstream.engine.packed import Form
from hushstream.engine.state_parts import READER
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.pdol.counters import Counters
from hushstream.systems.pdol.deployment import TRACK, PdolSystem
from hushstream.systems.pdol.home import HomeMachine
from hushstream.systems.pdol.home_fold import HomeFold
from hushstream.systems.pdol.home_state import home_form
from hushstream.systems.pdol.local import NodePredictors
from hushstream.systems.pdol.node import NodeState
from hushstream.systems.pdol.node_fold import NodeFold


class NodeMachine(HomeMachine):
    """One domain."""

    form: ClassVar[Form] = home_form(
        "a domain's state",
        "NodeState",
        reader=READER,
        version="int",
        model_phase="long",
        weights="bytes",
        predictors="bytes",
        node="bytes",
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

    def dump_own(self) -> dict[str, Any]:
        """See `HomeMachine.dump_own`: exact sums are in it."""
        return {
            "reader": self.reader.dump(),
            "version": self.model_version,
            "model_phase": self.model_phase,
            "weights": self.model.astype("<i4").tobytes(),
            "predictors": b"" if self.predictors is None else self.predictors.dump(),
            "node": self.node.dump(),
        }

    def load_own(self, state: Mapping[str, Any]) -> None:
        self.reader.resume(state["reader"])
        self.model_version, self.model_phase = state["version"], state["model_phase"]
        self.model = np.frombuffer(state["weights"], "<i4").astype(np.int32)
        if self.predictors is not None:
            self.predictors.load(state["predictors"])
        self.node.load(state["node"])
