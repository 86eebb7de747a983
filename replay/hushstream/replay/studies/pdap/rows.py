"""Rows of the P-DAP experiments, and their privacy statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.rows import Row, over_seeds, privacy_columns
from hushstream.replay.studies.pdap.play import Played, Task, configuration, make_world
from hushstream.systems.pdap.promise import RELATION, UNIT, release_guarantee

SOURCE = "Zhou et al., Differentially Private Online Learning for Cloud-Based Video Recommendation (P-DAP)"

EXACT_FORMS = ("exact", "alone-exact", "own-statistics")
"""Forms without noise; they release exact figures, or nothing."""

SETTINGS = (
    f"Unit: {UNIT} ({RELATION}); cells, arms, homes and timing are public. A person with c events has c times epsilon.",
    "Accuracy in %: mean click probability of the greedy choices after learning, over 20,000 fresh contexts; "
    "online: of all answers during learning.",
    "exact, alone-exact and own-statistics have no noise; alone forms show a vendor's own items to its own users,"
    " own-statistics all items.",
    "Worlds and keys are seeded: REPRODUCIBLE, NOT PRIVATE.",
)


def under_seeds(task: Task, seeds: Sequence[int]) -> list[Task]:
    """A task under each seed."""
    return [replace(task, seed=seed) for seed in seeds]


def guarantee_of(task: Task) -> Guarantee | None:
    """The guarantee of a form for one reward; None for forms without noise."""
    if task.form in EXACT_FORMS:
        return None
    config = configuration(task, make_world(task.world, task.options, task.seed))
    return release_guarantee(config).under_key(True)


def row_of(task: Task, played: Mapping[Task, Played], seeds: Sequence[int], **front: Any) -> Row:
    """The greedy and the online accuracy of a task over seeds, in %, and its guarantee."""
    runs = [played[one] for one in under_seeds(task, seeds)]
    last = max(runs[0].online)
    return {
        **front,
        "form": task.form,
        **({} if task.form in EXACT_FORMS else {"epsilon_asked": task.epsilon}),
        "contexts": task.contexts,
        **_column("accuracy", [100 * run.greedy for run in runs]),
        **_column("online", [100 * run.online[last] for run in runs]),
        **{
            f"online_{at}": float(np.mean([100 * run.online[at] for run in runs]))
            for at in runs[0].online
            if at != last
        },
        "cells": float(np.mean([run.cells for run in runs])),
        "pool": float(np.mean([run.pool for run in runs])),
        "seeds": len(runs),
        **_promised(task),
    }


def _column(name: str, values: Sequence[float]) -> Row:
    mean, low, high = over_seeds(np.array(values))
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _promised(task: Task) -> Row:
    guarantee = guarantee_of(task)
    return {} if guarantee is None else privacy_columns(guarantee)
