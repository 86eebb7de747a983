"""Plays the closed loop of a collaborative system: every user is served equally often, in phases.

Within a phase every user plays some rounds and decides by the model of the phase before. The end of the phase releases
its rows, and the next phase begins when every learner holds the model made from them. So the decisions do not depend on
the order in which events arrive, and the direct runner and a stream give the same decisions.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.client.client import Client
from hushstream.client.logs.event_log import EventLog
from hushstream.replay.progress import Progress
from hushstream.replay.runners.next_version import await_version
from hushstream.replay.studies.colin.worlds.related import CollaborativeWorld
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CollaborativePlan:
    """How a world is played: ``rounds`` for every user, in phases of ``rounds_per_phase``."""

    rounds: int
    rounds_per_phase: int

    def __post_init__(self) -> None:
        """Refuse a plan without rounds."""
        if min(self.rounds, self.rounds_per_phase) < 1:
            raise HushstreamError(
                f"plan: expected rounds and rounds a phase of at least 1, got {self.rounds} and {self.rounds_per_phase}"
            )

    @property
    def phases(self) -> int:
        """The number of phases; the last one may be shorter."""
        return -(-self.rounds // self.rounds_per_phase)

    def rounds_of(self, phase: int) -> range:
        """The rounds of one phase."""
        return range(phase * self.rounds_per_phase, min(self.rounds, (phase + 1) * self.rounds_per_phase))


@dataclass(slots=True)
class CollaborativePlayed:
    """The outcome of a run: (users, rounds) arrays, and how long it took.

    Attributes:
        chosen: arms, int32.
        rewards: float64.
        regret: best mean reward minus that of the chosen arm, float64.
        random_regret: the mean regret of a policy that picks an arm at random, float64.
        seconds: from the first context to the last model.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    chosen: NDArray[np.int32]
    rewards: NDArray[np.float64]
    regret: NDArray[np.float64]
    random_regret: NDArray[np.float64]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def user_name(user: int) -> str:
    """The name of a world's user on the stream and in the relation graph."""
    return f"user-{user}"


class CollaborativeLoop:
    """Plays a collaborative world against a deployment."""

    def __init__(self, world: CollaborativeWorld, plan: CollaborativePlan, progress: Progress | None = None) -> None:
        """Bind a world to a plan.

        Raises:
            HushstreamError: the plan has more rounds than the world, or the world has no known mean rewards.
        """
        if plan.rounds > world.rounds:
            raise HushstreamError(f"plan: expected at most the world's {world.rounds} rounds, got {plan.rounds}")
        self._world = world
        self._plan = plan
        self._progress = progress
        self._done = 0
        self._feedback: list[asyncio.Future[None]] = []
        shape = (world.users, plan.rounds)
        self.played = CollaborativePlayed(
            np.zeros(shape, dtype=np.int32), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        )

    async def run(self, log: EventLog) -> CollaborativePlayed:
        """Play all phases over a client's log.

        Raises:
            HushstreamError: no model followed the end of a phase in time.
        """
        started, context = time.perf_counter(), self._world.contexts(np.array([0]), 0)[0]
        async with Client(log) as client:
            for phase in range(self._plan.phases):
                await asyncio.gather(*(self._user(client, user, phase) for user in range(self._world.users)))
                await asyncio.gather(*self._feedback)
                self._feedback.clear()
                await client.end_phase(phase)
                await await_version(client, self._probes(log.partitions()), context, phase, _ANSWER_SECONDS)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _user(self, client: Client, user: int, phase: int) -> None:
        for round_index in self._plan.rounds_of(phase):
            await self._interact(client, user, round_index)
            self._done += 1
            if self._progress is not None:
                total = self._world.users * self._plan.rounds
                self._progress(self._done, total, f"phase {phase + 1} of {self._plan.phases}")

    async def _interact(self, client: Client, user: int, round_index: int) -> None:
        world, name = self._world, user_name(user)
        event_id = f"{name}:{round_index}"
        one = np.array([user])
        asked = time.perf_counter()
        decision = await client.decide(event_id, name, world.contexts(one, round_index)[0], timeout=60.0)
        if self._done % 16 == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        arm = decision.arm
        reward = float(world.rewards(one, round_index, np.array([arm]))[0])
        # No decision of this phase needs this feedback; only the end of the phase waits for it.
        self._feedback.append(asyncio.ensure_future(_answer(client, event_id, name, arm, reward)))
        self._note(user, round_index, arm, reward)

    def _note(self, user: int, round_index: int, arm: int, reward: float) -> None:
        arms = np.arange(self._world.arms)
        means = self._world.expected(np.full(len(arms), user), round_index, arms)
        if means is None:
            raise HushstreamError(f"{self._world.name}: expected a world with known mean rewards")
        played, place = self.played, (user, round_index)
        played.chosen[place], played.rewards[place] = arm, reward
        played.regret[place] = means.max() - means[arm]
        played.random_regret[place] = means.max() - means.mean()

    def _probes(self, partitions: int) -> dict[int, str]:
        """One user of each partition that has users."""
        names = [user_name(user) for user in reversed(range(self._world.users))]
        return {partition_of(name, partitions): name for name in names}


async def _answer(client: Client, event_id: str, name: str, arm: int, reward: float) -> None:
    await client.shown(event_id, name, arm)
    await client.reward(event_id, name, arm, reward)
