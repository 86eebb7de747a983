"""Declares PDOL's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hushstream.replay.datasets.builtin import ML_100K, TMC2007, simulated_dataset
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.experiments.rows import Row
from hushstream.replay.experiments.systems import NAME, Paper, foretold_worlds, sound_epsilon
from hushstream.replay.studies.pdol.audits import audit_config, rows
from hushstream.replay.studies.pdol.experiments import (
    EXPERIMENTS,
    NODES,
    SOURCE,
    as_printed,
    foretold,
    gossip_config,
    play_gossip,
    run_sharing,
    sharing_config,
    step_counter,
    stream_of,
)
from hushstream.replay.studies.pdol.play import alone_labels, play
from hushstream.replay.studies.pdol.run import PdolOptions, run_pdol
from hushstream.replay.studies.pdol.worlds import RecordStream, load_records, ml_clicks, sparse_synthetic, tmc_binary
from hushstream.replay.study import Progress, Study
from hushstream.systems.pdol.algorithm.gossip import gossip_guarantee
from hushstream.systems.pdol.guarantee import epoch_guarantee

TMC_BINARY = replace(
    TMC2007,
    name="tmc-binary",
    description="TMC2007-500 as labelled records of nodes: one label against the rest",
    note="The files of tmc2007.",
)

ML_CLICKS = replace(
    ML_100K,
    name="ml-clicks",
    description="MovieLens-100K as labelled records of nodes: was a film liked?",
    note="The files of ml-100k.",
)

SPARSE_SYNTHETIC = simulated_dataset(
    "sparse-synthetic",
    "Simulated sparse records with noisy labels of one linear rule",
    page="https://arxiv.org/abs/1505.06556",
)


CLAIM = Paper(
    system="pdol",
    source=SOURCE,
    claimed_epsilon=8.0,
    claimed_as="δ 0, replace-one; this ε is our choice, its Figures 3 and 4 use 0.1",
    claimed_by="ours",
    audit="pdol-paper",
    fails="its noise covers a record's own round t. The record moves gradients of all later rounds too, up to T: "
    "ε(1 + (T - t)/2). Ours lets a record into one leaf, read by no later one",
    protects="one record",
    protects_here="one record",
    printed_in_paper="",
    measure="correct predictions",
    better="more is better",
    local_only_is="each node apart",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: gossip of noised weights as printed, against counters of gradients."""
    seeds = range(1) if scale.quick else range(10)
    streams = [stream_of(scale, seed) for seed in seeds]
    gossip = [gossip_config(stream, CLAIM.claimed_epsilon) for stream in streams]
    true = gossip_guarantee(gossip[0])
    counters = [sharing_config(stream, sound_epsilon(CLAIM.claimed_epsilon, true)) for stream in streams]
    step = step_counter(progress, len(streams))
    printed, reached, alone = [], [], []
    for seed, stream in enumerate(streams):
        step(f"{NAME}, pdol")
        printed.append(play_gossip(stream, gossip[seed], seed, as_printed(gossip[seed])).accuracy.whole)
        reached.append(play(stream, counters[seed], seed).released.whole)
        alone.append(float((alone_labels(stream) == stream.rows.labels).mean()))
    return CLAIM.row(
        f"{streams[0].name}, {NODES} nodes, {len(streams[0]):,} records; ours: the released model",
        true,
        epoch_guarantee(counters[0]),
        reimplemented=printed,
        reached=reached,
        local_only=alone,
        constant=[stream.constant for stream in streams],
        random=[0.5] * len(streams),
    )


STUDY = Study(
    system="pdol",
    options=PdolOptions,
    dataset="tmc-binary",
    play=run_pdol,
    worlds={
        "tmc-binary": tmc_binary,
        "sparse-synthetic": sparse_synthetic,
        "ml-clicks": ml_clicks,
        "own-records": load_records,
    },
    own_table="own-records",
    datasets=(TMC_BINARY, ML_CLICKS, SPARSE_SYNTHETIC),
    plays=lambda made: made is RecordStream,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_sharing,
    audits=rows,
    audit_config=audit_config,
)
