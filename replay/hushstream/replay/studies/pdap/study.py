"""The studies of P-DAP, as the catalogue finds them."""

from __future__ import annotations

from typing import Any

from hushstream.replay.report.replayed import forms
from hushstream.replay.studies.pdap.advice import play_plan
from hushstream.replay.studies.pdap.audits.configured import audit_config
from hushstream.replay.studies.pdap.audits.rows import rows
from hushstream.replay.studies.pdap.bench.compute import pdap_rows
from hushstream.replay.studies.pdap.bench.stream import pdap_stream_rows
from hushstream.replay.studies.pdap.datasets import FILM_VENDORS, VENDORS
from hushstream.replay.studies.pdap.experiments.catalogue import EXPERIMENTS
from hushstream.replay.studies.pdap.experiments.paper_line import paper_line
from hushstream.replay.studies.pdap.report import present
from hushstream.replay.studies.pdap.run import PdapOptions, run_pdap
from hushstream.replay.studies.pdap.worlds.ml_vendors import ml_vendors
from hushstream.replay.studies.pdap.worlds.own import own_vendors
from hushstream.replay.studies.pdap.worlds.vendors import vendors
from hushstream.replay.study import Study


def _plays(made: Any) -> bool:
    """Whether it is a class of worlds of vendors."""
    return hasattr(made, "arrivals") and hasattr(made, "means")


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
