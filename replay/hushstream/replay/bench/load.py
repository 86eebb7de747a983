"""Makes the events of a benchmark: requests of users with random contexts, and random rewards for the decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from aiokafka import AIOKafkaProducer
from numpy.typing import NDArray

from hushstream.schemas import codec
from hushstream.schemas.batches import encode_context_batch, encode_feedback_batch
from hushstream.schemas.rows import REWARD
from hushstream.schemas.topics import partition_of

REWARD_RATE = 0.2
"""The probability that a decision is rewarded with 1; all others are rewarded with 0."""


@dataclass(frozen=True, slots=True)
class Load:
    """n requests for decisions: ids, users, contexts of shape (n, d) whose rows sum to 1."""

    event_ids: Sequence[str]
    users: Sequence[str]
    contexts: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.event_ids)

    def part(self, first: int, last: int) -> Load:
        """The requests from ``first`` up to ``last``."""
        return Load(self.event_ids[first:last], self.users[first:last], self.contexts[first:last])


def make_load(events: int, users: int, dimension: int, seed: int, home: int = 0, partitions: int = 1) -> Load:
    """Make random requests, of users drawn uniformly among those whose partition is ``home`` of ``partitions``."""
    rng = np.random.default_rng(seed)
    everybody = (f"user-{number:04d}" for number in count())
    names = list(islice((name for name in everybody if partition_of(name, partitions) == home), users))
    return Load(
        [f"event-{number:08d}" for number in range(events)],
        [names[number] for number in rng.integers(0, users, events)],
        rng.dirichlet(np.ones(dimension), events).astype(np.float32),
    )


def context_values(load: Load, rows: int) -> list[bytes]:
    """Make columnar records of ``rows`` requests each (the last may be shorter); 1: a record for each request."""
    if rows > 1:
        return [
            encode_context_batch(part.event_ids, part.users, part.contexts)
            for part in (load.part(first, first + rows) for first in range(0, len(load), rows))
        ]
    return [
        codec.encode("Context", {"event_id": event_id, "user": user, "context": context.tobytes()})
        for event_id, user, context in zip(load.event_ids, load.users, load.contexts, strict=True)
    ]


def draw_rewards(count: int, seed: int) -> list[float]:
    """Draw rewards of 0 and 1."""
    return [float(reward) for reward in np.random.default_rng(seed).random(count) < REWARD_RATE]


def reward_values(load: Load, arms: Sequence[int], rewards: Sequence[float], rows: int) -> list[bytes]:
    """Make columnar records of ``rows`` rewards each (the last may be shorter); 1: a record for each decision."""
    if rows > 1:
        cuts = [slice(first, first + rows) for first in range(0, len(load), rows)]
        return [
            encode_feedback_batch(
                [REWARD] * len(load.event_ids[cut]), load.event_ids[cut], load.users[cut], arms[cut], rewards[cut]
            )
            for cut in cuts
        ]
    return [
        codec.encode("Feedback", {"kind": "reward", "event_id": event_id, "user": user, "arm": arm, "reward": reward})
        for event_id, user, arm, reward in zip(load.event_ids, load.users, arms, rewards, strict=True)
    ]


async def append_all(producer: AIOKafkaProducer, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    """Append values to one partition of a topic, many to a request, and wait until all are acknowledged."""
    sent = []
    batch = producer.create_batch()
    for value in values:
        if batch.append(key=None, value=value, timestamp=None) is None:
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(key=None, value=value, timestamp=None)
    if batch.record_count():
        sent.append(await producer.send_batch(batch, topic, partition=partition))
    for acknowledged in sent:
        await acknowledged
