"""Runs Python's garbage collection in small steps, so that no pause grows with the state of the machines.

Python's full collection visits every object, and a learner has some objects for each decision that waits: with 140,000
decisions one pause took 250 ms. Here a full collection runs every second and then freezes (`gc.freeze`) all objects
that it found alive, so that the next one skips them. So each pause depends on what was made within one second. A frozen
object is freed as usual when its last reference goes. Only a frozen cycle is never freed, and the machines make no
cycles. A rebalance drops old connections and machines, so it runs one collection of all objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

STEP_SECONDS = 1.0

_YOUNG_OBJECTS = 10_000
_MIDDLE_PER_YOUNG = 20
_NEVER = 1 << 30


async def collect_in_steps() -> None:
    """Collect in small steps in place of Python's own full collections, until cancelled."""
    with no_full_collections():
        # Imports leave 60 objects of 150,000 as garbage; to look for them took a tenth of a worker's start.
        while True:
            gc.freeze()
            await asyncio.sleep(STEP_SECONDS)
            gc.collect()


@contextlib.contextmanager
def no_full_collections() -> Iterator[None]:
    """Keep Python from starting a full collection by itself; at the end all frozen objects are unfrozen."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def collect_whole() -> None:
    """Collect all objects once, while nothing is folded; does nothing unless `collect_in_steps` runs."""
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
        gc.freeze()
