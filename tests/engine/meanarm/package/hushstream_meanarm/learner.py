"""The learner: shows the arm with the best mean, and hands rewards on without names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Chain, Identity, head_fields, ranges_of
from hushstream.engine.journal.digests import digest_outputs, digest_records
from hushstream.engine.journal.generations import in_its_generation
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputRecord, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters, Refused
from hushstream.engine.state.declared import FIXED, Declared, Single, State, integer, own_part, remembered, rows
from hushstream.engine.state.parts import READER, record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.partitioning import partition_of
from hushstream_meanarm.core import EDGE, Meanarm

REMEMBERED_EVENTS = 100_000


class Asked(NamedTuple):
    """Who asked, and the arm; nobody, once their click came or they were erased."""

    user: str
    arm: int


class LearnerMachine(OwnsJournal, Declared):
    """The learner on one partition of questions and clicks."""

    state = State(
        "a learner's state",
        1,
        "LearnerState",
        chain=owner(),
        position=integer(),
        reader=own_part(READER),
        means=rows("<f8"),
        asked=remembered(record("Asked", event_id="string", user="string", arm="int"), Asked),
        counted=Single({"type": "map", "values": "int"}, dict, lambda value, _: value),
    )
    derived: ClassVar[Mapping[str, str]] = dict.fromkeys(("system", "partition", "key", "letters"), FIXED)
    float_ties = 0

    def __init__(self, system: Meanarm, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        self.system, self.partition, self.key = system, partition, key
        identity = Identity("learner", system.config.deployment, system.digest, self.journal)
        self.chain = Chain(identity, key, "ArmAnswers")
        self.letters = DeadLetters(EDGE, "learner", partition, key, self.chain.encode)
        self.reader = ModelReader(system, 0, "means", "ArmMeans")
        self.position = 0
        self.means = np.full(system.config.arms, 0.5)
        self.asked: BoundedMap[Asked] = BoundedMap(REMEMBERED_EVENTS)
        self.counted: dict[str, int] = {}
        """How many rewards of each user counted, under a digest that an erasure leaves."""

    @property
    def journal(self) -> TopicPartition:
        return ("answers", self.partition)

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        return (("asks", self.partition),)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return (self.reader.topic,)

    @property
    def readers(self) -> Sequence[ModelReader]:
        return (self.reader,)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {self.inputs[0]: self.position, self.reader.topic: self.reader.position}

    def committed(self) -> Mapping[TopicPartition, int]:
        return {self.inputs[0]: self.position}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        return slices

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        batch, fields = self._folded(slices, self.chain.sequence + 1)
        return [Step(self.chain.append(fields), tuple(batch.slots), tuple(batch.dead), batch.counts)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`; after a `ReplayMismatch` the machine must be thrown away."""
        journaled = self.chain.written(self.chain.accept(value, self.positions()))
        batch, fields = self._folded(slices, self.chain.sequence)
        again = self.chain.written(fields)
        if any(again[name] != journaled[name] for name in again):
            raise ReplayMismatch(f"answers/{self.partition} record {self.chain.sequence}: its inputs give another one")
        return Step(None, tuple(batch.slots), tuple(batch.dead), batch.counts)

    def snapshot(self) -> bytes:
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)

    def _folded(self, slices: Sequence[InputSlice], sequence: int) -> tuple[_Batch, dict[str, Any]]:
        given = {(part.topic, part.partition): part for part in slices}
        places = sorted(self.positions().items())
        covered = [given.get(place, InputSlice(*place, position, position, ())) for place, position in places]
        parts = {part.topic: part for part in covered}
        for model in self.reader.read(parts["models"]):
            self.means = np.frombuffer(model.fields["means"], "<f8")
        batch = _Batch()
        for one in parts["asks"].records:
            self._take(one, batch)
        self.position = parts["asks"].high
        digests = self.input_digest(covered), digest_outputs(self.key, batch.slots)
        head = head_fields(sequence, 0, ranges_of(covered), *digests, self.chain.schema_generation)
        return batch, {"head": head, "event_ids": batch.events, "arms": np.array(batch.arms, "<i4").tobytes()}

    def _take(self, one: InputRecord, batch: _Batch) -> None:
        try:
            name, fields = codec.decode(one.value, frozenset({"ArmAsk", "ArmClick", "Forget"}))
            if fields["config_digest"] != self.system.digest:
                raise Refused(Refusal.OTHER_CONFIGURATION)
            if partition_of(fields["user"], self.system.config.homes) != self.partition:
                raise Refused(Refusal.FOREIGN_USER)
            {"ArmAsk": self._ask, "ArmClick": self._click, "Forget": self._forget}[name](fields, batch)
        except (CodecError, Refused) as error:
            batch.counts[Outcome.REJECTED] += 1
            batch.dead.append(self.letters.letter(error.reason, *self.inputs[0], one.offset, value=one.value))

    def _ask(self, fields: dict[str, Any], batch: _Batch) -> None:
        _, arm = self.asked.get(fields["event_id"]) or ("", int(np.argmax(self.means)))
        if fields["event_id"] not in self.asked:
            self.asked.put(fields["event_id"], Asked(fields["user"], arm))
        batch.events.append(fields["event_id"])
        batch.arms.append(arm)
        batch.counts[Outcome.DECIDED] += 1

    def _click(self, fields: dict[str, Any], batch: _Batch) -> None:
        user, arm = self.asked.get(fields["event_id"]) or ("", 0)
        if user != fields["user"]:
            raise Refused(Refusal.CLICK_WITHOUT_CONTEXT)
        self.asked.put(fields["event_id"], Asked("", arm))
        tag = self.key.digest("user", self.chain.genesis_nonce, user.encode()).hex()
        if self.counted.get(tag, 0) >= self.system.config.rewards_per_user:
            batch.counts[Outcome.ALLOWANCE_SPENT] += 1
            return
        self.counted[tag] = self.counted.get(tag, 0) + 1
        name = self.key.digest("slot-id", self.chain.genesis_nonce, fields["event_id"].encode())
        slot = {"slot_id": name, "config_digest": self.system.digest, "arm": arm, "reward": fields["reward"]}
        batch.slots.append(Output("slots", 0, self.chain.encode("ArmSlot", slot)))
        batch.counts[Outcome.SLOT_SENT] += 1

    def _forget(self, fields: dict[str, Any], batch: _Batch) -> None:
        for event, (user, arm) in list(self.asked.items()):
            if user == fields["user"]:
                self.asked.put(event, Asked("", arm))
        batch.counts[Outcome.FORGOTTEN] += 1


class _Batch:
    """What a batch gave."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.arms: list[int] = []
        self.slots: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()
