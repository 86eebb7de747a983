"""Rounds: the server's requests, and the models from which users answer.

All of it is public and computed from releases alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.bgt.configuration import KINDS, BgtConfig, Kind
from hushstream.systems.bgt.slots import Float64, Int64

ROUNDS = len(KINDS)
"""Each user has one slot in each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The model for predictions.

    Attributes:
        biases: (I,) of items.
        factors: (I, k) of items; k = 0 where there are none.
    """

    biases: Float64
    factors: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The request to each user.

    Attributes:
        number: from 0; there are `ROUNDS`.
        kind: kind of the requested slots. The last round requests kind A again if no factors were kept.
        model: the model for slots; in the first round it is empty.
        top: (M,) the items whose pairs are requested, for kind B.
        gains: (M,) a device multiplies its residuals of these items by them.
    """

    number: int
    kind: Kind
    model: Model
    top: Int64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    gains: Float64 = field(default_factory=lambda: np.zeros(0))


def first_round(config: BgtConfig) -> Round:
    """The first round."""
    return Round(0, "items", Model(np.zeros(config.items), np.zeros((config.items, 0))))


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Noised sums of one round.

    Attributes:
        number: of the round.
        kind: kind of the slots.
        slots: number of slots; nulls and refused slots are included.
        sums: kind A (2, I): weights, residuals; kind B (M (M - 1) / 2,): the strict lower triangle by rows; kind C
            (I, k). Whole multiples of 2^-20, of 2^-40 in kind B.
    """

    number: int
    kind: Kind
    slots: int
    sums: NDArray[np.int64]
