"""Choosing the interaction that each of a user's slots holds.

The interactions that wait for slots are a plain value (``waits``), which these methods take and return. Most users have
no waiting interactions most of the time; they all share one empty value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import Key
from hushstream.systems.p2b.edge.candidates import Candidates


class Interaction(NamedTuple):
    """An interaction in clear: context (d,) or bytes (n,) of a feature row, the arm on screen, reward in [0, 1]."""

    context: NDArray[Any]
    arm: int
    reward: float


class Resolved(NamedTuple):
    """An interaction whose reward is known.

    Attributes:
        number: the index of its decision among all decisions of the user.
        deadline_ms: log time at which its wait for a reward ends.
        interaction: the interaction.
    """

    number: int
    deadline_ms: int
    interaction: Interaction


class Began(NamedTuple):
    """A slot that has begun: its number, the index of its first decision, and how many decisions it covers."""

    slot: int
    first: int
    length: int


class SlotChoice(Protocol):
    """How the interaction of a slot is chosen; the same for all users of a deployment.

    Attributes:
        nothing: the value of ``waits`` for a new user.
    """

    nothing: Any

    def decided(self, waits: Any, key: Key, log_time_ms: int, began: Began | None) -> Any:
        """Take in that a decision was made at a log time, and the slot that began with it; return the new ``waits``."""

    def resolved(self, waits: Any, slot: int, one: Resolved) -> Any:
        """Take in a resolved interaction of the decisions that a slot covers; return the new ``waits``."""

    def taken(self, waits: Any, key: Key, log_time_ms: int, slot: int) -> tuple[Interaction | None, Any]:
        """Return what a slot holds at a log time (None: the slot is null), and what waits for other slots."""

    def dump(self, waits: Any) -> dict[str, Any]:
        """Return ``waits`` as plain values, for a snapshot."""

    def load(self, dumped: Mapping[str, Any]) -> Any:
        """Return the ``waits`` that `dump` was given."""


class DrawnTargets(NamedTuple):
    """What waits for slots where the interaction is drawn before it happens.

    Attributes:
        targets: the index of each drawn decision, and the slot that its interaction goes into.
        kept: the slots whose drawn interaction is resolved, and that interaction.
    """

    targets: dict[int, int]
    kept: dict[int, Interaction]


# Most users have neither most of the time, so they share these: an empty dictionary for each takes 64 bytes or more.
_NO_TARGETS: dict[int, int] = {}
_NOTHING_KEPT: dict[int, Interaction] = {}
_NOTHING_DRAWN = DrawnTargets(_NO_TARGETS, _NOTHING_KEPT)


class DrawnBefore:
    """Draws, from the user's key, one of the decisions that a slot covers before any of them is made."""

    nothing = _NOTHING_DRAWN

    def decided(self, waits: DrawnTargets, key: Key, log_time_ms: int, began: Began | None) -> DrawnTargets:
        if began is None:
            return waits
        target = began.first + uniform(key, "slot-target", began.slot, began.length)
        return waits._replace(targets={**waits.targets, target: began.slot})

    def resolved(self, waits: DrawnTargets, slot: int, one: Resolved) -> DrawnTargets:
        aimed = waits.targets.get(one.number)
        return waits if aimed is None else waits._replace(kept={**waits.kept, aimed: one.interaction})

    def taken(
        self, waits: DrawnTargets, key: Key, log_time_ms: int, slot: int
    ) -> tuple[Interaction | None, DrawnTargets]:
        targets = {index: aimed for index, aimed in waits.targets.items() if aimed != slot} or _NO_TARGETS
        kept = {other: one for other, one in waits.kept.items() if other != slot} or _NOTHING_KEPT
        return waits.kept.get(slot), _drawn_targets(targets, kept)

    def dump(self, waits: DrawnTargets) -> dict[str, Any]:
        return {
            "targets": [{"index": index, "slot": slot} for index, slot in waits.targets.items()],
            "kept": [{"slot": slot, **_dumped(one)} for slot, one in waits.kept.items()],
        }

    def load(self, dumped: Mapping[str, Any]) -> DrawnTargets:
        targets = {item["index"]: item["slot"] for item in dumped["targets"]} or _NO_TARGETS
        kept = {item["slot"]: _loaded(item, np.float32) for item in dumped["kept"]} or _NOTHING_KEPT
        return _drawn_targets(targets, kept)


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
                {"slot": slot, "index": one.number, "deadline_ms": one.deadline_ms, **_dumped(one.interaction)}
                for slot, one in waits.resolved
            ],
            "candidates": [
                {
                    "slot": slot,
                    "count": pair.count,
                    "clicked": [] if pair.clicked is None else [_dumped(pair.clicked)],
                    "drawn": [] if pair.drawn is None else [_dumped(pair.drawn)],
                }
                for slot, pair in waits.candidates.items()
            ],
        }

    def load(self, dumped: Mapping[str, Any]) -> WaitingCandidates:
        resolved = tuple(
            (item["slot"], Resolved(item["index"], item["deadline_ms"], _loaded(item, np.uint8)))
            for item in dumped["resolved"]
        )
        candidates = {item["slot"]: _candidates(item) for item in dumped["candidates"]}
        return WaitingCandidates(resolved, candidates) if resolved or candidates else _NOTHING_WAITS


def _candidates(item: Mapping[str, Any]) -> Candidates[Interaction]:
    clicked, drawn = (next((_loaded(one, np.uint8) for one in item[name]), None) for name in ("clicked", "drawn"))
    return Candidates(clicked, drawn, item["count"])


def _drawn_targets(targets: dict[int, int], kept: dict[int, Interaction]) -> DrawnTargets:
    return DrawnTargets(targets, kept) if targets or kept else _NOTHING_DRAWN


def _dumped(one: Interaction) -> dict[str, Any]:
    return {"context": one.context.tobytes(), "arm": one.arm, "reward": one.reward}


def _loaded(item: Mapping[str, Any], form: type[np.generic]) -> Interaction:
    return Interaction(np.frombuffer(item["context"], form), item["arm"], item["reward"])


def uniform(key: Key, purpose: str, number: int, below: int) -> int:
    """A keyed uniform integer in [0, below): 128 bits reduced, so its bias is under below * 2^-128."""
    return int.from_bytes(key.digest(purpose, number.to_bytes(8, "little")), "little") % below


def _word(key: Key, purpose: str, number: int) -> int:
    """A keyed uniform integer below 2^64."""
    return int.from_bytes(key.digest(purpose, number.to_bytes(8, "little"))[:8], "little")
