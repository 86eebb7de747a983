"""Plays the closed loop: a population uses the stream through the client only, as an application does.

Phase 0: contributors start cold, interact, and each has one slot due; then the phase is ended. Phase 1: other users are
played once for each model track, as distinct users with the same contexts and the same coin for every arm. So the
conditions of the comparison differ only in the models that users start from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.client.client import Client
from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.requests import ContextRules
from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.models_ready import await_models
from hushstream.replay.worlds.blocked import BlockedWorld
from hushstream.replay.worlds.world import World
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.policy import COLD

CONDITIONS = {"cold": "cold", "warm_nonprivate": "nonprivate", "warm_private": "private"}
"""The conditions of the comparison, each with the model track that its users start from."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which users play, how many at the same time, and how fast.

    Attributes:
        contributors: users 0 .. contributors-1 act in phase 0.
        evaluated: how many users after them act in phase 1, once per condition.
        conditions: the names of the conditions to compare.
        in_flight: how many users act at the same time; each has one open request.
        pace: interactions per second; None: as fast as possible.
        first: users of phase 0 with lower numbers were played by an earlier run (resume).
    """

    contributors: int
    evaluated: int
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    in_flight: int = 512
    pace: float | None = None
    first: int = 0

    def interactions(self, rounds: int) -> int:
        """How many interactions both phases have, if every user has ``rounds`` rounds."""
        return (max(0, self.contributors - self.first) + self.evaluated * len(self.conditions)) * rounds

    def __post_init__(self) -> None:
        """Refuse a plan without users, or a condition that does not exist."""
        unknown = sorted(set(self.conditions) - set(CONDITIONS))
        if unknown:
            raise HushstreamError(f"conditions: expected some of {', '.join(CONDITIONS)}, got {', '.join(unknown)}")
        if min(self.contributors, self.evaluated) < 0 or self.contributors + self.evaluated == 0:
            raise HushstreamError(
                f"plan: expected at least one user, got {self.contributors} contributors, {self.evaluated} evaluated"
            )
        if self.in_flight < 1 or (self.pace is not None and self.pace <= 0) or self.first < 0:
            raise HushstreamError("plan: expected in_flight and pace above 0 and first of at least 0, got others")


@dataclass(slots=True)
class Played:
    """The outcome of a run: rewards (users, rounds) per condition, and how long it took.

    Attributes:
        rewards: rewards by condition of the comparison; those of contributors under "contributors".
        chosen: the chosen arms in the same form.
        decisions: how many decisions were requested.
        seconds: from the first context to the last reward.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    rewards: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    chosen: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    decisions: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class ClosedLoop:
    """Plays a world against a stream."""

    def __init__(
        self, world: World, plan: Plan, progress: Progress | None = None, rules: ContextRules | None = None
    ) -> None:
        """Bind a world with enough users to a plan.

        Args:
            world: the users who act.
            plan: who plays when.
            progress: called after every interaction.
            rules: the contexts that the deployment accepts; a client needs them where contexts are values by name.

        Raises:
            HushstreamError: the plan needs more users than the world has.
        """
        needed = plan.contributors + plan.evaluated
        if needed > world.users:
            raise HushstreamError(f"plan: expected at most the world's {world.users} users, got {needed}")
        self._world = world
        self._blocked = BlockedWorld(world)
        self._plan = plan
        self._rules = rules
        self._progress = progress
        self._done = 0
        self._total = plan.interactions(world.rounds)
        self._gate = asyncio.Semaphore(plan.in_flight)
        self._started = 0.0
        self.played = Played()

    async def run(self, log: EventLog) -> Played:
        """Play both phases over a client's log.

        Raises:
            HushstreamError: no model followed the ended phase in time.
        """
        plan = self._plan
        self._started = time.perf_counter()
        async with Client(log, rules=self._rules) as client:
            await self._phase(client, "contributors", range(plan.first, plan.contributors), "cold", "phase 0")
            await client.end_phase(0)
            tracks = {CONDITIONS[condition] for condition in plan.conditions} - {COLD}
            await await_models(client, tracks, log.partitions(), self._blocked.context(0, 0))
            evaluated = range(plan.contributors, plan.contributors + plan.evaluated)
            await asyncio.gather(
                *(
                    self._phase(client, condition, evaluated, CONDITIONS[condition], "phase 1")
                    for condition in plan.conditions
                )
            )
        self.played.seconds = time.perf_counter() - self._started
        return self.played

    async def _phase(self, client: Client, condition: str, users: Sequence[int], track: str, what: str) -> None:
        rounds = self._world.rounds
        self.played.rewards[condition] = np.zeros((len(users), rounds))
        self.played.chosen[condition] = np.zeros((len(users), rounds), dtype=np.int32)
        await asyncio.gather(*(self._user(client, condition, row, user, track, what) for row, user in enumerate(users)))

    async def _user(self, client: Client, condition: str, row: int, user: int, track: str, what: str) -> None:
        name = f"{condition}-{user}"
        async with self._gate:
            for round_index in range(self._world.rounds):
                await self._wait_for_turn()
                reward, chosen = await self._interact(client, name, user, round_index, track)
                self.played.rewards[condition][row, round_index] = reward
                self.played.chosen[condition][row, round_index] = chosen
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, self._total, what)

    async def _interact(self, client: Client, name: str, user: int, round_index: int, track: str) -> tuple[float, int]:
        event_id = f"{name}:{round_index}"
        context = self._blocked.context(user, round_index)
        eligible = self._blocked.eligible(user, round_index)
        asked = time.perf_counter()
        decision = await client.decide(event_id, name, context, eligible, timeout=60.0, track=track)
        if self.played.decisions % 16 == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        self.played.decisions += 1
        reward = self._blocked.reward(user, round_index, decision.arm)
        await client.reward(event_id, name, decision.arm, reward)
        return reward, decision.arm

    async def _wait_for_turn(self) -> None:
        pace = self._plan.pace
        if pace is not None:
            due = self._started + self.played.decisions / pace
            delay = due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
