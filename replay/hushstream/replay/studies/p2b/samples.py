"""Makes small deployments of P2B, to measure sizes and to show dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import load, make_folder, parse_config, prepare
from hushstream.replay.catalogue.worlds import make_world
from hushstream.replay.sample import Sample
from hushstream.replay.studies.p2b.closed_loop import ClosedLoop, Plan
from hushstream.replay.worlds.shop import shop
from hushstream.replay.worlds.world import World

_DATASET = "synthetic"
_LIVE_ROUNDS, _LIVE_WINDOWS, _LIVE_WINDOW_SLOTS, _LIVE_RELEASES = 3, 300, 20, 1024


def sample(
    folder: Path,
    *,
    users: int = 500,
    dimension: int = 10,
    arms: int = 10,
    codes: int = 16,
    window_slots: int = 100,
) -> Sample:
    """A deployment whose users each have one slot due at the end."""
    world: World = make_world(_DATASET, users=users, dimension=dimension, arms=arms, seed=1)
    more = {
        "expected_slots": users,
        "encoder": {"codes": codes},
        "slot": {"after_interactions": world.rounds},
        "release": {"window_units": window_slots},
    }
    config = parse_config(_config("sizes", world, more))
    # A real deployment does not send interactions in clear.
    system = prepare(folder, config, public_dataset=_DATASET, non_private_arm=False)
    return Sample(system, users * world.rounds, ClosedLoop(world, Plan(users, 0, ("cold",), in_flight=64)).run)


def live(folder: Path, users: int, pace: float) -> Sample:
    """Contributors of a shop and a tenth as many other users, at ``pace`` interactions/s; windows close in seconds."""
    plan = Plan(users, users // 10, ("cold", "warm_private"), in_flight=16, pace=pace)
    world = shop(users=plan.contributors + plan.evaluated, rounds=_LIVE_ROUNDS, seed=1)
    values = {
        "deployment": "live",
        "items": {"capacity": world.arms},
        "features": world.schema.plain,
        "expected_slots": world.users,
        "slot": {"after_interactions": _LIVE_ROUNDS},
        "exploration": {"choice": "epsilon", "share": 0.05},
        "feedback": {"attribution_window_seconds": 0.4, "settle_seconds": 0.5, "click_rate": world.click_rate},
        "release": {"window_units": _LIVE_WINDOW_SLOTS, "sums": "counter", "horizon": _LIVE_WINDOWS},
        # The epsilon is so large that noise does not hide the preferences of so few users.
        "holdout": {
            "share": 0.3,
            "epsilon": 8.0,
            "decisions_per_user": _LIVE_ROUNDS,
            "every_seconds": 1.0,
            "releases": _LIVE_RELEASES,
        },
    }
    make_folder(folder, parse_config(values), public_dataset="shop")
    system = load(folder)
    return Sample(system, world.users * world.rounds, ClosedLoop(world, plan, rules=system.requests).run)


def _config(name: str, world: World, more: Mapping[str, Any]) -> dict[str, Any]:
    return {"deployment": name, "items": {"capacity": world.arms}, "features": {"dimension": world.dimension}, **more}
