"""Waits until learners use the model of a phase, so that decisions do not depend on when they adopt it."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hushstream.client.client import Client
from hushstream.schemas.errors import HushstreamError

MODEL_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = (0.005, 0.01, 0.02, 0.05)


async def await_version(
    client: Client, users: dict[int, str], context: NDArray[np.float32], phase: int, answer_seconds: float
) -> None:
    """Request decisions as a user of each partition, and show none of them, until one comes from the new model.

    Args:
        client: of the deployment.
        users: a user's name for each partition.
        context: the context of these requests.
        phase: the model of the phase has a higher version than this.
        answer_seconds: how long one answer may take.

    Raises:
        HushstreamError: the model did not come within `MODEL_TIMEOUT_SECONDS`.
    """
    for partition, user in users.items():
        deadline = time.perf_counter() + MODEL_TIMEOUT_SECONDS
        for poll in count():
            event = f"probe:{phase}:{partition}:{poll}"
            decision = await client.decide(event, user, context, timeout=answer_seconds)
            if decision.model_version > phase:
                break
            if time.perf_counter() > deadline:
                raise HushstreamError(
                    f"phase {phase}: expected its model within {MODEL_TIMEOUT_SECONDS:g} s of the phase's end, got "
                    f"none; are all roles running?"
                )
            await asyncio.sleep(_POLL_SECONDS[min(poll, len(_POLL_SECONDS) - 1)])
