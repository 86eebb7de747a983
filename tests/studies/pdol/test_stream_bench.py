"""The stream's benchmark runs a real worker over both forms of records; no test asserts a rate."""

import pytest

from hushstream.replay.studies.pdol.bench import StreamSizes, pdol_stream_rows

pytestmark = pytest.mark.process
# Three folds of a worker for each node, whatever fits into one.
SIZES = StreamSizes(dimension=100, features=5, nodes=3, busy=2, slots=64, leaves=96, event_leaves=48)


def test_rows_are_of_both_forms_by_the_clock_and_by_cpu_time():
    rows = pdol_stream_rows(lambda _: None, rounds=1, sizes=SIZES)
    assert [row.unit for row in rows] == ["records/s", "records/CPU s"] * 2
    assert ["columnar" in row.name for row in rows] == [True, True, False, False]
    assert all(row.value > 0 for row in rows)
