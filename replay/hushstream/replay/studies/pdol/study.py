"""Declares PDOL's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hushstream.replay.datasets.builtin import ML_100K, TMC2007
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.experiments.experiment import Experiment, Scale
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.report.replayed import forms
from hushstream.replay.studies.pdol.audits.configured import audit_config
from hushstream.replay.studies.pdol.audits.rows import rows
from hushstream.replay.studies.pdol.bench.compute import pdol_rows
from hushstream.replay.studies.pdol.bench.stream import pdol_stream_rows
from hushstream.replay.studies.pdol.experiments import figures, plots, sharing
from hushstream.replay.studies.pdol.experiments.gossip_play import as_printed, play_gossip
from hushstream.replay.studies.pdol.play import isolated_labels, play
from hushstream.replay.studies.pdol.report import present
from hushstream.replay.studies.pdol.run import PdolOptions, run_pdol
from hushstream.replay.studies.pdol.runs import NODES, PAPER, RATE, gossip_config, sharing_config, step_counter
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import ml_clicks, own_records, sparse_synthetic, tmc_binary
from hushstream.replay.study import Study
from hushstream.systems.pdol.guarantee import epoch_guarantee


def _summary(records: RecordStream) -> Summary:
    return {"rows": len(records), "nodes": records.node_count, "dimension": records.dimension}


def _labels(folder: Path) -> Summary:
    return _summary(tmc_binary(data_dir=str(folder)))


def _clicks(folder: Path) -> Summary:
    return _summary(ml_clicks(data_dir=str(folder)))


def _simulated(folder: Path) -> Summary:
    return _summary(sparse_synthetic())


TMC_BINARY = replace(
    TMC2007,
    name="tmc-binary",
    description="TMC2007-500 as labelled records of nodes: one label against the rest",
    note="The files of tmc2007.",
    summarise=_labels,
)

ML_CLICKS = replace(
    ML_100K,
    name="ml-clicks",
    description="MovieLens-100K as labelled records of nodes: was a film liked?",
    note="The files of ml-100k.",
    summarise=_clicks,
)

SPARSE_SYNTHETIC = simulated_dataset(
    "sparse-synthetic",
    "Simulated sparse records with noisy labels of one linear rule",
    _simulated,
    page="https://arxiv.org/abs/1505.06556",
)


EXPERIMENTS = (
    Experiment(
        figures.EPSILON,
        figures.TITLES[figures.EPSILON],
        figures.epsilon,
        (Picture("The paper's form against the epsilon that it claims", plots.draw_epsilon),),
    ),
    Experiment(
        figures.TOPOLOGY,
        figures.TITLES[figures.TOPOLOGY],
        figures.topology,
        (Picture("The paper's form on four graphs", plots.draw_topology),),
    ),
    Experiment(
        figures.SPARSITY,
        figures.TITLES[figures.SPARSITY],
        figures.sparsity,
        (Picture("The paper's form: sparsity against accuracy", plots.draw_sparsity),),
    ),
    Experiment(
        figures.COUNT,
        figures.TITLES[figures.COUNT],
        figures.nodes,
        (Picture("The paper's form against the number of nodes", plots.draw_nodes),),
    ),
    Experiment(
        sharing.SHARING,
        sharing.SHARING_TITLE,
        sharing.sharing,
        (Picture("When private sharing pays", plots.draw_sharing),),
    ),
    Experiment(
        sharing.FORMS,
        sharing.FORMS_TITLE,
        sharing.forms,
        (Picture("Ways to add noise at equal epsilon", plots.draw_forms),),
    ),
)


CLAIMED = 8.0


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: gossip of noised weights as printed, against counters of gradients."""
    seeds = range(1) if scale.quick else range(2)
    streams = [_stream(scale, seed) for seed in seeds]
    gossip = [gossip_config(stream, CLAIMED) for stream in streams]
    true = privacy_columns(epoch_guarantee(gossip[0]))
    counters = [sharing_config(stream, sound_epsilon(CLAIMED, true)) for stream in streams]
    step = step_counter(progress, len(streams))
    reached, sound, alone = [], [], []
    for seed, stream in enumerate(streams):
        step(f"{NAME}, pdol")
        reached.append(play_gossip(stream, gossip[seed], seed, as_printed(gossip[seed])).accuracy.whole)
        sound.append(play(stream, counters[seed], seed).released.whole)
        alone.append(float((isolated_labels(stream, RATE) == stream.rows.labels).mean()))
    return line(
        system="pdol",
        source=PAPER,
        setting=f"{streams[0].name}, {NODES} nodes, {len(streams[0]):,} records",
        measure="correct predictions",
        less_is_better=False,
        claimed=CLAIMED,
        true=true,
        reached=reached,
        sound=privacy_columns(epoch_guarantee(counters[0])),
        sound_reached=sound,
        alone=alone,
        alone_is="nodes apart",
    )


def _stream(scale: Scale, seed: int) -> RecordStream:
    if scale.quick:
        return sparse_synthetic(records=640, dimension=200, features=20, nodes=NODES, seed=seed)
    return tmc_binary(nodes=NODES, seed=seed, data_dir=scale.data_dir)


STUDY = Study(
    system="pdol",
    options=PdolOptions,
    flags={"records": "--records", "epsilon": "--epsilon"},
    dataset="tmc-binary",
    play=run_pdol,
    **forms(present),
    worlds={
        "tmc-binary": tmc_binary,
        "sparse-synthetic": sparse_synthetic,
        "ml-clicks": ml_clicks,
        "own-records": own_records,
    },
    own_table="own-records",
    datasets=(TMC_BINARY, ML_CLICKS, SPARSE_SYNTHETIC),
    plays=lambda made: made is RecordStream,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    audits=rows,
    audit_config=audit_config,
    bench=pdol_rows,
    stream_bench=pdol_stream_rows,
)
