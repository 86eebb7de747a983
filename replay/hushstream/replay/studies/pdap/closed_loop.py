"""Plays the closed loop of P-DAP: users come to their home vendors in phases that end with windows.

Within a phase every user is answered by the model of the phase before. The end of the phase releases its outcomes, and
the next phase begins when every learner holds the model made from them. The users and the coins for their clicks are
drawn beforehand. So the direct runner and a stream give the same results, and vendors that keep apart get the same
users.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from hushstream.client.client import Client
from hushstream.client.logs.event_log import EventLog
from hushstream.replay.progress import Progress
from hushstream.replay.runners.next_version import await_version
from hushstream.replay.studies.pdap.worlds.vendors import Arrivals, Float64, Int64, VendorWorld
from hushstream.replay.worlds.draws import Draws
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of
from hushstream.systems.pdap.configuration import PdapConfig, Schedule

_ANSWER_SECONDS = 180.0
"""Longest wait for an answer; the first one waits until a worker of each vendor has started."""

_AT_ONCE = 256
_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class PdapPlan:
    """How a world is played: the number of contexts in all, in phases that end when windows of a schedule end."""

    contexts: int
    schedule: Schedule

    def __post_init__(self) -> None:
        """Refuse a plan without contexts.

        Raises:
            HushstreamError: fewer than 1 context; the message names the number.
        """
        if self.contexts < 1:
            raise HushstreamError(f"plan: expected contexts of at least 1, got {self.contexts}")

    def phases(self) -> Iterator[range]:
        """The events of each phase."""
        done, window = 0, 0
        while done < self.contexts:
            end = min(self.contexts, self.schedule.closes_at(window))
            yield range(done, end)
            done, window = end, window + 1


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The users who come, and the coins that decide their clicks, (n,) each.

    Attributes:
        arrivals: the users, in order.
        coins: numbers from 0 to 1; an answer with a mean above its coin is clicked.
    """

    arrivals: Arrivals
    coins: Float64

    @classmethod
    def of(cls, world: VendorWorld, contexts: int, seed: int) -> Visits:
        """Draw the visits of a run."""
        generator = Draws(seed, "pdap-visits").generator()
        return cls(world.arrivals(contexts, generator), generator.random(contexts))


@dataclass(slots=True)
class PdapPlayed:
    """The outcome of a run: (n,) arrays by event, and how long it took.

    Attributes:
        chosen: arms.
        chances: click probability of each arm at its context.
        clicks: 0 or 1.
        seconds: from the first context to the last model.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    chosen: Int64
    chances: Float64
    clicks: Int64
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class PdapLoop:
    """Plays a world of vendors against a deployment."""

    def __init__(
        self, config: PdapConfig, world: VendorWorld, visits: Visits, plan: PdapPlan, progress: Progress | None = None
    ) -> None:
        """Bind a world and its visits to a plan."""
        self._config = config
        self._world = world
        self._visits = visits
        self._plan = plan
        self._progress = progress
        self._lines = [vendor.name for vendor in config.vendors]
        self._feedback: list[asyncio.Future[None]] = []
        whole = np.zeros(plan.contexts, dtype=np.int64)
        self.played = PdapPlayed(whole, np.zeros(plan.contexts), whole.copy())

    async def run(self, log_of: Callable[[str], EventLog]) -> PdapPlayed:
        """Play all phases, each vendor's users over its own client's log.

        Raises:
            HushstreamError: no model followed the end of a phase in time.
        """
        started, context = time.perf_counter(), np.full(self._config.dimension, 0.5, dtype=np.float32)
        async with AsyncExitStack() as stack:
            logs = [log_of(vendor) for vendor in self._lines]
            clients = [Client(log, party=vendor) for log, vendor in zip(logs, self._lines, strict=True)]
            for client in clients:
                await stack.enter_async_context(client)
            for phase, events in enumerate(self._plan.phases()):
                await self._phase(clients, events, phase)
                for client in clients:
                    await client.end_phase(phase)
                for client, log in zip(clients, logs, strict=True):
                    await await_version(client, _probes(log.partitions()), context, phase, _ANSWER_SECONDS)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _phase(self, clients: Sequence[Client], events: range, phase: int) -> None:
        homes = self._visits.arrivals.homes
        for first in range(events.start, events.stop, _AT_ONCE):
            some = range(first, min(events.stop, first + _AT_ONCE))
            await asyncio.gather(*(self._visit(clients[homes[event]], event) for event in some))
            if self._progress is not None:
                self._progress(some.stop, self._plan.contexts, f"window {phase + 1}")
        await asyncio.gather(*self._feedback)
        self._feedback.clear()

    async def _visit(self, client: Client, event: int) -> None:
        arrivals, name = self._visits.arrivals, f"visit:{event}"
        user = f"user-{arrivals.users[event]}"
        asked = time.perf_counter()
        decision = await client.decide(name, user, arrivals.contexts[event], timeout=_ANSWER_SECONDS)
        if event % _SAMPLED == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        clicked = self._note(event, decision.arm)
        # No decision of this phase needs this feedback; only the end of the phase waits for it.
        self._feedback.append(asyncio.ensure_future(_answer(client, name, user, decision.arm, clicked)))

    def _note(self, event: int, arm: int) -> bool:
        progress = event / self._plan.contexts
        here = self._visits.arrivals.take(np.array([event]))
        chance = float(self._world.means(here, np.array([arm]), progress)[0])
        clicked = bool(self._visits.coins[event] < chance)
        played = self.played
        played.chosen[event], played.chances[event], played.clicks[event] = arm, chance, clicked
        return clicked


def _probes(partitions: int) -> dict[int, str]:
    """A user of each partition."""
    return {
        partition: next(name for n in count() if partition_of(name := f"probe-{n}", partitions) == partition)
        for partition in range(partitions)
    }


async def _answer(client: Client, event: str, user: str, arm: int, clicked: bool) -> None:
    await client.shown(event, user, arm)
    if clicked:
        await client.reward(event, user, arm, 1.0)
