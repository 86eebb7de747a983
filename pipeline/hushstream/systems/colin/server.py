"""The aggregator role of a collaborative system: makes versions of a model from noised sums and public features.

With a trusted counter, each release gives one version. If learners release, a version follows when
``release.window_units`` rows have come, or when a phase ends, even one without rows: whoever waits for its model gets
one. The rows of a version are sorted by node before the
estimator takes them, so versions do not depend on the order in which partitions of learners arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Rounding
from hushstream.engine.learner.model_parts import aggregator_identity
from hushstream.engine.one_input import PHASE_ENDS, PUBLISHING, PhaseEnds, PublishingRole, Read
from hushstream.engine.records import InputSlice, Step
from hushstream.engine.state.declared import Flat, Several, State, boolean, own_part, rows
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.systems.colin.deployment import TRACK, CollaborativeSystem
from hushstream.systems.colin.release import SERVER_ZONE
from hushstream.systems.colin.rows import BadRows, Rows, parse_rows


@dataclass(frozen=True, slots=True, eq=False)
class ParsedRelease:
    """A release that may be used: its public rows, and the noised sums of the users in ``blocks``."""

    rows: Rows
    blocks: NDArray[np.int64]
    sums: NDArray[np.float64]


def _pack_pending(role: CollaborativeAggregatorMachine) -> Mapping[str, Any]:
    return {
        "nodes": b"".join(part.nodes.astype("<i4").tobytes() for part in role.pending),
        "features": b"".join(part.features.astype("<f4").tobytes() for part in role.pending),
    }


def _unpack_pending(role: CollaborativeAggregatorMachine, values: Mapping[str, Any]) -> None:
    nodes = values["nodes"]
    # The rows have no rewards: the server receives only noised sums of them.
    role.pending = [parse_rows(nodes, values["features"], bytes(2 * len(nodes)), role.system)] if nodes else []


_KINDS = frozenset({"Release", "Seal"})


class CollaborativeAggregatorMachine(PublishingRole):
    """The aggregator of the one model track."""

    state = State(
        "a collaborative aggregator's state",
        "CollaborativeAggregatorState",
        PUBLISHING,
        phase_ends=Flat(PHASE_ENDS),
        counts=rows("<i8"),
        as_stated=boolean(),
        pending=Several({"nodes": "bytes", "features": "bytes"}, _pack_pending, _unpack_pending),
        moment=rows("<f8"),
        estimator=own_part(),
    )
    rounding = Rounding({"parameters": "<f8", "widths": "<f4"}, 1e-6, ("digest",))
    system: CollaborativeSystem

    def __init__(self, system: CollaborativeSystem, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        identity = aggregator_identity(system, track)
        super().__init__(system, identity, "CollaborativeModel", ("releases", track), SERVER_ZONE)
        self.phase_ends = PhaseEnds(system.config.partitions.learner)
        self.counts = np.zeros(system.nodes, dtype=np.int64)
        """Number of rows of each user in the newest version."""
        self.as_stated = True
        self.pending: list[Rows] = []
        self.moment = np.zeros((system.nodes, system.features.dimension))
        """Newest noised running sum of each user, in units of the reward."""
        self.estimator = system.estimator()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: a version for each release of a counter, or for enough rows of learners."""
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            if self.accept(one, batch, self._take):
                self.publish(one.record.offset + 1, self._version(), batch)
        return self.finished(slices, batch)

    def _take(self, one: Read, batch: Batch) -> bool:
        if one.name == "Seal":
            ended = self.ends_phase(one.fields, batch)
            due = bool(self.pending) or self.version <= self.phase_ends.complete
            return ended and due and self._observe()
        return self._on_release(one.fields, batch)

    def _on_release(self, fields: dict[str, Any], batch: Batch) -> bool:
        release_id = fields["release_id"].hex()
        if release_id in self.known:
            batch.counts[Outcome.REPEATED_RELEASE] += 1
            return False
        try:
            parsed = parse_release(fields, self.system)
        except BadRows:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        self.known.put(release_id, None)
        if len(parsed.rows):  # a step without rewards brings a version by itself, and is no part of the next one
            self.pending.append(parsed.rows)
        self.moment[parsed.blocks] = parsed.sums
        self.as_stated = self.as_stated and fields["private_as_stated"]
        batch.counts[Outcome.RELEASE] += 1
        enough = self.system.counted or sum(map(len, self.pending)) >= self.system.config.release.rows
        return enough and self._observe()

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        parameters = self.estimator.parameters().astype("<f8").tobytes()
        factor = self.system.width_factor(self.counts.tolist())
        widths = (self.estimator.widths() * factor**2).astype("<f4").tobytes()
        price = self.system.guarantee()
        return {
            "line": TRACK,
            "dimension": self.system.features.dimension,
            "nodes": self.system.nodes,
            "parameters": parameters,
            "widths": widths,
            "observations": int(self.counts.sum()),
            "epsilon_micro": price.epsilon_micro,
            "delta_units": delta_to_bytes(price.delta_units),
            "private_as_stated": self.as_stated,
            "digest": self.chain.digester.digest("model", parameters, widths),
        }

    def _observe(self) -> bool:
        """Add the new rows and sums to the estimator, before a version."""
        rows = Rows.joined(self.pending, self.system.features.dimension)
        self.pending = []
        np.add.at(self.counts, rows.nodes, 1)
        self.estimator.observe_batch(rows.nodes, rows.features.astype(np.float64))
        self.estimator.set_moment(self.moment)
        return True


def parse_release(fields: dict[str, Any], system: CollaborativeSystem) -> ParsedRelease:
    """The arrays of a Release record.

    Raises:
        BadRows: they are not of the deployment's users and features.
    """
    n, d = len(fields["nodes"]) // 4, system.features.dimension
    rows = parse_rows(fields["nodes"], fields["contexts"], bytes(8 * n), system)
    m = len(fields["blocks"]) // 4
    if (len(fields["blocks"]), len(fields["sums"])) != (4 * m, 8 * m * d) or not 0 <= fields["grid_bits"] <= 62:
        raise BadRows("release: expected one sum of d numbers for each block, got others")
    blocks = np.frombuffer(fields["blocks"], "<i4").astype(np.int64)
    if not np.array_equal(blocks, np.unique(rows.nodes)):
        raise BadRows("release: expected the sums of the users in its rows, got others")
    sums = np.frombuffer(fields["sums"], "<i8").reshape(m, d) / float(1 << fields["grid_bits"])
    return ParsedRelease(rows, blocks, sums)
