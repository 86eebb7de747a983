"""The shuffler's releases of slots with declared features, on neighbouring windows.

The strongest report of a deployment puts all units of a slot into one cell: it moves that cell as far as any report
moves all cells together. A run is one cell, because each cell has its own slot and its own noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hushstream.features.schema import declare
from hushstream.replay.audits.draws import fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.readings import reading_of
from hushstream.replay.audits.row import Attacked
from hushstream.replay.studies.p2b.audits.releases import ARMS, ONE_WINDOW, slots_family
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.contribution.feature_layout import UNITS, FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import pack_null, slot_columns
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.release import release_address, release_window
from hushstream.systems.p2b.machines.running import open_running
from hushstream.systems.p2b.shuffler.windows import ClosedBy, ClosedWindow

FEATURES = {
    "country": {"kind": "category", "vocabulary": [f"country-{number}" for number in range(12)]},
    "likes": {"kind": "tags", "vocabulary": [f"tag-{number}" for number in range(8)], "most": 3},
}

Forge = Callable[[NDArray[np.void], FeatureLayout], None]
"""Changes the content of slots in place."""


def declared(release: ReleaseConfig) -> P2BSystem:
    """A deployment with `FEATURES`."""
    context = ContextConfig(declared=declare(FEATURES))
    return P2BSystem.declared(
        P2BConfig(deployment="audit", arms=ARMS, context=context, expected_slots=1_000, release=release)
    )


def as_it_is(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Leave the report as it is, within the layout."""


def twice_the_units(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Put more than U units into two places of one cell."""
    slots["cells"][:, 1], slots["units"][:, 1] = slots["cells"][:, 0], slots["units"][:, 0]


def signs_that_cancel(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Use units that sum to U but have a larger absolute sum, as a second cell has units of the other sign."""
    # All these slots have the other sign in the same cell, so that no slot reduces the effect of another.
    slots["cells"][:, 1], slots["cells"][:, 2] = 0, slots["cells"][:, 0]
    slots["units"][:, 1], slots["units"][:, 2] = -slots["units"][:, 0], slots["units"][:, 0]


def a_level_beyond(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Use a reward above the highest level."""
    slots["level"] = 3 * layout.levels


FORGED: dict[str, Forge] = {
    "twice-the-units": twice_the_units,
    "signs-that-cancel": signs_that_cancel,
    "a-level-beyond": a_level_beyond,
}


def contents_of(layout: FeatureLayout, level: int, forge: Forge = as_it_is) -> list[bytes]:
    """One slot for each arm and cell, with all units in that cell."""
    places = np.indices((layout.arms, layout.cells)).reshape(2, -1)
    slots = slot_columns(layout, places.shape[1])
    slots["arm"], slots["level"] = places[0], level
    slots["cells"][:, 0], slots["units"][:, 0] = places[1], UNITS
    forge(slots, layout)
    return [slot.tobytes() for slot in slots]


def published(system: P2BSystem, windows: Sequence[Sequence[bytes]]) -> NDArray[np.int64]:
    """The sums of windows as the shuffler publishes them under a new key and nonce: (windows, 2, K, P)."""
    key, genesis = fresh_key(), fresh_nonce()
    running = open_running(system.window_tree, key, release_address(system, genesis, 0))
    found = []
    for number, contents in enumerate(windows):
        closed = ClosedWindow(number, ClosedBy.SLOTS, tuple(contents))
        crowd = release_window(system, key, genesis, 0, closed, running).crowd
        found.append([np.frombuffer(crowd[name], "<i8") for name in ("ones", "zeros")])
    return np.array(found).reshape(len(windows), 2, *system.form.shape)


def audit_linear_sums(system: P2BSystem, most: int, forge: Forge = as_it_is) -> Attacked:
    """Attack fresh noise or a counter: a report moves one cell by U R and U (M - R), and no other cell.

    R is half of M, so that both sums move equally; where M is odd R is M, and only one sum moves.

    Args:
        system: the attacked system.
        most: the most windows of a counter that the attack may feed.
        forge: changes the report.
    """
    layout, tree = system.linear.layout, system.window_tree
    reading = ONE_WINDOW if tree is None else reading_of(tree, most)
    level = layout.levels if layout.levels % 2 else layout.levels // 2
    moved, cells = layout.levels // level, layout.arms * layout.cells
    present = contents_of(layout, level, forge)
    absent = [pack_null(layout)] * cells
    later = [absent] * (reading.steps - 1)

    def scores(there: bool) -> NDArray[np.float64]:
        totals = np.cumsum(published(system, [present if there else absent, *later]), axis=0)
        seen = totals[np.array(reading.times) - 1][:, :moved].reshape(len(reading.times), moved, cells)
        return reading.clipped_score(seen.transpose(0, 2, 1), level * UNITS)

    attack = side_by_side(scores, cells)
    return Attacked(attack, system.guarantee().cost, slots_family(system, reading))
