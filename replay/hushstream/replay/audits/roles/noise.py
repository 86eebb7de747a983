"""Reads the noise of every place from the releases of a role's machine, also after restarts.

The content is known and the same everywhere (slots hold null, rewards are 0), so the releases are the noise; single
draws of a counter are computed from them (`hushstream.replay.audits.unmixed`). Several partitions have the same journal
nonce, which can happen in a deployment; their noise must still differ.

If places are users, cells or partitions, every run is a journal of its own. If places are the draws of one counter, its
users or cells count as runs, too, as another audit shows that they share no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits.audit import AuditResult
from hushstream.privacy.audits.laws import Sizes
from hushstream.privacy.audits.structure import Name, Noises, audit_structure
from hushstream.replay.audits.row import Run
from hushstream.replay.audits.unmixed import Unmixed

PARTITIONS = 2

LEAVES = 63
"""Leaves of a counter whose single draws are computed; more than any round number at which a mutant may start."""

Axes = dict[str, Sequence[object]]
"""The axes of places, outermost first: name of an axis -> its labels."""

Read = Callable[[], NDArray[np.float64]]
"""Begins journals, and returns the noise of some runs."""


def audit_places(read: Read, axes: Axes, law: Sizes | None, claimed: Cost) -> Run:
    """Audit the places whose noise ``read`` returns, (width, *axes); without ``law``, only their independence."""
    name = _name(axes)

    def run(runs: int, false_alarm: float) -> AuditResult:
        drawn = _gathered(read, runs).reshape(runs, -1)
        return audit_structure(Noises(drawn, name), law, claimed, false_alarm)

    return run


def audit_draws(read: Read, solved: Unmixed, axes: Axes, claimed: Cost, vectors: bool = False) -> Run:
    """Audit the draws behind a counter's releases, whose noise ``read`` returns, (width, leaves, *axes).

    A release has a sum of draws that are all symmetric with one mode. Such a sum is stochastically at least as large as
    one of the draws (Anderson 1955), so the size of each release is compared with the distribution of a draw, too. With
    ``vectors`` the last axis is one draw.
    """
    name = _name({"draw": range(solved.draws), **axes})

    def run(runs: int, false_alarm: float) -> AuditResult:
        releases = np.moveaxis(_gathered(read, runs), 1, 0)
        draws, scaled = solved(releases), (releases.T / solved.spreads).T
        sizes = [np.linalg.norm(part, axis=-1) if vectors else np.abs(part) for part in (draws, scaled)]
        each = np.concatenate([_by_run(part) for part in sizes], axis=1)
        return audit_structure(Noises(_by_run(draws), name, each), solved.law, claimed, false_alarm)

    return run


def _by_run(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From (draws, runs, ...) to (runs, places)."""
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)


def _gathered(read: Read, runs: int) -> NDArray[np.float64]:
    """Read ``runs`` runs, from as many journals as needed."""
    parts = [read()]
    parts += [read() for _ in range(-(-runs // len(parts[0])) - 1)]
    return np.concatenate(parts)[:runs]


def _name(axes: Axes) -> Name:
    labels = [[f"{axis} {label}" for label in names] for axis, names in axes.items()]
    return [", ".join(parts) for parts in product(*labels)].__getitem__
