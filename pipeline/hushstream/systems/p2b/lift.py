"""Releases what the shared private model brings: noised running counts of outcomes, by what users were shown.

A *cell* is what is compared. Of groups (`Group`) there are three: a user is in one of them for life, by a keyed hash.
Some are shown the application's own choice (the baseline that a request names), some learn by themselves alone from a
cold start, and all others begin with the shared model. Of answers, in the shadow, there are two for each item:
decisions that were answered it where the application showed it, and where it showed another one. For each cell two sums
are counted: rewards, and what is missing to whole ones. All sums run through one counter. Exact counts never leave the
learner.

*What counts.* No decision is credited to a model of version 0. A user who began before the learner knew a model keeps
to what they had then, so their decisions are counted in no cell. Where a group is shown the baseline, a decision counts
only if its request named one, in every group. When a user began, what they asked, and which versions were known then
depend on no group, so the groups differ in what was shown alone.

A decision counts when its wait for a reward is over, rewarded or not. If rewarded decisions counted at once, they would
count before those that get no reward, and early rates would be too high. Decisions that wait are kept by user and by
the moment at which they count (the wait is cut into `_MOMENTS` moments), so `LiftCounter.forget` can drop those of a
user.

*Sensitivity.* With M levels of a reward, a decision with reward r adds int(r M) to the first sum of one cell and
M - int(r M) to its second: M in all, whichever cell, answer and reward it is. Of a user only the first m
(``decisions_per_user``) count, in whatever leaves they fall. So a user, against one of whom nothing is counted, moves
all sums of all leaves by at most M m in L1 norm, and all releases together cost epsilon for *all* clicks of one user
(`hushstream.counting.counter`, group of leaves). A user whose outcomes are others moves them by at most twice that.

*Guardrail.* A harm is counted as rewards are, by a counter of its own
(`hushstream.systems.p2b.machines.guardrail`). Of a decision that counts in both, the harm h adds int(h M) and
M - int(h M) to two sums of the other counter: again M m at most. The noise of the two is independent, so the same
coupling shifts both, and their prices add up. They divide the measurement's epsilon (`MeasurementConfig.parts`), and
both release under one charge.

The counter draws noise ahead of its leaves. So if a rollback cannot be ruled out, a new epoch of noise begins over the
exact counts, at the price of all of them (`hushstream.engine.machine.Abilities.request_epoch`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BadState, Counter, NegativeDigitTree, Neighbours, PureEpsilon, best_tree
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Debit
from hushstream.privacy.mechanisms.guarantee import OPEN_IN
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.promises.promise import Guarantee
from hushstream.systems.p2b.configuration import MeasurementConfig, P2BConfig

SUMS = 2
"""Of each cell: the rewards, and what is missing to whole ones."""

_USER_BYTES = 16
_RELEASED = bytes(_USER_BYTES)
"""In place of a user, for sums that were released already: they belong to no particular user any more."""
_COIN_BITS = 53
_MOMENTS = 256
"""The wait for a reward is cut into this many moments."""
_CELL_BYTES = 4
_WAITING = struct.Struct(f"<q{_USER_BYTES + _CELL_BYTES}s{SUMS}q")
_OPEN = struct.Struct(f"<{_USER_BYTES}sq")
_COUNTS = struct.Struct("<IIIQ")
NORMAL_95 = 1.959963984540054
_POWER_80 = 0.8416212335729143
"""The normal quantile of a power of 80 %."""


class Group(IntEnum):
    """What the users of a group get; the value is the group's cell."""

    MODEL = 0
    OWN = 1
    BASELINE = 2

    @property
    def label(self) -> str:
        """Its name in metrics and plain values."""
        return self.name.lower()


SHOWN: Mapping[Group, str] = {
    Group.MODEL: "the shared private model",
    Group.OWN: "own learning without the shared model",
    Group.BASELINE: "the application's own choice",
}
"""What each group gets, in words."""


