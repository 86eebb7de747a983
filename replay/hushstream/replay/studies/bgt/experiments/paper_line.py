"""BGTplanner's line of the table of papers."""

from __future__ import annotations

from dataclasses import replace

from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.bgt.baselines import Baseline, baseline
from hushstream.replay.studies.bgt.experiments.paper import EPSILON, ROUNDS, PaperTask, play_paper, row_guarantee
from hushstream.replay.studies.bgt.play import Task, play
from hushstream.replay.studies.bgt.rows import SOURCE, promised


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The planner as published against three slots a user, on FilmTrust."""
    world, rounds, seeds = ("tastes", 40, (0,)) if scale.quick else ("filmtrust", ROUNDS, (0, 1, 2))
    data = None if scale.data_dir is None else str(scale.data_dir)
    true = privacy_columns(row_guarantee())
    slots = Task(world, "three", sound_epsilon(EPSILON, true), 0, data_dir=data)
    planner = [PaperTask(world, "planner", "gaussian", seed, rounds, data) for seed in seeds]
    ours = [replace(slots, seed=seed) for seed in seeds]
    alone = [Baseline(world, "local", seed, data) for seed in seeds]
    theirs = play_all(play_paper, planner, NAME, progress)
    found = play_all(play, ours, NAME, progress)
    local = play_all(baseline, alone, NAME, progress)
    return line(
        system="bgt",
        source=SOURCE,
        setting=f"{world}, {rounds} rounds of the planner, three of the sound form",
        measure="RMSE, ratings from 0 to 1",
        less_is_better=True,
        claimed=EPSILON,
        true=true,
        reached=[theirs[task].rmse for task in planner],
        sound=promised(slots),
        sound_reached=[found[task].rmse for task in ours],
        alone=[local[task][0] for task in alone],
        alone_is="each device's own mean",
    )
