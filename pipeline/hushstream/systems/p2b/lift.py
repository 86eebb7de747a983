"""Releases the lift of the model: noised running counts of decisions that were shown, and of their rewards.

*Over a hold-out.* A model never answers the users of a keyed share. They get the context's baseline arm, or any
eligible arm with equal chance. For both groups two sums are counted: the decisions that were shown, and their rewards.
All four sums run through one counter. So a live team sees what the model is worth, with an interval, and exact counts
never leave the learner.

A decision counts when its wait for a reward is over, rewarded or not. If rewarded decisions counted at once, they would
count before those that get no reward, and early rates would be too high. Decisions that wait are kept by user and by
the moment at which they count (the wait is cut into `_MOMENTS` moments), so `LiftCounter.forget` can drop those of a
user.

The first ``decisions_per_user`` decisions of a user count, all in one group. Each changes the group's sum of shown
decisions by at most M steps, and its sum of rewards by at most M, in whatever leaves they fall. So all releases
together cost epsilon for *all* clicks of one user, with L1 sensitivity 2 M ``decisions_per_user``
(`hushstream.counting.counter`, group of leaves).

*In the shadow.* Answers are counted by item, in four sums for each item: rewarded or not, where the application showed
that item, and where it showed another one. A decision changes two of them by M steps together, so the sensitivity is
M ``decisions_per_user``.

The counter draws noise ahead of its leaves. So if a rollback cannot be ruled out, a new epoch of noise begins over the
exact counts, at the price of all of them (`hushstream.engine.machine.ReleasingMachine.request_epoch`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BadState, Counter, NegativeDigitTree, Neighbours, PureEpsilon, best_tree
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Debit
from hushstream.privacy.mechanisms.guarantee import OPEN_IN
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.promises.promise import Guarantee
from hushstream.systems.p2b.configuration import LiftConfig, P2BConfig

GROUPS = ("model", "holdout")
SUMS = 4
"""Over a hold-out: model shown, model rewards, hold-out shown, hold-out rewards. In the shadow, for each answered item:
where that item was shown, rewarded and not rewarded; where another one was shown, rewarded and not rewarded."""

_USER_BYTES = 16
_RELEASED = bytes(_USER_BYTES)
"""In place of a user, for sums that were released already: they belong to no particular user any more."""
_COIN_BITS = 53
_MOMENTS = 256
"""The wait for a reward is cut into this many moments."""
_ITEM_BYTES = 4
"""In the shadow, the answered item stands behind the user's bytes."""
_WAITING, _WAITING_IN_SHADOW = (
    struct.Struct(f"<q{width}s{SUMS}q") for width in (_USER_BYTES, _USER_BYTES + _ITEM_BYTES)
)
_COUNT = struct.Struct("<IQ")
NORMAL_95 = 1.959963984540054


class LiftStep(NamedTuple):
    """One release: its number from 1, the noised running sums, int64 (4,), in the shadow (4 items,), and the variance
    of each of them."""

    leaf: int
    sums: NDArray[np.int64]
    variance: float


class CountedLift(NamedTuple):
    """How the lift is counted: its settings, the levels of a reward, and the number of items (0 over a hold-out)."""

    lift: LiftConfig
    levels: int
    answers: int


def counted_lift(config: P2BConfig) -> CountedLift | None:
    """How a deployment counts its lift; None if it releases none."""
    lift = config.counted
    return None if lift is None else CountedLift(lift, config.release.levels, 0 if lift.holdout else config.arms)


def required_lift(config: P2BConfig) -> CountedLift:
    """How a deployment that releases a lift counts it."""
    counted = counted_lift(config)
    assert counted is not None, "expected a deployment that releases a lift"
    return counted


@lru_cache(maxsize=16)
def lift_tree(lift: LiftConfig, levels: int, answers: int = 0) -> NegativeDigitTree:
    """The counter of one learner partition."""
    if answers:
        in_shadow = levels * lift.decisions_per_user
        return best_tree(PureEpsilon(lift.epsilon), lift.releases, SUMS * answers, in_shadow)
    sensitivity = 2 * levels * lift.decisions_per_user
    return best_tree(PureEpsilon(lift.epsilon), lift.releases, SUMS, sensitivity)


def _counted_text(lift: LiftConfig) -> str:
    first = lift.decisions_per_user
    return "the first decision of their life is" if first == 1 else f"the first {first} decisions of their life are"


