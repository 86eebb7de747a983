"""Exact counts of what windows released and withheld; they are private, so for public data only (rule 11)."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.coins import bernoulli, probability_units
from hushstream.privacy.mechanisms.noise import KeyedStream
from hushstream.systems.p2b.contribution.slots import unpack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.release import WindowRelease, window_address
from hushstream.systems.p2b.shuffler.windows import ClosedWindow


@dataclass(frozen=True, slots=True)
class Released:
    """Counts over windows; ``reports == unsampled + below_threshold + released``.

    Attributes:
        windows: how many windows were closed.
        slots: how many slots are in them, nulls included.
        reports: how many slots hold a report.
        unsampled: how many reports the shuffler's coin left out.
        below_threshold: how many sampled reports had a crowd that was too small.
        released: how many reports are in the release (under noise, in slot sums).
    """

    windows: int = 0
    slots: int = 0
    reports: int = 0
    unsampled: int = 0
    below_threshold: int = 0
    released: int = 0

    def plus(self, other: Released) -> Released:
        """The sum of both counts."""
        return Released(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def withheld_share(self) -> float:
        """Share of the sampled reports that the threshold withheld."""
        sampled = self.reports - self.unsampled
        return self.below_threshold / sampled if sampled else 0.0


def count_released(
    system: P2BSystem, key: Key, genesis_nonce: bytes, closed: ClosedWindow, release: WindowRelease
) -> Released:
    """Count one window of partition 0 by drawing its coins again."""
    config = system.config
    coins = bernoulli(
        KeyedStream(key, window_address(system, key, genesis_nonce, 0, closed).at("sampling")),
        probability_units(config.release.sampling),
        len(closed.contents),
    )
    filled = np.array(
        [unpack(c, system.codes, config.arms, config.release.levels) is not None for c in closed.contents],
        dtype=np.bool_,
    )
    reports, sampled = int(filled.sum()), int((filled & coins).sum())
    released = sampled
    if config.release.mode != "slot-sums":
        total = sum(int(np.frombuffer(release.crowd[name], "<i8").sum()) for name in ("ones", "zeros"))
        released = total // config.release.levels
    return Released(1, len(closed.contents), reports, reports - sampled, sampled - released, released)