def controls_of(settings: MeasurementConfig) -> tuple[Group, ...]:
    """The groups that the shared model is compared with."""
    return tuple(group for group in (Group.BASELINE, Group.OWN) if share_of(settings, group))


class LiftStep(NamedTuple):
    """One release: its number from 1, the noised running sums, int64 (2 cells,), and the variance of each of them."""

    leaf: int
    sums: NDArray[np.int64]
    variance: float


class CountedLift(NamedTuple):
    """How the lift is counted: its settings, the levels of a reward, and the number of cells."""

    settings: MeasurementConfig
    levels: int
    cells: int


def counted_lift(config: P2BConfig) -> CountedLift | None:
    """How a deployment counts its lift; None if it releases none."""
    counted = config.counted
    if counted is None:
        return None
    return CountedLift(counted, config.release.levels, len(Group) if counted.of == "groups" else 2 * config.arms)


def required_lift(config: P2BConfig) -> CountedLift:
    """How a deployment that releases a lift counts it."""
    counted = counted_lift(config)
    assert counted is not None, "expected a deployment that releases a lift"
    return counted


@lru_cache(maxsize=16)
def lift_tree(settings: MeasurementConfig, levels: int, cells: int) -> NegativeDigitTree:
    """The counter of the rewards of one learner partition."""
    return _tree(settings, levels, cells, settings.parts[0])


@lru_cache(maxsize=16)
def guardrail_tree(settings: MeasurementConfig, levels: int, cells: int) -> NegativeDigitTree:
    """The counter of the harm of one learner partition, where there is a guardrail."""
    return _tree(settings, levels, cells, settings.parts[1])


TreePlan: TypeAlias = Callable[[MeasurementConfig, int, int], NegativeDigitTree]
"""Plans a counter of a measurement: its settings, the levels of a reward, and the number of cells."""


def _tree(settings: MeasurementConfig, levels: int, cells: int, epsilon: float) -> NegativeDigitTree:
    sensitivity = levels * settings.decisions_per_user
    return best_tree(PureEpsilon(epsilon), settings.releases, SUMS * cells, sensitivity)


@lru_cache(maxsize=16)
def lift_guarantee(settings: MeasurementConfig, levels: int, cells: int) -> Guarantee:
    """The guarantee of all releases of the lift for one user, those of a guardrail among them."""
    first = settings.decisions_per_user
    counted = "the first decision of their life is" if first == 1 else f"the first {first} decisions of their life are"
    pair = Neighbours(
        relation="zero-out: neighbours differ in all that one user was shown and rewarded with, or in none of it",
        unit=f"one user ({counted} counted)",
        leaves=min(settings.decisions_per_user, settings.releases),
        step=f"reward levels, {levels} to a whole reward or showing",
    )
    promise = lift_tree(settings, levels, cells).guarantee(pair, zone="edge")
    # Only a hosted deployment has a lift (`P2BConfig`).
    not_protected = (*promise.not_protected, OPEN_IN["hosted"])
    promise = replace(promise, mechanism=f"lift: {promise.mechanism}", not_protected=not_protected)
    if settings.guardrail is None:
        return promise
    return _with_guardrail(promise, guardrail_tree(settings, levels, cells).guarantee(pair, zone="edge"))


def _with_guardrail(rewards: Guarantee, harm: Guarantee) -> Guarantee:
    """Both counters together: a user's decisions move each of them by the sensitivity, so the prices add up."""
    mine, more = rewards.lifetime, harm.lifetime
    life = replace(mine, cost=mine.cost + more.cost, exchange=mine.exchange + more.exchange)
    return replace(
        rewards,
        mechanism=f"{rewards.mechanism}; guardrail: {harm.mechanism}",
        relation=rewards.relation.replace("shown and rewarded with", "shown, rewarded with and harmed by"),
        cost=rewards.cost + harm.cost,
        replace_one=rewards.replace_one + harm.replace_one,
        lifetime=life,
        norm=f"{rewards.norm}; the same in the guardrail's",
        truncation_units=rewards.truncation_units + harm.truncation_units,
    )


