"""`RatingAgent`: one user's ratings, on a device or in a rater worker.

It only makes slots, one for each round, padded to one size. A
slot's id is a pseudorandom function of only the user's key and the round's number, and the collector counts each id
once. So even if several copies of a state continue, one slot for each round counts. The agent stores that a round was
answered before it sends the slot. So after a restart it never sends a slot with other content. Erasing ratings restores
no allowance.

*Making.* Makes slots from ratings: one for each user and round, for many users at once.

Computations before the quantisation use floats, and privacy does not depend on them: the collector checks norms in
whole numbers and refuses longer slots. `_FIT` keeps honest slots within the bound.

*Ratings.* Ratings of one or of many users, in columns.

*Solving.* Computations on a device for its own user: offset, factors and predictions. They are never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.privacy.keys import Key
from hushstream.systems.bgt.configuration import UNIT, BgtConfig, Kind, bgt_digest
from hushstream.systems.bgt.records import (
    ID_BYTES,
    ROUNDS,
    BadRatings,
    BgtError,
    Float64,
    Int32,
    Int64,
    Model,
    Round,
    Slots,
    features_bytes,
    first_round,
    null_slots,
    packed_slots,
)


@dataclass(frozen=True, slots=True, eq=False)
class Ratings:
    """Ratings of U users, sorted by user and then by item; no user has two ratings of an item.

    Attributes:
        ends: (U + 1,) the ratings of user u lie from ends[u] to ends[u + 1].
        items: (n,) the rated items, from 0.
        values: (n,) the ratings, from 0 to 1.
    """

    ends: Int64
    items: Int64
    values: Float64

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.ends) - 1

    @property
    def owners(self) -> Int64:
        """(n,) the user of each rating."""
        return np.repeat(np.arange(self.users), self.counts)

    @property
    def counts(self) -> Int64:
        """(U,) the number of ratings of each user."""
        return np.diff(self.ends)

    def sums(self, values: Float64) -> Float64:
        """(U,) sums over each user's ratings of (n,) ``values``."""
        return np.bincount(self.owners, weights=values, minlength=self.users).astype(np.float64)


def ratings_of(users: ArrayLike, items: ArrayLike, ratings: ArrayLike, config: BgtConfig, count: int) -> Ratings:
    """Sort ratings, put them on the scale from 0 to 1, and keep the last one of each user and item.

    Args:
        users: (n,) from 0 to below ``count``.
        items: (n,) from 0.
        ratings: (n,) on the configured scale, in the order in which they were given.
        config: of the deployment.
        count: U, the number of users; those without ratings are included.

    Raises:
        BadRatings: columns of different lengths, an unknown user or item, or a rating off the scale.
    """
    users, items = np.asarray(users), np.asarray(items)
    values = np.asarray(ratings, dtype=np.float64)
    if not users.shape == items.shape == values.shape or values.ndim != 1:
        raise BadRatings(f"ratings: expected columns of one length, got {users.shape}, {items.shape}, {values.shape}")
    require_numbers("user", users, count)
    require_numbers("item", items, config.items)
    unit = _on_scale(values, config)
    # An empty list becomes an array of floats, so both columns are converted.
    pairs = users.astype(np.int64) * config.items + items.astype(np.int64)
    # `unique` keeps the first of equal pairs. Reversed, that is the last one.
    found, last = np.unique(pairs[::-1], return_index=True)
    owners = found // config.items
    ends = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=count)))).astype(np.int64)
    return Ratings(ends, found % config.items, unit[::-1][last])


def require_numbers(what: str, numbers: NDArray[Any], count: int) -> None:
    """Refuse numbers of users or items that are not from 0 to below ``count``.

    Raises:
        BadRatings: there is another one.
    """
    if not np.issubdtype(numbers.dtype, np.integer) and numbers.size:
        raise BadRatings(f"{what}s: expected whole numbers, got {numbers.dtype}")
    outside = int(np.count_nonzero((numbers < 0) | (numbers >= count))) if numbers.size else 0
    if outside:
        raise BadRatings(f"{what}s: expected numbers from 0 to {count - 1}, got {outside} outside")


