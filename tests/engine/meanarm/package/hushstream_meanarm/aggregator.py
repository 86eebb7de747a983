"""The aggregator: from noised sums to versions of the mean rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hushstream.engine.batch import Batch
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Rounding
from hushstream.engine.learner.model_parts import aggregator_identity
from hushstream.engine.one_input import PUBLISHING, PublishingRole
from hushstream.engine.records import InputSlice, Step
from hushstream.engine.state.declared import State, boolean, rows
from hushstream_meanarm.core import SERVER, Meanarm


class AggregatorMachine(PublishingRole):
    """The one track of means."""

    state = State("means", "MeansState", PUBLISHING, sums=rows("<i8"), as_stated=boolean())
    rounding = Rounding({"means": "<f8"}, 1e-9, ("digest",))
    system: Meanarm

    def __init__(self, system: Meanarm, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        super().__init__(system, aggregator_identity(system, track), "ArmMeans", ("sums", 0), SERVER)
        self.sums = np.zeros((2, system.config.arms), dtype="<i8")
        self.as_stated = True

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """All sums give a version."""
        batch = Batch(self)
        for record, _, fields, reason in self.read(slices, frozenset({"ArmSums"})):
            if reason or len(fields["sums"]) != self.sums.nbytes:
                batch.refuse(reason or Refusal.MALFORMED_RELEASE, record)
            elif not self.first_time(fields["sums_id"].hex()):
                batch.counts[Outcome.REPEATED_RELEASE] += 1
            else:
                self.sums = self.sums + np.frombuffer(fields["sums"], "<i8").reshape(self.sums.shape)
                self.as_stated &= fields["private_as_stated"]
                self.publish(record.offset + 1, self._means(), batch)
        return self.finished(slices, batch)

    def _means(self) -> dict[str, Any]:
        """The means, with one reward of 0.5 for each arm that nothing is known of."""
        slots, rewards = np.maximum(self.sums, 0)
        means = ((rewards + 0.5) / (slots + 1)).astype("<f8").tobytes()
        return {
            "means": means,
            "private_as_stated": self.as_stated,
            "digest": self.chain.digester.digest("means", means),
        }
