"""The rater role: users' ratings come in, padded slots go out, and predictions to whoever asks (edge zone).

It is many `RatingAgent`s on a stream. A user takes part from their first record of ratings on, be it an empty one, and
sends one slot in each round that ends after that: null where their ratings were erased. So how many slots there are,
and when, follows from who takes part and from the ends of rounds alone, which are logged and public.

The journal holds what was predicted, and pays for the slots: a round was answered once its record stands. Which rounds
are asked for, and the model, are read before a batch's records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hushstream.engine.journal.chain import Chain, Identity
from hushstream.engine.journal.digests import digest_records
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputSlice, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Flat, Single, State, integer, own_part
from hushstream.engine.state.parts import array, record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
from hushstream.schemas.partitioning import partition_of
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.edge.hearing import HEARD, ROUNDS_TOPIC, Heard
from hushstream.systems.bgt.edge.incoming import Incoming, decode_slice, ready_slice
from hushstream.systems.bgt.edge.users import USERS, Users
from hushstream.systems.bgt.topics import EDGE_ZONE

REMEMBERED_EVENTS = 50_000
"""How many past questions a partition knows again, to tell whose they were."""

_QUESTIONS = array(record("Question", event_id="string", user="bytes"))


def _pack_questions(asked: BoundedMap[bytes]) -> list[dict[str, Any]]:
    return [{"event_id": event_id, "user": tag} for event_id, tag in asked.items()]


def _unpack_questions(value: list[dict[str, Any]], before: BoundedMap[bytes]) -> BoundedMap[bytes]:
    asked: BoundedMap[bytes] = BoundedMap(before.capacity)
    for one in value:
        asked.put(one["event_id"], one["user"])
    return asked


class Rater(OwnsJournal, Declared):
    """The users of one partition."""

    state = State(
        "a rater's state",
        2,
        "RaterState",
        chain=owner(),
        position=integer(),
        ended_rounds=integer("int", disk="sealed"),
        heard=Flat(HEARD),
        users=own_part(USERS),
        asked=Single(_QUESTIONS, _pack_questions, _unpack_questions, disk="questions"),
    )
    derived: ClassVar[Mapping[str, str]] = {
        "system": FIXED,
        "partition": FIXED,
        "key": FIXED,
        "letters": FIXED,
        "float_ties": "a count of this process alone",
        "_decoded": "kept from `ready` to the fold of the same records",
    }

    def __init__(self, system: BgtSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge zone's key."""
        self.system = system
        self.partition = partition
        self.key = key
        identity = Identity("rater", system.config.deployment, system.digest, ("predictions", partition))
        self.chain = Chain(identity, key, "RatingPredictions")
        self.letters = DeadLetters(EDGE_ZONE, "rater", partition, key, self.chain.encode)
        self.position = 0
        self.ended_rounds = 0
        """Rounds that have ended in this log."""
        self.heard = Heard(system)
        self.users = Users(system, key)
        self.asked: BoundedMap[bytes] = BoundedMap(REMEMBERED_EVENTS)
        """Event ids of questions that were answered, and the tag of whose they are."""
        self.float_ties = 0
        """Replayed predictions that stand by the journal although they differ by a rounding."""
        self._decoded: tuple[int, int, list[Incoming]] | None = None

    @property
    def journal(self) -> TopicPartition:
        return ("predictions", self.partition)

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        return (("ratings", self.partition),)

    @property
    def readers(self) -> Sequence[ModelReader]:
        return (self.heard.reader,)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return (self.heard.reader.topic, ROUNDS_TOPIC)

    def is_home_of(self, user: str) -> bool:
        """Whether a user's records belong here: elsewhere they would have a second slot in each round."""
        return partition_of(user, self.system.config.partitions.learner) == self.partition

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        heard = self.heard
        return {
            self.inputs[0]: self.position,
            heard.reader.topic: heard.reader.position,
            ROUNDS_TOPIC: heard.rounds_read,
        }

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: every batch is journaled."""
        return {self.inputs[0]: self.position}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: the end of a round waits for that round, and a question for the model that it names."""
        parts = [self._ready(part) if part.topic == "ratings" else part for part in slices]
        return [part for part in parts if part.high > part.low]

    def _ready(self, part: InputSlice) -> InputSlice:
        return ready_slice(part, self.decode(part), self.heard.number, self.ended_rounds, self.heard.ended)

    def decode(self, part: InputSlice) -> Sequence[Incoming]:
        """A slice of ratings; decoded once, though `ready` and `fold` both ask."""
        held = self._decoded
        if held is None or held[0] != part.low or held[1] < part.high:
            held = self._decoded = part.low, part.high, decode_slice(part)
        return held[2][: len(part.records)]

    # State on disk.

    def snapshot(self) -> bytes:
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)
