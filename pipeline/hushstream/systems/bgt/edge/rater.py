"""The rater role (edge zone): it reads users' ratings, and sends fixed-size reports and predictions.

It runs a `RatingAgent` for each user on a stream. A user takes part from their first record of ratings on, even an
empty one, and sends one slot in each round that ends after that. The slot is null if the ratings were erased. So the
number and time of slots follow only from who takes part and from the ends of rounds, which are logged and public.

The journal holds the predictions, and records that a round was answered before its slots are sent. Rounds and models
are read before a batch's records (`RaterMachine.fold`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.batch import Batch
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity, Replayed, owner
from hushstream.engine.learner.arrivals import cut
from hushstream.engine.learner.deciding import AnsweringRole
from hushstream.engine.records import InputRecord, InputSlice, Output, TopicPartition
from hushstream.engine.state.declared import Flat, Several, Single, State, array, integer, own_part
from hushstream.engine.state.declared import record as avro_record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.rows import id_fault
from hushstream.schemas.topics import partition_of
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.edge.agent import RatingAgent, Sent
from hushstream.systems.bgt.edge.received import RECEIVED, ROUNDS_TOPIC, Received
from hushstream.systems.bgt.records import (
    MAX_PREDICTED,
    ROUNDS,
    BadRatings,
    BgtError,
    Float64,
    Model,
    Round,
    item_column,
    rating_columns,
)
from hushstream.systems.bgt.topics import EDGE_ZONE, BgtOutcome, BgtRefusal

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


USERS = array(avro_record("RatingUser", tag="bytes", answered="int", items="bytes", values="bytes"))
"""Avro type of `Users.dump`. It holds ratings in clear, so it is as sensitive as ratings."""


class Users:
    """Agents by tag. A tag is a keyed digest of the user's name, and is the same as long as the zone's key is."""

    def __init__(self, system: BgtSystem, key: Key) -> None:
        """Begin without users."""
        self._system = system
        self._key = key
        self._agents: dict[bytes, RatingAgent] = {}

    def __len__(self) -> int:
        """Number of users."""
        return len(self._agents)

    def rate(self, user: str, items: Sequence[int], values: Sequence[float]) -> None:
        """Take ratings of a user, who takes part from now on.

        Raises:
            BadRatings: an unknown item, or a rating off the scale; then no rating is taken.
        """
        tag = self.tag(user)
        agent = self._agents.get(tag) or self._agent(tag, 0)
        agent.rate(items, values)
        self._agents[tag] = agent

    def predict(self, tag: bytes, items: Sequence[int], model: Model) -> Float64:
        """Predicted ratings by the user of a tag; for a user without ratings, those of an average user.

        Raises:
            BadRatings: an unknown item.
        """
        return (self._agents.get(tag) or self._agent(tag, 0)).predict(items, model)

    def forget(self, user: str) -> None:
        """Drop a user's ratings. Their slots are null from now on, and their spent allowance stays spent."""
        agent = self._agents.get(self.tag(user))
        if agent is not None:
            agent.forget()

    def answers(self, asked: Round) -> Iterator[Sent]:
        """The slots of all users for a round, in the order of the slots' ids, which reveals nothing about users."""
        sent = [agent.answer(asked, self._system.digest) for agent in self._agents.values()]
        yield from sorted(sent, key=lambda one: one.slot_id)

    def dump(self) -> list[dict[str, Any]]:
        """The values of `USERS`."""
        return [_packed(tag, agent) for tag, agent in self._agents.items()]

    def load(self, users: Sequence[Mapping[str, Any]]) -> None:
        """Return to dumped users."""
        self._agents = {}
        for one in users:
            agent = self._agents[one["tag"]] = self._agent(one["tag"], one["answered"])
            items, values = np.frombuffer(one["items"], "<i4"), np.frombuffer(one["values"], "<f8")
            agent.rate(items.tolist(), values.tolist())

    def tag(self, user: str) -> bytes:
        """The tag of a user: a keyed digest of their name."""
        return self._key.digest("bgt-user", user.encode())

    def _agent(self, tag: bytes, answered: int) -> RatingAgent:
        # The journal remembers answered rounds: its record is acknowledged before any slot leaves.
        return RatingAgent(
            self._system.config,
            self._key.derive("bgt-agent", tag),
            _journaled,
            answered,
            self._system.features,
            self._system.digest,
        )


def _journaled(answered: int) -> None:
    """Do nothing: the answered rounds are in the state, which is restored from the journal."""


def _packed(tag: bytes, agent: RatingAgent) -> dict[str, Any]:
    items, values = agent.ratings
    return {
        "tag": tag,
        "answered": agent.answered,
        "items": np.array(items, dtype="<i4").tobytes(),
        "values": np.array(values, dtype="<f8").tobytes(),
    }


