"""Makes rows of the table of audits for roles; the audit of a row is made when it runs."""

from __future__ import annotations

from collections.abc import Callable

from hushstream.replay.audits.row import Audit, Recipe, Run

RUNS = 300
"""Enough runs to detect half the noise at any place, and shared noise (`tests/audits/test_role_power.py`)."""

FEWER_RUNS = 200
"""Runs that are enough where sizes vary little: for Gaussian noise, and for vectors."""


def noise_row(name: str, places: str, run: Callable[[], Run], runs: int = RUNS) -> Recipe:
    """The row of an audit that tests noise place by place."""
    about = f"noise by itself and against all others: {places}"
    return Recipe(name, lambda: Audit(name, "role", about, runs, run(), factor=1))


def attack_row(name: str, about: str, runs: int, run: Callable[[], Run], factor: int = 2) -> Recipe:
    """The row of an attack on neighbouring inputs."""
    return Recipe(name, lambda: Audit(name, "role", about, runs, run(), factor))
