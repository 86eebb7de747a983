"""At which totals windows close: public ones that grow by a ratio; early models come soon, later blocks are large.

What else closes a window (a phase end, log time, a change of the catalogue) moves no total: the next window closes at
the first total that was not reached yet.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

from hushstream.privacy.amounts import exact
from hushstream.systems.pdap.errors import PdapError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows close when n0 ratio^w outcomes are in, rounded up, w = 0, 1, ...

    Attributes:
        first: n0.
        ratio: how much larger each total is than the one before.
    """

    first: int = 500
    ratio: float = 1.5

    def __post_init__(self) -> None:
        """Refuse totals that do not grow.

        Raises:
            PdapError: n0 below 1, or a ratio of 1 or less.
        """
        if self.first < 1 or not exact(self.ratio) > 1:
            raise PdapError(f"windows: expected a first total >= 1 and a ratio above 1, got {self.first}, {self.ratio}")

    def closes_at(self, window: int) -> int:
        """Total number ``window``; strictly above the one before."""
        ratio = exact(self.ratio)
        # Rounding up alone could give two windows one total where n0 is small.
        return max(math.ceil(Fraction(self.first) * ratio**window), self.first + window)

    def windows(self, total: int) -> int:
        """How many of the totals are reached when ``total`` outcomes are in."""
        most = 1
        # Powers of a ratio are long numbers: none is taken far beyond the one that is looked for.
        while self.closes_at(most) <= total:
            most *= 2
        return bisect_right(range(most), total, key=self.closes_at)

    def after(self, total: int) -> int:
        """Where a window closes that opens when ``total`` outcomes are in."""
        return self.closes_at(self.windows(total))
