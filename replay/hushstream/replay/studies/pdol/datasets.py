"""The datasets of PDOL: its worlds, two of them made of other datasets' files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hushstream.replay.datasets.builtin import ML_100K, TMC2007
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import ml_clicks, sparse_synthetic, tmc_binary


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
