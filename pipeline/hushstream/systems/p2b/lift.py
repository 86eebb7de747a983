"""The lift of the model, released: noised running counts of what was shown and rewarded.

Over a hold-out: a keyed share of users is never answered by a model. They see the context's baseline arm, or any
eligible arm with equal chance. Of both groups two sums are counted, decisions that were shown and their rewards, and
all four run through a counter. So a live team sees what the model is worth, with an interval, while exact counts stay
where they are.

A decision counts when its wait for a reward is over, rewarded or not: one that was counted with its reward, before
those that get none are known, would make early rates read high. What waits is noted by user and by moments that the
wait is cut into: a user who is forgotten takes theirs along.

One user's first ``decisions_per_user`` decisions count, in one group. Each moves the group's shown sum by M steps at
most and its reward sum by M at most, whatever leaves they fall in: all releases together are epsilon for *all* of
one user's clicks, with L1 sensitivity 2 M ``decisions_per_user`` (`hushstream.counting.counter`, group of leaves).

In the shadow: what was answered is counted by item, in four sums each: rewarded or not, where the application showed
that item and where it showed another one. A decision moves a pair of them by M steps together, so the sensitivity is
M ``decisions_per_user``.

The counter draws ahead of its leaves, so where a rollback cannot be ruled out an epoch of noise begins over the exact
counts, at the price of all of them (`hushstream.engine.machine.ReleasingMachine.request_epoch`).
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
"""Model shown, model rewards, hold-out shown, hold-out rewards; or in the shadow of one answered item: where it was
shown rewarded and not, where another one was shown rewarded and not."""

_USER_BYTES = 16
_RELEASED = bytes(_USER_BYTES)
"""In place of a user, of what was released already and is of nobody in particular any more."""
_COIN_BITS = 53
_MOMENTS = 256
"""Into so many moments the wait for a reward is cut."""
_ITEM_BYTES = 4
"""Behind a user's, in the shadow: the item that was answered."""
_WAITING, _WAITING_IN_SHADOW = (
    struct.Struct(f"<q{width}s{SUMS}q") for width in (_USER_BYTES, _USER_BYTES + _ITEM_BYTES)
)
_COUNT = struct.Struct("<IQ")
NORMAL_95 = 1.959963984540054


class LiftStep(NamedTuple):
    """One release: its number from 1, the noised running sums int64 (4,), in the shadow (4 items,), and the variance of
    each."""

    leaf: int
    sums: NDArray[np.int64]
    variance: float


class CountedLift(NamedTuple):
    """How the lift is counted: its settings, levels of a reward, and by how many answered items; 0 over a hold-out."""

    lift: LiftConfig
    levels: int
    answers: int


def counted_lift(config: P2BConfig) -> CountedLift | None:
    """How a deployment counts its lift; None where it releases none."""
    lift = config.counted
    return None if lift is None else CountedLift(lift, config.release.levels, 0 if lift.holdout else config.arms)


def required_lift(config: P2BConfig) -> CountedLift:
    """The same, where it releases one."""
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


def _counted(lift: LiftConfig) -> str:
    first = lift.decisions_per_user
    return "the first decision of their life is" if first == 1 else f"the first {first} decisions of their life are"


