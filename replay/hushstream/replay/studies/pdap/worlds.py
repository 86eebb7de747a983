"""The worlds of P-DAP: simulated vendors, and films dealt to vendors.

Worlds of several vendors: contexts in [0, 1]^d that come to a home vendor, items with owners, and clicks on items.

``vendors`` is synthetic. Item k is clicked with probability .05 + q exp(-|x - c|^2 / w^2), with q from .2 to .93 and w
from .32 to .5. A vendor's items lie around the centre of its own quadrant, except a share ``overlap`` that lies
anywhere. A sixth of the contexts is uniform, the others form five clusters. Homes are uniform.

``ml-vendors``: MovieLens-100K with its films divided among vendors.

An item is a film with at least ``least_ratings`` ratings. A seeded permutation deals films to vendors in turn, so
vendors are alike. A user's chance to like a film (four stars or more) comes from a fit to all ratings: mean, film and
user effects and ``factors`` latent factors, by alternating ridge regressions, cut to [.02, .98]. So clicks are those of
a fitted model, because most (user, film) pairs were never rated. The context is the user's place on the first two
latent directions, each as its rank among all users, from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.datasets.store import locate
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.movielens import Ratings, read_ratings
from hushstream.replay.worlds.world import require_number

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

_BUMPS = np.array([(0.22, 0.28), (0.78, 0.2), (0.3, 0.8), (0.72, 0.7), (0.5, 0.5)])
_BUMP_WIDTH = 0.11
_UNIFORM_SHARE = 1 / 6
_SPREAD = 0.12
_QUADRANTS = np.array([(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)])
_FLOOR = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Users who come, (n,) each.

    Attributes:
        contexts: float32 (n, d), entries from 0 to 1.
        homes: the vendor to whom each user comes.
        users: numbers of the users, in worlds that know users.
    """

    contexts: Float32
    homes: Int64
    users: Int64

    def __len__(self) -> int:
        """The number of users."""
        return len(self.homes)

    def take(self, rows: Int64) -> Arrivals:
        """Some of the users, by their rows."""
        return Arrivals(self.contexts[rows], self.homes[rows], self.users[rows])


def names(first: int, count: int) -> NDArray[np.uint8]:
    """Names of ``count`` simulated events from number ``first`` on, uint8 (count, 16)."""
    numbers = np.zeros((count, 2), dtype="<i8")
    numbers[:, 0] = np.arange(first, first + count)
    return numbers.view(np.uint8)


