"""Cyclic garbage is looked for seldom while a replay runs.

A replay in one process holds every record of its logs and every user until its end, hundreds of thousands of objects
that Python's collector would visit again and again and find alive: 8 of 20 seconds of a log of 33,000 rows.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _OLD_PER_MIDDLE = 100_000, 20, 100


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Until the end of the block, or of the function that this decorates."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _OLD_PER_MIDDLE)
    try:
        yield
    finally:
        gc.set_threshold(*before)
