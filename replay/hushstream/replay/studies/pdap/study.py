"""Declares P-DAP's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hushstream.replay.datasets.builtin import ML_100K
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.experiments.systems import NAME, foretold_worlds, line, sound_epsilon
from hushstream.replay.runners.to_end import play_seeds
from hushstream.replay.studies.pdap.audits import audit_config, rows
from hushstream.replay.studies.pdap.bench import pdap_rows, pdap_stream_rows
from hushstream.replay.studies.pdap.experiments import (
    EXPERIMENTS,
    PaperTask,
    foretold,
    paper_guarantee,
    play_paper,
    run_sharing,
)
from hushstream.replay.studies.pdap.own import own_vendors
from hushstream.replay.studies.pdap.play import SOURCE, Task, guarantee_of, play
from hushstream.replay.studies.pdap.run import PdapOptions, run_pdap
from hushstream.replay.studies.pdap.worlds import VendorWorld, ml_vendors, vendors
from hushstream.replay.study import Progress, Study


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


CLAIMED = 1.0


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: P-DAP as printed against sums of disjoint blocks."""
    contexts, further, arms, seeds = (3_000, 500, 50, (0,)) if scale.quick else (50_000, 5_000, 200, tuple(range(10)))
    true = privacy_columns(paper_guarantee("P-DAP", CLAIMED).under_key(reproducible=True))
    price = sound_epsilon(CLAIMED, true)
    printed = PaperTask("P-DAP", CLAIMED, contexts, (further,), 0, arms)
    blocks = Task("blocks", price, contexts, 0, options=(("arms", arms),))
    apart = replace(blocks, form="alone")
    theirs = play_seeds(play_paper, [printed], seeds, NAME, progress)[printed]
    ours = play_seeds(play, [blocks, apart], seeds, NAME, progress)
    sound = guarantee_of(blocks)
    assert sound is not None
    return line(
        system="pdap",
        source=SOURCE,
        setting=f"specialised vendors, 4 x {arms:,} items, {contexts:,} contexts; paper: {further:,} more",
        measure="answers clicked, %",
        less_is_better=False,
        claimed=CLAIMED,
        true=true,
        reached=[100 * one[further] for one in theirs],
        sound=privacy_columns(sound),
        sound_reached=[100 * one.greedy for one in ours[blocks]],
        alone=[100 * one.greedy for one in ours[apart]],
        alone_is="vendors alone, with exact clicks",
    )


STUDY = Study(
    system="pdap",
    options=PdapOptions,
    flags={"contexts": "--contexts", "first_window": "--first-window", "window_ratio": "--window-ratio"},
    dataset="vendors",
    play=run_pdap,
    worlds={"vendors": vendors, "ml-vendors": ml_vendors, "own-vendors": own_vendors},
    own_table="own-vendors",
    datasets=(VENDORS, FILM_VENDORS),
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_sharing,
    audits=rows,
    audit_config=audit_config,
    bench=pdap_rows,
    stream_bench=pdap_stream_rows,
)
