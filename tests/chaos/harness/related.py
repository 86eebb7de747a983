"""Frozen input logs of a collaborative deployment: related users played through its roles, bad records included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from frozen_logs import FrozenLogs
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import prepare
from hushstream.client.client import Client
from hushstream.engine.configuration import FeedbackConfig, PartitionConfig
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import SocialGraph

LEARNERS = 3
ARMS = 4
DIMENSION = 3
PHASES = 4
USERS = tuple(f"user-{number}" for number in range(12))
ROUNDS = 12

INPUTS: Mapping[str, tuple[str, ...]] = {
    "learner": ("contexts", "clicks", "models"),
    "counter": ("rewards",),
    "aggregator": ("releases",),
}


def configuration(noise_at: str) -> CollaborativeConfig:
    """Steps that close on a count, on log time and on phase ends; allowances that end; short memories."""
    return CollaborativeConfig(
        deployment=f"related-{noise_at}",
        arms=ARMS,
        features=FeatureConfig(DIMENSION),
        settle_seconds=15.0,
        feedback=FeedbackConfig(attribution_window_seconds=15.0, early_feedback=6, remembered_events=300),
        release=ContinualConfig(
            noise_at=noise_at,  # type: ignore[arg-type]
            mechanism="negative-digit",
            horizon=64,
            rewards_per_user=30,
            rows=9,
            seconds=12.0 if noise_at == "server" else None,
            epochs=3 if noise_at == "server" else 1,
        ),
        partitions=PartitionConfig(LEARNERS),
    )


def freeze(folder: Path, noise_at: str, seed: int = 1) -> FrozenLogs:
    """Play the population and keep what each role read, with bad records between."""
    ties = [(one, other, 1.0) for one, other in pairwise(USERS)]
    system = prepare(folder, configuration(noise_at), inputs_of(SocialGraph.of_edges(ties, USERS)))
    frozen = FrozenLogs(folder, system, INPUTS, LEARNERS)
    frozen.play(lambda log, driver: asyncio.run(_Population(frozen, log, driver, seed).play()))
    frozen.spoil(seed, partial(_bad_values, system.digest))
    return frozen


class _Population:
    """Users who act well, and one who does not."""

    def __init__(self, frozen: FrozenLogs, log: MemoryLog, driver: DirectDriver, seed: int) -> None:
        self._frozen = frozen
        self._log = log
        self._driver = driver
        self._draw = random.Random(seed)
        self._features = np.random.default_rng(seed)

    async def play(self) -> None:
        async with Client(DirectEventLog(self._log, self._driver, LEARNERS)) as client:
            for phase in range(PHASES):
                await asyncio.gather(*(self._act(client, user, phase) for user in USERS))
                if phase < PHASES - 1:  # what comes after the last phase end leaves a step open
                    await client.end_phase(phase)

    async def _act(self, client: Client, user: str, phase: int) -> None:
        home = partition_of(user, LEARNERS)
        for round_index in range(phase * ROUNDS, (phase + 1) * ROUNDS):
            event_id = f"{user}:{round_index}"
            eligible = None if self._draw.random() < 0.7 else sorted(self._draw.sample(range(ARMS), 2))
            decision = await client.decide(event_id, user, self._context().ravel(), eligible, timeout=20.0)
            self._frozen.events[home].append(event_id)
            await self._answer(client, event_id, user, decision.arm)
            if self._draw.random() < 0.08:
                self._misbehave(home, event_id, user)

    async def _answer(self, client: Client, event_id: str, user: str, arm: int) -> None:
        """Shown, rewarded, both, neither; sometimes another arm was on screen, sometimes all comes twice."""
        way = self._draw.random()
        if way < 0.1:
            await client.shown(event_id, user, (arm + 1) % ARMS)
        elif way < 0.95:
            for _ in range(2 if way > 0.9 else 1):
                await client.shown(event_id, user, arm)
                if way > 0.3:
                    await client.reward(event_id, user, arm, self._draw.choice([0.0, 0.4, 1.0]))

    def _misbehave(self, home: int, event_id: str, user: str) -> None:
        """Records that an honest client never writes; every kind that names a good event leaves it as it was."""
        good = {"event_id": event_id, "user": user, "context": self._context().tobytes()}
        other = {**good, "event_id": f"{event_id}x"}
        ways = (
            ("contexts", codec.encode("Context", good)[:-3], 1),
            ("contexts", codec.encode("Context", {**other, "context": (3 * self._context()).tobytes()}), 1),
            ("contexts", codec.encode("Context", {**other, "user": "stranger"}), 1),
            ("contexts", codec.encode("Context", {**other, "line": "nowhere"}), 1),
            ("contexts", b"not avro at all", 1),
            ("clicks", b"\xc3\x01" + bytes(8), 1),
            ("clicks", self._click(event_id, user, 2.0), 1),
            ("clicks", self._click(event_id, "stranger", 1.0), 1),
            ("contexts", codec.encode("Context", good), 0),  # the same event again: the same answer again
        )
        topic, value, refused = self._draw.choice(ways)
        self._log.append(topic, home, value)
        self._frozen.dead[home] += refused

    def _context(self) -> NDArray[np.float32]:
        """Features (arms, d) of length 0.9."""
        drawn = self._features.normal(size=(ARMS, DIMENSION))
        features: NDArray[np.float32] = (0.9 * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype("<f4")
        return features

    @staticmethod
    def _click(event_id: str, user: str, reward: float) -> bytes:
        fields = {"kind": "reward", "event_id": event_id, "user": user, "arm": 0, "reward": reward}
        return codec.encode("Feedback", fields)


def _bad_values(digest: bytes, topic: str, values: Sequence[bytes]) -> list[bytes]:
    other = bytes(range(16))
    phase_end = {"phase": 0, "origin": 77, "config_digest": digest, "after_click": -1}
    if topic == "rewards":
        fields = codec.decode(next(v for v in values if codec.decode(v)[0] == "Rewards"))[1] | {"batch_id": other}
        rows = len(fields["nodes"]) // 4
        return [
            *values[5:25:4],
            b"no rewards",
            codec.encode("Rewards", {**fields, "config_digest": other}),
            codec.encode("Rewards", {**fields, "rewards": np.full(rows, 1.5, "<f8").tobytes()}),
            codec.encode("Rewards", {**fields, "nodes": np.full(rows, len(USERS), "<i4").tobytes()}),
            codec.encode("Rewards", {**fields, "contexts": np.full(rows * DIMENSION, 0.9, "<f4").tobytes()}),
            codec.encode("Seal", phase_end),
            codec.encode("Tick", {"config_digest": digest}),
        ]
    if topic == "releases":
        fields = codec.decode(next(v for v in values if codec.decode(v)[0] == "Release"))[1] | {"release_id": other}
        return [
            *values[3:12:3],
            b"no release",
            values[0][:-5],
            codec.encode("Release", {**fields, "config_digest": other}),
            codec.encode("Release", {**fields, "sums": bytes(8)}),
            codec.encode("Seal", phase_end),
        ]
    if topic == "models":
        return [*values[1:4:2], values[2], b"no model", b"\xc3\x01" + b"\xee" * 58]
    return []