def _on_scale(values: Float64, config: BgtConfig) -> Float64:
    low, high = config.scale.lowest, config.scale.highest
    # NaN fails both comparisons.
    outside = int(np.count_nonzero(~((values >= low) & (values <= high))))
    if outside:
        raise BadRatings(f"ratings: expected numbers from {low:g} to {high:g}, got {outside} that are not")
    return np.asarray((values - low) / (high - low))


_AT_ONCE = 128
"""Number of users whose equations are made together, because the products of their ratings' features are in memory at
once."""

PRIOR_RATINGS, PRIOR_WEIGHT = 20.0, 0.8
"""The weight of the model before a user rated anything, and how many ratings it counts as (see `fit`)."""


def offsets_of(ratings: Ratings, rest: Float64, ridge: float) -> Float64:
    """(U,) each user's mean of (n,) ``rest``, shrunk toward 0 as if by ``ridge`` more ratings of 0."""
    return np.asarray(ratings.sums(rest) / (ratings.counts + ridge))


class Fitted(NamedTuple):
    """A ridge regression of each user.

    Attributes:
        own: (U, 1 + k) coefficients, the constant first.
        left_out: (n,) each rating minus its prediction by a fit of its user's other ratings: the residual divided by
            one minus its leverage, which is exact because the penalty does not depend on the ratings.
    """

    own: Float64
    left_out: Float64


def solve(ratings: Ratings, rest: Float64, features: Float64, offset_ridge: float, ridge: float) -> Fitted:
    """Ridge regression of each user's ``rest`` on [1, features of the item].

    Args:
        ratings: of U users.
        rest: (n,) the values to explain.
        features: (I, k) of the items.
        offset_ridge: the penalty on the constant.
        ridge: the penalty on each feature.
    """
    width, owners = features.shape[1] + 1, ratings.owners
    if width == 1:
        own = offsets_of(ratings, rest, offset_ridge)[:, None]
        return Fitted(own, (rest - own[owners, 0]) / (1 - 1 / (ratings.counts + offset_ridge))[owners])
    own, left_out = np.empty((ratings.users, width)), np.empty(len(rest))
    penalty = np.diag(np.concatenate(([offset_ridge], np.full(width - 1, ridge))))
    for first in range(0, ratings.users, _AT_ONCE):
        users = slice(first, min(first + _AT_ONCE, ratings.users))
        span = slice(ratings.ends[users.start], ratings.ends[users.stop])
        columns = np.column_stack((np.ones(span.stop - span.start), features[ratings.items[span]]))
        ends = ratings.ends[users.start : users.stop + 1] - span.start
        gram = _sums((columns[:, :, None] * columns[:, None, :]).reshape(len(columns), width**2), ends)
        right = _sums(columns * rest[span, None], ends)
        whole = gram.reshape(-1, width, width) + penalty
        own[users] = np.linalg.solve(whole, right[:, :, None])[:, :, 0]
        reached = (columns[:, None, :] @ np.linalg.inv(whole)[owners[span] - first])[:, 0]
        residual = rest[span] - (own[owners[span]] * columns).sum(axis=1)
        left_out[span] = residual / (1 - (reached * columns).sum(axis=1))
    return Fitted(own, left_out)


def own_features(model: Model, public: Float64, config: BgtConfig) -> Float64:
    """(I, k) explanatory variables of a user's taste: the items' factors and public features."""
    return np.column_stack((model.factors, config.model.feature_scale * public))


class Mixture(NamedTuple):
    """What U users predict from: their own ratings alone, and the model, each mixing both by a weight of their own.

    Attributes:
        local: (U, 1 + f) offsets and tastes under a model that knows nothing of items.
        shared: (U, 1 + k) offsets and tastes under the model; see `own_features`.
        weight: (U,) of the model, from 0 to 1.
    """

    local: Float64
    shared: Float64
    weight: Float64


