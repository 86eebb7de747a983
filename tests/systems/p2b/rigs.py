"""A small deployment, and rigs that feed the machines real record bytes and read what comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.privacy.keys import Key, seeded_key
from hushstream.schemas import codec
from hushstream.systems.p2b.codebook import CENTROID_STEPS
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    FeedbackConfig,
    LearnerConfig,
    MeasurementConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
    UsersConfig,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.slots import FeatureLayout, Report, pack, unpack

DIMENSION, ARMS, CODES = 4, 5, 4
START_MS = 1_700_000_000_000
NONCE = bytes(range(32))
SECTIONS = {
    "learner": LearnerConfig,
    "feedback": FeedbackConfig,
    "measurement": MeasurementConfig,
    "release": ReleaseConfig,
    "partitions": PartitionConfig,
    "encoder": EncoderConfig,
    "slot": SlotConfig,
    "users": UsersConfig,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "encoder": {"codes": CODES},
    "slot": {"after_interactions": 3, "settle_seconds": 10.0},
    "feedback": {"attribution_window_seconds": 5.0},
    "release": {"window_slots": 4},
}


def lattice() -> NDArray[np.int64]:
    """Four centroids, each near one corner of the simplex."""
    corners = np.full((CODES, DIMENSION), 0.1) + 0.6 * np.eye(CODES, DIMENSION)
    return np.rint(corners * CENTROID_STEPS).astype(np.int64)


def make_system(**changes: Any) -> P2BSystem:
    """The small deployment; a section is changed by a mapping, a value by itself; or a replay of a public dataset."""
    sections = {name: kind(**{**DEFAULTS.get(name, {}), **changes.pop(name, {})}) for name, kind in SECTIONS.items()}
    plain = {"deployment": "small", "arms": ARMS, "context": ContextConfig(DIMENSION), "expected_slots": 40}
    public = changes.pop("public_dataset", False)
    return P2BSystem.of(P2BConfig(**{**plain, **sections, **changes}), lattice(), public_dataset=public)


def point(index: int) -> NDArray[np.float32]:
    """A histogram; four different ones by index, each of its own code."""
    return (np.full(DIMENSION, 0.1) + 0.6 * np.eye(DIMENSION)[index % DIMENSION]).astype(np.float32)


class Answer(NamedTuple):
    event_id: str
    arm: int
    propensity: int
    policy: int
    model_version: int


class Sent(NamedTuple):
    """A slot report as an observer of the topic sees it, and what only the shuffler can read."""

    partition: int
    report_id: bytes
    period: int
    content: bytes


@dataclass
class Seen:
    """What steps gave."""

    steps: list[Step] = field(default_factory=list)

    @property
    def journals(self) -> list[dict[str, Any]]:
        return [codec.decode(step.journal)[1] for step in self.steps if step.journal is not None]

    @property
    def answers(self) -> list[Answer]:
        rows = []
        for record in self.journals:
            columns = [
                np.frombuffer(record[name], kind).tolist()
                for name, kind in (
                    ("arms", "<i4"),
                    ("propensities", "<u4"),
                    ("policies", "u1"),
                    ("model_versions", "<i4"),
                )
            ]
            rows += [Answer(*row) for row in zip(record["event_ids"], *columns, strict=True)]
        return rows

    @property
    def arms(self) -> dict[str, int]:
        return {answer.event_id: answer.arm for answer in self.answers}

    @property
    def letters(self) -> list[dict[str, Any]]:
        return [codec.decode(output.value)[1] for step in self.steps for output in step.dead_letters]

    @property
    def reasons(self) -> list[str]:
        return [letter["reason"] for letter in self.letters]

    def releases(self, topic: str) -> list[Output]:
        return [output for step in self.steps for output in step.releases if output.topic == topic]

    def records(self, topic: str, name: str) -> list[dict[str, Any]]:
        found = [codec.decode(output.value) for output in self.releases(topic)]
        return [fields for kind, fields in found if kind == name]

    @property
    def slots(self) -> list[Sent]:
        sent = []
        for output in self.releases("reports"):
            kind, fields = codec.decode(output.value)
            if kind == "SlotReport":
                period = int.from_bytes(fields["period"], "little")
                sent.append(Sent(output.partition, fields["report_id"], period, fields["content"]))
        return sent

    @property
    def reports(self) -> list[Report | None]:
        return [unpack(slot.content, CODES, ARMS, 1) for slot in self.slots]

    @property
    def counts(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for step in self.steps:
            total.update({str(name): number for name, number in step.counts.items()})
        return +total

    @property
    def outputs(self) -> list[Output]:
        return [output for step in self.steps for output in (*step.releases, *step.dead_letters)]


class Rig:
    """Any machine with its input logs; a log's offsets count from 0, log time is set by the test."""

    def __init__(self, machine: Any, nonce: bytes = NONCE) -> None:
        self.machine = machine
        self.genesis = machine.genesis(nonce)
        machine.start(self.genesis)
        self.now_ms = START_MS
        self.logs: dict[tuple[str, int], list[InputRecord]] = {}
        self.journal: list[bytes] = []
        self.folded: list[list[InputSlice]] = []
        self.seen = Seen()

    def put(self, topic: str, value: bytes, partition: int = 0) -> int:
        log = self.logs.setdefault((topic, partition), [])
        log.append(InputRecord(len(log), self.now_ms, value))
        return len(log) - 1

    def wait(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def arrived(self) -> list[InputSlice]:
        positions = self.machine.positions()
        slices = []
        for source, position in positions.items():
            log = self.logs.get(source, [])
            if len(log) > position:
                slices.append(InputSlice(*source, position, len(log), tuple(log[position:])))
        return slices

    def fold(self) -> Seen:
        """Fold all that is ready; gives what this call brought."""
        seen = Seen()
        while slices := list(self.machine.ready(self.arrived())):
            seen.steps += self.take(slices).steps
        return seen

    def take(self, slices: Sequence[InputSlice]) -> Seen:
        """Fold exactly these slices."""
        steps = list(self.machine.fold(slices))
        self.folded.append(list(slices))
        self.journal += [step.journal for step in steps if step.journal is not None]
        self.seen.steps += steps
        return Seen(steps)

    def slice(self, part: Any) -> InputSlice:
        log = self.logs.get((part.topic, part.partition), [])
        return InputSlice(*part, records=tuple(log[part.low : part.high]))

    def replayed(self, fresh: Any) -> Seen:
        """A fresh machine taken through this rig's journal."""
        fresh.start(self.genesis)
        seen = Seen()
        for value in self.journal:
            slices = [self.slice(part) for part in fresh.recovery_ranges(value)]
            seen.steps.append(fresh.replay(value, slices))
        return seen


class LearnerRig(Rig):
    """A learner with shorthand for what a client sends."""

    def __init__(self, system: P2BSystem | None = None, key: Key | None = None, partition: int = 0) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "edge") if key is None else key
        super().__init__(LearnerMachine(self.system, partition, self.key))

    def context(self, event_id: str, user: str = "ann", x: Any = None, **fields: Any) -> int:
        vector = point(0) if x is None else x
        record = {"event_id": event_id, "user": user, "context": np.asarray(vector, "<f4").tobytes(), **fields}
        return self.put("contexts", codec.encode("Context", record))

    def shown(self, event_id: str, arm: int, user: str = "ann") -> int:
        return self._feedback("shown", event_id, arm, 0.0, user)

    def reward(self, event_id: str, arm: int, reward: float = 1.0, user: str = "ann") -> int:
        return self._feedback("reward", event_id, arm, reward, user)

    def end_phase(self, phase: int = 0, after_click: int = -1) -> int:
        fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": after_click}
        return self.put("contexts", codec.encode("Seal", fields))

    def _feedback(self, kind: str, event_id: str, arm: int, reward: float, user: str) -> int:
        fields = {"kind": kind, "event_id": event_id, "user": user, "arm": arm, "reward": reward}
        return self.put("clicks", codec.encode("Feedback", fields))

    def decide(self, event_id: str, user: str = "ann", x: Any = None, **fields: Any) -> int:
        """Send one context and fold; gives the arm."""
        self.context(event_id, user, x, **fields)
        return self.fold().arms[event_id]

    def interact(self, user: str, rounds: int, reward: float = 1.0) -> Seen:
        """A user's first rounds, each with its reward."""
        seen = Seen()
        for number in range(rounds):
            event_id = f"{user}:{number}"
            arm = self.decide(event_id, user, point(number))
            self.reward(event_id, arm, reward, user)
            seen.steps += self.fold().steps
        return seen

    def knows(self, user: str = "ann") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gram (K, D, D) and moment (K, D) of a user's own learner."""
        agent = self.machine.agents.get(user)
        state = agent.state or self.machine.terms.policy.shared(agent.track).state
        gram = np.linalg.inv(state.inverse.astype(np.float64))
        return gram, np.einsum("kij,kj->ki", gram, state.theta)


