"""Frozen input logs of the three roles: one small population played through all of them, bad records included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from frozen_logs import FrozenLogs
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import prepare
from hushstream.client.client import Client
from hushstream.engine.configuration import FeedbackConfig, PartitionConfig
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_context_batch, encode_feedback_batch
from hushstream.schemas.topics import partition_of
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
)

LEARNERS = 3
SHUFFLERS = 2
ARMS = 5
DIMENSION = 6
PHASES = 4
USERS_PER_PHASE = 36
ROUNDS = 8

INPUTS: Mapping[str, tuple[str, ...]] = {
    "learner": ("contexts", "clicks", "models"),
    "shuffler": ("reports",),
    "aggregator": ("window-sums",),
}


def configuration() -> P2BConfig:
    """Windows that close on a count, on log time and on phase ends; several periods; short memories."""
    return P2BConfig(
        deployment="chaos",
        arms=ARMS,
        context=ContextConfig(DIMENSION),
        expected_slots=1000,
        encoder=EncoderConfig(codes=6),
        slot=SlotConfig(after_interactions=2, lifetime_slots=4, settle_seconds=20.0, period_seconds=200.0),
        feedback=FeedbackConfig(attribution_window_seconds=40.0, early_feedback=6, remembered_events=400),
        release=ReleaseConfig(epsilon=1.0, window_slots=14, window_seconds=12.0, sums="fresh"),
        partitions=PartitionConfig(LEARNERS, SHUFFLERS),
    )


def freeze(folder: Path, seed: int = 1, config: P2BConfig | None = None) -> FrozenLogs:
    """Play the population and keep what each role read, with bad records between."""
    system = prepare(folder, config or configuration(), public_dataset="synthetic")
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
        self._strangers = count()

    async def play(self) -> None:
        async with Client(DirectEventLog(self._log, self._driver, LEARNERS)) as client:
            for phase in range(PHASES + 1):
                tracks = ("cold",) if phase == 0 else ("private", "cold")
                users = [(f"user-{phase}-{i}", tracks[i % len(tracks)]) for i in range(USERS_PER_PHASE)]
                rounds = ROUNDS if phase < PHASES else ROUNDS // 2
                await asyncio.gather(*(self._act(client, user, track, rounds) for user, track in users))
                if phase < PHASES:  # what comes after the last phase end leaves windows open
                    await client.end_phase(phase)

    async def _act(self, client: Client, user: str, track: str, rounds: int) -> None:
        home = partition_of(user, LEARNERS)
        for round_index in range(rounds):
            event_id = f"{user}:{round_index}"
            eligible = None if self._draw.random() < 0.7 else sorted(self._draw.sample(range(ARMS), 3))
            decision = await client.decide(event_id, user, self._context(), eligible, timeout=20.0, track=track)
            self._frozen.events[home].append(event_id)
            await self._answer(client, event_id, user, decision.arm)
            if self._draw.random() < 0.06:
                self._misbehave(home, event_id, user)
            if self._draw.random() < 0.03:
                self._in_batches(home, track)

    async def _answer(self, client: Client, event_id: str, user: str, arm: int) -> None:
        """Shown, clicked, both, neither; sometimes another arm was on screen, sometimes all comes twice."""
        way = self._draw.random()
        if way < 0.25:
            await client.shown(event_id, user, arm)
        elif way < 0.35:
            await client.shown(event_id, user, (arm + 1) % ARMS)
            await client.reward(event_id, user, (arm + 1) % ARMS, 1.0)
        elif way < 0.9:
            for _ in range(2 if way > 0.85 else 1):
                await client.reward(event_id, user, arm, float(self._draw.random() < 0.5))

    def _misbehave(self, home: int, event_id: str, user: str) -> None:
        """Records that an honest client never writes; every kind that names a good event leaves it as it was."""
        good = {"event_id": event_id, "user": user, "context": self._context().tobytes()}
        bent = np.full(DIMENSION, np.nan, "<f4").tobytes()
        ways = (
            ("contexts", codec.encode("Context", good)[:-3]),
            ("contexts", codec.encode("Context", {**good, "event_id": event_id + "x", "context": bent})),
            ("contexts", codec.encode("Context", {**good, "event_id": event_id + "y", "context": bytes(24)})),
            ("contexts", codec.encode("Context", {**good, "user": f"{user}-other"})),
            ("contexts", b"not avro at all"),
            ("clicks", b"\xc3\x01" + bytes(8)),
            ("clicks", self._click(event_id, user, 2.0)),
            ("clicks", self._click(f"unknown-{next(self._strangers)}", user, 1.0)),
            ("clicks", self._click(event_id, f"{user}-other", 1.0)),
            ("contexts", codec.encode("Context", good)),  # the same event again: the same answer again
        )
        topic, value = self._draw.choice(ways)
        self._log.append(topic, home, value)

    def _in_batches(self, home: int, track: str) -> None:
        """Columnar records of another user, with one bad row in each."""
        user = next(name for i in self._strangers if partition_of(name := f"batch-{i}", LEARNERS) == home)
        names = [f"{user}:{row}" for row in range(5)]
        contexts = np.stack([self._context() for _ in names])
        contexts[3] = -1.0
        self._log.append("contexts", home, encode_context_batch(names, [user] * 5, contexts, track=track))
        arms = [self._draw.randrange(ARMS) for _ in names]
        rewards = [1.0, 0.0, 1.5, 1.0, 0.0]
        self._log.append("clicks", home, encode_feedback_batch([1] * 5, names, [user] * 5, arms, rewards))
        self._frozen.events[home].extend(name for row, name in enumerate(names) if row != 3)
        self._frozen.dead[home] += 2

    def _context(self) -> NDArray[np.float32]:
        """Tenths that sum to 1."""
        parts = [self._draw.randrange(DIMENSION) for _ in range(10)]
        return (np.bincount(parts, minlength=DIMENSION) / 10).astype("<f4")

    @staticmethod
    def _click(event_id: str, user: str, reward: float) -> bytes:
        fields = {"kind": "reward", "event_id": event_id, "user": user, "arm": 0, "reward": reward}
        return codec.encode("Feedback", fields)


def _bad_values(digest: bytes, topic: str, values: Sequence[bytes]) -> list[bytes]:
    other = bytes(range(16))
    if topic == "reports":
        slot = {"report_id": other, "period": bytes(8), "config_digest": digest, "content": bytes(32)}
        phase_end = {"phase": 0, "origin": 77, "config_digest": digest, "after_click": -1}
        return [
            *values[10:30:4],
            b"",
            b"no report",
            codec.encode("SlotReport", {**slot, "config_digest": other}),
            codec.encode("SlotReport", {**slot, "content": b"\xff" * 32}),
            codec.encode("SlotReport", {**slot, "content": b"\x01" + bytes(31)}),  # of a period long past
            codec.encode("Seal", phase_end),
            codec.encode("Tick", {"config_digest": digest}),
        ]
    if topic == "window-sums":
        foreign = codec.decode(values[0])[1] | {"config_digest": other}
        return [*values[3:9:2], b"no sums", values[0][:-5], codec.encode("WindowSums", foreign)]
    if topic == "models":
        return [*values[1:4:2], values[2], b"no model", b"\xc3\x01" + b"\xee" * 58]
    return []
