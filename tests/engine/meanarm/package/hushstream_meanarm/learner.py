"""The learner: shows the arm with the best mean, and hands rewards on without names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity
from hushstream.engine.learner.deciding import ANSWERING, AnsweringRole
from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.state.declared import Single, State, record, remembered, rows
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import partition_of
from hushstream_meanarm.core import EDGE, Meanarm

KINDS = frozenset({"ArmAsk", "ArmClick", "Forget"})
REMEMBERED_EVENTS = 100_000


class Asked(NamedTuple):
    """Who asked, and the arm; nobody, once their click came or they were erased."""

    user: str
    arm: int


class LearnerMachine(AnsweringRole[Batch]):
    """The learner on one partition of questions and clicks."""

    batch_class = Batch
    state = State(
        "a learner's state",
        "LearnerState",
        ANSWERING,
        means=rows("<f8"),
        asked=remembered(record("Asked", event_id="string", user="string", arm="int"), Asked),
        counted=Single({"type": "map", "values": "int"}, dict, lambda value, _: value),
    )
    system: Meanarm

    def __init__(self, system: Meanarm, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        identity = Identity.of(system, "learner", "answers", partition)
        models = [ModelReader(system, 0, "means", "ArmMeans")]
        super().__init__(system, identity, "ArmAnswers", (("asks", partition),), models, EDGE, key)
        self.means = np.full(system.config.arms, 0.5)
        self.asked: BoundedMap[Asked] = BoundedMap(REMEMBERED_EVENTS)
        self.counted: dict[str, int] = {}
        """How many rewards of each user counted, under a digest that an erasure leaves."""

    def take(self, batch: Batch) -> Mapping[str, Any]:
        """Take models, then questions and clicks; the journal record says what was answered."""
        for model in self.models[0].read(batch.slices[self.models[0].topic]):
            self.means = np.frombuffer(model.fields["means"], "<f8")
        answers: list[tuple[str, int]] = []
        for one in batch.slices[self.inputs[0]].records:
            try:
                name, fields = codec.decode(one.value, KINDS)
                self._check(fields)
                if name == "ArmAsk":
                    answers.append(self._ask(batch, **fields))
                elif name == "ArmClick":
                    self._click(batch, **fields)
                else:
                    self._forget(fields["user"])
                    batch.counts[Outcome.FORGOTTEN] += 1
            except (CodecError, Refused) as error:
                batch.refuse(error.reason, one)
        events, arms = [event for event, _ in answers], [arm for _, arm in answers]
        return {"event_ids": events, "arms": np.array(arms, "<i4").tobytes()}

    def _check(self, fields: dict[str, Any]) -> None:
        if fields["config_digest"] != self.system.digest:
            raise Refused(Refusal.OTHER_CONFIGURATION)
        if partition_of(fields["user"], self.system.config.homes) != self.partition:
            raise Refused(Refusal.FOREIGN_USER)

    def _ask(self, batch: Batch, event_id: str, user: str, **_: Any) -> tuple[str, int]:
        """Answer with the best arm; who asks again gets the same answer."""
        asked = self.asked.get(event_id)
        if asked is None:
            asked = Asked(user, int(np.argmax(self.means)))
            self.asked.put(event_id, asked)
        batch.counts[Outcome.DECIDED] += 1
        return event_id, asked.arm

    def _click(self, batch: Batch, event_id: str, user: str, reward: int, **_: Any) -> None:
        """Send a slot with the reward of an arm, if it is the first of its event and its user has some left."""
        asked = self.asked.get(event_id)
        if asked is None or asked.user != user:
            raise Refused(Refusal.CLICK_WITHOUT_CONTEXT)
        self.asked.put(event_id, Asked("", asked.arm))
        tag = self.key.digest("user", self.chain.genesis_nonce, user.encode()).hex()
        if self.counted.get(tag, 0) >= self.system.config.units_per_person:
            batch.counts[Outcome.ALLOWANCE_SPENT] += 1
            return
        self.counted[tag] = self.counted.get(tag, 0) + 1
        name = self.key.digest("slot-id", self.chain.genesis_nonce, event_id.encode())
        slot = {"slot_id": name, "config_digest": self.system.digest, "arm": asked.arm, "reward": reward}
        batch.send("slots", 0, "ArmSlot", slot)
        batch.counts[Outcome.SLOT_SENT] += 1

    def _forget(self, user: str) -> None:
        """Take a user's name out of what was asked."""
        for event, (whose, arm) in list(self.asked.items()):
            if whose == user:
                self.asked.put(event, Asked("", arm))
