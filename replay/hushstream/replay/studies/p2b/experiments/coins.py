"""Where the chance of simulated users comes from: ties between arms, and which interaction a slot reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.worlds.draws import Draws

Int64 = NDArray[np.int64]

_TIES = float(1 << 52)


class Coins(Protocol):
    """Where the users' own chance comes from."""

    def ties(self, arm: str, users: Int64, round_index: int) -> Int64:
        """Draws of at least 0, (n,): of m tied arms number ``draw mod m`` is taken."""

    def targets(self, users: Int64, slot: int, below: int) -> Int64:
        """Which of its ``below`` interactions a slot reports, (n,) in [0, below)."""


@dataclass(frozen=True, slots=True)
class SeededCoins:
    """Uniform draws addressed by (seed, user, round); the same for a user in every arm of the comparison."""

    seed: int

    def ties(self, arm: str, users: Int64, round_index: int) -> Int64:
        """See `Coins.ties`."""
        draws = Draws(self.seed, "ties").uniforms(users, round_index, 1)[:, 0]
        return np.asarray(draws * _TIES, dtype=np.int64)

    def targets(self, users: Int64, slot: int, below: int) -> Int64:
        """See `Coins.targets`."""
        draws = Draws(self.seed, "slot-targets").uniforms(users, slot, 1)[:, 0]
        return np.asarray(draws * below, dtype=np.int64)
