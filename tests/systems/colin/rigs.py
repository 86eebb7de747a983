"""A small collaborative deployment, and rigs for its learner, counter and aggregator.

It is loaded after the rigs of `harness.py`, whose module it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from following import recover as recover
from hushstream_test_rigs import NONCE, Rig, Seen
from numpy.typing import NDArray

from hushstream.engine.configuration import FeedbackConfig, PartitionConfig
from hushstream.privacy.keys import Key, seeded_key
from hushstream.schemas import codec
from hushstream.systems.colin.configuration import (
    CollaborationConfig,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
)
from hushstream.systems.colin.counter import CounterMachine
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.edge import CollaborativeLearnerMachine
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.server import CollaborativeAggregatorMachine

USERS = ("ann", "bob", "cyd")
TIES = (("ann", "bob", 1.0), ("bob", "cyd", 0.5))
DIMENSION, ARMS = 3, 4
SECRET = Key(b"\x07" * 31 + b"\x01")
"""A key that is not seeded: what it gives may be called private."""
SECTIONS = {
    "features": FeatureConfig,
    "learner": CollaborationConfig,
    "feedback": FeedbackConfig,
    "release": ContinualConfig,
    "partitions": PartitionConfig,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "features": {"dimension": DIMENSION},
    "release": {"mechanism": "negative-digit", "rows": 4, "horizon": 64, "rewards_per_user": 32},
}

Reward = tuple[int, Sequence[float], float]
"""Node, features, reward."""


def make_graph(users: Sequence[str] = USERS, ties: Sequence[tuple[str, str, float]] = TIES) -> SocialGraph:
    return SocialGraph.of_edges(ties, users)


def make_config(**changes: Any) -> CollaborativeConfig:
    """The small deployment; a section is changed by a mapping, a value by itself."""
    sections = {name: kind(**{**DEFAULTS.get(name, {}), **changes.pop(name, {})}) for name, kind in SECTIONS.items()}
    plain = {"deployment": "related", "arms": ARMS, "settle_seconds": 10.0}
    return CollaborativeConfig(**{**plain, **sections, **changes})


def make_system(graph: SocialGraph | None = None, public_dataset: bool = False, **changes: Any) -> CollaborativeSystem:
    return CollaborativeSystem.of(make_config(**changes), graph or make_graph(), public_dataset)


def releasing(**changes: Any) -> CollaborativeSystem:
    """The small deployment with another way of releasing."""
    return make_system(release=changes)


def edge_system(partitions: Mapping[str, int] | None = None, **changes: Any) -> CollaborativeSystem:
    """The small deployment with its counters at the edge, and another way of releasing."""
    return make_system(release={"noise_at": "learner", **changes}, partitions=dict(partitions or {}))


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def some_features(seed: int, rows: int = ARMS) -> NDArray[np.float32]:
    """Features (rows, d) of length 0.9."""
    drawn = np.random.default_rng(seed).normal(size=(rows, DIMENSION))
    return (0.9 * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def some_rewards(seed: int, count: int) -> list[Reward]:
    """Rewards of drawn users, some of them 0 and some between the whole numbers."""
    draw = np.random.default_rng(seed)
    features = some_features(seed, count)
    return [
        (int(draw.integers(len(USERS))), features[row].tolist(), float(draw.choice([0.0, 1.0, 0.3])))
        for row in range(count)
    ]


def reward_fields(rows: Sequence[Reward]) -> dict[str, bytes]:
    """The columns of a record of rewards."""
    return {
        "nodes": np.array([row[0] for row in rows], "<i4").tobytes(),
        "contexts": np.array([row[1] for row in rows], "<f4").tobytes(),
        "rewards": np.array([row[2] for row in rows], "<f8").tobytes(),
    }


def lattice_sums(rows: Sequence[Reward], nodes: int = len(USERS)) -> NDArray[np.int64]:
    """The exact sums (N, d) that rows come to, in units of 2^-24, each entry rounded toward zero."""
    sums = np.zeros((nodes, DIMENSION), dtype=np.int64)
    for node, features, reward in rows:
        exact = np.array(features, dtype=np.float32).astype(np.float64) * reward * 2.0**24
        sums[node] += np.trunc(exact).astype(np.int64)
    return sums


def arrays_of(release: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Blocks (m,) and sums (m, d) of a release."""
    blocks = np.frombuffer(release["blocks"], "<i4").astype(np.int64)
    return blocks, np.frombuffer(release["sums"], "<i8").reshape(len(blocks), -1)


