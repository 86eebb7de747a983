"""The studies of PDOL, as the catalogue finds them."""

from __future__ import annotations

from hushstream.replay.report.replayed import forms
from hushstream.replay.studies.pdol.audits.configured import audit_config
from hushstream.replay.studies.pdol.audits.rows import rows
from hushstream.replay.studies.pdol.bench.compute import pdol_rows
from hushstream.replay.studies.pdol.bench.stream import pdol_stream_rows
from hushstream.replay.studies.pdol.datasets import ML_CLICKS, SPARSE_SYNTHETIC, TMC_BINARY
from hushstream.replay.studies.pdol.experiments.catalogue import EXPERIMENTS
from hushstream.replay.studies.pdol.experiments.paper_line import paper_line
from hushstream.replay.studies.pdol.report import present
from hushstream.replay.studies.pdol.run import PdolOptions, run_pdol
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import ml_clicks, own_records, sparse_synthetic, tmc_binary
from hushstream.replay.study import Study

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
