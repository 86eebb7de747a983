"""The aggregator: from noised sums to versions of the mean rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Identity
from hushstream.engine.publishing import PUBLISHING, PublishingRole
from hushstream.engine.records import InputRecord
from hushstream.engine.refusals import Refused
from hushstream.engine.state.declared import State, boolean, rows
from hushstream_meanarm.core import SERVER, Meanarm

MALFORMED = "malformed_sums"


class AggregatorMachine(PublishingRole):
    """The one track of means."""

    state = State("means", 1, "MeansState", PUBLISHING, sums=rows("<i8"), as_stated=boolean())
    floats: ClassVar[Mapping[str, str]] = {"means": "<f8"}
    margin: ClassVar[float] = 1e-9
    system: Meanarm
    expects = frozenset({"ArmSums"})

    def __init__(self, system: Meanarm) -> None:
        """Bind to a deployment."""
        identity = Identity("aggregator", system.config.deployment, system.digest, ("models", 0))
        super().__init__(system, identity, "ArmMeans", ("sums", 0), SERVER, origins=0)
        self.sums = np.zeros((2, system.config.arms), dtype="<i8")
        self.as_stated = True

    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> bool:
        """All sums give a version."""
        if len(fields["sums"]) != self.sums.nbytes:
            raise Refused(MALFORMED)
        if not self.first_time(fields["sums_id"].hex()):
            gathered.counts[Outcome.REPEATED_RELEASE] += 1
            return False
        self.sums = self.sums + np.frombuffer(fields["sums"], "<i8").reshape(self.sums.shape)
        self.as_stated &= fields["private_as_stated"]
        return True

    def on_phase_end(self) -> bool:
        """There are no phases."""
        return False

    def version_fields(self) -> dict[str, Any]:
        """The means, with one reward of 0.5 for each arm that nothing is known of."""
        slots, rewards = np.maximum(self.sums, 0)
        means = ((rewards + 0.5) / (slots + 1)).astype("<f8").tobytes()
        return {"means": means, "private_as_stated": self.as_stated, "digest": self._digester.digest("means", means)}