def fit(ratings: Ratings, model: Model, public: Float64, config: BgtConfig) -> Mixture:
    """Fit each user alone and under a model, and weigh both.

    With l and m the leave-one-out residuals of the two, ``w = (sum(l^2 - l m) + 16 v) / (sum (l - m)^2 + 20 v)``, cut
    to [0, 1]. Without v this is the weight by which the user's own ratings would have been predicted best. A prior of
    20 ratings draws it toward 16 / 20; v, their mean square of l - m, is taken as the variance of the published biases.
    Residuals of fits that hold the rating itself would favour the fit with more coefficients.

    Guarantee: it costs nothing. Its inputs are the user's ratings and published models, its result stays on the
    device: `make_slots` reads neither weights nor predictions, so what leaves has the same distribution as without it.
    """
    local, shared = (_solved(ratings, one, public, config) for one in (first_round(config).model, model))
    gap, spread = local.left_out - shared.left_out, float(model.biases.var())
    most = ratings.sums(gap**2) + PRIOR_RATINGS * spread
    gained = ratings.sums(local.left_out * gap) + PRIOR_WEIGHT * PRIOR_RATINGS * spread
    weight = np.where(most > 0, gained / np.where(most > 0, most, 1.0), PRIOR_WEIGHT)
    return Mixture(local.own, shared.own, np.clip(weight, 0.0, 1.0))


def _solved(ratings: Ratings, model: Model, public: Float64, config: BgtConfig) -> Fitted:
    rest = ratings.values - config.scale.middle - model.biases[ratings.items]
    ridge = config.model.offset_ridge if model.factors.shape[1] else config.model.lone_ridge
    return solve(ratings, rest, own_features(model, public, config), ridge, config.model.factor_ridge)


def predict(
    own: Mixture, users: Int64, items: Int64, model: Model, public: Float64, config: BgtConfig
) -> NDArray[np.float64]:
    """(n,) predicted ratings, from 0 to 1.

    Args:
        own: the result of `fit`.
        users: (n,) rows of ``own``.
        items: (n,) the item of each prediction.
        model: the model that ``own`` was fitted under.
        public: (I, f) features of items.
        config: of the deployment.
    """
    local, shared = (
        one.biases[items]
        + fitted[users, 0]
        + (fitted[users, 1:] * own_features(one, public, config)[items]).sum(axis=1)
        for one, fitted in ((first_round(config).model, own.local), (model, own.shared))
    )
    return np.asarray(np.clip(config.scale.middle + local + own.weight[users] * (shared - local), 0.0, 1.0))


def _sums(rows: Float64, ends: Int64) -> Float64:
    """(m, w) sums of the rows from each end to the next."""
    sums = np.zeros((len(ends) - 1, rows.shape[1]))
    there = np.flatnonzero(np.diff(ends))
    if len(there):
        sums[there] = np.add.reduceat(rows, ends[there], axis=0)
    return sums


_FIT = 1 - 2.0**-30
"""Factor by which norms stay below their bound, so that float rounding never lifts a slot above it."""

_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def make_slots(ratings: Ratings, asked: Round, config: BgtConfig, salts: NDArray[np.uint64]) -> Slots:
    """The slots of all users of a round.

    Args:
        ratings: of U users.
        asked: the round.
        config: of the deployment.
        salts: (U,) secret numbers that choose which ratings of a user are in the slot, if not all fit.
    """
    return _MAKERS[asked.kind](ratings, asked, config, salts)


def _items(ratings: Ratings, asked: Round, config: BgtConfig, salts: NDArray[np.uint64]) -> Slots:
    """Kind A: s (alpha, e) with e = r - mu - b_u and s = min(1, C / ||(alpha, e)||)."""
    offset = offsets_of(ratings, ratings.values - config.scale.middle, config.model.lone_ridge)
    rest = ratings.values - config.scale.middle - offset[ratings.owners]
    chosen = _chosen(ratings, np.ones(len(rest), dtype=bool), config, salts)
    alpha = config.release.count_weight
    squares = ratings.sums(np.where(chosen, alpha**2 + rest**2, 0.0))
    shrink = _shrink(config.release.clip, squares)
    slots = _filled(ratings, chosen, ratings.items, shrink[ratings.owners] * rest, config)
    weights = _lattice(shrink * alpha * (squares > 0))
    return Slots(slots.items, slots.values, weights, slots.directions)


def _pairs(ratings: Ratings, asked: Round, config: BgtConfig, salts: NDArray[np.uint64]) -> Slots:
    """Kind B: z = g (r - mu - b - b_u) at the top items, clipped to C."""
    place = np.full(config.items, -1, dtype=np.int64)
    place[asked.top] = np.arange(len(asked.top))
    where = place[ratings.items]
    rest = ratings.values - config.scale.middle - asked.model.biases[ratings.items]
    rest -= offsets_of(ratings, rest, config.model.offset_ridge)[ratings.owners]
    chosen = _chosen(ratings, where >= 0, config, salts)
    gained = np.where(chosen, asked.gains[where] * rest, 0.0)
    shrink = _shrink(config.release.clip, ratings.sums(gained**2))
    return _filled(ratings, chosen, ratings.items, shrink[ratings.owners] * gained, config)


