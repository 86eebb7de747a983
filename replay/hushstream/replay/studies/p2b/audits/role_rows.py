"""The audits of what P2B's roles publish."""

from __future__ import annotations

from functools import partial

from hushstream.replay.audits.roles.rows import attack_row, noise_row
from hushstream.replay.audits.row import Recipe
from hushstream.replay.studies.p2b.audits import role_noise
from hushstream.replay.studies.p2b.audits.forks import fork_rows
from hushstream.replay.studies.p2b.audits.worked import audit_worked_windows
from hushstream.systems.p2b.configuration import LiftConfig, ReleaseConfig

LIFT = LiftConfig(holdout=0.5, epsilon=3.0, decisions_per_user=3, releases=4)


def role_rows() -> tuple[Recipe, ...]:
    """All of them, in the order of the table."""
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=32)
    slot = "a report against null, through a shuffler that restarts"
    return (
        noise_row("windows-each-cell", "cells, sums, windows, partitions", role_noise.fresh_windows),
        noise_row("counted-windows-each-cell", "cells, sums, partitions", role_noise.counted_cells),
        noise_row("counted-windows-each-draw", "draws of 63 windows, sums", role_noise.counted_windows),
        noise_row("lift-each-sum", "sums, draws, partitions", partial(role_noise.lift_counts, LIFT, 2)),
        attack_row("windows-through-the-role", slot, 3_000, partial(audit_worked_windows, fresh, 1)),
        attack_row(
            "counted-windows-through-the-role", slot, 2_000, partial(audit_worked_windows, running, 32), factor=1
        ),
        *fork_rows(LIFT),
    )
