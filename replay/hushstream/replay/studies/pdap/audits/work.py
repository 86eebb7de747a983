"""Compares the time of the counter's work on outcomes without clicks and on clicks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.replay.audits.roles.work import SLOTS, Holds, Work, has_content
from hushstream.schemas import codec
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter.machine import BlockCounterMachine
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.records import outcome_fields

_ARMS, _A_RECORD = 16, 32


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of one window with ``slots`` outcomes."""
    vendors = (VendorConfig("one", _ARMS), VendorConfig("two", _ARMS))
    release = BlockConfig(first_window=slots)
    system = PdapSystem.of(PdapConfig("audit", vendors, 1, cells=CellConfig(levels=0), release=release))
    make = partial(BlockCounterMachine, system, seeded_key(0, "counter"))
    about = "a window of outcomes without clicks against one of clicks"
    return (Work("time-of-outcomes", ("pdap", "counter"), about, make, (), partial(_window, system)),)


def _window(system: PdapSystem, holds: Holds) -> Sequence[bytes]:
    values = []
    for first in range(0, system.config.release.first_window, _A_RECORD):
        places = range(first, first + _A_RECORD)
        names = np.array([list(place.to_bytes(16, "big")) for place in places], dtype=np.uint8)
        arms = np.array([place * 5 % (2 * _ARMS) for place in places], dtype=np.int64)
        rewards = np.array([int(has_content(holds, place)) for place in places], dtype=np.int64)
        outcomes = Outcomes(np.zeros_like(arms), np.full_like(arms, 1 << 57), arms, rewards, names)
        values.append(codec.encode("Outcomes", outcome_fields(0, system.digest, outcomes)))
    return values
