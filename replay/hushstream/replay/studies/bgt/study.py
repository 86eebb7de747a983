"""Declares BGTplanner's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hushstream.replay.datasets.builtin import ML_100K
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.experiments.experiment import Experiment, Scale
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.report.replayed import forms
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.bgt.audits.configured import audit_config
from hushstream.replay.studies.bgt.audits.rows import rows
from hushstream.replay.studies.bgt.baselines import Baseline, baseline
from hushstream.replay.studies.bgt.bench.compute import bgt_rows
from hushstream.replay.studies.bgt.bench.stream import bgt_stream_rows
from hushstream.replay.studies.bgt.experiments import plots, poisoning, schedules, table, three_slots
from hushstream.replay.studies.bgt.experiments.paper import EPSILON, ROUNDS, PaperTask, play_paper, row_guarantee
from hushstream.replay.studies.bgt.play import Task, play
from hushstream.replay.studies.bgt.report import present
from hushstream.replay.studies.bgt.rows import SOURCE, promised
from hushstream.replay.studies.bgt.run import BgtOptions, run_bgt
from hushstream.replay.studies.bgt.worlds.own import own_ratings
from hushstream.replay.studies.bgt.worlds.ratings import RatingWorld, filmtrust, ml_100k, tastes
from hushstream.replay.study import Study


def _summary(world: RatingWorld) -> Summary:
    features = world.features.shape[1]
    return {"users": world.user_count, "items": world.item_count, "ratings": len(world.users), "features": features}


def _films(folder: Path) -> Summary:
    return _summary(ml_100k(data_dir=str(folder)))


def _simulated(folder: Path) -> Summary:
    return _summary(tastes())


ML_RATINGS = replace(
    ML_100K,
    name="ml-ratings",
    description="MovieLens-100K as ratings on users' devices, with genres and years of films",
    note="The same files as ml-100k; `replay bgt` accepts that name, too.",
    summarise=_films,
)

TASTES = simulated_dataset(
    "tastes",
    "Simulated ratings of users with offsets and tastes",
    _simulated,
    page="https://arxiv.org/abs/2412.05564",
)


EXPERIMENTS = (
    Experiment(table.NAME, table.TITLE, table.run, (Picture(table.TITLE, plots.draw_table),)),
    Experiment(
        three_slots.NAME, three_slots.TITLE, three_slots.run, (Picture(three_slots.TITLE, plots.draw_three_slots),)
    ),
    Experiment(schedules.NAME, schedules.TITLE, schedules.run, (Picture(schedules.TITLE, plots.draw_schedules),)),
    Experiment(
        three_slots.LOST_NAME,
        three_slots.LOST_TITLE,
        three_slots.run_lost,
        (Picture(three_slots.LOST_TITLE, plots.draw_lost),),
    ),
    Experiment(poisoning.NAME, poisoning.TITLE, poisoning.run, (Picture(poisoning.TITLE, plots.draw_poisoning),)),
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: the planner as published against three slots a user, on FilmTrust."""
    world, rounds, seeds = ("tastes", 40, (0,)) if scale.quick else ("filmtrust", ROUNDS, (0, 1, 2))
    data = scale.data_dir
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


STUDY = Study(
    system="bgt",
    options=BgtOptions,
    flags={"epsilon": "--epsilon"},
    dataset="filmtrust",
    play=run_bgt,
    **forms(present),
    worlds={"filmtrust": filmtrust, "ml-ratings": ml_100k, "tastes": tastes, "own-ratings": own_ratings},
    own_table="own-ratings",
    datasets=(ML_RATINGS, TASTES),
    plays=lambda made: made is RatingWorld,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    audits=rows,
    audit_config=audit_config,
    bench=bgt_rows,
    stream_bench=bgt_stream_rows,
)
