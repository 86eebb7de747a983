"""Where the chance of simulated users comes from: ties between arms, and which interaction a slot reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import seeded_key
from hushstream.replay.worlds.draws import Draws

Int64 = NDArray[np.int64]

_TIES = float(1 << 52)


class Coins(Protocol):
    """Where the users' own chance comes from."""

    def ties(self, condition: str, users: Int64, round_index: int) -> Int64:
        """Draws of at least 0, (n,): of m tied arms number ``draw mod m`` is taken."""

    def targets(self, users: Int64, slot: int, below: int) -> Int64:
        """Which of its ``below`` interactions a slot reports, (n,) in [0, below)."""

    def report_ids(self, users: Int64, slot: int) -> list[bytes]:
        """Report ids of a slot of each user: 16 bytes each, different for every (user, slot)."""


@dataclass(frozen=True, slots=True)
class SeededCoins:
    """Uniform draws addressed by (seed, user, round); the same for a user in every condition of the comparison."""

    seed: int

    def ties(self, condition: str, users: Int64, round_index: int) -> Int64:
        draws = Draws(self.seed, "ties").uniforms(users, round_index, 1)[:, 0]
        return np.asarray(draws * _TIES, dtype=np.int64)

    def targets(self, users: Int64, slot: int, below: int) -> Int64:
        draws = Draws(self.seed, "slot-targets").uniforms(users, slot, 1)[:, 0]
        return np.asarray(draws * below, dtype=np.int64)

    def report_ids(self, users: Int64, slot: int) -> list[bytes]:
        key = seeded_key(self.seed, "users")
        number = slot.to_bytes(8, "little")
        return [key.digest("report-id", user.to_bytes(8, "little"), number) for user in users.tolist()]
