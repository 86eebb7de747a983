"""Declares BGTplanner's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hushstream.replay.datasets.builtin import ML_100K, simulated_dataset
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.experiments.rows import Row
from hushstream.replay.experiments.systems import NAME, Paper, foretold_worlds, sound_epsilon
from hushstream.replay.runners.to_end import play_seeds
from hushstream.replay.studies.bgt.audits import audit_config, rows
from hushstream.replay.studies.bgt.bench import bgt_rows
from hushstream.replay.studies.bgt.experiments import (
    EPSILON,
    EXPERIMENTS,
    ROUNDS,
    PaperTask,
    foretold,
    play_paper,
    row_guarantee,
    run_three_slots,
)
from hushstream.replay.studies.bgt.play import SOURCE, Baseline, BgtOptions, Task, baseline, guarantee_of, play, run_bgt
from hushstream.replay.studies.bgt.worlds import RatingWorld, filmtrust, load_ratings, ml_100k, tastes
from hushstream.replay.study import Progress, Study

ML_RATINGS = replace(
    ML_100K,
    name="ml-ratings",
    description="MovieLens-100K as ratings on users' devices, with genres and years of films",
    note="The same files as ml-100k; `replay bgt` accepts that name, too.",
)

TASTES = simulated_dataset(
    "tastes",
    "Simulated ratings of users with offsets and tastes",
    page="https://arxiv.org/abs/2412.05564",
)


CLAIM = Paper(
    system="bgt",
    source=SOURCE,
    claimed_epsilon=EPSILON,
    claimed_as="δ e^-5 = 0.0067, perhaps meant as 1e-5; its default",
    audit="bgt-paper",
    fails="its noise is scaled for one row, and a user moves several. Item ids are hidden only among pseudo items, the "
    "same real ones each round. Ours covers all that a user's report moves",
    protects="a user's ratings",
    protects_here="a user's ratings",
    printed_in_paper="0.3746 with a graph network (Table II)",
    measure="RMSE, ratings from 0 to 1",
    better="less is better",
    local_only_is="each device's own learner",
    reading="its footnote 2 leaves open how ids are hidden; attacked are the 50 pseudo items of its experiments",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: the planner as published against three slots a user, on FilmTrust."""
    world, rounds, seeds = ("tastes", 40, range(1)) if scale.quick else ("filmtrust", ROUNDS, range(10))
    data, true = scale.data_dir, row_guarantee()
    planner = PaperTask(world, "planner", "gaussian", 0, rounds, data)
    slots = Task(world, sound_epsilon(EPSILON, true), 0, data_dir=data)
    bases = [Baseline(world, name, 0, data) for name in ("alone", "constant", "random")]
    alone, constant, random = (
        [one[0] for one in runs] for runs in play_seeds(baseline, bases, seeds, NAME, progress).values()
    )
    return CLAIM.row(
        f"{world}; planner: {rounds} rounds on a matrix factorisation; ours: three, mixed with own means",
        true,
        guarantee_of(slots),
        reimplemented=[one.rmse for one in play_seeds(play_paper, [planner], seeds, NAME, progress)[planner]],
        reached=[one.rmse for one in play_seeds(play, [slots], seeds, NAME, progress)[slots]],
        local_only=alone,
        constant=constant,
        random=random,
    )


STUDY = Study(
    system="bgt",
    options=BgtOptions,
    dataset="filmtrust",
    play=run_bgt,
    worlds={"filmtrust": filmtrust, "ml-ratings": ml_100k, "tastes": tastes, "own-ratings": load_ratings},
    own_table="own-ratings",
    datasets=(ML_RATINGS, TASTES),
    plays=lambda made: made is RatingWorld,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_three_slots,
    audits=rows,
    audit_config=audit_config,
    bench=bgt_rows,
)
