"""Chooses which of a user's interactions goes into their slot: it keeps two candidates, and a coin picks one of them.

If clicks are rare, most slots would only say that nothing was clicked. So with the public probability h
(`click_chance`) the slot holds the first clicked one of T interactions, else one drawn uniformly from the unclicked
ones. The choice depends on this user's interactions and coins alone, and stays inside the padded slot.

A click is a reward above 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from hushstream.systems.p2b.contribution.errors import ContributionError

T = TypeVar("T")

_WORD = 1 << 64


def click_chance(click_rate: float) -> float | None:
    """h for a declared, public click rate; None if one interaction is drawn uniformly from all T.

    h is .8 for a rate up to .1, and .5 for a rate up to .3. Above, clicks are frequent enough for a uniform draw.

    Raises:
        ContributionError: the rate is not from 0 to 1.
    """
    if not 0 <= click_rate <= 1:
        raise ContributionError(f"expected a click rate from 0 to 1, got {click_rate!r}")
    if click_rate <= 0.1:
        return 0.8
    return 0.5 if click_rate <= 0.3 else None


@dataclass(frozen=True, slots=True)
class Candidates(Generic[T]):
    """The interactions that may go into one slot.

    Attributes:
        clicked: the first clicked interaction; None if there is none, or if h is None.
        drawn: an interaction drawn uniformly from those without a click; from all if h is None.
        count: from how many interactions ``drawn`` was drawn.
    """

    clicked: T | None = None
    drawn: T | None = None
    count: int = 0

    def observe(self, interaction: T, clicked: bool, chance: float | None, word: int) -> Candidates[T]:
        """The candidates after one more interaction, whose wait for a reward is over.

        Args:
            interaction: the interaction.
            clicked: whether its reward is above 0.
            chance: h, see `click_chance`.
            word: uniform below 2^64, this user's coin for this interaction.
        """
        if clicked and chance is not None:
            return self if self.clicked is not None else Candidates(interaction, self.drawn, self.count)
        count = self.count + 1
        # Reservoir of one (Vitter 1985): the newest of n stays with probability 1/n.
        drawn = interaction if word * count < _WORD else self.drawn
        return Candidates(self.clicked, drawn, count)

    def chosen(self, chance: float | None, word: int) -> T | None:
        """The interaction that the slot holds; None (null) if there is no candidate.

        Args:
            chance: h.
            word: uniform below 2^64, this user's coin for this slot.
        """
        wants_click = chance is not None and word < int(chance * _WORD)
        first, second = (self.clicked, self.drawn) if wants_click else (self.drawn, self.clicked)
        return second if first is None else first
