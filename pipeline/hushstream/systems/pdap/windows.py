"""When windows close: at public totals that grow by a ratio, so early models come soon and later blocks are large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from hushstream.privacy.amounts import exact
from hushstream.systems.pdap.errors import PdapError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Window w closes when n0 ratio^w outcomes are in, rounded up.

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
        """Outcomes of the whole stream at which ``window`` closes; strictly above that of the window before."""
        ratio = exact(self.ratio)
        # Rounding up alone could give two windows one total where n0 is small.
        return max(math.ceil(Fraction(self.first) * ratio**window), self.first + window)

    def windows(self, total: int) -> int:
        """How many windows have closed when ``total`` outcomes are in."""
        count = 0
        while self.closes_at(count) <= total:
            count += 1
        return count
