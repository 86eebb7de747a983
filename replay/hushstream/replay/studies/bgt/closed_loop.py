"""Plays three rounds on a deployment: users rate, each round is ended, and predictions are requested after it.

Every request after a round waits for the model of that round. So the answers do not depend on the order in which
partitions worked, and the direct runner and a stream give the same answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from hushstream.client.logs.event_log import EventLog
from hushstream.client.ratings import RatingClient
from hushstream.replay.progress import Progress
from hushstream.replay.studies.bgt.worlds.ratings import Float64, Int64, Split
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.rounds import ROUNDS

_TIMEOUT_SECONDS = 300.0
_AT_ONCE = 64
"""The number of users who send ratings or requests at the same time."""


_Act = Callable[[RatingClient, int], Awaitable[None]]


@dataclass(slots=True)
class RatingsPlayed:
    """The outcome of a run.

    Attributes:
        predicted: (rounds, m) predictions of the later ratings after each round, from 0 to 1.
        seconds: from the first rating to the last answer.
        latencies: seconds from request to answer, of each user after the last round.
    """

    predicted: Float64
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def user_name(user: int) -> str:
    """The name of a world's user in the deployment."""
    return f"user-{user}"


class RatingLoop:
    """Plays a split world against a deployment."""

    def __init__(self, split: Split, config: BgtConfig, progress: Progress | None = None) -> None:
        """Bind a split world to the configuration of its deployment."""
        self._split = split
        self._config = config
        self._progress = progress
        self._done = 0
        self.played = RatingsPlayed(np.zeros((ROUNDS, len(split.later))))

    async def run(self, log: EventLog) -> RatingsPlayed:
        """Play over a client's log.

        Raises:
            PredictionTimeout: a rater's answer or the model of a round did not come in time.
        """
        started = time.perf_counter()
        async with RatingClient(log, self._config) as client:
            await self._all(client, self._rate, "ratings")
            for number in range(ROUNDS):
                await client.end_round(number)
                await self._all(client, self._ask(number), f"round {number + 1} of {ROUNDS}")
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _all(self, client: RatingClient, act: _Act, what: str) -> None:
        """Let every user act, `_AT_ONCE` users at a time."""
        users = self._split.world.user_count
        for first in range(0, users, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, users))
            await asyncio.gather(*(act(client, user) for user in some))
            self._done += len(some)
            if self._progress is not None:
                self._progress(self._done, (1 + ROUNDS) * users, what)

    async def _rate(self, client: RatingClient, user: int) -> None:
        world, rows = self._split.world, self._rows(self._split.earlier, user)
        scale = self._config.scale
        values = scale.lowest + world.values[rows] * (scale.highest - scale.lowest)
        await client.rate(user_name(user), world.items[rows].tolist(), values)

    def _ask(self, number: int) -> _Act:
        async def asked(client: RatingClient, user: int) -> None:
            world, rows = self._split.world, self._rows(self._split.later, user)
            if not len(rows):
                return
            began = time.perf_counter()
            found = await client.predict(
                f"round-{number}-{user}",
                user_name(user),
                world.items[rows].tolist(),
                after_round=number,
                timeout=_TIMEOUT_SECONDS,
            )
            if number + 1 == ROUNDS:
                self.played.latencies.append(time.perf_counter() - began)
            scale = self._config.scale
            places = np.searchsorted(self._split.later, rows)
            self.played.predicted[number, places] = (found.values - scale.lowest) / (scale.highest - scale.lowest)

        return asked

    def _rows(self, among: Int64, user: int) -> Int64:
        return np.asarray(among[self._split.world.users[among] == user])
