"""The studies of collaborative bandits, as the catalogue finds them."""

from __future__ import annotations

from typing import Any

from hushstream.replay.report.replayed import forms
from hushstream.replay.studies.colin.audits import rows
from hushstream.replay.studies.colin.audits.configured import audit_config
from hushstream.replay.studies.colin.bench.compute import collaborative_rows
from hushstream.replay.studies.colin.datasets import COLIN
from hushstream.replay.studies.colin.experiments.catalogue import EXPERIMENTS
from hushstream.replay.studies.colin.experiments.paper_line import paper_line
from hushstream.replay.studies.colin.report import present
from hushstream.replay.studies.colin.run import CollaborativeOptions, run_collaborative
from hushstream.replay.studies.colin.samples import sample
from hushstream.replay.studies.colin.worlds.lastfm import lastfm
from hushstream.replay.studies.colin.worlds.uniform import colin
from hushstream.replay.study import Study


def _plays(made: Any) -> bool:
    """Whether it is a class of worlds of related users."""
    return hasattr(made, "relation")


STUDY = Study(
    system="colin",
    options=CollaborativeOptions,
    flags={"rounds": "--rounds"},
    dataset="colin",
    play=run_collaborative,
    **forms(present),
    worlds={"colin": colin, "lastfm": lastfm},
    datasets=(COLIN,),
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    audits=rows.rows,
    audit_config=audit_config,
    bench=collaborative_rows,
    sample=sample,
)
