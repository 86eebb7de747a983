"""Measures how far malicious clients can move an item if each of them sends the largest possible slot against it.

A malicious slot has norm C like any other, so it adds at most C to the item's residual sum. It adds as little as
possible to the item's count, since a count pulls the bias back to the middle. It is measured without noise, because
clients have no influence on the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.bgt.play import Task, answered, configuration
from hushstream.replay.studies.bgt.rows import SEEDS, SETTINGS, SOURCE, value_columns
from hushstream.replay.studies.bgt.worlds.ratings import Float64, make_world
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.sensitivity import squared_clip
from hushstream.systems.bgt.rounds import Round
from hushstream.systems.bgt.server.rounds import Server
from hushstream.systems.bgt.slots import NOTHING, Slots

NAME = "bgt-poisoning"
TITLE = "Malicious clients against one item"
MALICIOUS = (10, 20, 50)


@dataclass(frozen=True, slots=True)
class PoisonTask:
    """One run.

    Attributes:
        world: name of the world.
        malicious: how many clients are malicious.
        seed: seed of the split.
        targets: how many items are attacked, one after the other, from the most rated one on.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    malicious: int
    seed: int
    targets: int = 20
    data_dir: str | None = None


def poisoned(task: PoisonTask) -> tuple[Float64, Float64]:
    """The fall of the attacked items' biases, and the items' weighted counts without the attack, (targets,) each."""
    world = make_world(task.world, task.data_dir).without_features()
    slots = Task(task.world, "items", None, task.seed)
    config = configuration(slots, world)
    known = world.split(task.seed).known(config)
    rated = np.bincount(known.items, minlength=world.item_count)
    targets = np.argsort(-rated, kind="stable")[: task.targets]

    def learned(target: int | None) -> Server:
        def tamper(honest: Slots, asked: Round) -> Slots:
            return honest if target is None else malicious_slots(honest, task.malicious, target, config)

        server = Server(config, world.features)
        for _ in answered(server, known, config, slots, tamper):
            pass
        return server

    honest = learned(None)
    fallen = [honest.model.biases[target] - learned(target).model.biases[target] for target in targets.tolist()]
    return np.array(fallen), honest.counts[targets]


def malicious_slots(honest: Slots, count: int, target: int, config: BgtConfig) -> Slots:
    """The slots with the first ``count`` replaced: each puts all of its clip against one item."""
    items, values, weights = honest.items.copy(), honest.values.copy(), honest.weights.copy()
    items[:count], values[:count], weights[:count] = NOTHING, 0, 0
    items[:count, 0] = target
    values[:count, 0] = -int(squared_clip("items", config.release) ** 0.5)
    return replace(honest, items=items, values=values, weights=weights)


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Attack the most rated items, one after the other, with a growing number of clients."""
    world, seeds = ("tastes", (0, 1)) if scale.quick else ("ml-100k", SEEDS)
    tasks = [PoisonTask(world, malicious, 0, 3 if scale.quick else 20, scale.data_dir) for malicious in MALICIOUS]
    played = play_all(poisoned, [replace(task, seed=seed) for task in tasks for seed in seeds], NAME, progress)
    rows: list[Row] = []
    for task in tasks:
        moved = [float(np.median(played[replace(task, seed=seed)][0])) for seed in seeds]
        largest = max(float(played[replace(task, seed=seed)][0].max()) for seed in seeds)
        row = {"world": world, "malicious": task.malicious, **value_columns("moved", moved)}
        rows.append({**row, "largest": largest, "seeds": len(seeds), "marks": ""})
    settings = (
        f"The {tasks[0].targets} most rated items, one at a time, without noise: the median over items.",
        *SETTINGS,
    )
    description = Description(NAME, TITLE, SOURCE, (world,), tuple(seeds), settings)
    return Findings(description, rows, [])
