"""How large columnar records of labelled records are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BATCH_ROWS = 256
"""Records in one columnar record."""

_BATCH_FEATURES = 1 << 16
"""Features in one columnar record: half a megabyte."""


def parts(places: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Records of one home as columnar records of bounded size."""
    low = features = 0
    for number, place in enumerate(places.tolist()):
        features += int(lengths[place])
        if number > low and (number - low >= BATCH_ROWS or features > _BATCH_FEATURES):
            yield places[low:number]
            low, features = number, int(lengths[place])
    if len(places):
        yield places[low:]
