"""The rater role (edge zone): it reads users' ratings, and sends padded slots and predictions.

It runs a `RatingAgent` for each user on a stream. A user takes part from their first record of ratings on, even an
empty one, and sends one slot in each round that ends after that. The slot is null if the ratings were erased. So the
number and time of slots follow only from who takes part and from the ends of rounds, which are logged and public.

The journal holds the predictions, and records that a round was answered before its slots are sent. Rounds and models
are read before a batch's records (`RaterMachine.fold`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import (
    Batch,
    Chain,
    Identity,
    append,
    covered,
    digest_records,
    replaying,
)
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputRange, InputRecord, InputSlice, Output, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Flat, Single, State, integer, own_part
from hushstream.engine.state.parts import array
from hushstream.engine.state.parts import record as avro_record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
from hushstream.schemas.codec import CodecError
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.rows import id_fault
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.edge.incoming import KINDS, MAX_PREDICTED, Incoming, decode_slice, ready_slice
from hushstream.systems.bgt.edge.received import RECEIVED, ROUNDS_TOPIC, Received
from hushstream.systems.bgt.edge.users import USERS, Users
from hushstream.systems.bgt.errors import BadRatings, BgtError
from hushstream.systems.bgt.reasons import BgtOutcome, BgtRefusal
from hushstream.systems.bgt.records import item_column, rating_columns
from hushstream.systems.bgt.rounds import ROUNDS
from hushstream.systems.bgt.slots import Float64
from hushstream.systems.bgt.topics import EDGE_ZONE

REMEMBERED_EVENTS = 50_000
"""Number of past questions whose users a partition remembers."""

_MARGIN = 1e-9
"""Largest difference between a replayed and a journaled prediction that may come from the rounding of another CPU, as
a part of the scale's length. Within it the journaled prediction counts, and the tie is counted."""

_QUESTIONS = array(avro_record("Question", event_id="string", user="bytes"))


def _pack_questions(asked: BoundedMap[bytes]) -> list[dict[str, Any]]:
    return [{"event_id": event_id, "user": tag} for event_id, tag in asked.items()]


def _unpack_questions(value: list[dict[str, Any]], before: BoundedMap[bytes]) -> BoundedMap[bytes]:
    asked: BoundedMap[bytes] = BoundedMap(before.capacity)
    for one in value:
        asked.put(one["event_id"], one["user"])
    return asked


@dataclass(slots=True)
class _BatchResult:
    """The result of one batch.

    Attributes:
        journaled: the journaled predictions; None while new input is folded.
        outputs, dead, counts: see `Step`.
        event_ids, lengths, values: of the answered questions: ids, numbers of items, and predictions.
        slots: number of slots that are sent.
    """

    journaled: Float64 | None
    outputs: list[Output] = field(default_factory=list)
    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    event_ids: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    values: list[Float64] = field(default_factory=list)
    slots: int = 0


