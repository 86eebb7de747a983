"""The stream rows of P-DAP measure what they name, on real processes; how fast this machine is is not asked."""

import math

import pytest

from hushstream.replay.studies.pdap.bench import pdap_stream_rows

pytestmark = pytest.mark.process


def test_every_figure_is_a_number_above_zero():
    rows = pdap_stream_rows(lambda text: None, 1, contexts=4_000)
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.unit for row in rows] == ["contexts/s", "contexts/CPU s"]
