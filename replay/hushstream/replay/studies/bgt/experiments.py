"""The figures and tables of BGTplanner."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.studies.bgt import plots, three_slots

EXPERIMENTS = (
    Experiment(
        three_slots.NAME,
        three_slots.TITLE,
        lambda scale, progress: three_slots.run(
            scale.quick, progress, None if scale.data_dir is None else str(scale.data_dir)
        ),
        (Picture("", three_slots.TITLE, 11.0, 4.4, plots.draw_three_slots),),
    ),
    Experiment(
        three_slots.LOST_NAME,
        three_slots.LOST_TITLE,
        lambda scale, progress: three_slots.run_lost(
            scale.quick, progress, None if scale.data_dir is None else str(scale.data_dir)
        ),
        (Picture("", three_slots.LOST_TITLE, 6.5, 3.6, plots.draw_lost, 1),),
    ),
)
