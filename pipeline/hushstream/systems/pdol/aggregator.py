"""The aggregator of PDOL: makes versions of one linear model from noised running sums. It holds public values alone.

A version follows when enough domains have released (`Aggregate.due`), and when all of them have ended a phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.models import aggregator_identity
from hushstream.engine.one_input import Gathered
from hushstream.engine.publishing import PUBLISHING, PublishingRole
from hushstream.engine.records import InputSlice, Step
from hushstream.engine.refusals import Refused
from hushstream.engine.state.declared import Single, State, boolean
from hushstream.systems.pdol.algorithm.aggregate import Aggregate, Taken
from hushstream.systems.pdol.algorithm.node import NodeRelease
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.errors import BadRelease
from hushstream.systems.pdol.outcomes import PdolOutcome
from hushstream.systems.pdol.topics import SERVER_ZONE

_TAKEN: Mapping[Taken, str] = {
    Taken.TAKEN: Outcome.RELEASE,
    Taken.STALE: PdolOutcome.STALE_RELEASE,
    Taken.SCREENED: PdolOutcome.SCREENED,
}


def _pack_arrays(aggregate: Aggregate) -> Mapping[str, bytes]:
    return {name: held.tobytes() for name, held in aggregate.dump().items()}


def _unpack_arrays(arrays: Mapping[str, bytes], aggregate: Aggregate) -> Aggregate:
    like = aggregate.dump()
    aggregate.load({name: np.frombuffer(arrays[name], held.dtype).reshape(held.shape) for name, held in like.items()})
    return aggregate


_KINDS = frozenset({"GradientSum", "Membership", "Seal"})


class AggregatorMachine(PublishingRole):
    """The aggregator of the one model track."""

    state = State(
        "a linear aggregator's state",
        2,
        "LinearAggregatorState",
        PUBLISHING,
        as_stated=boolean(),
        aggregate=Single({"type": "map", "values": "bytes"}, _pack_arrays, _unpack_arrays, disk="arrays"),
    )
    system: PdolSystem

    def __init__(self, system: PdolSystem, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        identity, origins = aggregator_identity(system, track), system.counts["learner"]
        super().__init__(system, identity, "LinearModel", ("releases", track), SERVER_ZONE, origins)
        self.aggregate = Aggregate(system.config)
        self.as_stated = True

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one version when enough domains have released, and one when all have ended a phase."""
        gathered = Gathered(self)
        for record, name, fields, reason in self.read(slices, _KINDS):
            due = False
            try:
                if reason:
                    raise Refused(reason)
                if name == "Seal":
                    # Publish a version at every phase end: clients may wait for the model of that phase.
                    due = self.ends_phase(fields, gathered)
                elif name == "Membership":
                    due = self._on_membership(fields, gathered)
                else:
                    due = self._on_release(fields, gathered)
            except Refused as error:
                gathered.refuse(error.reason, record)
            if due:
                self.publish(record.offset + 1, self._version(), gathered)
        return self.finished(slices, gathered)

    def _on_release(self, fields: dict[str, Any], gathered: Gathered) -> bool:
        if not self.first_time(fields["release_id"].hex()):
            gathered.counts[Outcome.REPEATED_RELEASE] += 1
            return False
        try:
            taken = self.aggregate.on_release(parse_release(fields))
        except BadRelease:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        if taken is Taken.TAKEN:
            self.as_stated = self.as_stated and fields["private_as_stated"]
        gathered.counts[_TAKEN[taken]] += 1
        return self.aggregate.due

    def _on_membership(self, fields: dict[str, Any], gathered: Gathered) -> bool:
        try:
            self.aggregate.on_membership(fields["node"], fields["present"])
        except BadRelease:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        gathered.counts[PdolOutcome.MEMBERSHIP] += 1
        return self.aggregate.due

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        model = self.aggregate.publish()
        weights = model.weights.astype("<i4").tobytes()
        return {
            "phase": self.phase_ends.complete,
            "dimension": len(model.weights),
            "weights": weights,
            "releases": model.releases,
            "screened": self.aggregate.screened,
            **self.system.stated[self.as_stated],
            "digest": self.chain.digester.digest("model", weights),
        }


def parse_release(fields: Mapping[str, Any]) -> NodeRelease:
    """The release in a GradientSum record.

    Raises:
        BadRelease: the sums are not a whole number of 8-byte values.
    """
    if len(fields["sums"]) % 8:
        raise BadRelease("release: expected sums of 8 bytes each, got others")
    values = np.frombuffer(fields["sums"], "<i8").astype(np.int64)
    return NodeRelease(fields["domain"], fields["generation"], fields["leaf"], fields["slots"], values, fields["last"])