class ShufflerRig(Rig):
    """A shuffler with shorthand for what a learner sends."""

    def __init__(self, system: P2BSystem | None = None, key: Key | None = None, nonce: bytes = NONCE) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "shuffler") if key is None else key
        super().__init__(ShufflerMachine(self.system, 0, self.key), nonce)

    def slot(self, number: int, report: Report | None = None, **changes: Any) -> int:
        period = self.now_ms // round(self.system.config.slot.period_seconds * 1000)
        fields = {
            "report_id": number.to_bytes(16, "big"),
            "period": period.to_bytes(8, "little"),
            "config_digest": self.system.digest,
            "content": pack(report),
            **changes,
        }
        return self.put("reports", codec.encode("SlotReport", fields))

    def end_phase(self, phase: int = 0, origin: int = 0, digest: bytes | None = None) -> int:
        fields = {"phase": phase, "origin": origin, "config_digest": digest or self.system.digest, "after_click": -1}
        return self.put("reports", codec.encode("Seal", fields))

    def tick(self) -> int:
        return self.put("reports", codec.encode("Tick", {"config_digest": self.system.digest}))

    def sums_of(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        return (seen or self.seen).records("window-sums", "WindowSums")


class AggregatorRig(Rig):
    """An aggregator."""

    def __init__(self, system: P2BSystem | None = None) -> None:
        self.system = make_system() if system is None else system
        super().__init__(AggregatorMachine(self.system, 0))

    def give(self, values: Iterable[bytes]) -> Seen:
        for value in values:
            self.put("window-sums", value)
        return self.fold()


def window_sums_values(system: P2BSystem, windows: int, key: Key | None = None) -> list[bytes]:
    """The sums of a shuffler that held the same four reports in every window."""
    rig = ShufflerRig(system, key)
    for number in range(4 * windows):
        rig.slot(number, Report(number % CODES, number % ARMS, number % 2))
    return [output.value for output in rig.fold().releases("window-sums")]


def changed(value: bytes, **fields: Any) -> bytes:
    """The same record with other fields."""
    name, found = codec.decode(value)
    return codec.encode(name, {**found, **fields})


def cell_budgets(layout: FeatureLayout) -> NDArray[np.int64]:
    """(P,) the units that each cell's block may have in one slot."""
    return np.repeat(np.array(layout.budgets, dtype=np.int64), [block.cells for block in layout.blocks])


def adopt(rig: LearnerRig, version: int = 1) -> None:
    """Have a learner take this version of the model."""
    track = AggregatorRig(rig.system)
    track.give(window_sums_values(rig.system, version))
    for value in (track.genesis, *track.journal):
        rig.put("models", value)
    rig.fold()