@lru_cache(maxsize=16)
def lift_guarantee(lift: LiftConfig, levels: int, answers: int = 0) -> Guarantee:
    """The guarantee of all releases of the lift for one user."""
    promise = lift_tree(lift, levels, answers).guarantee(
        Neighbours(
            relation="null-user: neighbours differ in all that one user was shown and rewarded with, or in none of it",
            unit=f"one user ({_counted_text(lift)} counted)",
            leaves=min(lift.decisions_per_user, lift.releases),
            step=f"reward levels, {levels} to a whole reward or showing",
        ),
        zone="edge",
    )
    # Only a hosted deployment has a lift (`P2BConfig`).
    not_protected = (*promise.not_protected, OPEN_IN["hosted"])
    kind = "shadow" if answers else "lift"
    return replace(promise, mechanism=f"{kind}: {promise.mechanism}", not_protected=not_protected)


def lift_debit(lift: LiftConfig, levels: int, answers: int = 0) -> Debit:
    """What the journal and the ledger charge for all releases of the lift; the caller fills in the scope.

    The words of its unit must stay those of the first software release: with others, a replay would give other records.
    """
    promise = lift_guarantee(lift, levels, answers)
    unit = f"one user (the first {lift.decisions_per_user} decisions of his life are counted)"
    return Debit("", "lift", promise.cost, promise.relation, unit)


def in_holdout(user_key: Key, lift: LiftConfig) -> bool:
    """Whether a user is in the hold-out. It follows from the user's key, so it stays the same for their whole life."""
    draw = int.from_bytes(user_key.prf("holdout")[:8], "big") >> (64 - _COIN_BITS)
    return draw < round(lift.holdout * (1 << _COIN_BITS))


def holdout_arm(user_key: Key, event_id: str, eligible: NDArray[np.int64]) -> int:
    """An eligible arm with equal chance; the same event gets the same arm."""
    draw = int.from_bytes(user_key.prf("holdout-arm", event_id)[:16], "big")
    return int(eligible[draw * len(eligible) >> 128])


def lift_user(user_key: Key) -> bytes:
    """The bytes that stand for a user among decisions that wait to be counted."""
    return user_key.digest("lift-user")


