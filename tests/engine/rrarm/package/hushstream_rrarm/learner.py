"""The one role: it shows the arm whose rewards look best, and publishes a randomised response to each reward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.batch import CHARGES, NOISE_EPOCH, Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity
from hushstream.engine.learner.deciding import READING, AnsweringRole
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.records import Output
from hushstream.engine.state.declared import Single, State, integer, record, remembered, rows
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import partition_of
from hushstream_rrarm.core import EDGE, Rrarm

KINDS = frozenset({"RrAsk", "RrClick", "Forget"})
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
        READING,
        epoch=NOISE_EPOCH,
        spending=CHARGES,
        sums=rows("<i8"),
        asked=remembered(record("Asked", event_id="string", user="string", arm="int"), Asked),
        counted=Single({"type": "map", "values": "int"}, dict, lambda value, _: value),
        responses=integer(),
    )
    derived: ClassVar[Mapping[str, str]] = {"models": "none, as it follows no track"}
    system: Rrarm

    def __init__(self, system: Rrarm, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        identity = Identity.of(system, "learner", "answers", partition)
        super().__init__(system, identity, "RrAnswers", (("asks", partition),), [], EDGE, key, system.spending_terms)
        self.sums = np.zeros((2, system.config.arms), dtype="<i8")
        """How many responses there were of each arm, and how many of them said 1."""
        self.asked: BoundedMap[Asked] = BoundedMap(REMEMBERED_EVENTS)
        self.counted: dict[str, int] = {}
        """How many rewards of each user counted, under a digest that an erasure leaves."""
        self.responses = 0

    @property
    def charge(self) -> int:
        """Every response is charged for itself."""
        return self.responses

    def take(self, batch: Batch) -> Mapping[str, Any]:
        """Take questions and clicks; the journal record says what was answered and what was charged."""
        answers: list[tuple[str, int]] = []
        for one in batch.slices[self.inputs[0]].records:
            try:
                name, fields = codec.decode(one.value, KINDS)
                self._check(fields)
                if name == "RrAsk":
                    answers.append(self._ask(batch, **fields))
                elif name == "RrClick":
                    self._click(batch, **fields)
                else:
                    self._forget(fields["user"])
                    batch.counts[Outcome.FORGOTTEN] += 1
            except (CodecError, Refused) as error:
                batch.refuse(error.reason, one)
        arms = np.array([arm for _, arm in answers], "<i4").tobytes()
        return {"event_ids": [event for event, _ in answers], "arms": arms, "debits": batch.debits}

    def _check(self, fields: dict[str, Any]) -> None:
        if fields["config_digest"] != self.system.digest:
            raise Refused(Refusal.OTHER_CONFIGURATION)
        if partition_of(fields["user"], self.system.config.homes) != self.partition:
            raise Refused(Refusal.FOREIGN_USER)

    def _ask(self, batch: Batch, event_id: str, user: str, **_: Any) -> tuple[str, int]:
        """Answer with the best arm; who asks again gets the same answer."""
        asked = self.asked.get(event_id)
        if asked is None:
            asked = Asked(user, int(np.argmax((self.sums[1] + 1) / (self.sums[0] + 2))))
            self.asked.put(event_id, asked)
        batch.counts[Outcome.DECIDED] += 1
        return event_id, asked.arm

    def _click(self, batch: Batch, event_id: str, user: str, reward: int, **_: Any) -> None:
        """Respond to the reward of an arm, if it is the first of its event and its user has some left."""
        asked = self.asked.get(event_id)
        if asked is None or asked.user != user or reward not in (0, 1):
            raise Refused(Refusal.CLICK_WITHOUT_CONTEXT)
        self.asked.put(event_id, Asked("", asked.arm))
        tag = self.key.digest("user", self.chain.genesis_nonce, user.encode()).hex()
        if self.counted.get(tag, 0) >= self.system.config.units_per_person:
            batch.counts[Outcome.ALLOWANCE_SPENT] += 1
            return
        self.counted[tag] = self.counted.get(tag, 0) + 1
        name = self.key.digest("report-id", self.chain.genesis_nonce, event_id.encode())
        batch.release(partial(self._draw, batch, name, asked.arm, reward), self.charge)
        self.responses += 1

    def _draw(self, batch: Batch, name: bytes, arm: int, reward: int, charge: ChargeResult) -> tuple[Output, ...]:
        """The response, and the ledger's copy of its price; the noise is named by the event and the reward, too."""
        if charge.refused:
            return ()
        system, noise = self.system, self.releases
        content = self.key.digest("response", name, bytes([reward]), arm.to_bytes(4))
        address = system.address(noise.nonce, noise.epoch.number, self.partition, self.responses, content)
        response = int(system.response.draw(KeyedStream(self.key, address), np.array([reward], np.int64))[0])
        self.sums[:, arm] += (1, response)
        stated = system.as_stated(self.key.reproducible)
        report = {"report_id": name, "config_digest": system.digest, "arm": arm, "response": response}
        sent = codec.encode("RrReport", {**report, "private_as_stated": stated})
        return Output("reports", self.partition, sent), batch.ledger_entry(name, charge)

    def _forget(self, user: str) -> None:
        """Take a user's name out of what was asked."""
        for event, (whose, arm) in list(self.asked.items()):
            if whose == user:
                self.asked.put(event, Asked("", arm))
