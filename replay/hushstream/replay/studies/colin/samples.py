"""A small deployment of related users, whose rewards a trusted counter releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.replay.catalogue.worlds import make_world
from hushstream.replay.sample import Sample
from hushstream.replay.studies.colin.closed_loop import CollaborativeLoop, CollaborativePlan
from hushstream.replay.studies.colin.run import relation_graph
from hushstream.replay.studies.colin.worlds.related import CollaborativeWorld
from hushstream.systems.colin.artefacts import inputs_of

_DATASET = "colin"
_NEVER_SECONDS = 1e6


def sample(
    folder: Path,
    *,
    users: int = 500,
    dimension: int = 10,
    arms: int = 10,
    rounds: int = 20,
    rounds_per_phase: int = 10,
    rows: int = 200,
) -> Sample:
    """Users who are all asked in each round."""
    world: Any = make_world(_DATASET, users=users, dimension=dimension, arms=arms, seed=1)
    assert isinstance(world, CollaborativeWorld)
    lengths = {"norm": world.largest_feature_norm(2) + 1e-6, "norm_l1": world.largest_feature_norm(1) + 1e-6}
    config = parse_config(
        {
            "system": "colin",
            "deployment": "sizes",
            "items": {"capacity": world.arms},
            "features": {"dimension": world.feature_dimension, **lengths},
            "feedback": {"attribution_window_seconds": _NEVER_SECONDS, "settle_seconds": _NEVER_SECONDS},
            "privacy": {"units_per_person": rounds + 1},
            "release": {"window_units": rows},
        }
    )
    system = prepare(folder, config, inputs_of(relation_graph(world, _DATASET)), public_dataset=_DATASET)
    loop = CollaborativeLoop(world, CollaborativePlan(rounds, rounds_per_phase))
    return Sample(system, users * rounds, loop.run)
