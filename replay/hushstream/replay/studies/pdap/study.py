"""Declares P-DAP's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hushstream.replay.datasets.builtin import ML_100K, simulated_dataset
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.experiments.rows import Row
from hushstream.replay.experiments.systems import NAME, Paper, foretold_worlds, sound_epsilon
from hushstream.replay.runners.to_end import play_seeds
from hushstream.replay.studies.pdap.audits import audit_config, rows
from hushstream.replay.studies.pdap.experiments import (
    CONTROL,
    EXPERIMENTS,
    PaperTask,
    foretold,
    paper_guarantee,
    play_paper,
    run_sharing,
)
from hushstream.replay.studies.pdap.own import own_vendors
from hushstream.replay.studies.pdap.play import SOURCE, Task, guarantee_of, play, without_learning
from hushstream.replay.studies.pdap.run import PdapOptions, run_pdap
from hushstream.replay.studies.pdap.worlds import ml_vendors, vendors
from hushstream.replay.study import Progress, Study

VENDORS = simulated_dataset(
    "vendors",
    "Simulated vendors with items of their own, specialised or alike, stationary or drifting",
    page="https://arxiv.org/abs/1509.00181",
)

FILM_VENDORS = replace(
    ML_100K,
    name="ml-vendors",
    description="MovieLens-100K with its films divided among vendors; clicks are those of a fitted model",
    note="The files of ml-100k.",
)


def _plays(made: Any) -> bool:
    """Whether an object is a class of worlds of vendors."""
    return hasattr(made, "arrivals") and hasattr(made, "means")


CLAIM = Paper(
    system="pdap",
    source=SOURCE,
    claimed_epsilon=1.0,
    claimed_as="δ 0, replace-one; its largest",
    audit="pdap-paper",
    fails="means of exact clicks decide what is shown. So one click can change it for sure. Ours decides by noised sums"
    " alone",
    protects="context features, neighbours' repositories",
    protects_here="one reward alone",
    printed_in_paper="82.12 on unpublished data (Table III, N = 50,000)",
    measure="answers clicked, exploration included, %",
    better="more is better",
    local_only_is="vendors alone, exact clicks",
    reading="literally, exact means decide (Algorithm 1, line 16; Algorithm 2, line 8). The proof of its Theorem 5 "
    "assumes noised ones; then this attack fails",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: P-DAP as printed against sums of disjoint blocks, over all answers of a run."""
    contexts, arms, seeds = (3_000, 50, range(1)) if scale.quick else (50_000, 200, range(10))
    true = paper_guarantee("P-DAP", CLAIM.claimed_epsilon).under_key(reproducible=True)
    printed = PaperTask("P-DAP", CLAIM.claimed_epsilon, 0, (contexts,), 0, arms)
    blocks = Task("blocks", sound_epsilon(CLAIM.claimed_epsilon, true), contexts, 0, options=(("arms", arms),))
    apart = replace(blocks, form="alone")
    theirs = play_seeds(play_paper, [printed], seeds, NAME, progress)[printed]
    ours = play_seeds(play, [blocks, apart], seeds, NAME, progress)
    trivial = play_seeds(without_learning, [apart], seeds, NAME, progress)[apart]
    sound = guarantee_of(blocks)
    assert sound is not None
    return CLAIM.row(
        f"specialised vendors, 4 x {arms:,} items, {contexts:,} contexts; its G1 to G3 times {CONTROL:g}",
        true,
        sound,
        reimplemented=[100 * one[contexts] for one in theirs],
        reached=[100 * one.online[contexts] for one in ours[blocks]],
        local_only=[100 * one.online[contexts] for one in ours[apart]],
        constant=[100 * best for best, _ in trivial],
        random=[100 * mean for _, mean in trivial],
    )


STUDY = Study(
    system="pdap",
    options=PdapOptions,
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
)
