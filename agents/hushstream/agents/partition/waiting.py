"""What a driver waits for beside its queues: a moment on its clock, and iterations of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOP_ITERATIONS = 8
"""Iterations of the event loop between two folds. A record takes about four from its append to the wire, and its
acknowledgement six from there to who waits for it; a fold holds the loop, so with fewer each would wait for another
fold or two (at half of the highest rate: 25 ms in place of 13 from the start of a fold to the acknowledgement)."""


async def within(event: asyncio.Event, deadline: float, clock: Callable[[], float]) -> bool:
    """Whether an event happens before a deadline of this clock."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, deadline - clock()))
    except TimeoutError:
        return False
    return True


async def yield_to_loop() -> None:
    """Let what was appended go out and what was acknowledged go on, before the next fold holds the loop."""
    for _ in range(_LOOP_ITERATIONS):
        await asyncio.sleep(0)
