"""Checks slots in whole numbers, so that the sensitivity depends on no rounding."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.bgt.configuration import UNIT, BgtConfig
from hushstream.systems.bgt.errors import BadSlots
from hushstream.systems.bgt.price.sensitivity import squared_clip
from hushstream.systems.bgt.rounds import Round
from hushstream.systems.bgt.slots import NOTHING, Slots


class Refusal(IntEnum):
    """Why a slot counts as null; zone-private, because it depends on content."""

    TAKEN = 0
    ITEM = 1
    """An unknown item, or one that the round of kind B does not request."""
    ORDER = 2
    """Items that are not ascending (so that one may occur twice), or a value at an unused place."""
    NORM = 3
    """A norm above the clip, even by one unit."""
    KIND = 4
    """A weight or a direction that slots of this kind do not have."""


def admit(slots: Slots, asked: Round, config: BgtConfig) -> NDArray[np.int8]:
    """A `Refusal` for each slot, int8 (n,).

    The operations and the sizes of arrays do not depend on the slots' content, and no operation branches on content.

    Raises:
        BadSlots: slots do not have the size of the configuration.

    Guarantee:
        What is taken has items of the round, each once, and a squared norm of at most `squared_clip`.
    """
    width = config.release.pairs, config.release.factors
    if (slots.items.shape[1], slots.directions.shape[1]) != width:
        got = slots.items.shape[1], slots.directions.shape[1]
        raise BadSlots(f"slots: expected {width[0]} pairs and {width[1]} directions, got {got[0]} and {got[1]}")
    why = np.zeros(len(slots), dtype=np.int8)
    why = _marked(why, _wrong_kind(slots, asked), Refusal.KIND)
    why = _marked(why, _too_long(slots, asked, config), Refusal.NORM)
    used = slots.items != NOTHING
    rising = ((slots.items[:, 1:] > slots.items[:, :-1]) & used[:, :-1]) | ~used[:, 1:]
    why = _marked(why, _any(~rising) | _any((slots.values != 0) & ~used), Refusal.ORDER)
    unknown = np.asarray((slots.items < NOTHING) | (slots.items >= config.items))
    if asked.kind == "pairs":
        # Two more entries: one for unknown items, and the last one for unused places.
        known = np.zeros(config.items + 2, dtype=bool)
        known[asked.top] = known[-1] = True
        unknown = unknown | ~known[np.clip(slots.items, NOTHING, config.items)]
    return _marked(why, _any(unknown), Refusal.ITEM)


def _wrong_kind(slots: Slots, asked: Round) -> NDArray[np.bool_]:
    factors = asked.model.factors.shape[1] if asked.kind == "factors" else 0
    directed = _any(slots.directions[:, factors:] != 0)
    weighted = (slots.weights < 0) if asked.kind == "items" else (slots.weights != 0)
    return np.asarray(directed | weighted)


def _too_long(slots: Slots, asked: Round, config: BgtConfig) -> NDArray[np.bool_]:
    """Whether a number or a norm is above its bound.

    Numbers are cut to 2^20 before they are squared: otherwise the sum of P squares could leave 64 bits.
    """
    far = _any(_far(slots.values)) | _far(slots.weights) | _any(_far(slots.directions))
    values, weights = (np.clip(column, -UNIT, UNIT).astype(np.int64) for column in (slots.values, slots.weights))
    directions = np.clip(slots.directions, -UNIT, UNIT).astype(np.int64)
    used = np.count_nonzero(slots.items != NOTHING, axis=1)
    squares = (values**2).sum(axis=1) + used * weights**2
    long = squares > squared_clip(asked.kind, config.release)
    return np.asarray(far | long | ((directions**2).sum(axis=1) > UNIT**2))


def _far(numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.asarray((numbers > UNIT) | (numbers < -UNIT))


def _any(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether any value of a row is true; `numpy.any` would stop at the first one."""
    return np.asarray(np.count_nonzero(where, axis=1) > 0)


def _marked(why: NDArray[np.int8], where: NDArray[np.bool_], refusal: Refusal) -> NDArray[np.int8]:
    """Set a refusal where it applies, in place of an earlier one, by arithmetic."""
    return why + where * (np.int8(refusal) - why)