class RaterMachine(OwnsJournal, Declared):
    """The users of one partition."""

    state = State(
        "a rater's state",
        2,
        "RaterState",
        chain=owner(),
        position=integer(),
        ended_rounds=integer("int", disk="sealed"),
        received=Flat(RECEIVED),
        users=own_part(USERS),
        asked=Single(_QUESTIONS, _pack_questions, _unpack_questions, disk="questions"),
    )
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("system", "inputs", "journal", "partition", "key", "letters"), FIXED),
        "float_ties": "a count of this process alone",
        "_decoded": "kept from `ready` to the fold of the same records",
    }

    def __init__(self, system: BgtSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge zone's key."""
        self.system = system
        self.partition = partition
        self.key = key
        self.inputs: tuple[TopicPartition, ...] = (("ratings", partition),)
        identity = Identity.of(system, "rater", "predictions", partition)
        self.journal = identity.journal
        self.chain = Chain(identity, key, "RatingPredictions")
        self.letters = DeadLetters(EDGE_ZONE, "rater", partition, key, self.chain.encode)
        self.position = 0
        self.ended_rounds = 0
        """Number of rounds that have ended in this log."""
        self.received = Received(system)
        self.users = Users(system, key)
        self.asked: BoundedMap[bytes] = BoundedMap(REMEMBERED_EVENTS)
        """Event ids of answered questions, each with the user's tag."""
        self.float_ties = 0
        """Number of replayed predictions that differ by a rounding and so were taken from the journal."""
        self._decoded: tuple[int, int, list[Incoming]] | None = None

    @property
    def readers(self) -> Sequence[ModelReader]:
        return (self.received.reader,)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return (self.received.reader.topic, ROUNDS_TOPIC)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: one digest over all inputs of a batch."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        received = self.received
        return {
            self.inputs[0]: self.position,
            received.reader.topic: received.reader.position,
            ROUNDS_TOPIC: received.rounds_read,
        }

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: every batch is journaled."""
        return {self.inputs[0]: self.position}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: the end of a round waits for that round, and a question for the model that it names."""
        parts = [self._ready(part) if part.topic == "ratings" else part for part in slices]
        return [part for part in parts if part.high > part.low]

    def _ready(self, part: InputSlice) -> InputSlice:
        return ready_slice(part, self.decode(part), self.received.number, self.ended_rounds, self.received.ended)

    def decode(self, part: InputSlice) -> Sequence[Incoming]:
        """Decode a slice of ratings, once for `ready` and `fold`."""
        decoded = self._decoded
        if decoded is None or decoded[0] != part.low or decoded[1] < part.high:
            decoded = self._decoded = part.low, part.high, decode_slice(part)
        return decoded[2][: len(part.records)]

    def snapshot(self) -> bytes:
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        batch, result = self._folded(slices, None)
        return [Step(append(self.chain, batch), batch.outputs, tuple(result.dead), result.counts)]

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the journaled predictions count if the computed ones are equal up to a rounding.

        After a `ReplayMismatch` the machine must be discarded.
        """
        with replaying(self.chain, value, self.positions()) as journaled:
            batch, result = self._folded(slices, np.frombuffer(journaled.fields["values"], "<f8"))
            journaled.follow(batch)
        return Step(None, batch.outputs, tuple(result.dead), result.counts)

    def _folded(self, slices: Sequence[InputSlice], journaled: Float64 | None) -> tuple[Batch, _BatchResult]:
        """Take published records, then fold ratings; ``journaled`` has the predictions in a replay."""
        parts, result = covered(self.positions(), slices), _BatchResult(journaled)
        self._on_models(parts[self.received.reader.topic], result)
        self._on_rounds(parts[ROUNDS_TOPIC], result)
        ratings = parts[self.inputs[0]]
        for one in self.decode(ratings):
            self._take(one, result)
        self.position, self._decoded = ratings.high, None
        fields = {
            "event_ids": result.event_ids,
            "counts": np.array(result.lengths, dtype="<i4").tobytes(),
            "values": np.concatenate([*result.values, np.zeros(0)]).astype("<f8").tobytes(),
            "model_version": self.received.version,
            "slots": result.slots,
        }
        ranges = [InputRange(*part[:4]) for part in parts.values()]
        return Batch(ranges, digest_records(self.key, parts.values()), fields, tuple(result.outputs)), result

    # What the server publishes.

    def _on_models(self, part: InputSlice, result: _BatchResult) -> None:
        taken = self.received.read_models(part)
        if taken:
            result.counts[Outcome.MODEL_ADOPTED] += taken

    def _on_rounds(self, part: InputSlice, result: _BatchResult) -> None:
        received = self.received
        for record in part.records:
            try:
                if received.read_round(record):
                    result.counts[BgtOutcome.ROUND] += 1
            except (CodecError, BgtError):
                self._refuse(BgtRefusal.BAD_ROUND, ROUNDS_TOPIC, record, result)
        received.rounds_read = part.high

    # What users write.

    def _take(self, one: Incoming, result: _BatchResult) -> None:
        if one.name not in KINDS:
            self._reject(one.name, one, result)
        elif one.name == "Seal":
            self._phase_end(one, result)
        else:
            reason = self._user_fault(one.fields)
            if reason is not None:
                self._reject(reason, one, result)
            else:
                {"Ratings": self._rate, "RatingQuery": self._predict, "Forget": self._forget}[one.name](one, result)

    def _user_fault(self, fields: dict[str, Any]) -> str | None:
        fault = id_fault(fields["user"])
        if fault is not None:
            return str(fault)
        # In a second home partition a user would have a second slot in each round.
        home = partition_of(fields["user"], self.system.config.partitions.learner)
        return None if home == self.partition else Refusal.FOREIGN_USER

    def _rate(self, one: Incoming, result: _BatchResult) -> None:
        try:
            self.users.rate(one.fields["user"], *rating_columns(one.fields))
        except BadRatings:
            self._reject(BgtRefusal.BAD_RATINGS, one, result)
            return
        result.counts[BgtOutcome.RATED] += 1

    def _predict(self, one: Incoming, result: _BatchResult) -> None:
        event_id, tag = one.fields["event_id"], self.users.tag(one.fields["user"])
        reason = self._event_fault(event_id, tag)
        if reason is not None:
            self._reject(reason, one, result)
            return
        try:
            found = self._answered(one.fields["items"], tag)
        except BadRatings:
            self._reject(BgtRefusal.BAD_QUESTION, one, result)
            return
        self.asked.put(event_id, tag)
        result.values.append(self._as_journaled(found, result))
        result.event_ids.append(event_id)
        result.lengths.append(len(found))
        result.counts[BgtOutcome.ASKED] += 1

    def _event_fault(self, event_id: str, tag: bytes) -> str | None:
        """Why the event id of a question is refused.

        Another user's question must not have the same id, because answers are found by it.
        """
        fault = id_fault(event_id)
        if fault is not None:
            return str(fault)
        return Refusal.EVENT_OF_ANOTHER_USER if self.asked.get(event_id, tag) != tag else None

    def _answered(self, asked: bytes, tag: bytes) -> Float64:
        items = item_column(asked, "question").tolist()
        if not 0 < len(items) <= MAX_PREDICTED:
            raise BadRatings(f"question: expected 1 to {MAX_PREDICTED} items, got {len(items)}")
        return self.users.predict(tag, items, self.received.model)

    def _as_journaled(self, found: Float64, result: _BatchResult) -> Float64:
        """The journaled prediction if the found one equals it up to a rounding; else the found one."""
        if result.journaled is None:
            return found
        before = sum(result.lengths)
        journaled = result.journaled[before : before + len(found)]
        scale = self.system.config.scale
        margin = _MARGIN * (scale.highest - scale.lowest)
        if journaled.shape != found.shape or not np.allclose(journaled, found, rtol=0.0, atol=margin):
            return found
        self.float_ties += int(np.count_nonzero(journaled != found))
        return journaled

    def _forget(self, one: Incoming, result: _BatchResult) -> None:
        if one.fields["config_digest"] != self.system.digest:
            self._reject(Refusal.OTHER_CONFIGURATION, one, result)
            return
        self.users.forget(one.fields["user"])
        result.counts[Outcome.FORGOTTEN] += 1

    # The end of a round.

    def _phase_end(self, one: Incoming, result: _BatchResult) -> None:
        phase = one.fields["phase"]
        if phase != self.ended_rounds or phase >= ROUNDS or one.fields["origin"] != -1:
            self._reject(Refusal.BAD_PHASE, one, result)
            return
        self.ended_rounds += 1
        result.counts[Outcome.SEAL] += 1
        asked, opening = self.received.round(phase), self.received.opening(phase)
        if asked is None:
            return
        if opening is not None:
            self._send(opening, result)
        for sent in self.users.answers(asked):
            self._send(self.chain.encode("RatingSlot", sent.fields()), result)
            result.slots += 1
            result.counts[Outcome.SLOT_SENT] += 1
        end = {"phase": phase, "origin": self.partition, "config_digest": self.system.digest, "after_click": -1}
        self._send(self.chain.encode("Seal", end), result)

    def _send(self, value: bytes, result: _BatchResult) -> None:
        result.outputs.append(Output("updates", 0, value))

    def _reject(self, reason: str, one: Incoming, result: _BatchResult) -> None:
        self._refuse(reason, self.inputs[0], one.record, result)

    def _refuse(self, reason: str, source: TopicPartition, record: InputRecord, result: _BatchResult) -> None:
        letters = self.letters
        result.dead.append(letters.letter(str(reason), *source, record.offset, value=record.value))
        result.counts[Outcome.REJECTED] += 1
