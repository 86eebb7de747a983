"""The lift of the model over a hold-out, released: noised running counts of what was shown and rewarded.

A keyed share of users is never answered by a model: they see the context's baseline arm, or any eligible arm with
equal chance. Of both groups two sums are counted, decisions that were shown and their rewards, and all four run
through a counter. So a live team sees what the model is worth, with an interval, while exact counts stay where they
are.

One user's first ``decisions_per_user`` decisions count, in one group. Each moves the group's shown sum by M steps at
most and its reward sum by M at most, whatever leaves they fall in: all releases together are epsilon for *all* of
one user's clicks, with L1 sensitivity 2 M ``decisions_per_user`` (`hushstream.counting.counter`, group of leaves).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import Counter, NegativeDigitTree, Neighbours, PureEpsilon, best_tree
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import NoiseAddress
from hushstream.privacy.promise import Guarantee
from hushstream.systems.configuration import LiftConfig

GROUPS = ("model", "holdout")
SUMS = 4
"""Model shown, model rewards, hold-out shown, hold-out rewards."""

_COIN_BITS = 53
_NORMAL_95 = 1.959963984540054


class LiftStep(NamedTuple):
    """One release: its number from 1, the noised running sums int64 (4,), and the variance of each."""

    leaf: int
    sums: NDArray[np.int64]
    variance: float


@lru_cache(maxsize=16)
def lift_tree(lift: LiftConfig, levels: int) -> NegativeDigitTree:
    """The counter of one learner partition."""
    sensitivity = 2 * levels * lift.decisions_per_user
    return best_tree(PureEpsilon(lift.epsilon), lift.releases, SUMS, sensitivity)


@lru_cache(maxsize=16)
def lift_guarantee(lift: LiftConfig, levels: int) -> Guarantee:
    """What all releases of the lift promise for one user."""
    promise = lift_tree(lift, levels).guarantee(
        Neighbours(
            relation="null-user: neighbours differ in all that one user was shown and rewarded with, or in none of it",
            unit=f"one user (the first {lift.decisions_per_user} decisions of his life are counted)",
            leaves=min(lift.decisions_per_user, lift.releases),
        ),
        zone="edge",
    )
    return replace(promise, mechanism=f"lift: {promise.mechanism}")


def in_holdout(user_key: Key, lift: LiftConfig) -> bool:
    """Whether a user is in the hold-out: a function of his key, so for his whole life."""
    draw = int.from_bytes(user_key.prf("holdout")[:8], "big") >> (64 - _COIN_BITS)
    return draw < round(lift.holdout * (1 << _COIN_BITS))


def holdout_arm(user_key: Key, event_id: str, eligible: NDArray[np.int64]) -> int:
    """An eligible arm with equal chance; the same event gets the same arm."""
    draw = int.from_bytes(user_key.prf("holdout-arm", event_id)[:16], "big")
    return int(eligible[draw * len(eligible) >> 128])


class LiftCounter:
    """The running counts of one learner partition: exact inside, noised outside."""

    def __init__(self, lift: LiftConfig, levels: int, key: Key, address: NoiseAddress) -> None:
        """Start with none, under noise that ``key`` and ``address`` name."""
        self._lift = lift
        self._levels = levels
        self._tree = lift_tree(lift, levels)
        self._counter: Counter = self._tree.open(key, address)
        self._waiting = np.zeros(SUMS, dtype=np.int64)

    @property
    def leaves(self) -> int:
        """Releases so far."""
        return self._counter.leaves

    def count(self, holdout: bool, index: int, reward: float) -> None:
        """Take one decision that was shown: ``index`` is its number in the user's life, from 0."""
        if index >= self._lift.decisions_per_user:
            return
        place = 2 if holdout else 0
        self._waiting[place] += self._levels
        self._waiting[place + 1] += int(reward * self._levels)

    def release(self) -> LiftStep:
        """The next release, whatever has been counted.

        Raises:
            HorizonReached: more releases than the counter's price pays for.
        """
        self._counter.add(self._waiting[None, :])
        self._waiting[:] = 0
        step = float(self.leaves)
        before = (step - 1) * self._tree.mean_square(self.leaves - 1) if self.leaves > 1 else 0.0
        variance = step * self._tree.mean_square(self.leaves) - before
        return LiftStep(self.leaves, self._counter.release().values, variance)

    def dump(self) -> bytes:
        """The state; as sensitive as clicks."""
        return self._waiting.astype("<i8").tobytes() + self._counter.dump()

    def load(self, state: bytes) -> None:
        """Take over a state.

        Raises:
            BadState: not the bytes of such a state.
        """
        self._waiting = np.frombuffer(state[: 8 * SUMS], "<i8").astype(np.int64)
        self._counter.load(state[8 * SUMS :])


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Reward rate of one group from noised sums: with the half-width of its 95 % interval."""

    shown: float
    rewards: float
    rate: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Lift:
    """Uplift of the model over the hold-out; None where too little was shown to tell."""

    model: GroupRate | None
    holdout: GroupRate | None

    @property
    def uplift(self) -> tuple[float, float] | None:
        """Difference of the rates, and the half-width of its 95 % interval."""
        if self.model is None or self.holdout is None:
            return None
        return self.model.rate - self.holdout.rate, math.hypot(self.model.half_width, self.holdout.half_width)


def lift_of(newest: Iterable[tuple[NDArray[np.int64], float, int]]) -> Lift:
    """The lift from the newest release of each counter: (sums (4,), variance of each, levels)."""
    total, variance = np.zeros(SUMS), 0.0
    for sums, noise, levels in newest:
        total += sums / levels
        variance += noise / levels**2
    return Lift(_rate(total[0], total[1], variance), _rate(total[2], total[3], variance))


def _rate(shown: float, rewards: float, variance: float) -> GroupRate | None:
    """Rate and interval: sampling of rewards in [0, 1], and noise of both sums by the delta method."""
    # Below some three deviations of its noise a count is no divisor.
    if shown <= 3 * math.sqrt(variance) or shown < 1:
        return None
    rate = rewards / shown
    chance = min(1.0, max(0.0, rate))
    spread = chance * (1 - chance) / shown + variance * (1 + rate * rate) / shown**2
    return GroupRate(shown, rewards, rate, _NORMAL_95 * math.sqrt(spread))