class RelatedLearnerRig(Rig):
    """A collaborative learner with shorthand for what a client sends."""

    def __init__(
        self,
        system: CollaborativeSystem | None = None,
        key: Key | None = None,
        partition: int = 0,
        nonce: bytes = NONCE,
    ) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "edge") if key is None else key
        self.partition = partition
        super().__init__(CollaborativeLearnerMachine(self.system, partition, self.key), nonce)

    def fresh(self) -> CollaborativeLearnerMachine:
        return CollaborativeLearnerMachine(self.system, self.partition, self.key)

    def context(self, event_id: str, user: str = "ann", features: Any = None, **fields: Any) -> int:
        shown = some_features(0) if features is None else features
        record = {"event_id": event_id, "user": user, "context": np.asarray(shown, "<f4").tobytes(), **fields}
        return self.put("contexts", codec.encode("Context", record), self.partition)

    def shown(self, event_id: str, arm: int, user: str = "ann") -> int:
        return self._feedback("shown", event_id, arm, 0.0, user)

    def reward(self, event_id: str, arm: int, reward: float = 1.0, user: str = "ann") -> int:
        return self._feedback("reward", event_id, arm, reward, user)

    def end_phase(self, phase: int = 0, after_click: int = -1) -> int:
        fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": after_click}
        return self.put("contexts", codec.encode("Seal", fields), self.partition)

    def model(self, value: bytes) -> int:
        return self.put("models", value)

    def _feedback(self, kind: str, event_id: str, arm: int, reward: float, user: str) -> int:
        fields = {"kind": kind, "event_id": event_id, "user": user, "arm": arm, "reward": reward}
        return self.put("clicks", codec.encode("Feedback", fields), self.partition)

    def decide(self, event_id: str, user: str = "ann", features: Any = None, **fields: Any) -> int:
        """Send one context and fold; gives the arm."""
        self.context(event_id, user, features, **fields)
        return self.fold().arms[event_id]

    def interact(self, event_id: str, user: str = "ann", reward: float | None = 1.0, features: Any = None) -> int:
        """Decide, show, and (unless None) reward; gives the arm."""
        arm = self.decide(event_id, user, features)
        self.shown(event_id, arm, user)
        if reward is not None:
            self.reward(event_id, arm, reward, user)
        self.fold()
        return arm

    def rows(self, seen: Seen | None = None) -> list[Reward]:
        """What was sent to the counter in clear."""
        rows: list[Reward] = []
        for fields in (seen or self.seen).records("rewards", "Rewards"):
            nodes = np.frombuffer(fields["nodes"], "<i4").tolist()
            features = np.frombuffer(fields["contexts"], "<f4").reshape(len(nodes), -1).tolist()
            rows += list(zip(nodes, features, np.frombuffer(fields["rewards"], "<f8").tolist(), strict=True))
        return rows


class CounterRig(Rig):
    """A counter with shorthand for what learners send."""

    def __init__(self, system: CollaborativeSystem | None = None, key: Key | None = None, nonce: bytes = NONCE) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "counter") if key is None else key
        super().__init__(self.fresh(), nonce)

    def fresh(self) -> CounterMachine:
        return CounterMachine(self.system, 0, self.key)

    def rewards(self, number: int, rows: Sequence[Reward], **changes: Any) -> int:
        fields = {
            "batch_id": number.to_bytes(16, "big"),
            "config_digest": self.system.digest,
            **reward_fields(rows),
            **changes,
        }
        return self.put("rewards", codec.encode("Rewards", fields))

    def end_phase(self, phase: int = 0, origin: int = 0, digest: bytes | None = None) -> int:
        fields = {"phase": phase, "origin": origin, "config_digest": digest or self.system.digest, "after_click": -1}
        return self.put("rewards", codec.encode("Seal", fields))

    def tick(self) -> int:
        return self.put("rewards", codec.encode("Tick", {"config_digest": self.system.digest}))

    def released(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        return (seen or self.seen).records("releases", "Release")

    def altered(self, offset: int, **fields: Any) -> None:
        """Change a record that lies in the log."""
        log = self.logs["rewards", 0]
        name, found = codec.decode(log[offset].value)
        log[offset] = log[offset]._replace(value=codec.encode(name, {**found, **fields}))


class RelatedAggregatorRig(Rig):
    """The aggregator of a collaborative deployment."""

    def __init__(self, system: CollaborativeSystem | None = None) -> None:
        self.system = make_system() if system is None else system
        super().__init__(self.fresh())

    def fresh(self) -> CollaborativeAggregatorMachine:
        return CollaborativeAggregatorMachine(self.system, 0)

    def give(self, values: Iterable[bytes]) -> Seen:
        for value in values:
            self.put("releases", value)
        return self.fold()

    def end_phase(self, phase: int = 0, origin: int = 0) -> int:
        fields = {"phase": phase, "origin": origin, "config_digest": self.system.digest, "after_click": -1}
        return self.put("releases", codec.encode("Seal", fields))


def release_values(
    system: CollaborativeSystem, batches: Sequence[Sequence[Reward]], key: Key | None = None
) -> list[bytes]:
    """The releases of a counter that was given these batches, each ended by a phase end."""
    rig = CounterRig(system, key)
    for number, rows in enumerate(batches):
        rig.rewards(number, rows)
        rig.end_phase(number)
    return [output.value for output in rig.fold().releases("releases")]


def model_of(system: CollaborativeSystem, rows: Sequence[Reward]) -> list[bytes]:
    """The genesis and the model record of an aggregator that was given the exact sums of these rows."""
    aggregator = RelatedAggregatorRig(system)
    aggregator.give(release_values(system, [rows]))
    return [aggregator.genesis, *aggregator.journal]


def played(system: CollaborativeSystem, flip: bool, visits: int = 30) -> RelatedLearnerRig:
    """Some visits of three users; with ``flip`` every reward r is 1 - r. A reward of 0 is one that never comes."""
    rig = RelatedLearnerRig(system, SECRET)
    draw = np.random.default_rng(5)
    for number in range(visits):
        user, event = USERS[number % 3], f"e{number}"
        arm = rig.decide(event, user, some_features(number))
        way, reward = draw.integers(4), abs(float(draw.choice([0.0, 1.0, 0.3])) - flip)
        if way:
            rig.shown(event, arm if way > 1 else (arm + 1) % ARMS, user)
        if reward:
            rig.reward(event, arm, reward, user)
        rig.wait(float(draw.choice([0.0, 3.0, 8.0])))
        if number % 10 == 9:
            rig.end_phase(number // 10)
    rig.fold()
    return rig
