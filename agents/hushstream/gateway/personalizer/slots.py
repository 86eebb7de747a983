"""Slots of one page that share actions: which may go where, so that every slot gets one of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def still_fits(action: str, rest: Sequence[Collection[str]], taken: Collection[str]) -> bool:
    """Whether each of the remaining slots can have an action of its own once this one is taken.

    Args:
        action: what the current slot would show.
        rest: the actions that each later slot may show.
        taken: actions that earlier slots show.
    """
    gone = {action, *taken}
    holds: dict[str, int] = {}
    return all(_place(slot, rest, gone, holds, set()) for slot in range(len(rest)))


def _place(slot: int, rest: Sequence[Collection[str]], gone: set[str], holds: dict[str, int], tried: set[str]) -> bool:
    """Give a slot an action, moving others along an augmenting path (Kuhn's algorithm)."""
    for action in rest[slot]:
        if action in gone or action in tried:
            continue
        tried.add(action)
        if action not in holds or _place(holds[action], rest, gone, holds, tried):
            holds[action] = slot
            return True
    return False
