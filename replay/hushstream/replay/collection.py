"""Makes Python's cyclic garbage collection rare while a replay runs.

A replay in one process keeps every record of its logs and every user until its end. These are hundreds of thousands of
objects. At the default thresholds the collector visits them again and again, and finds them alive: this took 8 of 20
seconds for a log of 33,000 rows.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _OLD_PER_MIDDLE = 100_000, 20, 100


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect rarely until the end of the block, or of the function that this decorates."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _OLD_PER_MIDDLE)
    try:
        yield
    finally:
        gc.set_threshold(*before)
