"""The aggregator of PDOL: makes versions of one linear model from noised running sums. It holds public values alone.

A version follows when enough domains have released (`Aggregate.due`), and when all of them have ended a phase.

*Outcomes.* Outcomes of events at the roles of PDOL, each with its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import OUTCOMES, Outcome, Refusal
from hushstream.engine.declare.role import MetricClass
from hushstream.engine.learner.model_parts import aggregator_identity
from hushstream.engine.one_input import PHASE_ENDS, PUBLISHING, PhaseEnds, PublishingRole, Read
from hushstream.engine.records import InputSlice, Step
from hushstream.engine.state.declared import Flat, Single, State, boolean
from hushstream.systems.pdol.algorithm.aggregate import Aggregate, Taken
from hushstream.systems.pdol.algorithm.counters import NodeRelease
from hushstream.systems.pdol.algorithm.rows import BadRelease
from hushstream.systems.pdol.guarantee import SERVER_ZONE, PdolSystem


class PdolOutcome(StrEnum):
    """Beside those of `hushstream.engine.declare.outcomes`."""

    PREDICTED = "predicted"
    REPEATED_RECORD = "repeated_record"
    NULL_RECORD = "null_record"
    """A record broke a bound, so its slot is null."""
    LABELLED = "labelled"
    REPEATED_LABEL = "repeated_label"
    LATE_LABEL = "late_label"
    MEMBERSHIP = "membership"
    """A node joined or left."""
    SCREENED = "screened"
    STALE_RELEASE = "stale_release"


class PdolRefusal(StrEnum):
    """Why a record goes to the dead letters, beside `hushstream.engine.declare.outcomes.Refusal`."""

    UNKNOWN_NODE = "unknown_node"
    """The node is unknown, or has another home partition."""
    ABSENT_NODE = "absent_node"
    """The node has left, or has not joined yet."""
    UNKNOWN_LABEL = "unknown_label"
    LABEL_WITHOUT_RECORD = "label_without_record"


REASONS = tuple(map(str, PdolRefusal))

_SHARED: Mapping[str, MetricClass] = {
    str(one): OUTCOMES[one]
    for one in (
        Outcome.SLOT,
        Outcome.ALLOWANCE_SPENT,
        Outcome.RELEASE,
        Outcome.RELEASE_WITHHELD,
        Outcome.DIVERGED,
        Outcome.MODEL_ADOPTED,
        Outcome.SEAL,
        Outcome.FORGOTTEN,
        Outcome.REJECTED,
    )
}

NODE_OUTCOMES: Mapping[str, MetricClass] = {
    **_SHARED,
    PdolOutcome.PREDICTED: "slot-public",
    PdolOutcome.REPEATED_RECORD: "slot-public",
    # These are zone-private: the guarantee hides which slots are null, and a spent allowance shows that a person came
    # often.
    PdolOutcome.NULL_RECORD: "zone-private",
    Outcome.ALLOWANCE_SPENT: "zone-private",
    PdolOutcome.LABELLED: "zone-private",
    PdolOutcome.REPEATED_LABEL: "zone-private",
    PdolOutcome.LATE_LABEL: "zone-private",
    PdolOutcome.MEMBERSHIP: "slot-public",
}

AGGREGATOR_OUTCOMES: Mapping[str, MetricClass] = {
    str(one): OUTCOMES[one]
    for one in (Outcome.RELEASE, Outcome.REPEATED_RELEASE, Outcome.MODEL, Outcome.SEAL, Outcome.REJECTED)
} | {
    PdolOutcome.SCREENED: "released",
    PdolOutcome.STALE_RELEASE: "slot-public",
    PdolOutcome.MEMBERSHIP: "slot-public",
}


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
        "LinearAggregatorState",
        PUBLISHING,
        phase_ends=Flat(PHASE_ENDS),
        as_stated=boolean(),
        aggregate=Single({"type": "map", "values": "bytes"}, _pack_arrays, _unpack_arrays, disk="arrays"),
    )
    system: PdolSystem

    def __init__(self, system: PdolSystem, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        identity = aggregator_identity(system, track)
        super().__init__(system, identity, "LinearModel", ("releases", track), SERVER_ZONE)
        self.phase_ends = PhaseEnds(system.counts["learner"])
        self.aggregate = Aggregate(system.config)
        self.as_stated = True

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one version when enough domains have released, and one when all have ended a phase."""
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            if self.accept(one, batch, self._take):
                self.publish(one.record.offset + 1, self._version(), batch)
        return self.finished(slices, batch)

    def _take(self, one: Read, batch: Batch) -> bool:
        # A version follows at every phase end: clients may wait for the model of that phase.
        on = {"Seal": self.ends_phase, "Membership": self._on_membership}.get(one.name, self._on_release)
        return on(one.fields, batch)

    def _on_release(self, fields: Mapping[str, Any], batch: Batch) -> bool:
        if not self.first_time(fields["release_id"].hex()):
            batch.counts[Outcome.REPEATED_RELEASE] += 1
            return False
        try:
            taken = self.aggregate.on_release(parse_release(fields))
        except BadRelease:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        if taken is Taken.TAKEN:
            self.as_stated = self.as_stated and fields["private_as_stated"]
        batch.counts[_TAKEN[taken]] += 1
        return self.aggregate.due

    def _on_membership(self, fields: Mapping[str, Any], batch: Batch) -> bool:
        try:
            self.aggregate.on_membership(fields["node"], fields["present"])
        except BadRelease:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        batch.counts[PdolOutcome.MEMBERSHIP] += 1
        return self.aggregate.due

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        model = self.aggregate.publish()
        weights = model.weights.astype(model.weights.dtype.newbyteorder("<")).tobytes()
        return {
            "phase": self.phase_ends.complete,
            "dimension": self.system.config.records.dimension,
            "weights": weights,
            "deviation": model.deviation,
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