def _factors(ratings: Ratings, asked: Round, config: BgtConfig, salts: NDArray[np.uint64]) -> Slots:
    """Kind C: y p^T with y = r - mu - b - b_u and the user's own factors p, clipped to C_c as one matrix."""
    rest = ratings.values - config.scale.middle - asked.model.biases[ratings.items]
    own = solve(ratings, rest, asked.model.factors, config.model.offset_ridge, config.model.factor_ridge).own
    rest -= own[:, 0][ratings.owners]
    length = np.sqrt((own[:, 1:] ** 2).sum(axis=1))
    chosen = _chosen(ratings, np.ones(len(rest), dtype=bool), config, salts)
    scaled = np.where(chosen, length[ratings.owners] * rest, 0.0)
    shrink = _shrink(config.release.factor_clip, ratings.sums(scaled**2))
    slots = _filled(ratings, chosen, ratings.items, shrink[ratings.owners] * scaled, config)
    directions = np.zeros((ratings.users, config.release.factors), dtype=np.int32)
    unit = own[:, 1:] / np.where(length > 0, length, 1.0)[:, None]
    directions[:, : unit.shape[1]] = _lattice(_FIT * unit)
    return Slots(slots.items, slots.values, slots.weights, directions)


_Maker = Callable[[Ratings, Round, BgtConfig, NDArray[np.uint64]], Slots]

_MAKERS: Mapping[Kind, _Maker] = {"items": _items, "pairs": _pairs, "factors": _factors}


def _shrink(clip: float, squares: Float64) -> Float64:
    norms = np.sqrt(squares)
    return np.asarray(_FIT * np.minimum(1.0, clip / np.where(norms > 0, norms, 1.0)))


def _lattice(values: Float64) -> Int32:
    """Round toward zero to the lattice, so that no norm grows."""
    return np.trunc(values * UNIT).astype(np.int32)


