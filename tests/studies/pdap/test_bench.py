"""The rows of P-DAP measure what they name, in this thread; how fast this machine is is not asked."""

import math

import numpy as np
import pytest

from hushstream.replay.studies.pdap import bench as bench


@pytest.fixture(scope="module")
def rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "WARM", 1_000)
        patch.setattr(bench, "EVENTS", 512)
        return bench.pdap_rows(lambda text: None, rounds=1)


def test_every_figure_is_a_number_above_zero(rows):
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.unit for row in rows] == ["events/CPU s"] * 3 + ["CPU s", "cells"]
    assert [row.target for row in rows] == ["at least 160000", "at least 110000", "", "", ""]


def test_contexts_are_answered_one_at_a_time_as_in_a_batch(monkeypatch):
    monkeypatch.setattr(bench, "WARM", 1_000)
    deployment = bench._Deployment(0)
    contexts = deployment.draws.random((50, bench.DIMENSION)).astype(np.float32)
    asked = contexts, deployment.users[:50], deployment.events[:50]
    alone, together = deployment.one_by_one(*asked), deployment.serving.choose(*asked)
    for name in ("arms", "propensities", "cells", "arrivals", "tickets"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    assert len(set(together.arms.tolist())) > 10
