"""The figures and tables of P2B."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.studies.p2b.experiments import curve, drawings, features, forecast, forgetting, modes, paper

EXPERIMENTS = (
    Experiment(
        features.NAME,
        features.TITLE,
        features.run,
        (Picture("The share of the non-private gain that is kept", drawings.draw_features),),
    ),
    Experiment(
        forgetting.NAME,
        forgetting.TITLE,
        forgetting.run,
        (Picture("Reward of each generation, by half-life", drawings.draw_forgetting),),
    ),
    Experiment(
        forecast.NAME,
        forecast.TITLE,
        forecast.run,
        (Picture("Gain by forecast against gain by simulation", drawings.draw_forecast),),
    ),
    Experiment(
        curve.NAME,
        curve.TITLE,
        curve.run,
        (Picture("The price of a slot: epsilon and delta against p", drawings.draw_curve),),
    ),
    Experiment(
        paper.FIG4,
        paper.FIG4_TITLE,
        paper.fig4,
        (Picture("Gain of a warm start against the size of the population", drawings.draw_users),),
    ),
    Experiment(
        paper.FIG5, paper.FIG5_TITLE, paper.fig5, (Picture("Reward falls as contexts grow", drawings.draw_dimensions),)
    ),
    Experiment(
        paper.FIG6,
        paper.FIG6_TITLE,
        paper.fig6,
        (Picture("Accuracy with 20 features and 20 or 40 labels", drawings.draw_lives),),
    ),
    Experiment(
        paper.FIG7,
        paper.FIG7_TITLE,
        paper.fig7,
        (Picture("Click-through on Criteo's log, d = 10, K = 40", drawings.draw_clicks),),
    ),
    Experiment(
        modes.NAME,
        modes.TITLE,
        modes.run,
        (
            Picture("Three releases: reward against the number of codes", drawings.draw_modes),
            Picture("Reports withheld by the thresholds", drawings.draw_withheld, "-withheld"),
        ),
    ),
)