@lru_cache(maxsize=16)
def lift_guarantee(lift: LiftConfig, levels: int, answers: int = 0) -> Guarantee:
    """What all releases of the lift promise for one user."""
    promise = lift_tree(lift, levels, answers).guarantee(
        Neighbours(
            relation="null-user: neighbours differ in all that one user was shown and rewarded with, or in none of it",
            unit=f"one user ({_counted(lift)} counted)",
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
    """What the journal and the ledger charge for all releases of the lift; the scope is filled in.

    Its words of the unit are those of the first release: with others a replay would give other records.
    """
    promise = lift_guarantee(lift, levels, answers)
    unit = f"one user (the first {lift.decisions_per_user} decisions of his life are counted)"
    return Debit("", "lift", promise.cost, promise.relation, unit)


def in_holdout(user_key: Key, lift: LiftConfig) -> bool:
    """Whether a user is in the hold-out: a function of their key, so for their whole life."""
    draw = int.from_bytes(user_key.prf("holdout")[:8], "big") >> (64 - _COIN_BITS)
    return draw < round(lift.holdout * (1 << _COIN_BITS))


def holdout_arm(user_key: Key, event_id: str, eligible: NDArray[np.int64]) -> int:
    """An eligible arm with equal chance; the same event gets the same arm."""
    draw = int.from_bytes(user_key.prf("holdout-arm", event_id)[:16], "big")
    return int(eligible[draw * len(eligible) >> 128])


def lift_user(user_key: Key) -> bytes:
    """Stands for a user among what waits to be counted."""
    return user_key.digest("lift-user")


class LiftCounter:
    """The running counts of one learner partition: exact inside, noised outside."""

    def __init__(
        self, lift: LiftConfig, levels: int, wait_ms: int, key: Key, address: NoiseAddress, answers: int = 0
    ) -> None:
        """Start with none, under noise that ``key`` and ``address`` name.

        Args:
            lift: the settings.
            levels: M, steps of a reward.
            wait_ms: how long a decision waits for its reward.
            key: of the edge zone.
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
        """Sums by the moment at which they count, and by user; in the shadow by user and answered item."""

    @property
    def _packed(self) -> struct.Struct:
        """How what waits is packed."""
        return _WAITING_IN_SHADOW if self._answers else _WAITING

    @property
    def leaves(self) -> int:
        """Releases so far."""
        return self._before + self._counter.leaves

    def redraw(self, address: NoiseAddress) -> None:
        """Begin an epoch under noise that ``address`` names: the next release noises all counts again."""
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
            user: stands for its user (`lift_user`).
            holdout: whether they are in the hold-out.
            index: its number in the user's life, from 0.
            deadline_ms: when its wait for a reward is over, in log time; it counts from the next moment on.
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
            user, index, deadline_ms, reward: as of `count`; the reward is that of what was shown.
            item: what was answered.
            agreed: whether it was shown.
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
        """What a user's sums may wait under."""
        return [user + _item_bytes(item) for item in range(self._answers)] if self._answers else [user]

    def forget(self, user: bytes) -> None:
        """Drop what waits of a user: it is never counted."""
        for users in self._waiting.values():
            for who in self._keys(user):
                users.pop(who, None)
        self._waiting = {moment: users for moment, users in self._waiting.items() if users}

    def release(self, now_ms: int) -> LiftStep:
        """The next release, of all whose wait is over at ``now_ms`` of log time, however many they are.

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
        """Take over a state.

        Raises:
            BadState: not the bytes of such a state.
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
    """Reward rate of one group from noised sums: with the half-width of its 95 % interval, see `lift_of`."""

    shown: float
    rewards: float
    rate: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Lift:
    """Uplift of the model over the hold-out; None where too little was shown to tell.

    Attributes:
        model, holdout: of each group.
        needed: decisions of a group that are told from the noise.
        counted: noised decisions of each group.
    """

    model: GroupRate | None
    holdout: GroupRate | None
    needed: float
    counted: tuple[float, float]

    @property
    def uplift(self) -> tuple[float, float] | None:
        """Difference of the rates, and the half-width of its 95 % interval."""
        if self.model is None or self.holdout is None:
            return None
        return self.model.rate - self.holdout.rate, math.hypot(self.model.half_width, self.holdout.half_width)

    @property
    def decisions_more(self) -> int | None:
        """Of both groups together, until the interval excludes 0, if rates and shares stay; None if nobody knows."""
        uplift = self.uplift
        return None if uplift is None else decisions_more(sum(self.counted), *uplift)


ShareCounts: TypeAlias = tuple[NDArray[np.int64], float, int]
"""One counter's newest release: its sums, the variance of each, and the levels of a reward."""


def lift_of(newest: Iterable[ShareCounts], decisions_per_user: int) -> Lift:
    """The lift from the newest release of each counter, with intervals that hold whatever one user's rewards share.

    Users are taken as independent, a user's decisions are not. Let user i give R_i in n_i <= m decisions, N of them in
    all, and let p be the rate over all. R / N - p is sum (R_i - p n_i) / N, whose variance is at most
    sum E (R_i - p n_i)^2 / N^2 <= m sum E n_i (R_i/n_i - p)^2 / N^2 <= m p (1 - p) / N, as R_i/n_i, weighed by n_i, is
    in [0, 1] with mean p (Bhatia, Davis 2000): m times that of N independent decisions, and reached where each user
    has m equal rewards. p is taken with two successes and two failures of users more (Agresti, Coull 1998), as a rate
    of none in few users is no sign of certainty. What noise adds is exact: (e_1 - p e_0) over the noised count.

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
    """What is shown of one counter's newest release, by group; 0 of a group that is not told from the noise.

    A release before may have told it: without a value of its own that one would stand for ever.
    """
    found = lift_of([newest], decisions_per_user)
    figures: dict[str, float] = {}
    for group, rate in zip(GROUPS, (found.model, found.holdout), strict=True):
        shown = (0.0, 0.0, 0.0) if rate is None else (rate.shown, rate.rate, (rate.half_width / NORMAL_95) ** 2)
        names = (f"lift_{name}_{group}" for name in ("decisions", "reward_ratio", "reward_variance"))
        figures |= dict(zip(names, shown, strict=True))
    return figures


def _needed(variance: float) -> float:
    """Below some three deviations of its noise a count is no divisor."""
    return max(1.0, 3 * math.sqrt(variance))


def _rate(shown: float, rewards: float, variance: float, decisions_per_user: int) -> GroupRate | None:
    """Rate and interval of one group."""
    if shown <= _needed(variance):
        return None
    rate = rewards / shown
    chance = float(smoothed(rate, shown, decisions_per_user))
    sampling = decisions_per_user * chance * (1 - chance) / shown
    spread = sampling + variance * (1 + rate * rate) / shown**2
    return GroupRate(shown, rewards, rate, NORMAL_95 * math.sqrt(spread))


_Rates = TypeVar("_Rates", float, NDArray[np.float64])


def smoothed(rates: _Rates, counts: _Rates, decisions_per_user: int) -> _Rates:
    """Rates with two successes and two failures of users more: none in few users is no sign of certainty.

    Args:
        rates: in [0, 1] where there is no noise.
        counts: of the decisions that each is of, above 0.
        decisions_per_user: the most that one user has among them.
    """
    more = decisions_per_user * NORMAL_95**2
    found: _Rates = (np.clip(rates, 0.0, 1.0) * counts + more / 2) / (counts + more)
    return found


def decisions_more(counted: float, difference: float, half_width: float) -> int | None:
    """How many decisions more, on ``counted``, until an interval excludes 0 if its difference stays.

    Its half-width is taken to fall with the root of their number; noise falls faster, so it may be fewer. None where
    the difference is 0: no number shows it.
    """
    if not difference:
        return None
    return max(0, math.ceil(counted * (half_width / difference) ** 2 - counted))