KINDS = frozenset({"Ratings", "RatingQuery", "Seal", "Forget"})
MAX_RECORDS = 4096
"""Largest number of records in one fold, so that the journal record fits the broker's record size."""


class Incoming(NamedTuple):
    """One record of the log: its kind and fields, or why it is invalid."""

    record: InputRecord
    name: str
    fields: dict[str, Any]

    @property
    def predicted(self) -> int:
        """How many items it asks a prediction of."""
        return len(self.fields["items"]) // 4 if self.name == "RatingQuery" else 0


def decode_slice(part: InputSlice) -> list[Incoming]:
    """Decode a slice. A record that cannot be decoded has the reason as its name, and no fields."""
    decoded = []
    for record in part.records:
        try:
            decoded.append(Incoming(record, *codec.decode(record.value, KINDS)))
        except CodecError as error:
            decoded.append(Incoming(record, str(error.reason), {}))
    return decoded


def ready_slice(
    part: InputSlice, decoded: Sequence[Incoming], newest: int, ended_rounds: int, ended: bool
) -> InputSlice:
    """The beginning of a slice that may be folded.

    The end of a round waits until the round itself was received, and later records wait with it. A question waits for
    the model after the last round that ended before it in this log, and not for later models, which may never come.

    Args:
        part: the input that has arrived.
        decoded: the same, decoded.
        newest: number of the newest round that was received with its model.
        ended_rounds: number of rounds that ended in this log before the slice.
        ended: whether there will be no further round.
    """
    predicted = 0
    for number, one in enumerate(decoded):
        predicted += min(one.predicted, MAX_PREDICTED)
        if number and (number >= MAX_RECORDS or predicted > MAX_PREDICTED):
            return cut(part, one.record.offset)
        if one.name == "Seal" and one.fields["phase"] == ended_rounds:
            if newest < ended_rounds and not ended:
                return cut(part, one.record.offset)
            ended_rounds += 1
        if one.name == "RatingQuery" and newest <= one.fields["after_round"] < ended_rounds and not ended:
            return cut(part, one.record.offset)
    return part


@dataclass(slots=True, eq=False)
class Predictions(Batch):
    """A batch of ratings, and the answers to its questions.

    Attributes:
        event_ids, lengths, values: of the answered questions: ids, numbers of items, and predictions.
        sent: number of slots that are sent.
    """

    event_ids: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    values: list[Float64] = field(default_factory=list)
    sent: int = 0