def lift_debit(settings: MeasurementConfig, levels: int, cells: int) -> Debit:
    """What the journal and the ledger charge for all releases of the lift; the caller fills in the scope."""
    promise = lift_guarantee(settings, levels, cells)
    return Debit("", "lift", promise.cost, promise.relation, promise.unit)


def group_of(user_key: Key, settings: MeasurementConfig) -> Group:
    """The group of a user. It follows from the user's key, so it stays the same for their whole life."""
    draw = int.from_bytes(user_key.prf("measurement-group")[:8], "big") >> (64 - _COIN_BITS)
    if draw < round(settings.baseline * (1 << _COIN_BITS)):
        return Group.BASELINE
    return Group.OWN if draw < round((settings.baseline + settings.own) * (1 << _COIN_BITS)) else Group.MODEL


def lift_user(user_key: Key) -> bytes:
    """The bytes that stand for a user among decisions that wait to be counted."""
    return user_key.digest("lift-user")


class LiftCounter:
    """The running counts of one learner partition: exact inside, noised outside."""

    plan = staticmethod(lift_tree)
    """The tree that counts."""

    def __init__(self, counted: CountedLift, wait_ms: int, key: Key, address: NoiseAddress) -> None:
        """Start without counts, under noise that ``key`` and ``address`` name.

        Args:
            counted: how the lift is counted.
            wait_ms: how long a decision waits for what is counted of it.
            key: the edge zone's key of the counter.
            address: names the noise.
        """
        self._most = counted.settings.decisions_per_user
        self._levels, self._cells = counted.levels, counted.cells
        self._tree = self.plan(*counted)
        self._key = key
        self._before = 0
        """Releases in earlier epochs of noise."""
        self._counter: Counter = self._tree.open(key, address)
        self._moment_ms = max(1, wait_ms // _MOMENTS)
        self._early: set[bytes] = set()
        """Users who began before there was a model."""
        self._open: dict[bytes, set[int]] = {}
        """The decisions that will be counted once their outcome is known, by user."""
        self._waiting: dict[int, dict[bytes, list[int]]] = {}
        """Sums that wait, by the moment at which they count and by user and cell."""

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

    def begun(self, user: bytes, version: int) -> None:
        """Take a user who begins while the learner knows this version of the model; 0: none."""
        if version:
            self._early.discard(user)
        else:
            self._early.add(user)

    def decided(self, user: bytes, index: int) -> bool:
        """Take a decision that is to count once its outcome is known; returns whether it is one of these.

        Args:
            user: stands for the decision's user (`lift_user`).
            index: number of the decision in the user's life, from 0.
        """
        counts = index < self._most and user not in self._early
        if counts:
            self._open.setdefault(user, set()).add(index)
        return counts

    def drop(self, user: bytes, index: int) -> bool:
        """End the wait for a decision's outcome; returns whether it was to count."""
        indices = self._open.get(user)
        if indices is None or index not in indices:
            return False
        indices.remove(index)
        if not indices:
            del self._open[user]
        return True

    def count(self, user: bytes, index: int, cell: int, deadline_ms: int, reward: float) -> bool:
        """Take the outcome of a decision, if it is one that was to count; returns whether it was.

        Args:
            user, index: see `decided`.
            cell: of what was shown.
            deadline_ms: log time when its wait for a reward is over; it counts from the next moment on.
            reward: in [0, 1].
        """
        counts = self.drop(user, index)
        if counts:
            self._add(-(-deadline_ms // self._moment_ms) * self._moment_ms, user, cell, reward)
        return counts

    def _add(self, moment_ms: int, user: bytes, cell: int, value: float) -> None:
        """Let a decision's value in [0, 1] count at a moment."""
        sums = self._waiting.setdefault(moment_ms, {}).setdefault(user + _cell_bytes(cell), [0] * SUMS)
        level = int(value * self._levels)
        sums[0] += level
        sums[1] += self._levels - level

    def _keys(self, user: bytes) -> Sequence[bytes]:
        """The keys under which sums of a user may wait."""
        return [user + _cell_bytes(cell) for cell in range(self._cells)]

    def forget(self, user: bytes) -> None:
        """Drop all that is held of a user: what waits of them is never counted."""
        self._early.discard(user)
        self._open.pop(user, None)
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
        total = np.zeros((self._cells, SUMS), dtype=np.int64)
        for users in over:
            places = [int.from_bytes(who[_USER_BYTES:], "little") for who in users]
            np.add.at(total, places, np.array(list(users.values()), dtype=np.int64))
        self._counter.add(total.reshape(1, -1))
        variance = variance_after(self._tree, self._counter.leaves)
        return LiftStep(self.leaves, self._counter.release().values, variance)

    def dump(self) -> bytes:
        """The state; as sensitive as clicks."""
        items = sorted((moment, *item) for moment, users in self._waiting.items() for item in users.items())
        waiting = [_WAITING.pack(moment, who, *sums) for moment, who, sums in items]
        opened = [_OPEN.pack(user, index) for user in sorted(self._open) for index in sorted(self._open[user])]
        counts = _COUNTS.pack(len(waiting), len(opened), len(self._early), self._before)
        return counts + b"".join((*waiting, *opened, *sorted(self._early))) + self._counter.dump()

    def load(self, state: bytes) -> None:
        """Return to a state that `dump` wrote.

        Raises:
            BadState: these are not the bytes of such a state.
        """
        if len(state) < _COUNTS.size:
            raise BadState("lift: expected the state of a counter, got fewer bytes")
        *numbers, self._before = _COUNTS.unpack_from(state)
        ends = [_COUNTS.size]
        for number, size in zip(numbers, (_WAITING.size, _OPEN.size, _USER_BYTES), strict=True):
            ends.append(ends[-1] + number * size)
        if len(state) < ends[-1]:
            raise BadState("lift: expected the state of a counter, got fewer bytes")
        waiting, opened, early = (state[low:high] for low, high in pairwise(ends))
        self._waiting, self._open = {}, {}
        for moment, who, *sums in _WAITING.iter_unpack(waiting):
            self._waiting.setdefault(moment, {})[who] = sums
        for user, index in _OPEN.iter_unpack(opened):
            self._open.setdefault(user, set()).add(index)
        self._early = {early[low : low + _USER_BYTES] for low in range(0, len(early), _USER_BYTES)}
        self._counter.load(state[ends[-1] :])


def _cell_bytes(cell: int) -> bytes:
    return cell.to_bytes(_CELL_BYTES, "little")


def variance_after(tree: NegativeDigitTree, leaves: int) -> float:
    """The variance of a counter's total after t leaves: t m(t) - (t-1) m(t-1), m(t) being the mean over 1..t."""
    if not leaves:
        return 0.0
    before = (leaves - 1) * tree.mean_square(leaves - 1) if leaves > 1 else 0.0
    return leaves * tree.mean_square(leaves) - before


# What released counts tell.


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Reward rate of one group, the half-width of its 95 % interval, and what the noise alone has of it."""

    rate: float
    ci95: float
    noise95: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more one group earns a decision than another.

    Attributes:
        difference: of the rates.
        ci95: half-width of its 95 % interval.
        noise95: the half-width that the noise alone would give.
        decisions_more: how many more decisions, of both groups together, are needed until the interval excludes 0, if
            rates and shares stay; 0 if it does, None if the rates are equal.
    """

    difference: float
    ci95: float
    noise95: float
    decisions_more: int | None


@dataclass(frozen=True, slots=True)
class Lift:
    """The reward rates of all groups.

    Attributes:
        rates: by group; None if too few decisions were counted to distinguish it from the noise.
        counted: noised number of decisions, by group.
        noise: the half-width of the 95 % interval of such a number, by the noise.
        needed: the number of decisions from which on a group can be distinguished from the noise.
    """

    rates: Mapping[Group, GroupRate | None]
    counted: Mapping[Group, float]
    noise: float
    needed: float

    def over(self, control: Group) -> Difference | None:
        """The shared model over a group that gets something else; None if a rate is unknown."""
        model, other = self.rates[Group.MODEL], self.rates[control]
        if model is None or other is None:
            return None
        value, half = model.rate - other.rate, math.hypot(model.ci95, other.ci95)
        both, noise = self.counted[Group.MODEL] + self.counted[control], math.hypot(model.noise95, other.noise95)
        return Difference(value, half, noise, decisions_more(both, value, half, noise))

    def more(self, group: Group) -> int:
        """How many decisions a group lacks to be distinguished from the noise: needed less counted, which the noise
        may make negative."""
        return max(0, math.ceil(self.needed - max(0.0, self.counted[group])))

    def plain(self, group: Group) -> dict[str, Any]:
        """The figures of a group under stable keys."""
        one, more = self.rates[group], self.more(group)
        decisions = {"counted": self.counted[group], "noise95": self.noise, "needed": self.needed, "more": more}
        return {"decisions": decisions, **({"rate": None} if one is None else asdict(one))}


ShareCounts: TypeAlias = tuple[NDArray[np.int64], float, int]
"""One counter's newest release: its sums, the variance of each, and the levels of a reward."""


def joined(newest: Iterable[ShareCounts]) -> tuple[NDArray[np.float64], float]:
    """The sums of all counters in whole rewards (cells, 2), and the variance of each."""
    parts = [(np.asarray(sums, dtype=np.float64).reshape(-1, SUMS) / m, noise / m**2) for sums, noise, m in newest]
    return np.sum([sums for sums, _ in parts], axis=0), sum(variance for _, variance in parts)


def lift_of(newest: Iterable[ShareCounts], decisions_per_user: int) -> Lift:
    """The lift from the newest release of each counter. Its intervals hold however much the rewards of a user depend.

    Users are assumed to be independent; decisions of one user are not. Let user i give the reward R_i in n_i <= m
    decisions, N decisions in all, and let p be the rate over all. R / N - p is sum (R_i - p n_i) / N. Its variance is
    at most sum E (R_i - p n_i)^2 / N^2 <= m sum E n_i (R_i/n_i - p)^2 / N^2 <= m p (1 - p) / N, because R_i/n_i,
    weighed by n_i, is in [0, 1] with mean p (Bhatia, Davis 2000). That is m times the variance of N independent
    decisions, and it is reached if each user has m equal rewards. For p two successes and two failures of users are
    added (Agresti, Coull 1998): no reward among few users does not show that the rate is 0. The contribution of the
    noise is exact: with e_1 in the rewards and e_0 in what is missing to them, ((1 - p) e_1 - p e_0) over the count.

    Args:
        newest: (sums (2 groups,), variance of each, levels).
        decisions_per_user: m.
    """
    total, variance = joined(newest)
    needed = _needed(SUMS * variance)
    counted = {group: float(total[group].sum()) for group in Group}
    rates = {
        group: _rate(float(total[group, 0]), float(total[group, 1]), variance, decisions_per_user) for group in Group
    }
    return Lift(rates, counted, NORMAL_95 * math.sqrt(SUMS * variance), needed)


def lift_figures(newest: ShareCounts, decisions_per_user: int) -> Mapping[str, float]:
    """The gauges of one counter's newest release, by group.

    A group that cannot be distinguished from the noise has 0: without a value, the gauge would keep an older release's.
    """
    found = lift_of([newest], decisions_per_user)
    figures: dict[str, float] = {}
    for group, rate in found.rates.items():
        shown = (0.0, 0.0, 0.0) if rate is None else (found.counted[group], rate.rate, (rate.ci95 / NORMAL_95) ** 2)
        names = (f"lift_{name}_{group.label}" for name in ("decisions", "reward_ratio", "reward_variance"))
        figures |= dict(zip(names, shown, strict=True))
    return figures


def _needed(variance: float) -> float:
    """The least count that a rate may be divided by: about three standard deviations of its noise."""
    return max(1.0, 3 * math.sqrt(variance))


def _rate(rewarded: float, missing: float, variance: float, decisions_per_user: int) -> GroupRate | None:
    """Rate and interval of one group; None if its count is not distinguishable from the noise."""
    counted = rewarded + missing
    if counted <= _needed(SUMS * variance):
        return None
    rate = rewarded / counted
    chance = float(smoothed(rate, counted, decisions_per_user))
    sampling = decisions_per_user * chance * (1 - chance) / counted
    noise = variance * ((1 - rate) ** 2 + rate**2) / counted**2
    return GroupRate(rate, NORMAL_95 * math.sqrt(sampling + noise), NORMAL_95 * math.sqrt(noise))


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


def decisions_more(counted: float, difference: float, half_width: float, noise: float = 0.0) -> int | None:
    """How many decisions beyond ``counted`` are needed until an interval excludes 0, if its difference stays.

    The part ``noise`` of the half-width falls with their number, the rest with its root (`users_needed`). None if the
    difference is 0: no number of decisions shows it.
    """
    if not difference:
        return None
    drawn, wanted = half_width**2 - noise**2, difference**2
    times = (drawn + math.sqrt(drawn**2 + 4 * wanted * noise**2)) / (2 * wanted)
    return max(0, math.ceil(counted * times - counted))


@dataclass(frozen=True, slots=True)
class AnswersLift:
    """The lift of the answers for each decision.

    Attributes:
        decisions: noised number of counted decisions.
        agreed: noised number of those whose answer was shown.
        earned: mean reward of what was shown.
        unseen: share of answers whose items were shown too rarely where they were answered.
        lift: the estimate, in which unseen items earn as much as what was shown; None if too few answers were shown to
            distinguish it from the noise.
        interval: the 95 % interval of the lift; None if there is no lift.
        noise95: half-width that the noise alone gives; None if there is no lift.
    """

    decisions: float
    agreed: float
    earned: float
    unseen: float
    lift: float | None
    interval: tuple[float, float] | None
    noise95: float | None

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0.0 <= self.interval[1]

    @property
    def decisions_more(self) -> int | None:
        """How many more decisions are needed until the interval excludes 0, if the lift stays.

        None if that is unknown, or if no number of decisions is enough.
        """
        if self.lift is None or self.interval is None or self.noise95 is None:
            return None
        # Unseen items stay unseen, however many decisions come.
        unseen = self.unseen * (self.earned if self.lift > 0 else 1.0 - self.earned)
        reach = self.lift - self.interval[0] if self.lift > 0 else self.interval[1] - self.lift
        seen = max(0.0, abs(self.lift) - unseen)
        return decisions_more(self.decisions, seen, reach - unseen, self.noise95)


def answers_of(newest: Iterable[ShareCounts], decisions_per_user: int) -> AnswersLift:
    """The lift from the newest release of each counter.

    A user has at most m decisions over all items. So the sum over decisions of w_a (reward - r_a), with
    w_a = W_a / (N G_a), has at most m times the variance of independent decisions (Cauchy-Schwarz within a user).

    Args:
        newest: (sums (4 items,), variance of each, levels): where the item that was answered was shown, its rewards and
            what is missing to whole ones; then where another one was.
        decisions_per_user: m.
    """
    sums, variance = joined(newest)
    total = sums.reshape(-1, 2 * SUMS)
    agreed, answered = total[:, :2].sum(axis=1), total.sum(axis=1)
    decisions = float(answered.sum())
    earned = min(1.0, max(0.0, float(total[:, ::2].sum()) / max(1.0, decisions)))
    seen = agreed > max(1.0, 3 * math.sqrt(2 * variance))
    if decisions <= max(1.0, 3 * math.sqrt(total.size * variance)) or not seen.any():
        return AnswersLift(decisions, float(agreed.sum()), earned, 1.0, None, None, None)
    shares, shown = answered / decisions, np.where(seen, agreed, 1.0)
    rates = np.where(seen, total[:, 0] / shown, earned)
    unseen = min(1.0, max(0.0, 1.0 - float(shares[seen].sum())))
    value = float(shares[seen] @ rates[seen]) + unseen * earned
    chances = smoothed(np.append(rates[seen], earned), np.append(agreed[seen], decisions), decisions_per_user)
    spread = chances * (1 - chances) * np.append(shares[seen] ** 2 / agreed[seen], 1 / decisions)
    sampling = float(spread.sum() + (shares[seen] * (rates[seen] - value) ** 2).sum() / decisions)
    # How the lift moves with each sum, to first order.
    slopes = np.repeat(((rates - value) / decisions)[:, None], 2 * SUMS, axis=1)
    slopes[:, :2] += np.where(seen, shares / shown, 0.0)[:, None] * np.stack([1 - rates, -rates], axis=1)
    slopes -= np.array([1 - earned, -earned, 1 - earned, -earned]) / decisions
    noise = NORMAL_95 * math.sqrt(variance * float((slopes**2).sum()))
    half = math.hypot(NORMAL_95 * math.sqrt(decisions_per_user * sampling), noise)
    lift = value - earned
    interval = (lift - half - unseen * earned, lift + half + unseen * (1.0 - earned))
    return AnswersLift(decisions, float(agreed.sum()), earned, unseen, lift, interval, noise)


# How many users it takes, before any is counted.


def users_needed(config: P2BConfig, control: Group, effect: float, rate: float, plan: TreePlan = lift_tree) -> int:
    """How many users, of all groups, let an interval exclude 0 with a chance of 80 % at least.

    A group of U users with m decisions each has N = m U decisions. The variance of its rate p is at most p (1 - p) / U
    by sampling, and V ((1 - p)^2 + p^2) / N^2 by the noise, V being the variance of a sum at the last release, over all
    partitions (`lift_of`). With the groups' shares s and t of U users, the difference has the variance a / U + b / U^2,
    where a = p (1 - p) (1/s + 1/t), b = V ((1 - p)^2 + p^2) (1/s^2 + 1/t^2) / m^2. It has to be (effect / z)^2, z being
    the sum of the normal quantiles of 97.5 % and 80 %: U is the positive root of a quadratic equation.

    Args:
        config: a deployment that measures groups.
        control: the group that the shared model is compared with.
        effect: the difference of the rates, above 0.
        rate: p, about.
        plan: the counter: of rewards, or of harm (`guardrail_tree`).
    """
    a, b = _spread_of_users(config, control, rate, plan)
    wanted = (effect / (NORMAL_95 + _POWER_80)) ** 2
    return math.ceil((a + math.sqrt(a * a + 4 * b * wanted)) / (2 * wanted))


def smallest_effect(config: P2BConfig, control: Group, users: float, rate: float, plan: TreePlan = lift_tree) -> float:
    """The smallest difference of the rates that this many users show; see `users_needed`."""
    a, b = _spread_of_users(config, control, rate, plan)
    return (NORMAL_95 + _POWER_80) * math.sqrt(a / users + b / users**2)


def share_of(settings: MeasurementConfig, group: Group) -> float:
    """The share of users in a group."""
    shares = {Group.BASELINE: settings.baseline, Group.OWN: settings.own}
    return shares.get(group, 1 - settings.baseline - settings.own)


def _spread_of_users(config: P2BConfig, control: Group, rate: float, plan: TreePlan) -> tuple[float, float]:
    counted = required_lift(config)
    settings, levels, _ = counted
    shares = [share_of(settings, group) for group in (Group.MODEL, control)]
    noise = config.partitions.learner * variance_after(plan(*counted), settings.releases) / levels**2
    noise *= (1 - rate) ** 2 + rate**2
    inverse, squares = (sum(share**-power for share in shares) for power in (1, 2))
    return rate * (1 - rate) * inverse, noise * squares / settings.decisions_per_user**2
