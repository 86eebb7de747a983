"""The figures and tables of P2B."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.studies.p2b.experiments import curve as p2b_curve
from hushstream.replay.studies.p2b.experiments import drawings
from hushstream.replay.studies.p2b.experiments import features as p2b_features
from hushstream.replay.studies.p2b.experiments import forecast as p2b_forecast
from hushstream.replay.studies.p2b.experiments import forgetting as p2b_forgetting
from hushstream.replay.studies.p2b.experiments import modes as p2b_modes
from hushstream.replay.studies.p2b.experiments import paper as p2b_figures

EXPERIMENTS = (
    Experiment(
        p2b_features.NAME,
        p2b_features.TITLE,
        lambda scale, progress: p2b_features.run(scale.quick, progress, scale.data_dir),
        (Picture("", "The share of the non-private gain that is kept", drawings.draw_features),),
    ),
    Experiment(
        p2b_forgetting.NAME,
        p2b_forgetting.TITLE,
        lambda scale, progress: p2b_forgetting.run(scale.quick, progress),
        (Picture("", "Reward of each generation, by half-life", drawings.draw_forgetting),),
    ),
    Experiment(
        p2b_forecast.NAME,
        p2b_forecast.TITLE,
        lambda scale, progress: p2b_forecast.run(scale.quick, progress),
        (Picture("", "Gain by forecast against gain by simulation", drawings.draw_forecast),),
    ),
    Experiment(
        p2b_curve.NAME,
        p2b_curve.TITLE,
        lambda scale, progress: p2b_curve.run(scale.quick, progress),
        (Picture("", "The price of a slot: epsilon and delta against p", drawings.draw_curve),),
    ),
    Experiment(
        p2b_figures.FIG4,
        p2b_figures.FIG4_TITLE,
        lambda scale, progress: p2b_figures.fig4(scale.quick, progress),
        (Picture("", "Gain of a warm start against the size of the population", drawings.draw_users),),
    ),
    Experiment(
        p2b_figures.FIG5,
        p2b_figures.FIG5_TITLE,
        lambda scale, progress: p2b_figures.fig5(scale.quick, progress),
        (Picture("", "Reward falls as contexts grow", drawings.draw_dimensions),),
    ),
    Experiment(
        p2b_figures.FIG6,
        p2b_figures.FIG6_TITLE,
        lambda scale, progress: p2b_figures.fig6(scale.quick, progress, scale.data_dir),
        (Picture("", "Accuracy with 20 features and 20 or 40 labels", drawings.draw_lives),),
    ),
    Experiment(
        p2b_figures.FIG7,
        p2b_figures.FIG7_TITLE,
        lambda scale, progress: p2b_figures.fig7(scale.quick, progress, scale.data_dir),
        (Picture("", "Click-through on Criteo's log, d = 10, K = 40", drawings.draw_clicks),),
    ),
    Experiment(
        p2b_modes.NAME,
        p2b_modes.TITLE,
        lambda scale, progress: p2b_modes.run(scale.quick, progress),
        (
            Picture("", "Three releases: reward against the number of codes", drawings.draw_modes),
            Picture("-withheld", "Reports withheld by the thresholds", drawings.draw_withheld),
        ),
    ),
)
