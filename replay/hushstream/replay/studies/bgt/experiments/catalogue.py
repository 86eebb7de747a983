"""The figures and tables of BGTplanner."""

from __future__ import annotations

from collections.abc import Callable

from hushstream.replay.experiments.experiment import Experiment, Scale
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.findings import Findings
from hushstream.replay.progress import Progress
from hushstream.replay.studies.bgt.experiments import plots, poisoning, schedules, table, three_slots

_Play = Callable[[bool, Progress | None, str | None], Findings]


def _scaled(play: _Play) -> Callable[[Scale, Progress | None], Findings]:
    return lambda scale, progress: play(scale.quick, progress, None if scale.data_dir is None else str(scale.data_dir))


EXPERIMENTS = (
    Experiment(
        table.NAME,
        table.TITLE,
        _scaled(table.run),
        (Picture("", table.TITLE, plots.draw_table),),
    ),
    Experiment(
        three_slots.NAME,
        three_slots.TITLE,
        _scaled(three_slots.run),
        (Picture("", three_slots.TITLE, plots.draw_three_slots),),
    ),
    Experiment(
        schedules.NAME,
        schedules.TITLE,
        _scaled(schedules.run),
        (Picture("", schedules.TITLE, plots.draw_schedules),),
    ),
    Experiment(
        three_slots.LOST_NAME,
        three_slots.LOST_TITLE,
        _scaled(three_slots.run_lost),
        (Picture("", three_slots.LOST_TITLE, plots.draw_lost),),
    ),
    Experiment(
        poisoning.NAME,
        poisoning.TITLE,
        _scaled(poisoning.run),
        (Picture("", poisoning.TITLE, plots.draw_poisoning),),
    ),
)
