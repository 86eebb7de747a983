"""The figures and tables of PDOL."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.studies.pdol.experiments import figures as pdol_figures
from hushstream.replay.studies.pdol.experiments import plots as pdol_plots
from hushstream.replay.studies.pdol.experiments import sharing as pdol_sharing

EXPERIMENTS = (
    Experiment(
        pdol_figures.EPSILON,
        pdol_figures.TITLES[pdol_figures.EPSILON],
        lambda scale, progress: pdol_figures.epsilon(scale.quick, progress, scale.data_dir),
        (Picture("", "The paper's form against the epsilon that it claims", pdol_plots.draw_epsilon),),
    ),
    Experiment(
        pdol_figures.TOPOLOGY,
        pdol_figures.TITLES[pdol_figures.TOPOLOGY],
        lambda scale, progress: pdol_figures.topology(scale.quick, progress, scale.data_dir),
        (Picture("", "The paper's form on four graphs", pdol_plots.draw_topology),),
    ),
    Experiment(
        pdol_figures.SPARSITY,
        pdol_figures.TITLES[pdol_figures.SPARSITY],
        lambda scale, progress: pdol_figures.sparsity(scale.quick, progress, scale.data_dir),
        (Picture("", "The paper's form: sparsity against accuracy", pdol_plots.draw_sparsity),),
    ),
    Experiment(
        pdol_figures.COUNT,
        pdol_figures.TITLES[pdol_figures.COUNT],
        lambda scale, progress: pdol_figures.nodes(scale.quick, progress, scale.data_dir),
        (Picture("", "The paper's form against the number of nodes", pdol_plots.draw_nodes),),
    ),
    Experiment(
        pdol_sharing.SHARING,
        pdol_sharing.SHARING_TITLE,
        lambda scale, progress: pdol_sharing.sharing(scale.quick, progress, scale.data_dir),
        (Picture("", "When private sharing pays", pdol_plots.draw_sharing),),
    ),
    Experiment(
        pdol_sharing.FORMS,
        pdol_sharing.FORMS_TITLE,
        lambda scale, progress: pdol_sharing.forms(scale.quick, progress, scale.data_dir),
        (Picture("", "Ways to add noise at equal epsilon", pdol_plots.draw_forms),),
    ),
)
