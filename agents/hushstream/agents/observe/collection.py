"""Cyclic garbage is looked for in small steps, so that no pause grows with the state of the machines.

Python's full collection visits every object, and a learner holds some for each decision that waits: with
140,000 of them one pause took 250 ms. Here a full collection runs every second and then sets all that it
found alive aside, out of sight of the next one; so each pause follows what was made within a second. What is
set aside is freed like anything else when its last reference goes. Only a cycle that dies later stays, and
the machines make none; a rebalance, at which old connections and machines go, calls for one whole collection.
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
    """Take over from Python's own full collections, until cancelled."""
    with no_full_collections():
        # Imports leave 60 objects of 150,000 as garbage; to look for them took a tenth of a worker's start.
        while True:
            gc.freeze()
            await asyncio.sleep(STEP_SECONDS)
            gc.collect()


@contextlib.contextmanager
def no_full_collections() -> Iterator[None]:
    """Python begins no full collection by itself; at the end all that was set aside is in sight again."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def collect_whole() -> None:
    """Look at everything once, at a time when nothing is folded; does nothing unless `collect_in_steps` runs."""
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
        gc.freeze()
