"""What the learner reads: slices decoded once into columns, bad rows set apart with their reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.roles.machine import InputRecord, InputSlice
from hushstream.roles.outcomes import Refusal
from hushstream.schemas.columns import ContextColumns, gather_contexts

NORMALISATION_TOLERANCE = 1e-3
"""How far the entries of a context may be from summing to 1 (float32 rounding of a few hundred entries)."""

MAX_ROWS = 4096
"""Contexts in one fold, so that its journal record stays within the broker's record size."""


@dataclass(slots=True)
class DecodedContexts:
    """A contexts slice as columns, with the refusal of every row that is not to be decided."""

    low: int
    high: int
    columns: ContextColumns
    refused: dict[int, Refusal] = field(default_factory=dict)


def decode_contexts(part: InputSlice, dimension: int, arms: int) -> DecodedContexts:
    """Decode a slice of contexts and find the rows that are not normalised histograms."""
    columns = gather_contexts(part.records, dimension, arms)
    decoded = DecodedContexts(part.low, part.high, columns)
    for row in np.flatnonzero(~normalised(columns.contexts)):
        decoded.refused[int(row)] = Refusal.UNNORMALISED_CONTEXT
    return decoded


def normalised(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) are histograms: no entry below 0, sum 1 within the tolerance."""
    if not len(contexts):
        return np.zeros(0, dtype=np.bool_)
    sums = contexts.sum(axis=1, dtype=np.float64)
    good: NDArray[np.bool_] = (np.abs(sums - 1.0) <= NORMALISATION_TOLERANCE) & (contexts.min(axis=1) >= 0)
    return good


def cut(part: InputSlice, high: int) -> InputSlice:
    """The part of a slice below offset ``high``."""
    kept: Sequence[InputRecord] = [record for record in part.records if record.offset < high]
    return part._replace(high=high, records=kept)


def eligible_mask(mask: bytes, arms: int) -> NDArray[np.bool_]:
    """Unpack a bitmask (bit a of byte a // 8) into bool (arms,)."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:arms]
    eligible = np.zeros(arms, dtype=np.bool_)
    eligible[: len(bits)] = bits.astype(np.bool_)
    return eligible
