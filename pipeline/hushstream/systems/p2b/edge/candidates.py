"""Chooses which of a user's interactions goes into their slot: it keeps two candidates, and a coin picks one of them.

If clicks are rare, most slots would only say that nothing was clicked. So with the public probability h
(`click_chance`) the slot holds the first clicked one of T interactions, else one drawn uniformly from the unclicked
ones. The choice depends on this user's interactions and coins alone, and stays inside the padded slot.

A click is a reward above 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hushstream.privacy.keys import Key
from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.edge.terms import Began, Interaction, Resolved

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


class WaitingCandidates(NamedTuple):
    """What waits for slots where each slot has two candidates.

    Attributes:
        resolved: resolved interactions whose reward window has not ended, each behind the slot that covers it.
        candidates: the candidates of each slot.
    """

    resolved: tuple[tuple[int, Resolved], ...]
    candidates: Mapping[int, Candidates[Interaction]]


_NOTHING_WAITS = WaitingCandidates((), {})
_NO_CANDIDATES: Candidates[Interaction] = Candidates()


class TwoCandidates:
    """Keeps two candidates for a slot, the first clicked interaction and one drawn from the unclicked (`Candidates`).

    An interaction becomes a candidate when its reward window has ended, even if its reward came earlier. Otherwise
    rewarded interactions would become candidates before those that get no reward. The end of a phase ends all reward
    windows.
    """

    nothing = _NOTHING_WAITS

    def __init__(self, chance: float | None) -> None:
        """Choose with the probability that a slot holds the clicked candidate (`click_chance`)."""
        self._chance = chance

    def resolved(self, waits: WaitingCandidates, slot: int, one: Resolved) -> WaitingCandidates:
        return waits._replace(resolved=(*waits.resolved, (slot, one)))

    def decided(self, waits: WaitingCandidates, key: Key, log_time_ms: int, began: Began | None) -> WaitingCandidates:
        return self._settled(waits, key, log_time_ms)

    def _settled(self, waits: WaitingCandidates, key: Key, log_time_ms: int) -> WaitingCandidates:
        """Make candidates of the interactions whose reward window has ended."""
        ended = [item for item in waits.resolved if item[1].deadline_ms <= log_time_ms]
        if not ended:
            return waits
        candidates = dict(waits.candidates)
        for slot, one in sorted(ended, key=lambda item: item[1].number):
            clicked, word = one.interaction.reward > 0, _word(key, "slot-candidate", one.number)
            pair = candidates.get(slot, _NO_CANDIDATES)
            candidates[slot] = pair.observe(one.interaction, clicked, self._chance, word)
        resolved = tuple(item for item in waits.resolved if item[1].deadline_ms > log_time_ms)
        return WaitingCandidates(resolved, candidates)

    def taken(
        self, waits: WaitingCandidates, key: Key, log_time_ms: int, slot: int
    ) -> tuple[Interaction | None, WaitingCandidates]:
        waits = self._settled(waits, key, log_time_ms)
        pair = waits.candidates.get(slot)
        chosen = None if pair is None else pair.chosen(self._chance, _word(key, "slot-choice", slot))
        resolved = tuple(item for item in waits.resolved if item[0] != slot)
        candidates = {other: one for other, one in waits.candidates.items() if other != slot}
        return chosen, WaitingCandidates(resolved, candidates) if resolved or candidates else _NOTHING_WAITS

    def dump(self, waits: WaitingCandidates) -> dict[str, Any]:
        return {
            "resolved": [
                {"slot": slot, "index": one.number, "deadline_ms": one.deadline_ms, **one.interaction.dump()}
                for slot, one in waits.resolved
            ],
            "candidates": [
                {
                    "slot": slot,
                    "count": pair.count,
                    "clicked": [] if pair.clicked is None else [pair.clicked.dump()],
                    "drawn": [] if pair.drawn is None else [pair.drawn.dump()],
                }
                for slot, pair in waits.candidates.items()
            ],
        }

    def load(self, dumped: Mapping[str, Any]) -> WaitingCandidates:
        resolved = tuple(
            (item["slot"], Resolved(item["index"], item["deadline_ms"], Interaction.load(item, np.uint8)))
            for item in dumped["resolved"]
        )
        candidates = {item["slot"]: _candidates(item) for item in dumped["candidates"]}
        return WaitingCandidates(resolved, candidates) if resolved or candidates else _NOTHING_WAITS


def _candidates(item: Mapping[str, Any]) -> Candidates[Interaction]:
    clicked, drawn = (
        next((Interaction.load(one, np.uint8) for one in item[name]), None) for name in ("clicked", "drawn")
    )
    return Candidates(clicked, drawn, item["count"])


def _word(key: Key, purpose: str, number: int) -> int:
    """A keyed uniform integer below 2^64."""
    return int.from_bytes(key.digest(purpose, number.to_bytes(8, "little"))[:8], "little")
