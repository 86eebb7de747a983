"""Rows of the table of audits about what roles publish, each made when its turn comes."""

from __future__ import annotations

from collections.abc import Callable

from hushstream.replay.audits.row import Audit, Recipe, Run

RUNS = 300
"""Finds half the noise of any one place, and any two places that share theirs (`tests/audits/test_role_power.py`)."""

FEWER_RUNS = 200
"""As many find it where sizes vary little: of Gaussian noise, and of vectors."""


def noise_row(name: str, places: str, run: Callable[[], Run], runs: int = RUNS) -> Recipe:
    """Of noise that is looked at place by place."""
    about = f"noise by itself and against all others: {places}"
    return Recipe(name, lambda: Audit(name, "role", about, runs, run(), factor=1))


def attack_row(name: str, about: str, runs: int, run: Callable[[], Run], factor: int = 2) -> Recipe:
    """Of neighbouring inputs."""
    return Recipe(name, lambda: Audit(name, "role", about, runs, run(), factor))