class LiftCounter:
    """The running counts of one learner partition: exact inside, noised outside."""

    def __init__(
        self, lift: LiftConfig, levels: int, wait_ms: int, key: Key, address: NoiseAddress, answers: int = 0
    ) -> None:
        """Start without counts, under noise that ``key`` and ``address`` name.

        Args:
            lift: the settings.
            levels: M, steps of a reward.
            wait_ms: how long a decision waits for its reward.
            key: the edge zone's key of the lift.
            address: names the noise.
            answers: how many items there are in the shadow; 0 over a hold-out.
        """
        self._lift = lift
        self._levels = levels
        self._answers = answers
        self._tree = lift_tree(lift, levels, answers)
        self._key = key
        self._before = 0
        """Releases in earlier epochs of noise."""
        self._counter: Counter = self._tree.open(key, address)
        self._moment_ms = max(1, wait_ms // _MOMENTS)
        self._waiting: dict[int, dict[bytes, list[int]]] = {}
        """Sums that wait, by the moment at which they count and by user; in the shadow by user and answered item."""

    @property
    def _packed(self) -> struct.Struct:
        """The layout in which sums that wait are packed."""
        return _WAITING_IN_SHADOW if self._answers else _WAITING

    @property
    def leaves(self) -> int:
        """Releases so far."""
        return self._before + self._counter.leaves

    def redraw(self, address: NoiseAddress) -> None:
        """Begin an epoch under noise that ``address`` names: the next release adds new noise to all counts."""
        counted = self._counter.exact.reshape(-1, SUMS).tolist()
        self._before = self.leaves
        self._counter = self._tree.open(self._key, address)
        at_once = self._waiting.setdefault(0, {})
        for who, sums in zip(self._keys(_RELEASED), counted, strict=True):
            held = at_once.get(who, [0] * SUMS)
            at_once[who] = [one + more for one, more in zip(held, sums, strict=True)]

    def count(self, user: bytes, holdout: bool, index: int, deadline_ms: int, reward: float) -> None:
        """Take one decision that was shown.

        Args:
            user: stands for the decision's user (`lift_user`).
            holdout: whether the user is in the hold-out.
            index: number of the decision in the user's life, from 0.
            deadline_ms: log time when its wait for a reward is over; it counts from the next moment on.
            reward: in [0, 1].
        """
        if not self._counts(index):
            return
        place, sums = 2 if holdout else 0, self._waiting_of(user, deadline_ms)
        sums[place] += self._levels
        sums[place + 1] += int(reward * self._levels)

    def count_answer(self, user: bytes, item: int, agreed: bool, index: int, deadline_ms: int, reward: float) -> None:
        """Take one decision in the shadow for which the application said what it showed.

        Args:
            user, index, deadline_ms, reward: see `count`; the reward is that of the item that was shown.
            item: the item that was answered.
            agreed: whether the answered item was shown.
        """
        if not self._counts(index):
            return
        place, sums = 0 if agreed else 2, self._waiting_of(user + _item_bytes(item), deadline_ms)
        rewarded = int(reward * self._levels)
        sums[place] += rewarded
        sums[place + 1] += self._levels - rewarded

    def _counts(self, index: int) -> bool:
        return index < self._lift.decisions_per_user

    def _waiting_of(self, who: bytes, deadline_ms: int) -> list[int]:
        users = self._waiting.setdefault(-(-deadline_ms // self._moment_ms) * self._moment_ms, {})
        return users.setdefault(who, [0] * SUMS)

    def _keys(self, user: bytes) -> Sequence[bytes]:
        """The keys under which sums of a user may wait."""
        return [user + _item_bytes(item) for item in range(self._answers)] if self._answers else [user]

    def forget(self, user: bytes) -> None:
        """Drop the waiting sums of a user: they are never counted."""
        for users in self._waiting.values():
            for who in self._keys(user):
                users.pop(who, None)
        self._waiting = {moment: users for moment, users in self._waiting.items() if users}

    def release(self, now_ms: int) -> LiftStep:
        """The next release: it covers all decisions whose wait is over at log time ``now_ms``, however many they are.

        Raises:
            HorizonReached: more releases than the counter's price pays for.
        """
        over = [self._waiting.pop(moment) for moment in sorted(self._waiting) if moment <= now_ms]
        total = np.zeros((max(1, self._answers), SUMS), dtype=np.int64)
        for users in over:
            places = [int.from_bytes(who[_USER_BYTES:], "little") for who in users]
            np.add.at(total, places, np.array(list(users.values()), dtype=np.int64))
        self._counter.add(total.reshape(1, -1))
        leaves = self._counter.leaves
        before = (leaves - 1) * self._tree.mean_square(leaves - 1) if leaves > 1 else 0.0
        variance = leaves * self._tree.mean_square(leaves) - before
        return LiftStep(self.leaves, self._counter.release().values, variance)

    def dump(self) -> bytes:
        """The state; as sensitive as clicks."""
        items = sorted((moment, *item) for moment, users in self._waiting.items() for item in users.items())
        packed = self._packed
        waiting = [packed.pack(moment, who, *sums) for moment, who, sums in items]
        return _COUNT.pack(len(waiting), self._before) + b"".join(waiting) + self._counter.dump()

    def load(self, state: bytes) -> None:
        """Return to a state that `dump` wrote.

        Raises:
            BadState: these are not the bytes of such a state.
        """
        each = self._packed.size
        if len(state) < _COUNT.size or len(state) < (end := _COUNT.size + _COUNT.unpack_from(state)[0] * each):
            raise BadState("lift: expected the state of a counter, got fewer bytes")
        self._before = _COUNT.unpack_from(state)[1]
        self._waiting = {}
        for moment, who, *sums in self._packed.iter_unpack(state[_COUNT.size : end]):
            self._waiting.setdefault(moment, {})[who] = sums
        self._counter.load(state[end:])


def _item_bytes(item: int) -> bytes:
    return item.to_bytes(_ITEM_BYTES, "little")


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Reward rate of one group from noised sums, with the half-width of its 95 % interval; see `lift_of`."""

    shown: float
    rewards: float
    rate: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Lift:
    """The reward rates of both groups, and from them the uplift of the model over the hold-out.

    Attributes:
        model, holdout: the rate of each group; None if too few decisions were shown to distinguish it from the noise.
        needed: the number of decisions from which on a group can be distinguished from the noise.
        counted: noised number of decisions of each group.
    """

    model: GroupRate | None
    holdout: GroupRate | None
    needed: float
    counted: tuple[float, float]

    @property
    def uplift(self) -> tuple[float, float] | None:
        """Difference of the rates, and the half-width of its 95 % interval; None if a rate is unknown."""
        if self.model is None or self.holdout is None:
            return None
        return self.model.rate - self.holdout.rate, math.hypot(self.model.half_width, self.holdout.half_width)

    @property
    def decisions_more(self) -> int | None:
        """How many more decisions, of both groups together, are needed until the interval excludes 0.

        Rates and shares are assumed to stay; None if the uplift is unknown, or 0.
        """
        uplift = self.uplift
        return None if uplift is None else decisions_more(sum(self.counted), *uplift)


ShareCounts: TypeAlias = tuple[NDArray[np.int64], float, int]
"""One counter's newest release: its sums, the variance of each, and the levels of a reward."""


def lift_of(newest: Iterable[ShareCounts], decisions_per_user: int) -> Lift:
    """The lift from the newest release of each counter. Its intervals hold however much the rewards of a user depend.

    Users are assumed to be independent; decisions of one user are not. Let user i give the reward R_i in n_i <= m
    decisions, N decisions in all, and let p be the rate over all. R / N - p is sum (R_i - p n_i) / N. Its variance is
    at most sum E (R_i - p n_i)^2 / N^2 <= m sum E n_i (R_i/n_i - p)^2 / N^2 <= m p (1 - p) / N, because R_i/n_i,
    weighed by n_i, is in [0, 1] with mean p (Bhatia, Davis 2000). That is m times the variance of N independent
    decisions, and it is reached if each user has m equal rewards. For p two successes and two failures of users are
    added (Agresti, Coull 1998): no reward among few users does not show that the rate is 0. The contribution of the
    noise is exact: (e_1 - p e_0) over the noised count.

    Args:
        newest: (sums (4,), variance of each, levels).
        decisions_per_user: m.
    """
    total, variance = np.zeros(SUMS), 0.0
    for sums, noise, levels in newest:
        total += sums / levels
        variance += noise / levels**2
    model, holdout = ((total[place], total[place + 1]) for place in (0, 2))
    return Lift(
        _rate(*model, variance, decisions_per_user),
        _rate(*holdout, variance, decisions_per_user),
        _needed(variance),
        (float(model[0]), float(holdout[0])),
    )


def lift_figures(newest: ShareCounts, decisions_per_user: int) -> Mapping[str, float]:
    """The gauges of one counter's newest release, by group.

    A group that cannot be distinguished from the noise has 0: without a value, the gauge would keep an older release's.
    """
    found = lift_of([newest], decisions_per_user)
    figures: dict[str, float] = {}
    for group, rate in zip(GROUPS, (found.model, found.holdout), strict=True):
        shown = (0.0, 0.0, 0.0) if rate is None else (rate.shown, rate.rate, (rate.half_width / NORMAL_95) ** 2)
        names = (f"lift_{name}_{group}" for name in ("decisions", "reward_ratio", "reward_variance"))
        figures |= dict(zip(names, shown, strict=True))
    return figures


def _needed(variance: float) -> float:
    """The least count that a rate may be divided by: about three standard deviations of its noise."""
    return max(1.0, 3 * math.sqrt(variance))


def _rate(shown: float, rewards: float, variance: float, decisions_per_user: int) -> GroupRate | None:
    """Rate and interval of one group; None if its count is not distinguishable from the noise."""
    if shown <= _needed(variance):
        return None
    rate = rewards / shown
    chance = float(smoothed(rate, shown, decisions_per_user))
    sampling = decisions_per_user * chance * (1 - chance) / shown
    spread = sampling + variance * (1 + rate * rate) / shown**2
    return GroupRate(shown, rewards, rate, NORMAL_95 * math.sqrt(spread))


_Rates = TypeVar("_Rates", float, NDArray[np.float64])


def smoothed(rates: _Rates, counts: _Rates, decisions_per_user: int) -> _Rates:
    """Rates with two successes and two failures of users added, so that no reward among few users is not taken as 0.

    Args:
        rates: in [0, 1] without noise; with noise they are clipped to it.
        counts: the number of decisions behind each rate, above 0.
        decisions_per_user: the most decisions that one user has among them.
    """
    more = decisions_per_user * NORMAL_95**2
    found: _Rates = (np.clip(rates, 0.0, 1.0) * counts + more / 2) / (counts + more)
    return found


def decisions_more(counted: float, difference: float, half_width: float) -> int | None:
    """How many decisions beyond ``counted`` are needed until an interval excludes 0, if its difference stays.

    The half-width is assumed to fall with the root of their number. The part of the noise falls faster, so fewer may be
    enough. None if the difference is 0: no number of decisions shows it.
    """
    if not difference:
        return None
    return max(0, math.ceil(counted * (half_width / difference) ** 2 - counted))
