"""The figures and tables of collaborative bandits."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.studies.colin.experiments import figures as colin_figures
from hushstream.replay.studies.colin.experiments import plots as colin_plots
from hushstream.replay.studies.colin.experiments import table1 as colin_table1

EXPERIMENTS = (
    Experiment(
        colin_table1.NAME,
        colin_table1.TITLE,
        lambda scale, progress: colin_table1.run(scale.quick, progress),
        (Picture("", "Regret by calibration against epsilon", colin_plots.draw_table1),),
    ),
    Experiment(
        colin_figures.FIG1A,
        colin_figures.FIG1A_TITLE,
        lambda scale, progress: colin_figures.fig1a(scale.quick, progress),
        (Picture("", "Regret over time by calibration", colin_plots.draw_regret),),
    ),
    Experiment(
        colin_figures.FIG1B,
        colin_figures.FIG1B_TITLE,
        lambda scale, progress: colin_figures.fig1b(scale.quick, progress),
        (Picture("", "Error of the estimated parameters over time by calibration", colin_plots.draw_error),),
    ),
    Experiment(
        colin_figures.FIG1C,
        colin_figures.FIG1C_TITLE,
        lambda scale, progress: colin_figures.fig1c(scale.quick, progress),
        (Picture("", "Regret against the number of users by calibration", colin_plots.draw_users),),
    ),
    Experiment(
        colin_figures.LASTFM,
        colin_figures.LASTFM_TITLE,
        lambda scale, progress: colin_figures.lastfm(scale.quick, progress, scale.data_dir),
        (Picture("", "Reward on Last.fm by calibration", colin_plots.draw_reward),),
    ),
)
