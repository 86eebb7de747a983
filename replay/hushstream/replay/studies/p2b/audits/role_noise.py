"""Audits of the noise at every place of P2B's releases."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree
from hushstream.privacy.audits.laws import lattice_sizes
from hushstream.replay.audits.draws import fresh_key, fresh_nonce
from hushstream.replay.audits.mechanisms import LAPLACE_FAMILY
from hushstream.replay.audits.roles.noise import LEAVES, PARTITIONS, Axes, audit_draws, audit_places
from hushstream.replay.audits.row import Run
from hushstream.replay.audits.unmixed import unmixed
from hushstream.replay.studies.p2b.audits.releases import ARMS, CELLS, p2b
from hushstream.replay.studies.p2b.audits.worked import played_lift, played_windows
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import LiftConfig, ReleaseConfig
from hushstream.systems.p2b.lift import SUMS, lift_guarantee, lift_tree

WINDOWS = 3
SLOTS = 4
"""How many slots a window has."""

NULLS = (None,) * SLOTS


def fresh_windows() -> Run:
    """Each cell and sum of several windows of two partitions, with fresh noise."""
    system, key = p2b(ReleaseConfig(sums="fresh", window_slots=SLOTS)), fresh_key()
    axes = _cells({"partition": range(PARTITIONS), "window": range(WINDOWS)})

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        return np.array([[played_windows(system, key, [NULLS] * WINDOWS, nonce, p) for p in range(PARTITIONS)]])

    return audit_places(journal, axes, lattice_sizes(1, LAPLACE_FAMILY), system.guarantee().cost)


def counted_cells() -> Run:
    """Each cell and sum of the first window of two partitions, with a counter over windows."""
    system, key = p2b(ReleaseConfig(sums="counter", windows=LEAVES, window_slots=SLOTS)), fresh_key()

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        first = [played_windows(system, key, [NULLS], nonce, partition) for partition in range(PARTITIONS)]
        return np.stack(first, axis=1)[None]

    axes = _cells({"partition": range(PARTITIONS)})
    return audit_draws(journal, unmixed(_required(system.window_tree), 1), axes, system.guarantee().cost)


def counted_windows() -> Run:
    """Each draw of a counter over windows, on either sum; each cell is one run."""
    system, key = p2b(ReleaseConfig(sums="counter", windows=LEAVES, window_slots=SLOTS)), fresh_key()

    def journal() -> NDArray[np.float64]:
        totals = np.cumsum(played_windows(system, key, [NULLS] * LEAVES), axis=0)
        return np.moveaxis(totals.reshape(LEAVES, 2, CELLS * ARMS), 2, 0)

    axes: Axes = {"sum": ("ones", "zeros")}
    return audit_draws(journal, unmixed(_required(system.window_tree), LEAVES), axes, system.guarantee().cost)


def lift_counts(lift: LiftConfig, levels: int) -> Run:
    """Each draw of a lift's counter, on each of its sums, in two partitions."""
    system, key = p2b(ReleaseConfig(levels=levels), lift), fresh_key()

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        counts = [played_lift(system, key, lift.releases, nonce, partition) for partition in range(PARTITIONS)]
        return np.stack(counts, axis=1)[None]

    axes: Axes = {"partition": range(PARTITIONS), "sum": range(SUMS)}
    return audit_draws(
        journal, unmixed(lift_tree(lift, levels), lift.releases), axes, lift_guarantee(lift, levels).cost
    )


def _cells(outer: Axes) -> Axes:
    return {**outer, "sum": ("ones", "zeros"), "code": range(CELLS), "arm": range(ARMS)}


def _required(tree: NegativeDigitTree | None) -> NegativeDigitTree:
    if tree is None:
        raise HushstreamError("audit: expected windows that run through a counter, got fresh noise")
    return tree
