"""Gets the releases of roles from known inputs; the machine stops in the middle of a window or step, and continues.

The studies of a system compute, for every release, the mean of all its published copies. The product publishes equal
copies; a product that drew again on a replay would let the attacker average.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.audits.roles.played import PlayedRole


def restart_between(role: PlayedRole, number: int, steps: int) -> None:
    """Restart a role: after the first step from the journal alone, after the last from a snapshot of half the steps."""
    if number == steps // 2:
        role.keep()
    if number == 0:
        role.restart()
    elif number == steps - 1:
        role.restart(*role.kept)


def phase_end_fields(digest: bytes, phase: int) -> dict[str, Any]:
    """The fields of a phase end."""
    return {"phase": phase, "origin": -1, "config_digest": digest, "after_click": -1}


def means(found: Iterable[tuple[bytes, NDArray[np.int64]]], releases: int) -> NDArray[np.float64]:
    """The mean of the copies of each release, in the order in which the first copies came.

    Raises:
        ValueError: the number of published releases is not the expected one.
    """
    copies: dict[bytes, list[NDArray[np.int64]]] = {}
    for name, sums in found:
        copies.setdefault(name, []).append(sums)
    if len(copies) != releases:
        raise ValueError(f"audit: expected {releases} releases of a role, got {len(copies)}")
    return np.array([np.mean(sums, axis=0) for sums in copies.values()])
