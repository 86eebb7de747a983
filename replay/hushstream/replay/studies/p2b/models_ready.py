"""Waits until the learners have the model of a phase that ended; an application can wait in the same way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from numpy.typing import ArrayLike

from hushstream.client.client import Client
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of

MODEL_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.1
STEADY_POLLS = 5


async def await_models(
    client: Client, tracks: set[str], partitions: int, context: ArrayLike | Mapping[str, Any]
) -> None:
    """Wait until every learner answers from a complete model of each track.

    Args:
        client: a started client.
        tracks: the model tracks.
        partitions: how many partitions the learners have.
        context: any valid context.

    Raises:
        HushstreamError: no model came in time.
    """
    for track in sorted(tracks):
        for partition in range(partitions):
            await _await_model(client, track, partition, partitions, context)


async def _await_model(
    client: Client, track: str, partition: int, partitions: int, context: ArrayLike | Mapping[str, Any]
) -> None:
    """Request decisions for a user who does nothing else, until their learner has the model.

    Several windows give several versions. The model counts as complete when `STEADY_POLLS` answers in a row come from
    the same version.
    """
    user = next(name for n in count() if partition_of(name := f"probe-{track}-{n}", partitions) == partition)
    deadline = time.perf_counter() + MODEL_TIMEOUT_SECONDS
    versions: list[int] = []
    for poll in count():
        decision = await client.decide(f"{user}:{poll}", user, context, timeout=60.0, track=track)
        versions.append(decision.model_version)
        if versions[-1] > 0 and len(set(versions[-STEADY_POLLS:])) == 1 and len(versions) >= STEADY_POLLS:
            return
        if time.perf_counter() > deadline:
            raise HushstreamError(
                f"model track {track}: expected a model within {MODEL_TIMEOUT_SECONDS:g} s of the phase's end, got "
                f"none; are the shuffler and the aggregator running?"
            )
        await asyncio.sleep(POLL_SECONDS)
