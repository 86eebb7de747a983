"""The rows of P-DAP measure what they name, in this thread; how fast this machine is is not asked."""

from __future__ import annotations

import math

import pytest

from hushstream.replay.studies.pdap import bench


@pytest.fixture(scope="module")
def rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "WARM", 1_000)
        patch.setattr(bench, "EVENTS", 512)
        return bench.pdap_rows(lambda text: None, rounds=1)


def test_every_figure_is_a_number_above_zero(rows):
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.unit for row in rows] == ["events/CPU s", "events/CPU s", "CPU s", "cells"]
    assert [row.target for row in rows] == ["at least 160000", "", "", ""]
