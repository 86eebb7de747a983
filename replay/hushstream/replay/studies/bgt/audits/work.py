"""Compares the time of the collector's work on null slots and on slots with content, for each kind of slot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.replay.audits.roles.work import SLOTS, Holds, Work, has_content
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import BgtConfig, Kind, ReleaseConfig, ScaleConfig
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.records import round_fields
from hushstream.systems.bgt.rounds import Model, Round
from hushstream.systems.bgt.shuffler.collector import CollectorMachine
from hushstream.systems.bgt.slots import Slots, null_slots, packed_slots

_ITEMS, _FACTORS = 400, 4
_SMALL = 1 << 10
"""A value in lattice units; a slot of such values is within every clip."""


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of a batch of ``slots`` slots for each kind of round, in the order of rounds."""
    config = BgtConfig("audit", _ITEMS, 0, ScaleConfig(0, 1), ReleaseConfig(factors=_FACTORS))
    system = BgtSystem.of(config, np.zeros((_ITEMS, 0)))
    none, some = (Model(np.zeros(_ITEMS), np.zeros((_ITEMS, kept))) for kept in (0, _FACTORS))
    top = np.arange(config.top)
    rounds = [Round(0, "items", none), Round(1, "pairs", none, top, np.ones(len(top))), Round(2, "factors", some)]
    return tuple(_work(system, rounds, number, slots) for number in range(len(rounds)))


def _work(system: BgtSystem, rounds: Sequence[Round], number: int, slots: int) -> Work:
    before = []
    for asked in rounds[: number + 1]:
        before.append(codec.encode("RatingRound", round_fields(asked, asked.number, system.digest)))
        if asked.number < number:
            before.append(_end(system, asked.number))
    kind = rounds[number].kind
    make = partial(CollectorMachine, system, 0, seeded_key(0, "shuffler"))
    about = f"nulls against slots of {kind}"
    batch = partial(_batch, system, kind, number, slots)
    return Work(f"time-of-{kind}", ("bgt", "collector"), about, make, before, batch)


def _batch(system: BgtSystem, kind: Kind, number: int, slots: int, holds: Holds) -> Sequence[bytes]:
    null, full = packed_slots(null_slots(1, system.config))[0], packed_slots(_slots(system.config, kind, slots))
    values = []
    for place in range(slots):
        fields = {
            "slot_id": place.to_bytes(16, "big"),
            "config_digest": system.digest,
            "round": number,
            "content": full[place] if has_content(holds, place) else null,
        }
        values.append(codec.encode("RatingSlot", fields))
    return values


def _slots(config: BgtConfig, kind: Kind, count: int) -> Slots:
    """Slots with different items, each filled as far as the round has items."""
    draw, slots = np.random.default_rng(1), null_slots(count, config)
    there = config.top if kind == "pairs" else config.items
    used = min(config.release.pairs, there)
    for row in range(count):
        slots.items[row, :used] = np.sort(draw.choice(there, used, replace=False))
    slots.values[:, :used] = draw.integers(1, _SMALL, (count, used))
    if kind == "items":
        slots.weights[:] = _SMALL
    if kind == "factors":
        slots.directions[:] = draw.integers(1, _SMALL, slots.directions.shape)
    return slots


def _end(system: BgtSystem, number: int) -> bytes:
    fields = {"phase": number, "origin": 0, "config_digest": system.digest, "after_click": -1}
    return codec.encode("Seal", fields)
