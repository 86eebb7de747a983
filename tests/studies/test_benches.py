"""The rows of each study's benchmark measure work that is done, under stated names; no test asserts a rate."""

import math

import numpy as np
import pytest

from hushstream.replay.studies.bgt.bench import bgt_stream_rows
from hushstream.replay.studies.pdap import bench
from hushstream.replay.studies.pdap.bench import pdap_rows, pdap_stream_rows
from hushstream.replay.studies.pdol.bench import StreamSizes, pdol_rows, pdol_stream_rows

# Three folds of a worker for each node, whatever fits into one.
SIZES = StreamSizes(dimension=100, features=5, nodes=3, busy=2, slots=64, leaves=96, event_leaves=48)
ROWS = {
    "pdap": (pdap_rows, {}),
    "pdap stream": (pdap_stream_rows, {"contexts": 4_000}),
    "pdol": (pdol_rows, {}),
    "pdol stream": (pdol_stream_rows, {"sizes": SIZES}),
    "bgt stream": (bgt_stream_rows, {"items": 300, "ratings": 20, "sent": 3_000, "short": 5}),
}
UNITS = {
    "pdap": ["events/CPU s"] * 3 + ["CPU s", "cells"],
    "pdap stream": ["contexts/s", "contexts/CPU s"],
    "pdol stream": ["records/s", "records/CPU s"] * 2,
    "bgt stream": ["slots/s", "slots/CPU s"],
}
TARGETS = {
    "pdap": ["at least 160000", "at least 110000", "", "", ""],
    "pdol": ["at least 15000", "at least 30000", "", "", ""],
}


@pytest.mark.process(keep=["pdap", "pdol"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_figures_above_zero_with_their_units_and_targets(name, monkeypatch):
    monkeypatch.setattr(bench, "WARM", 1_000)
    monkeypatch.setattr(bench, "EVENTS", 512)
    measure, sizes = ROWS[name]
    rows = measure(lambda _: None, rounds=1, **sizes)
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.unit for row in rows] == UNITS.get(name, [row.unit for row in rows])
    assert [row.target for row in rows] == TARGETS.get(name, [row.target for row in rows])


def test_contexts_are_answered_one_at_a_time_as_in_a_batch(monkeypatch):
    monkeypatch.setattr(bench, "WARM", 1_000)
    deployment = bench._Deployment(0)
    contexts = deployment.draws.random((50, bench.DIMENSION)).astype(np.float32)
    asked = contexts, deployment.users[:50], deployment.events[:50]
    alone, together = deployment.one_by_one(*asked), deployment.serving.choose(*asked)
    for name in ("arms", "propensities", "cells", "arrivals", "tickets"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    assert len(set(together.arms.tolist())) > 10
