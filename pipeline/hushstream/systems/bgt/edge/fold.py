"""One batch of a rater: what models, rounds, ratings, questions and ends of rounds do to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.records import InputRecord, InputSlice, Output, TopicPartition
from hushstream.schemas.codec import CodecError
from hushstream.schemas.rows import id_fault
from hushstream.systems.bgt.edge.hearing import ROUNDS_TOPIC
from hushstream.systems.bgt.edge.incoming import KINDS, MAX_PREDICTED, Incoming
from hushstream.systems.bgt.edge.rater import Rater
from hushstream.systems.bgt.errors import BadRatings, BgtError
from hushstream.systems.bgt.reasons import BgtOutcome, BgtRefusal
from hushstream.systems.bgt.records import item_column, rating_columns
from hushstream.systems.bgt.rounds import ROUNDS
from hushstream.systems.bgt.slots import Float64

_MARGIN = 1e-9
"""A replayed prediction may differ by so much (another CPU's rounding), of the scale's length; then the journaled one
stands, and it is counted."""


class RaterFold:
    """Folds one batch into a machine, which it changes, and gathers answers and outputs."""

    def __init__(self, machine: Rater, journaled: Float64 | None) -> None:
        """Begin a batch; what the journal says was predicted is given on replay only."""
        self._machine = machine
        self._journaled = journaled
        self.outputs: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()
        self._event_ids: list[str] = []
        self._lengths: list[int] = []
        self._values: list[Float64] = []
        self._slots = 0

    def run(self, covered: Sequence[InputSlice]) -> None:
        """Take what was published, then fold ratings."""
        machine = self._machine
        parts = {(part.topic, part.partition): part for part in covered}
        self._hear_models(parts[machine.heard.reader.topic])
        self._hear_rounds(parts[ROUNDS_TOPIC])
        ratings = parts[machine.inputs[0]]
        for one in machine.decode(ratings):
            self._take(one)
        machine.position = ratings.high

    def fields(self) -> dict[str, Any]:
        """What the journal record holds beside its head."""
        values = np.concatenate([*self._values, np.zeros(0)])
        return {
            "event_ids": self._event_ids,
            "counts": np.array(self._lengths, dtype="<i4").tobytes(),
            "values": values.astype("<f8").tobytes(),
            "model_version": self._machine.heard.version,
            "slots": self._slots,
        }

    # What the server publishes.

    def _hear_models(self, part: InputSlice) -> None:
        taken = self._machine.heard.read_models(part)
        if taken:
            self.counts[Outcome.MODEL_ADOPTED] += taken

    def _hear_rounds(self, part: InputSlice) -> None:
        heard = self._machine.heard
        for record in part.records:
            try:
                if heard.read_round(record):
                    self.counts[BgtOutcome.ROUND] += 1
            except (CodecError, BgtError):
                self._refuse(BgtRefusal.BAD_ROUND, ROUNDS_TOPIC, record)
        heard.rounds_read = part.high

    # What users write.

    def _take(self, one: Incoming) -> None:
        if one.name not in KINDS:
            self._reject(one.name, one)
        elif one.name == "Seal":
            self._phase_end(one)
        else:
            reason = self._stranger(one.fields)
            if reason is not None:
                self._reject(reason, one)
            else:
                {"Ratings": self._rate, "RatingQuery": self._predict, "Forget": self._forget}[one.name](one)

    def _stranger(self, fields: dict[str, Any]) -> str | None:
        fault = id_fault(fields["user"])
        if fault is not None:
            return str(fault)
        return None if self._machine.is_home_of(fields["user"]) else Refusal.FOREIGN_USER

    def _rate(self, one: Incoming) -> None:
        try:
            self._machine.users.rate(one.fields["user"], *rating_columns(one.fields))
        except BadRatings:
            self._reject(BgtRefusal.BAD_RATINGS, one)
            return
        self.counts[BgtOutcome.RATED] += 1

    def _predict(self, one: Incoming) -> None:
        reason = self._event_fault(one.fields)
        if reason is not None:
            self._reject(reason, one)
            return
        try:
            found = self._answered(one.fields)
        except BadRatings:
            self._reject(BgtRefusal.BAD_QUESTION, one)
            return
        event_id = one.fields["event_id"]
        self._machine.asked.put(event_id, self._machine.users.tag(one.fields["user"]))
        self._values.append(self._as_journaled(found))
        self._event_ids.append(event_id)
        self._lengths.append(len(found))
        self.counts[BgtOutcome.ASKED] += 1

    def _event_fault(self, fields: dict[str, Any]) -> str | None:
        """Why a question may not have its name: answers are found by it, so nobody else's may."""
        fault = id_fault(fields["event_id"])
        if fault is not None:
            return str(fault)
        whose = self._machine.asked.get(fields["event_id"])
        others = whose is not None and whose != self._machine.users.tag(fields["user"])
        return Refusal.EVENT_OF_ANOTHER_USER if others else None

    def _answered(self, fields: dict[str, Any]) -> Float64:
        items = item_column(fields["items"], "question").tolist()
        if not 0 < len(items) <= MAX_PREDICTED:
            raise BadRatings(f"question: expected 1 to {MAX_PREDICTED} items, got {len(items)}")
        return self._machine.users.predict(fields["user"], items, self._machine.heard.model)

    def _as_journaled(self, found: Float64) -> Float64:
        """What the journal says was predicted, where it is the same but for a rounding."""
        if self._journaled is None:
            return found
        before = sum(self._lengths)
        journaled = self._journaled[before : before + len(found)]
        scale = self._machine.system.config.scale
        margin = _MARGIN * (scale.highest - scale.lowest)
        if journaled.shape != found.shape or not np.allclose(journaled, found, rtol=0.0, atol=margin):
            return found
        self._machine.float_ties += int(np.count_nonzero(journaled != found))
        return journaled

    def _forget(self, one: Incoming) -> None:
        if one.fields["config_digest"] != self._machine.system.digest:
            self._reject(Refusal.OTHER_CONFIGURATION, one)
            return
        self._machine.users.forget(one.fields["user"])
        self.counts[Outcome.FORGOTTEN] += 1

    # The end of a round.

    def _phase_end(self, one: Incoming) -> None:
        machine, phase = self._machine, one.fields["phase"]
        if phase != machine.ended_rounds or phase >= ROUNDS or one.fields["origin"] != -1:
            self._reject(Refusal.BAD_PHASE, one)
            return
        machine.ended_rounds += 1
        self.counts[Outcome.PHASE_END] += 1
        asked, opening = machine.heard.round(phase), machine.heard.opening(phase)
        if asked is None:
            return
        if opening is not None:
            self._send(opening)
        for sent in machine.users.answers(asked):
            self._send(machine.chain.encode("RatingSlot", sent.fields()))
            self._slots += 1
            self.counts[Outcome.SLOT_SENT] += 1
        end = {"phase": phase, "origin": machine.partition, "config_digest": machine.system.digest, "after_click": -1}
        self._send(machine.chain.encode("Seal", end))

    def _send(self, value: bytes) -> None:
        self.outputs.append(Output("updates", 0, value))

    def _reject(self, reason: str, one: Incoming) -> None:
        self._refuse(reason, self._machine.inputs[0], one.record)

    def _refuse(self, reason: str, source: TopicPartition, record: InputRecord) -> None:
        letters = self._machine.letters
        self.dead.append(letters.letter(str(reason), *source, record.offset, value=record.value))
        self.counts[Outcome.REJECTED] += 1
