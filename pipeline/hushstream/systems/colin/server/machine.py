"""The aggregator role of a collaborative system: from noised sums and public features to versions of a model.

Each release gives one more version where a trusted counter makes the releases. Where learners release, a version
follows when ``release.rows`` rows have come, or when a phase is sealed. The rows of a version enter the estimator
in the order of their nodes, so that versions do not depend on how the partitions of learners raced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.chain import Chain, PublicDigester, digest_outputs, extend_digest, head_fields, in_its_edition
from hushstream.engine.machine import (
    InputRecord,
    InputSlice,
    Output,
    ReplayMismatch,
    Step,
)
from hushstream.engine.models import aggregator_identity
from hushstream.engine.one_input import OneInput
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.phase_ends import SealsSeen
from hushstream.engine.refusals import DeadLetters
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.colin.deployment import LINE, CollaborativeSystem
from hushstream.systems.colin.rows import BadRows, Rows, parse_rows
from hushstream.systems.colin.server import state as collaborative_aggregator_state

REMEMBERED_IDS = 100_000
FLOAT_MARGIN = 1e-6
"""Relative difference that a recomputed model may have (another CPU's rounding); the journaled one stands."""

_INPUT = "releases"


@dataclass(frozen=True, slots=True, eq=False)
class ParsedRelease:
    """A release that may be used: its public rows, and the noised sums of the users in ``blocks``."""

    rows: Rows
    blocks: NDArray[np.int64]
    sums: NDArray[np.float64]


class CollaborativeAggregatorMachine(OneInput):
    """The aggregator of the one model line."""

    def __init__(self, system: CollaborativeSystem, line: int) -> None:
        """Bind to a deployment; ``line`` is 0."""
        identity, digester = aggregator_identity(system, line), PublicDigester()
        super().__init__(Chain(identity, digester, "CollaborativeModel"), digester, identity.journal, (_INPUT, line))
        self.system = system
        self.line = line
        self.version = 0
        self.counts = np.zeros(system.nodes, dtype=np.int64)
        """Rows of each user that the newest version rests on."""
        self.as_stated = True
        self.pending: list[Rows] = []
        self.moment = np.zeros((system.nodes, system.features.dimension))
        """Newest noised running sum of each user, in units of the reward."""
        self.estimator = system.estimator()
        self.seals = SealsSeen(system.config.partitions.learner)
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self._letters = DeadLetters("server", "aggregator", line, digester, self.chain.encode)

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return collaborative_aggregator_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        collaborative_aggregator_state.restore(self, snapshot)

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for every new version, and one for what is left."""
        steps: list[Step] = []
        dead: list[Output] = []
        counts: Counter[str] = Counter()
        for part in slices:
            for record in part.records:
                if self._feed(record, dead, counts):
                    fields = self._fields(record.offset + 1)
                    steps.append(Step(self.chain.append(fields), (), tuple(dead), counts))
                    self._published(record.offset + 1)
                    dead, counts = [], Counter()
            self.position = part.high
        if dead or counts:
            steps.append(Step(None, (), tuple(dead), counts))
        return steps

    @in_its_edition
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the journaled model stands if the recomputed one equals it to `FLOAT_MARGIN`."""
        fields = self.chain.check(value, self.committed())
        dead: list[Output] = []
        counts: Counter[str] = Counter()
        published = [self._feed(record, dead, counts) for part in slices for record in part.records]
        end = self.entry(value).inputs[0].high
        again = self._fields(end) if published and published[-1] and sum(published) == 1 else None
        if again is None or not _same_model(self.chain.written(again), self.chain.written(fields)):
            raise ReplayMismatch(
                f"models/{self.line} record {fields['head']['sequence']}: its inputs give another model"
            )
        self.chain.accept(value, self.committed())
        self._published(end)
        self.position = end
        return Step(None, (), tuple(dead), counts)

    # One record; True when a version follows from it.

    def _feed(self, record: InputRecord, dead: list[Output], counts: Counter[str]) -> bool:
        self.running = extend_digest(self._digester, self.running, record)
        try:
            name, fields = codec.decode(record.value, frozenset({"Release", "Seal"}))
        except CodecError as error:
            self._refuse(dead, counts, error.reason, record)
            return False
        if fields["config_digest"] != self.system.digest:
            self._refuse(dead, counts, Refusal.OTHER_CONFIGURATION, record)
            return False
        due = (self._seal if name == "Seal" else self._release)(fields, record, dead, counts)
        if due:
            self._observe()
            counts[Outcome.MODEL] += 1
        return due

    def _release(self, fields: dict[str, Any], record: InputRecord, dead: list[Output], counts: Counter[str]) -> bool:
        release_id = fields["release_id"].hex()
        if release_id in self.known:
            counts[Outcome.REPEATED_RELEASE] += 1
            return False
        try:
            parsed = parse_release(fields, self.system)
        except BadRows:
            self._refuse(dead, counts, Refusal.MALFORMED_RELEASE, record)
            return False
        self.known.put(release_id, None)
        self.pending.append(parsed.rows)
        self.moment[parsed.blocks] = parsed.sums
        self.as_stated = self.as_stated and fields["private_as_stated"]
        counts[Outcome.RELEASE] += 1
        release = self.system.config.release
        return release.trust == "server" or sum(map(len, self.pending)) >= release.rows

    def _seal(self, fields: dict[str, Any], record: InputRecord, dead: list[Output], counts: Counter[str]) -> bool:
        complete = self.seals.note(fields["origin"], fields["phase"])
        if complete is None:
            self._refuse(dead, counts, Refusal.UNKNOWN_ORIGIN, record)
            return False
        counts[Outcome.SEAL] += 1
        return complete and bool(self.pending)

    def _refuse(self, dead: list[Output], counts: Counter[str], reason: str, record: InputRecord) -> None:
        dead.append(self._letters.letter(reason, _INPUT, self.line, record.offset, value=record.value))
        counts[Outcome.REJECTED] += 1

    # One version.

    def _observe(self) -> None:
        """Bring the estimator up to the rows and sums that have come."""
        rows = Rows.joined(self.pending)
        self.pending = []
        np.add.at(self.counts, rows.nodes, 1)
        self.estimator.observe_batch(rows.nodes, rows.features.astype(np.float64))
        self.estimator.set_moment(self.moment)

    def _published(self, high: int) -> None:
        self.version += 1
        self._close(high)

    def _fields(self, high: int) -> dict[str, Any]:
        parameters = self.estimator.parameters().astype("<f8").tobytes()
        factor = self.system.width_factor(self.counts.tolist())
        widths = (self.estimator.widths() * factor**2).astype("<f4").tobytes()
        price = self.system.guarantee()
        return {
            "head": head_fields(
                self.chain.sequence + 1,
                0,
                [self._covered(high)],
                self.running,
                digest_outputs(self._digester, ()),
                self.chain.edition,
            ),
            "line": LINE,
            "version": self.version + 1,
            "dimension": self.system.features.dimension,
            "nodes": self.system.nodes,
            "parameters": parameters,
            "widths": widths,
            "observations": int(self.counts.sum()),
            "epsilon_micro": price.epsilon_micro,
            "delta_units": delta_to_bytes(price.delta_units),
            "private_as_stated": self.as_stated,
            "digest": self._digester.digest("model", parameters, widths),
        }


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


def _same_model(again: Mapping[str, Any], journaled: Mapping[str, Any]) -> bool:
    exact = [name for name in again if name not in ("parameters", "widths", "digest")]
    if any(again[name] != journaled[name] for name in exact):
        return False
    for name, kind in (("parameters", "<f8"), ("widths", "<f4")):
        ours, theirs = np.frombuffer(again[name], kind), np.frombuffer(journaled[name], kind)
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=FLOAT_MARGIN, atol=FLOAT_MARGIN):
            return False
    return True
