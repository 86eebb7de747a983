"""The studies of BGTplanner, as the catalogue finds them."""

from __future__ import annotations

from hushstream.replay.report.replayed import forms
from hushstream.replay.studies.bgt.audits.configured import audit_config
from hushstream.replay.studies.bgt.audits.rows import rows
from hushstream.replay.studies.bgt.bench.compute import bgt_rows
from hushstream.replay.studies.bgt.bench.stream import bgt_stream_rows
from hushstream.replay.studies.bgt.datasets import ML_RATINGS, TASTES
from hushstream.replay.studies.bgt.experiments.catalogue import EXPERIMENTS
from hushstream.replay.studies.bgt.experiments.paper_line import paper_line
from hushstream.replay.studies.bgt.report import present
from hushstream.replay.studies.bgt.run import BgtOptions, run_bgt
from hushstream.replay.studies.bgt.worlds.own import own_ratings
from hushstream.replay.studies.bgt.worlds.ratings import RatingWorld, filmtrust, ml_100k, tastes
from hushstream.replay.study import Study

STUDY = Study(
    system="bgt",
    options=BgtOptions,
    flags={"epsilon": "--epsilon"},
    dataset="filmtrust",
    play=run_bgt,
    **forms(present),
    worlds={"filmtrust": filmtrust, "ml-ratings": ml_100k, "tastes": tastes, "own-ratings": own_ratings},
    own_table="own-ratings",
    datasets=(ML_RATINGS, TASTES),
    plays=lambda made: made is RatingWorld,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    audits=rows,
    audit_config=audit_config,
    bench=bgt_rows,
    stream_bench=bgt_stream_rows,
)
