"""Makes slots from ratings: one for each user and round, for many users at once.

Computations before the quantisation use floats, and privacy does not depend on them: the collector checks norms in
whole numbers and refuses longer slots. `_FIT` keeps honest slots within the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.bgt.configuration import UNIT, BgtConfig, Kind
from hushstream.systems.bgt.edge.ratings import Ratings
from hushstream.systems.bgt.edge.solving import offsets_of, solve
from hushstream.systems.bgt.rounds import Round
from hushstream.systems.bgt.slots import Float64, Int32, Int64, Slots, null_slots

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
    own = solve(ratings, rest, asked.model.factors, config.model.offset_ridge, config.model.factor_ridge)
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