class VendorWorld(Protocol):
    """Vendors, their items and their users."""

    @property
    def name(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def owners(self) -> Int64:
        """The vendor of each item, in ascending order."""
        ...

    def arrivals(self, count: int, generator: np.random.Generator) -> Arrivals:
        """Draw the users who come."""
        ...

    def means(self, arrivals: Arrivals, arms: Int64, progress: float) -> Float64:
        """Click probability of one item for each user, (n,); ``progress``, from 0 to 1, is the part of the run done."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Vendors:
    """The synthetic world; see the module.

    Attributes:
        name: its name with the options that were set.
        owners: (arms,) vendor of each item.
        centres: (arms, 2) centres of the items.
        heights: (2, arms) q at the beginning and at the end.
        widths: (arms,) w of the items.
    """

    name: str
    owners: Int64 = field(repr=False)
    centres: Float64 = field(repr=False)
    heights: Float64 = field(repr=False)
    widths: Float64 = field(repr=False)
    dimension: int = 2

    def arrivals(self, count: int, generator: np.random.Generator) -> Arrivals:
        """See `VendorWorld`; every arrival is a new user."""
        points = _BUMPS[generator.integers(0, len(_BUMPS), count)]
        points = points + _BUMP_WIDTH * generator.standard_normal((count, 2))
        anywhere = generator.random(count) < _UNIFORM_SHARE
        points[anywhere] = generator.random((int(anywhere.sum()), 2))
        homes = generator.integers(0, int(self.owners.max()) + 1, count)
        return Arrivals(np.clip(points, 0, 1).astype(np.float32), homes, np.arange(count))

    def means(self, arrivals: Arrivals, arms: Int64, progress: float) -> Float64:
        height = (1 - progress) * self.heights[0, arms] + progress * self.heights[1, arms]
        distance = ((arrivals.contexts - self.centres[arms]) ** 2).sum(axis=1)
        return np.asarray(_FLOOR + height * np.exp(-distance / self.widths[arms] ** 2))


def vendors(*, vendors: int = 4, arms: int = 1000, overlap: float = 0.02, drift: float = 0.0, seed: int = 0) -> Vendors:
    """Build the synthetic world.

    Args:
        vendors: M.
        arms: items of each vendor.
        overlap: share of items that lie anywhere; with 1 all vendors are alike.
        drift: how far the items' q change over a run, towards new random values; 0: they are constant.
        seed: seed of the world.

    Raises:
        WorldError: an option is out of range.
    """
    for option, value, least, most in (
        ("vendors", vendors, 1, 64),
        ("arms", arms, 1, 100_000),
        ("overlap", overlap, 0.0, 1.0),
        ("drift", drift, 0.0, 1.0),
    ):
        require_number("vendors", option, value, least, most)
    generator = Draws(seed, "pdap-vendors").generator()
    owners = np.repeat(np.arange(vendors), arms)
    centres = _QUADRANTS[owners % len(_QUADRANTS)] + _SPREAD * generator.standard_normal((len(owners), 2))
    anywhere = generator.random(len(owners)) < overlap
    centres[anywhere] = generator.random((int(anywhere.sum()), 2))
    strengths = generator.uniform(0.2, 0.93, (2, len(owners)))
    strengths[1] = (1 - drift) * strengths[0] + drift * strengths[1]
    widths = generator.uniform(0.32, 0.5, len(owners))
    kind = "specialised" if overlap < 0.5 else "overlapping"
    name = f"vendors/{kind}, {vendors} x {arms:,}{f', drift {drift:g}' if drift else ''}"
    return Vendors(name, owners, centres, strengths, widths)


_LIKE_STARS = 4
_ROUNDS = 12
_RIDGE = 8.0
_LEAST, _MOST = 0.02, 0.98


@dataclass(frozen=True, slots=True, eq=False)
class FilmVendors:
    """Films of several vendors; see the module.

    Attributes:
        name: name of dataset and vendors.
        owners: (films,) vendor of each film.
        places: (users, 2) contexts.
        chances: (users, films) chance that a user likes a film.
    """

    name: str
    owners: Int64 = field(repr=False)
    places: Float32 = field(repr=False)
    chances: Float64 = field(repr=False)
    dimension: int = 2

    def arrivals(self, count: int, generator: np.random.Generator) -> Arrivals:
        """See `VendorWorld`: users and homes at random."""
        users = generator.integers(0, len(self.places), count)
        homes = generator.integers(0, int(self.owners.max()) + 1, count)
        return Arrivals(self.places[users], homes, users)

    def means(self, arrivals: Arrivals, arms: Int64, progress: float) -> Float64:
        """See `VendorWorld`; nothing changes over the run."""
        return np.asarray(self.chances[arrivals.users, arms])


def ml_vendors(
    *, vendors: int = 4, least_ratings: int = 20, factors: int = 8, seed: int = 0, data_dir: str | None = None
) -> FilmVendors:
    """Build the world.

    Args:
        vendors: M.
        least_ratings: films with fewer ratings are left out.
        factors: latent factors of the fit.
        seed: decides which vendor owns which film.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: an option is out of range.
    """
    for option, value, least, most in (
        ("vendors", vendors, 1, 64),
        ("least_ratings", least_ratings, 1, 500),
        ("factors", factors, 2, 50),
    ):
        require_number("ml-vendors", option, value, least, most)
    places, chances = _fitted(least_ratings, factors, data_dir)
    order = Draws(seed, "ml-vendors").generator().permutation(chances.shape[1])
    owners = np.sort(np.arange(len(order)) % vendors)
    return FilmVendors(f"ml-vendors, {vendors} x {len(order) // vendors:,}", owners, places, chances[:, order])


@lru_cache(maxsize=2)
def _fitted(least_ratings: int, factors: int, data_dir: str | None) -> tuple[Float32, Float64]:
    ratings = read_ratings(locate("ml-vendors", data_dir))
    rated, likes = _matrix(ratings, least_ratings)
    left, right = _factorise(rated, likes, factors)
    ranks = left[:, :2].argsort(axis=0).argsort(axis=0)
    places = (ranks / (len(ranks) - 1)).astype(np.float32)
    return places, np.clip(left @ right.T, _LEAST, _MOST)


def _matrix(ratings: Ratings, least_ratings: int) -> tuple[Float64, Float64]:
    users, items = int(ratings.users.max()) + 1, int(ratings.items.max()) + 1
    rated, likes = np.zeros((users, items)), np.zeros((users, items))
    rated[ratings.users, ratings.items] = 1.0
    likes[ratings.users, ratings.items] = ratings.stars >= _LIKE_STARS
    enough = rated.sum(axis=0) >= least_ratings
    return rated[:, enough], likes[:, enough]


def _factorise(rated: Float64, likes: Float64, factors: int) -> tuple[Float64, Float64]:
    """Users and films as vectors whose products are the fit; a constant entry in each takes up the other's effect.

    The latent columns come first, ordered by their share of the fit.
    """
    mean = likes.sum() / rated.sum()
    start = Draws(0, "ml-vendors-fit").generator()
    right = 0.1 * start.standard_normal((rated.shape[1], factors))
    film, user = np.zeros(rated.shape[1]), np.zeros(rated.shape[0])
    for _ in range(_ROUNDS):
        user = _effects(rated, likes - mean - film, 5.0)
        film = _effects(rated.T, (likes - mean - user[:, None]).T, 5.0)
        rest = likes - mean - user[:, None] - film
        left = _ridge(rated, rest, right)
        right = _ridge(rated.T, rest.T, left)
    rotate, sizes, other = np.linalg.svd(left @ right.T, full_matrices=False)
    signs = np.sign(other[:factors].sum(axis=1))
    left, right = rotate[:, :factors] * sizes[:factors] * signs, other[:factors].T * signs
    ones_left, ones_right = np.ones((len(left), 1)), np.ones((len(right), 1))
    return np.hstack([left, ones_left, mean + user[:, None]]), np.hstack([right, film[:, None], ones_right])


def _effects(rated: Float64, rest: Float64, ridge: float) -> Float64:
    return np.asarray((rated * rest).sum(axis=1) / (rated.sum(axis=1) + ridge))


def _ridge(rated: Float64, rest: Float64, other: Float64) -> Float64:
    gram = np.einsum("ui,ik,il->ukl", rated, other, other, optimize=True) + _RIDGE * np.eye(other.shape[1])
    return np.asarray(np.linalg.solve(gram, ((rated * rest) @ other)[:, :, None])[:, :, 0])
