"""Declares P-DAP's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hushstream.replay.datasets.builtin import ML_100K
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.experiments.experiment import Experiment, Scale
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.report.replayed import forms
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.pdap.advice import play_plan
from hushstream.replay.studies.pdap.audits.configured import audit_config
from hushstream.replay.studies.pdap.audits.rows import rows
from hushstream.replay.studies.pdap.bench.compute import pdap_rows
from hushstream.replay.studies.pdap.bench.stream import pdap_stream_rows
from hushstream.replay.studies.pdap.experiments import plots, sharing, table
from hushstream.replay.studies.pdap.experiments.paper import PaperTask, paper_guarantee, play_paper
from hushstream.replay.studies.pdap.play import Task, play
from hushstream.replay.studies.pdap.report import present
from hushstream.replay.studies.pdap.rows import SOURCE, guarantee_of
from hushstream.replay.studies.pdap.run import PdapOptions, run_pdap
from hushstream.replay.studies.pdap.worlds.ml_vendors import ml_vendors
from hushstream.replay.studies.pdap.worlds.own import own_vendors
from hushstream.replay.studies.pdap.worlds.vendors import VendorWorld, vendors
from hushstream.replay.study import Study


def _summary(world: VendorWorld) -> Summary:
    return {"vendors": int(world.owners.max()) + 1, "arms": len(world.owners), "dimension": world.dimension}


def _vendors(folder: Path) -> Summary:
    return _summary(vendors())


def _films(folder: Path) -> Summary:
    return _summary(ml_vendors(data_dir=str(folder)))


VENDORS = simulated_dataset(
    "vendors",
    "Simulated vendors with items of their own, specialised or alike, stationary or drifting",
    _vendors,
    page="https://arxiv.org/abs/1509.00181",
)

FILM_VENDORS = replace(
    ML_100K,
    name="ml-vendors",
    description="MovieLens-100K with its films divided among vendors; clicks are those of a fitted model",
    note="The files of ml-100k.",
    summarise=_films,
)


def _plays(made: Any) -> bool:
    """Whether an object is a class of worlds of vendors."""
    return hasattr(made, "arrivals") and hasattr(made, "means")


EXPERIMENTS = (
    Experiment(
        table.NAME,
        table.TITLE,
        table.run,
        (Picture("The paper's algorithms, its printed figures, and the sound form", plots.draw_table),),
    ),
    Experiment(sharing.NAME, sharing.TITLE, sharing.run, (Picture("When sharing pays", plots.draw_sharing),)),
    Experiment(
        sharing.FORMS_NAME,
        sharing.FORMS_TITLE,
        sharing.run_forms,
        (Picture("Mechanisms at equal epsilon", plots.draw_forms),),
    ),
    Experiment(
        sharing.GP_NAME,
        sharing.GP_TITLE,
        sharing.run_gp,
        (Picture("An epsilon for each level, and a uniform one", plots.draw_gp),),
    ),
)


CLAIMED = 1.0


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: P-DAP as printed against sums of disjoint blocks."""
    contexts, further, arms, seeds = (3_000, 500, 50, (0,)) if scale.quick else (50_000, 5_000, 200, (0, 1))
    true = privacy_columns(paper_guarantee("P-DAP", CLAIMED).under_key(reproducible=True))
    price = sound_epsilon(CLAIMED, true)
    printed = [PaperTask("P-DAP", CLAIMED, contexts, (further,), seed, arms) for seed in seeds]
    blocks = [Task("blocks", price, contexts, seed, options=(("arms", arms),)) for seed in seeds]
    apart = [replace(task, form="alone-exact") for task in blocks]
    theirs = play_all(play_paper, printed, NAME, progress)
    ours = play_all(play, [*blocks, *apart], NAME, progress)
    sound = guarantee_of(blocks[0])
    assert sound is not None
    return line(
        system="pdap",
        source=SOURCE,
        setting=f"specialised vendors, 4 x {arms:,} items, {contexts:,} contexts; paper: {further:,} more",
        measure="answers clicked, %",
        less_is_better=False,
        claimed=CLAIMED,
        true=true,
        reached=[100 * theirs[task][further] for task in printed],
        sound=privacy_columns(sound),
        sound_reached=[100 * ours[task].greedy for task in blocks],
        alone=[100 * ours[task].greedy for task in apart],
        alone_is="vendors apart with exact clicks",
    )


STUDY = Study(
    system="pdap",
    options=PdapOptions,
    flags={"contexts": "--contexts", "first_window": "--first-window", "window_ratio": "--window-ratio"},
    dataset="vendors",
    play=run_pdap,
    **forms(present),
    worlds={"vendors": vendors, "ml-vendors": ml_vendors, "own-vendors": own_vendors},
    own_table="own-vendors",
    datasets=(VENDORS, FILM_VENDORS),
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    audits=rows,
    audit_config=audit_config,
    bench=pdap_rows,
    stream_bench=pdap_stream_rows,
    play_plan=play_plan,
)
