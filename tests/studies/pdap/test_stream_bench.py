"""The stream rows of P-DAP measure what they name, on real processes; how fast this machine is is not asked."""

from __future__ import annotations

import math

import pytest

from hushstream.replay.studies.pdap.bench import Sizes, pdap_stream_rows

pytestmark = pytest.mark.process


def test_every_figure_is_a_number_above_zero_and_windows_close_meanwhile():
    rows = pdap_stream_rows(lambda text: None, 1, Sizes(pairs=4_000, pace=500, seconds=3.0, window=256))
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.unit for row in rows] == ["events/s", "x", "ms", "ms"]
    assert [row.target for row in rows] == ["", "at least 3.5", "", "at most 100"]
    assert "while 0 windows close" not in rows[2].name
