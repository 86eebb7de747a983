"""Simulates visitors who use the client as an application does, and counts the outcomes of their visits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hushstream.client import Client, Decision
from hushstream.replay.worlds.blocked import BlockedWorld
from hushstream.replay.worlds.shop import shop
from hushstream.systems.p2b.configuration import P2BConfig

VISITS = 20
"""The number of visits of one visitor; then a new visitor comes, who starts from the shared model."""

PAUSE_SECONDS = 0.1
"""The shortest time between two visits of one visitor, in seconds."""

BIN_SECONDS = 3.0
"""Seconds over which the chart averages rewards."""

START_SECONDS = 120.0
"""Seconds that workers may take to start, on a busy machine."""

_PATIENCE_SECONDS = 0.5
_MOST_VISITORS = 2**31
_BY_LEARNER = ("model", "repeated", "baseline")


@dataclass(slots=True)
class Bin:
    """Decisions and rewards of `BIN_SECONDS`, separately for visitors answered by the model and for the hold-out."""

    model: int = 0
    model_reward: float = 0.0
    holdout: int = 0
    holdout_reward: float = 0.0


@dataclass(slots=True)
class Tally:
    """The outcomes of the visits so far.

    Attributes:
        bins: bins by number, from the start on.
        answers: number of answers by `Decision.policy`.
        visitors: how many visitors have started.
        version: newest version of the model that a visitor started from.
        answered_at: time of a learner's last answer, on the monotonic clock.
        slowest: the longest wait for an answer in seconds; answers by the baseline count, too.
    """

    bins: dict[int, Bin] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    visitors: int = 0
    version: int = 0
    answered_at: float = 0.0
    slowest: float = 0.0

    def note(self, seconds: float, decision: Decision, reward: float, waited: float) -> None:
        """Count one visit, ``seconds`` after the start."""
        self.answers[decision.policy] += 1
        self.slowest = max(self.slowest, waited)
        if decision.policy not in _BY_LEARNER:
            return
        self.answered_at = time.monotonic()
        self.version = max(self.version, decision.model_version)
        place = self.bins.setdefault(int(seconds // BIN_SECONDS), Bin())
        if decision.policy == "baseline":
            place.holdout += 1
            place.holdout_reward += reward
        else:
            place.model += 1
            place.model_reward += reward


class Traffic:
    """Plays visitors through a client until `run` is cancelled."""

    def __init__(self, client: Client, config: P2BConfig, visitors_at_once: int, seed: int) -> None:
        """Prepare the shop with the configuration's number of items; tastes are partly drawn from the seed."""
        self.tally = Tally()
        self._client = client
        self._arms = config.arms
        self._at_once = visitors_at_once
        self._names = tuple(config.context.schema.features)
        self._world = BlockedWorld(shop(users=_MOST_VISITORS, rounds=VISITS, arms=config.arms, seed=seed))
        self._numbers = count()
        self._began = time.monotonic()
        self._open = asyncio.Event()
        self._open.set()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.answered = asyncio.Event()
        """Set by every answer of a learner; code that waits for an answer clears it first."""

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    async def first(self) -> None:
        """Request one decision, wait until a learner answers, and start the clock.

        Raises:
            DecisionTimeout: no learner answered within `START_SECONDS`.
        """
        await self._client.decide("first", "first", self._context(0, 0), timeout=START_SECONDS)
        self._began = time.monotonic()

    async def run(self) -> None:
        """Play visitors for ever; raise what the client raises."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._play_visitors())

    async def pause(self) -> None:
        """Start no visit until `resume`, and wait for the visits that have started."""
        self._open.clear()
        await self._empty.wait()

    def resume(self) -> None:
        """Start visits again."""
        self._open.set()

    async def _play_visitors(self) -> None:
        while True:
            visitor = next(self._numbers)
            self.tally.visitors += 1
            for visit in range(VISITS):
                await self._open.wait()
                with self._visit_under_way():
                    await self._visit(visitor, visit)
                await asyncio.sleep(PAUSE_SECONDS)

    @contextmanager
    def _visit_under_way(self) -> Iterator[None]:
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def _context(self, visitor: int, visit: int) -> Mapping[str, Any]:
        """The context that the application sends for a visit: the features that the configuration declares."""
        values = self._world.context(visitor, visit)
        assert isinstance(values, Mapping), "the shop has names"
        return {name: values[name] for name in self._names}

    async def _visit(self, visitor: int, visit: int) -> None:
        event, user = f"visit-{visitor}-{visit}", f"visitor-{visitor}"
        asked = time.monotonic()
        decision = await self._client.decide(
            event,
            user,
            self._context(visitor, visit),
            baseline=(visitor + visit) % self._arms,
            timeout=_PATIENCE_SECONDS,
        )
        waited = time.monotonic() - asked
        reward = self._world.reward(visitor, visit, decision.arm)
        await self._client.shown(event, user, decision.arm)
        if reward:
            await self._client.reward(event, user, decision.arm, reward)
        self.tally.note(self.seconds, decision, reward, waited)
        if decision.policy in _BY_LEARNER:
            self.answered.set()
