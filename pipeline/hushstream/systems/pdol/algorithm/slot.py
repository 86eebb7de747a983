"""What a domain remembers of single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.algorithm.rows import Rows


class Features(NamedTuple):
    """One record: int32 (k,) coordinates, and int64 (k,) values in units of 2^-12."""

    indices: NDArray[np.int32]
    values: NDArray[np.int64]


class Slot(NamedTuple):
    """A record whose label may still come.

    Attributes:
        node: where it came.
        user: tag of its person.
        features: None for null: it broke a bound, was beyond the allowance, or was erased.
        label: 1 or -1; 0 as long as none came.
        said: int8, what each expert of its node said; empty where nodes have none.
    """

    node: int
    user: bytes
    features: Features | None
    label: int = 0
    said: bytes = b""


class Past(NamedTuple):
    """What was answered for an event, and the tag of whose it is."""

    user: bytes
    predicted: int


def labelled(slots: Sequence[Slot]) -> Rows:
    """Slots with their labels; one without a label, or without features, is null."""
    held = [(slot.features, slot.label) if slot.label else (None, 0) for slot in slots]
    kept = [features for features, _ in held if features is not None]
    lengths = [0 if features is None else len(features.indices) for features, _ in held]
    return Rows(
        np.cumsum([0, *lengths], dtype=np.int64),
        np.concatenate([_NONE.indices, *(features.indices for features in kept)]),
        np.concatenate([_NONE.values, *(features.values for features in kept)]),
        np.array([0 if features is None else label for features, label in held], dtype=np.int8),
    )


_NONE = Features(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
