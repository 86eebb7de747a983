"""Sentences for the guarantee about a configuration's exploration."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.declare.declaration import Fact


def exploration_facts(exploration: ExplorationConfig, why: str) -> Sequence[Fact]:
    """The facts about exploration; none if the best arm is always chosen.

    Args:
        exploration: as configured.
        why: the reason why no guarantee of this system depends on it.
    """
    if exploration.choice == "greedy":
        return ()
    if exploration.choice == "epsilon":
        value, how = exploration.share, f"{exploration.share:.3g} of the decisions go to any eligible item"
    else:
        value = exploration.temperature
        how = f"an item that scores {exploration.temperature:.3g} less is chosen 2.7 times less often"
    return (
        Fact(
            f"exploration_{exploration.choice}",
            value,
            f"{how}, by a keyed draw of user and event, and the decision states the exact chance. {why}",
        ),
    )
