"""Forks of the journals of P2B's roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.roles.forks import Branch, Fork, columns, fork_row
from hushstream.replay.audits.row import Recipe
from hushstream.replay.studies.p2b.audits.releases import ARMS, CELLS, TARGET, p2b
from hushstream.replay.studies.p2b.audits.worked import played_lift, played_windows
from hushstream.systems.p2b.configuration import LiftConfig, ReleaseConfig
from hushstream.systems.p2b.contribution.slots import Report
from hushstream.systems.p2b.lift import lift_guarantee

SLOTS = 4

ROOM = BudgetConfig(epsilon=100.0, delta=1e-3)
"""A budget that also covers the epoch after a suspected rollback."""

CROWD = 20
"""Reports of each tuple where crowds are sampled; an even number, so kept counts are as often above half as below."""

SAMPLED = ReleaseConfig(mode="tuples", sampling=0.5, threshold=2, window_slots=CELLS * CROWD)


def windows(release: ReleaseConfig) -> Fork:
    """The fork of one window; each cell and each of its two sums is a run."""
    system, key = p2b(release, budget=ROOM), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        report = Report(0, TARGET, 1) if branch.other_contents else None
        exact = np.zeros((2, CELLS, ARMS))
        exact[0, 0, TARGET] = branch.other_contents
        contents = [report, *[None] * (SLOTS - 1)]
        return columns(played_windows(system, key, [contents], nonce, branch=branch)[0] - exact)

    price = system.guarantee().cost
    return Fork("p2b", "shuffler", play, price + price)


def sampled_tuples() -> Fork:
    """The fork of sampled crowds: the number that coins kept of each crowd, minus the expectation.

    Each crowd is a run.
    """
    system, key = p2b(SAMPLED), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        reports: Sequence[Report | None] = [Report(code, TARGET, 1) for code in range(CELLS) for _ in range(CROWD)]
        # The first report becomes null, so its crowd has one coin less.
        contents = [None, *reports[1:]] if branch.other_contents else reports
        return columns(played_windows(system, key, [contents], nonce, branch=branch)[0, 0, 1:, TARGET] - CROWD / 2)

    price = system.guarantee().cost
    return Fork("p2b", "shuffler", play, price + price)


def lift_counts(lift: LiftConfig) -> Fork:
    """The fork of a lift's first sums; their noise is drawn ahead, so only the requested epoch separates branches."""
    system, key = p2b(ReleaseConfig(levels=2), lift, replace(ROOM, lift=0.5)), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        return columns(played_lift(system, key, 1, nonce, branch=branch))

    price = lift_guarantee(lift, 2).cost
    return Fork("p2b", "learner", play, price + price)


def fork_rows(lift: LiftConfig) -> tuple[Recipe, ...]:
    """All audits of forks, in the order of the table."""
    fresh = ReleaseConfig(sums="fresh", window_slots=SLOTS)
    counted = ReleaseConfig(sums="counter", windows=32, window_slots=SLOTS)
    return (
        fork_row("forked-windows", "cells and sums", partial(windows, fresh)),
        fork_row("forked-counted-windows", "cells and sums, after a suspected rollback", partial(windows, counted)),
        fork_row("forked-tuples", "coins of crowds", sampled_tuples),
        fork_row("forked-lift", "sums, after a suspected rollback", partial(lift_counts, lift)),
    )
