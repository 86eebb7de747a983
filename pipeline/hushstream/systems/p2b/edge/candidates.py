"""Which of a user's interactions goes into their slot: two candidates are kept, and public numbers choose.

Where clicks are rare most slots would say only that nothing was clicked. With public probability h (`click_chance`) the
slot holds the first interaction of T that was clicked, else one drawn uniformly of those that were not. The choice
follows this user's interactions and coins alone, and stays inside the padded slot.

A click is a reward above 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from hushstream.systems.p2b.contribution.errors import ContributionError

T = TypeVar("T")

_WORD = 1 << 64


def click_chance(click_rate: float) -> float | None:
    """h for a declared, public click rate; None where one interaction is drawn uniformly of all T.

    Up to .1: .8; up to .3: .5; above, clicks are frequent enough to be drawn.

    Raises:
        ContributionError: not a rate from 0 to 1.
    """
    if not 0 <= click_rate <= 1:
        raise ContributionError(f"expected a click rate from 0 to 1, got {click_rate!r}")
    if click_rate <= 0.1:
        return 0.8
    return 0.5 if click_rate <= 0.3 else None


@dataclass(frozen=True, slots=True)
class Candidates(Generic[T]):
    """What may go into one slot.

    Attributes:
        clicked: the first clicked interaction; None without one, and where h is None.
        drawn: one drawn uniformly of those without a click; of all where h is None.
        count: of how many ``drawn`` was drawn.
    """

    clicked: T | None = None
    drawn: T | None = None
    count: int = 0

    def observe(self, interaction: T, clicked: bool, chance: float | None, word: int) -> Candidates[T]:
        """With one more interaction, whose reward is settled.

        Args:
            interaction: what the slot would hold.
            clicked: whether its reward is above 0.
            chance: h, as `click_chance` gives it.
            word: uniform below 2^64, this user's coin for this interaction.
        """
        if clicked and chance is not None:
            return self if self.clicked is not None else Candidates(interaction, self.drawn, self.count)
        count = self.count + 1
        # Reservoir of one (Vitter 1985): the newest of n stays with probability 1/n.
        drawn = interaction if word * count < _WORD else self.drawn
        return Candidates(self.clicked, drawn, count)

    def chosen(self, chance: float | None, word: int) -> T | None:
        """What the slot holds; None (null) where nothing was settled.

        Args:
            chance: h.
            word: uniform below 2^64, this user's coin for this slot.
        """
        wants_click = chance is not None and word < int(chance * _WORD)
        first, second = (self.clicked, self.drawn) if wants_click else (self.drawn, self.clicked)
        return second if first is None else first