def _chosen(
    ratings: Ratings, candidates: NDArray[np.bool_], config: BgtConfig, salts: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """The ratings of a slot: all candidates, or as many as fit, chosen by a hash of salt and item."""
    owners, room = ratings.owners, config.release.pairs
    many = np.bincount(owners, weights=candidates, minlength=ratings.users) > room
    if not many.any():
        return candidates
    chosen = candidates.copy()
    for user in np.flatnonzero(many).tolist():
        span = slice(ratings.ends[user], ratings.ends[user + 1])
        order = _mixed(ratings.items[span], salts[user])
        order[~candidates[span]] = np.iinfo(np.uint64).max
        chosen[span] = False
        chosen[span][np.argsort(order, kind="stable")[:room]] = True
    return chosen


def _mixed(items: Int64, salt: np.uint64) -> NDArray[np.uint64]:
    """A number for each item that looks random without the salt; the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        mixed = (items.astype(np.uint64) + np.uint64(1)) * np.uint64(_FIRST) ^ salt
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_SECOND)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _filled(ratings: Ratings, chosen: NDArray[np.bool_], items: Int64, values: Float64, config: BgtConfig) -> Slots:
    """Slots that begin with the chosen pairs of item and value; the places behind stay unused."""
    slots = null_slots(ratings.users, config)
    owners = ratings.owners[chosen]
    first = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=ratings.users))))[:-1]
    place = np.arange(len(owners)) - first[owners]
    slots.items[owners, place] = items[chosen]
    slots.values[owners, place] = _lattice(values[chosen])
    return slots


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A slot and its id, by which it counts once.

    Attributes:
        slot_id: 16 bytes.
        round: the round that it answers.
        digest: of the configuration that the user agreed to; a collector refuses others.
        slot: the content, one slot.
    """

    slot_id: bytes
    round: int
    digest: bytes
    slot: Slots

    def fields(self) -> dict[str, Any]:
        """The fields of a `RatingSlot`."""
        return {
            "slot_id": self.slot_id,
            "config_digest": self.digest,
            "round": self.round,
            "content": packed_slots(self.slot)[0],
        }


class RatingAgent:
    """The ratings of one user, and the slots and predictions made from them. Not thread-safe."""

    __slots__ = ("_answered", "_config", "_digest", "_features", "_key", "_ratings", "_remember")

    def __init__(
        self,
        config: BgtConfig,
        key: Key,
        remember: Callable[[int], None],
        answered: int = 0,
        features: Float64 | None = None,
        digest: bytes | None = None,
    ) -> None:
        """Begin, or continue from the stored number of rounds.

        Args:
            config: the configuration that the user agrees to, for the agent's life.
            key: the user's key; it gives the ids, and chooses ratings if not all fit.
            remember: stores the number of answered rounds durably. It is called before a slot is sent.
            answered: the last stored number.
            features: (I, f) public features of items.
            digest: digest of the deployment that the user agrees to, for a replay of a public dataset; by default it is
                computed from configuration and features.

        Raises:
            BgtError: an impossible number of rounds, or features of another shape.
        """
        if not 0 <= answered <= ROUNDS:
            raise BgtError(f"answered: expected a number from 0 to {ROUNDS}, got {answered}")
        self._features = np.zeros((config.items, 0)) if features is None else features
        if self._features.shape != (config.items, config.features):
            expected = config.items, config.features
            raise BgtError(f"features: expected shape {expected}, got {self._features.shape}")
        self._digest = bgt_digest(config, features_bytes(self._features)) if digest is None else digest
        self._config, self._key = config, key
        self._remember, self._answered = remember, answered
        self._ratings: dict[int, float] = {}

    @property
    def answered(self) -> int:
        """Number of answered rounds; no erasure lowers it."""
        return self._answered

    @property
    def ratings(self) -> tuple[list[int], list[float]]:
        """Items and ratings, in the order in which items came, to store the agent's state."""
        return list(self._ratings), list(self._ratings.values())

    def rate(self, items: Sequence[int], ratings: Sequence[float]) -> None:
        """Take ratings, on the configured scale; a later one of the same item replaces it.

        Raises:
            BadRatings: an unknown item, or a rating off the scale; then no rating is taken.
        """
        ratings_of(np.zeros(len(items), dtype=np.int64), items, ratings, self._config, 1)
        self._ratings.update(zip(items, ratings, strict=True))

    def forget(self, items: Iterable[int] | None = None) -> None:
        """Drop the ratings of some items, or of all. Slots that were sent stay sent, and the allowance stays spent."""
        for item in list(self._ratings) if items is None else items:
            self._ratings.pop(item, None)

    def answer(self, asked: Round, digest: bytes) -> Sent:
        """The slot of a round; null if this round, or a later one, was answered before.

        Raises:
            BgtError: the user has not agreed to the configuration of the round.
        """
        if digest != self._digest:
            raise BgtError("round: expected the configuration that was agreed to, got another digest")
        slot_id = self._key.prf("bgt-slot", asked.number)[:ID_BYTES]
        if asked.number < self._answered:
            return Sent(slot_id, asked.number, digest, null_slots(1, self._config))
        self._remember(asked.number + 1)
        self._answered = asked.number + 1
        salt = np.frombuffer(self._key.prf("bgt-salt")[:8], dtype="<u8").astype(np.uint64)
        return Sent(slot_id, asked.number, digest, make_slots(self._own(), asked, self._config, salt))

    def predict(self, items: Iterable[int], model: Model) -> Float64:
        """Predicted ratings of items by the user, on the configured scale; nothing is sent.

        Raises:
            BadRatings: an unknown item.
        """
        wanted = np.array(list(items), dtype=np.int64)
        scale = self._config.scale
        require_numbers("item", wanted, self._config.items)
        own = fit(self._own(), model, self._features, self._config)
        found = predict(own, np.zeros_like(wanted), wanted, model, self._features, self._config)
        return np.asarray(scale.lowest + found * (scale.highest - scale.lowest))

    def __repr__(self) -> str:
        """The number of answered rounds, without ratings."""
        return f"RatingAgent(answered={self._answered})"

    def _own(self) -> Ratings:
        items = np.array(list(self._ratings), dtype=np.int64)
        values = list(self._ratings.values())
        return ratings_of(np.zeros_like(items), items, values, self._config, 1)