class RaterMachine(AnsweringRole[Predictions]):
    """The users of one partition."""

    batch_class = Predictions
    state = State(
        "a rater's state",
        "RaterState",
        chain=owner(),
        read=Several(
            {"position": "long"},
            lambda role: {"position": role.read[role.inputs[0]]},
            lambda role, values: role.read.update({role.inputs[0]: values["position"]}),
        ),
        ended_rounds=integer("int", disk="sealed"),
        received=Flat(RECEIVED),
        users=own_part(USERS),
        asked=Single(_QUESTIONS, _pack_questions, _unpack_questions, disk="questions"),
    )
    derived: ClassVar[Mapping[str, str]] = {
        "models": "the reader of `received`",
        "_decoded": "kept from `ready` to the fold of the same records",
    }

    system: BgtSystem

    def __init__(self, system: BgtSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge zone's key."""
        identity, inputs = Identity.of(system, "rater", "predictions", partition), (("ratings", partition),)
        self.received = Received(system)
        super().__init__(system, identity, "RatingPredictions", inputs, [self.received.reader], EDGE_ZONE, key)
        self.ended_rounds = 0
        """Number of rounds that have ended in this log."""
        self.users = Users(system, key)
        self.asked: BoundedMap[bytes] = BoundedMap(REMEMBERED_EVENTS)
        """Event ids of answered questions, each with the user's tag."""
        self._decoded: tuple[int, int, list[Incoming]] | None = None

    def positions(self) -> Mapping[TopicPartition, int]:
        received = self.received
        return {**self.read, received.reader.topic: received.reader.position, ROUNDS_TOPIC: received.rounds_read}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: the end of a round waits for that round, and a question for the model that it names."""
        found = self.received
        parts = [
            ready_slice(part, self.decode(part), found.number, self.ended_rounds, found.ended)
            if part.topic == "ratings"
            else part
            for part in slices
        ]
        return [part for part in parts if part.high > part.low]

    def decode(self, part: InputSlice) -> Sequence[Incoming]:
        """Decode a slice of ratings, once for `ready` and `fold`."""
        decoded = self._decoded
        if decoded is None or decoded[0] != part.low or decoded[1] < part.high:
            decoded = self._decoded = part.low, part.high, decode_slice(part)
        return decoded[2][: len(part.records)]

    # A batch.

    def take(self, batch: Predictions) -> Mapping[str, Any]:
        """Take published records, then ratings. Journaled predictions count if they differ by a rounding."""
        taken = self.received.read_models(batch.slices[self.received.reader.topic])
        if taken:
            batch.counts[Outcome.MODEL_ADOPTED] += taken
        rounds = batch.slices[ROUNDS_TOPIC]
        for record in rounds.records:
            try:
                if self.received.read_round(record):
                    batch.counts[BgtOutcome.ROUND] += 1
            except (CodecError, BgtError):
                batch.refuse(BgtRefusal.BAD_ROUND, record, source=ROUNDS_TOPIC)
        self.received.rounds_read = rounds.high
        for one in self.decode(batch.slices[self.inputs[0]]):
            self._take(one, batch)
        self._decoded = None
        return {
            "event_ids": batch.event_ids,
            "counts": np.array(batch.lengths, dtype="<i4").tobytes(),
            "values": np.concatenate([*batch.values, np.zeros(0)]).astype("<f8").tobytes(),
            "model_version": self.received.version,
            "slots": batch.sent,
        }

    # What users write.

    def _take(self, one: Incoming, batch: Predictions) -> None:
        if one.name not in KINDS:
            batch.refuse(one.name, one.record)
        elif one.name == "Seal":
            self._phase_end(one, batch)
        else:
            reason = self._user_fault(one.fields)
            if reason is not None:
                batch.refuse(reason, one.record)
            else:
                {"Ratings": self._rate, "RatingQuery": self._predict, "Forget": self._forget}[one.name](one, batch)

    def _user_fault(self, fields: dict[str, Any]) -> str | None:
        fault = id_fault(fields["user"])
        if fault is not None:
            return str(fault)
        # In a second home partition a user would have a second slot in each round.
        home = partition_of(fields["user"], self.system.config.partitions.learner)
        return None if home == self.partition else Refusal.FOREIGN_USER

    def _rate(self, one: Incoming, batch: Predictions) -> None:
        try:
            self.users.rate(one.fields["user"], *rating_columns(one.fields))
        except BadRatings:
            batch.refuse(BgtRefusal.BAD_RATINGS, one.record)
            return
        batch.counts[BgtOutcome.RATED] += 1

    def _predict(self, one: Incoming, batch: Predictions) -> None:
        event_id, tag = one.fields["event_id"], self.users.tag(one.fields["user"])
        reason = self._event_fault(event_id, tag)
        if reason is not None:
            batch.refuse(reason, one.record)
            return
        try:
            found = self._answered(one.fields["items"], tag)
        except BadRatings:
            batch.refuse(BgtRefusal.BAD_QUESTION, one.record)
            return
        self.asked.put(event_id, tag)
        batch.values.append(found if batch.replayed is None else self._as_journaled(found, batch, batch.replayed))
        batch.event_ids.append(event_id)
        batch.lengths.append(len(found))
        batch.counts[BgtOutcome.ASKED] += 1

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

    def _as_journaled(self, found: Float64, batch: Predictions, replayed: Replayed) -> Float64:
        """The journaled prediction if the found one equals it up to a rounding; else the found one."""
        before = sum(batch.lengths)
        journaled = np.frombuffer(replayed.fields["values"], "<f8")[before : before + len(found)]
        scale = self.system.config.scale
        margin = _MARGIN * (scale.highest - scale.lowest)
        if journaled.shape != found.shape or not np.allclose(journaled, found, rtol=0.0, atol=margin):
            return found
        self.float_ties += int(np.count_nonzero(journaled != found))
        return journaled

    def _forget(self, one: Incoming, batch: Predictions) -> None:
        if one.fields["config_digest"] != self.system.digest:
            batch.refuse(Refusal.OTHER_CONFIGURATION, one.record)
            return
        self.users.forget(one.fields["user"])
        batch.counts[Outcome.FORGOTTEN] += 1

    # The end of a round.

    def _phase_end(self, one: Incoming, batch: Predictions) -> None:
        phase = one.fields["phase"]
        if phase != self.ended_rounds or phase >= ROUNDS or one.fields["origin"] != -1:
            batch.refuse(Refusal.BAD_PHASE, one.record)
            return
        self.ended_rounds += 1
        batch.counts[Outcome.SEAL] += 1
        asked, opening = self.received.round(phase), self.received.opening(phase)
        if asked is None:
            return
        if opening is not None:
            batch.outputs.append(Output("updates", 0, opening))
        for sent in self.users.answers(asked):
            batch.outputs.append(Output("updates", 0, codec.encode("RatingSlot", sent.fields())))
            batch.sent += 1
            batch.counts[Outcome.SLOT_SENT] += 1
        end = {"phase": phase, "origin": self.partition, "config_digest": self.system.digest, "after_click": -1}
        batch.outputs.append(Output("updates", 0, codec.encode("Seal", end)))
