"""The aggregator role: from crowds to versions of a model, one machine per model line (server zone).

The private line reads crowds: every crowd gives one new version, made from the running totals of all of them.
The non-private line reads raw interactions, exists for public data only, and publishes when a phase is
sealed. The models topic is the journal; what is in it is public, so its digests need no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.deployment import LINES, P2BSystem
from hushstream.systems.p2b.models import PrivateTotals, RawTotals
from hushstream.systems.p2b.server import state as aggregator_state

REMEMBERED_IDS = 100_000
"""How many ids of windows (or of batches of interactions) are known again, so that what is sent twice counts once."""

FLOAT_MARGIN = 1e-9
"""Relative difference that a recomputed model may have (another CPU's rounding); the journaled one stands."""


class AggregatorMachine(OneInput):
    """The aggregator of one model line."""

    def __init__(self, system: P2BSystem, line: int) -> None:
        """Bind to a deployment and a line (0 private, 1 non-private).

        Raises:
            HushstreamError: the deployment has no such line; the non-private one exists for public data only.
        """
        if not 0 <= line < system.line_count:
            raise HushstreamError(f"model line: expected a number below {system.line_count}, got {line}")
        identity, digester = aggregator_identity(system, line), PublicDigester()
        source = ("crowds" if line == 0 else "interactions", line)
        super().__init__(Chain(identity, digester, "Model"), digester, identity.journal, source)
        self.system = system
        self.line = line
        self.version = 0
        self.seals = SealsSeen(system.config.partitions.learner)
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self._letters = DeadLetters("server", "aggregator", line, digester, self.chain.encode)
        self.totals: PrivateTotals | RawTotals = PrivateTotals(system) if line == 0 else RawTotals(system)

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for every new version, and one for what is left."""
        steps: list[Step] = []
        dead: list[Output] = []
        counts: Counter[str] = Counter()
        for part in slices:
            for record in part.records:
                if self._feed(record, dead, counts):
                    steps.append(Step(self._publish(record.offset + 1), (), tuple(dead), counts))
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

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return aggregator_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        aggregator_state.restore(self, snapshot)

    # One record; True when a version follows from it.

    def _feed(self, record: InputRecord, dead: list[Output], counts: Counter[str]) -> bool:
        self.running = extend_digest(self._digester, self.running, record)
        expected = frozenset({"Crowd"}) if self.line == 0 else frozenset({"Interactions", "Seal"})
        try:
            name, fields = codec.decode(record.value, expected)
        except CodecError as error:
            self._refuse(dead, counts, error.reason, record)
            return False
        if name == "Interactions":
            return self._interactions(fields, record, dead, counts)
        if fields["config_digest"] != self.system.digest:
            self._refuse(dead, counts, Refusal.OTHER_CONFIGURATION, record)
            return False
        if name == "Crowd":
            return self._crowd(fields, record, dead, counts)
        return self._seal(fields, record, dead, counts)

    def _crowd(self, fields: dict[str, Any], record: InputRecord, dead: list[Output], counts: Counter[str]) -> bool:
        window_id = fields["window_id"].hex()
        if window_id in self.known:
            counts[Outcome.REPEATED_CROWD] += 1
            return False
        assert isinstance(self.totals, PrivateTotals)
        if not self.totals.add(fields):
            self._refuse(dead, counts, Refusal.OTHER_CONFIGURATION, record)
            return False
        self.known.put(window_id, None)
        counts[Outcome.CROWD] += 1
        counts[Outcome.MODEL] += 1
        return True

    def _interactions(
        self, fields: dict[str, Any], record: InputRecord, dead: list[Output], counts: Counter[str]
    ) -> bool:
        assert isinstance(self.totals, RawTotals)
        batch_id = fields["batch_id"].hex()
        if batch_id in self.known:
            counts[Outcome.REPEATED_INTERACTIONS] += 1
        elif not self.totals.add(fields):
            self._refuse(dead, counts, Refusal.MALFORMED_INTERACTIONS, record)
        elif batch_id:
            self.known.put(batch_id, None)
        return False

    def _seal(self, fields: dict[str, Any], record: InputRecord, dead: list[Output], counts: Counter[str]) -> bool:
        complete = self.seals.note(fields["origin"], fields["phase"])
        if complete is None:
            self._refuse(dead, counts, Refusal.UNKNOWN_ORIGIN, record)
            return False
        counts[Outcome.SEAL] += 1
        if complete:
            counts[Outcome.MODEL] += 1
        return complete

    def _publish(self, high: int) -> bytes:
        journal = self.chain.append(self._fields(high))
        self._published(high)
        return journal

    def _published(self, high: int) -> None:
        self.version += 1
        self._close(high)

    def _fields(self, high: int) -> dict[str, Any]:
        model = self.totals.model()
        gram, moment = model.gram.astype("<f8").tobytes(), model.moment.astype("<f8").tobytes()
        return {
            "head": head_fields(
                self.chain.sequence + 1,
                0,
                [self._covered(high)],
                self.running,
                digest_outputs(self._digester, ()),
                self.chain.edition,
            ),
            "line": LINES[self.line],
            "version": self.version + 1,
            "dimension": self.system.model_dimension,
            "arms": self.system.config.arms,
            "features": model.features,
            "gram": gram,
            "moment": moment,
            "observations": model.observations,
            "epsilon_micro": model.epsilon_micro,
            "delta_units": model.delta_units,
            "private_as_stated": model.private_as_stated,
            "digest": self._digester.digest("model", gram, moment),
        }

    def _refuse(self, dead: list[Output], counts: Counter[str], reason: str, record: InputRecord) -> None:
        topic, partition = self.inputs[0]
        dead.append(self._letters.letter(reason, topic, partition, record.offset, value=record.value))
        counts[Outcome.REJECTED] += 1


def _same_model(again: Mapping[str, Any], journaled: Mapping[str, Any]) -> bool:
    exact = [name for name in again if name not in ("gram", "moment", "observations", "digest")]
    if any(again[name] != journaled[name] for name in exact):
        return False
    for name in ("gram", "moment"):
        ours, theirs = np.frombuffer(again[name], "<f8"), np.frombuffer(journaled[name], "<f8")
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=FLOAT_MARGIN, atol=FLOAT_MARGIN):
            return False
    return True
