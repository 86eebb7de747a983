"""Chooses the stretches of time that a sampling auditor checks, and computes the probability of finding a fault.

Time is cut into stretches. For each stretch a coin from the system's random source, which nobody can predict, decides
whether it is checked: with the requested share as probability, independently of all other stretches. In a checked
stretch everything that is published is recomputed; in the others nothing is.

So one altered record is found with a probability of the share. At least one of n altered records in different stretches
is found with a probability of 1 - (1 - share)^n. All alterations in one stretch are found together, or none is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log

STRETCH_SECONDS = 600.0
"""The length of a stretch. It is long, because each start from a published state takes as long as checking some seconds
of output."""

_CERTAIN = 0.95


@dataclass(slots=True)
class Sampling:
    """Draws the stretches that are checked.

    Attributes:
        share: the probability with which each stretch is checked; 1 checks all.
        seconds: the length of a stretch.
        draw: gives a number from 0 to below 1 that nobody can predict.
    """

    share: float
    seconds: float = STRETCH_SECONDS
    draw: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)
    _number: int = -1
    _checked: bool = False

    def checks(self, now: float) -> bool:
        """Whether the stretch that contains a time (in seconds) is checked; call this with increasing times."""
        number = int(now // self.seconds)
        if number != self._number:
            self._number, self._checked = number, self.draw() < self.share
        return self._checked

    def begin(self, now: float) -> float:
        """When the stretch that contains a time began."""
        return now // self.seconds * self.seconds


def detection(share: float, altered: int) -> float:
    """The probability of finding at least one of ``altered`` altered records that lie in different stretches."""
    return float(1 - (1 - share) ** altered)


def power(share: float) -> str:
    """Say in words with which probability a share finds an altered record."""
    if share >= 1:
        return "every altered record is found"
    needed = ceil(log(1 - _CERTAIN) / log(1 - share))
    return (
        f"an altered record is found with a chance of {share:.0%}, and one or more of {needed} in different stretches "
        f"with {detection(share, needed):.0%}"
    )
