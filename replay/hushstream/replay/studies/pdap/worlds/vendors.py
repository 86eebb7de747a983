"""Worlds of several vendors: contexts in [0, 1]^d that come to a home vendor, items with owners, and clicks on items.

``vendors`` is synthetic. Item k is clicked with probability .05 + q exp(-|x - c|^2 / w^2), with q from .2 to .93 and w
from .32 to .5. A vendor's items lie around the centre of its own quadrant, except a share ``overlap`` that lies
anywhere. A sixth of the contexts is uniform, the others form five clusters. Homes are uniform.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.worlds.draws import Draws
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
