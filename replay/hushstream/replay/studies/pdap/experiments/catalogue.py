"""The figures and tables of P-DAP."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.studies.pdap.experiments import plots as pdap_plots
from hushstream.replay.studies.pdap.experiments import sharing as pdap_sharing
from hushstream.replay.studies.pdap.experiments import table as pdap_table

EXPERIMENTS = (
    Experiment(
        pdap_table.NAME,
        pdap_table.TITLE,
        lambda scale, progress: pdap_table.run(scale.quick, progress),
        (Picture("", "The paper's algorithms, its figures, and what holds", pdap_plots.draw_table),),
    ),
    Experiment(
        pdap_sharing.NAME,
        pdap_sharing.TITLE,
        lambda scale, progress: pdap_sharing.run(
            scale.quick, progress, None if scale.data_dir is None else str(scale.data_dir)
        ),
        (Picture("", "When does it pay to share?", pdap_plots.draw_sharing),),
    ),
    Experiment(
        pdap_sharing.FORMS_NAME,
        pdap_sharing.FORMS_TITLE,
        lambda scale, progress: pdap_sharing.run_forms(scale.quick, progress),
        (Picture("", "Mechanisms at equal epsilon", pdap_plots.draw_forms),),
    ),
    Experiment(
        pdap_sharing.GP_NAME,
        pdap_sharing.GP_TITLE,
        lambda scale, progress: pdap_sharing.run_gp(scale.quick, progress),
        (Picture("", "An epsilon for each level, and one for all", pdap_plots.draw_gp),),
    ),
)
