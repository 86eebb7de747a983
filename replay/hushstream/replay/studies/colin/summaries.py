"""Describes the simulator of collaborative bandits, for ``datasets inspect``."""

from __future__ import annotations

from pathlib import Path

from hushstream.replay.catalogue.summaries import simulated
from hushstream.replay.datasets.dataset import Summary
from hushstream.replay.studies.colin.worlds.uniform import colin


def summarise_colin(folder: Path) -> Summary:
    """Describe the default simulator of collaborative bandits; the mean reward is that of arms picked at random."""
    world = colin()
    return simulated(world, world.feature_dimension)
