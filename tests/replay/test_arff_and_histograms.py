"""Reading sparse ARFF strictly, and rounding weights to histograms on the grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.replay.worlds.arff import read_sparse_binary
from hushstream.replay.worlds.histograms import on_grid
from hushstream.replay.worlds.world import WorldError

HEADER = """@relation made-up

@attribute red {0,1}
@attribute 'dark blue' {0, 1}
@ATTRIBUTE green {0,1}
@data
"""


def _read(tmp_path, text: str, encoding: str = "utf-8"):
    path = tmp_path / "table.arff"
    path.write_bytes(text.encode(encoding))
    return read_sparse_binary(path)


def test_rows_are_read_with_comments_blank_rows_and_a_byte_order_mark(tmp_path):
    table = _read(tmp_path, "% note\n" + HEADER + "{0 1,2 1}\n\n{}\n% more\n{1 0,2 1}\n", "utf-8-sig")
    assert table.names == ("red", "dark blue", "green")
    assert table.values.tolist() == [[True, False, True], [False] * 3, [False, False, True]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "{0 1\n", "line 7: expected a sparse row"),
        (HEADER + "{}\n1,0,1\n", "line 8: expected a sparse row"),
        (HEADER + "{0 2}\n", "line 7: expected a sparse row"),
        (HEADER + "{-1 1}\n", "line 7: expected a sparse row"),
        (HEADER + "{3 1}\n", "line 7: expected indices below 3, got 3"),
        (HEADER + "{1 1,0 1}\n", "line 7: expected indices in increasing order"),
        (HEADER + "{1 1,1 1}\n", "line 7: expected indices in increasing order"),
        (HEADER, "expected attributes and rows, got 3 and 0"),
        ("", "expected attributes and rows, got 0 and 0"),
        ("@attribute size numeric\n@data\n{}\n", r"line 1: expected '@attribute NAME \{0,1\}'"),
        ("@attribute a {0,1}\n@attribute a {0,1}\n@data\n{}\n", "an attribute name occurs twice"),
    ],
)
def test_what_is_not_the_format_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(WorldError, match=message):
        _read(tmp_path, text)


def test_a_missing_file_and_other_encodings_are_refused(tmp_path):
    with pytest.raises(WorldError, match="expected a readable UTF-8 file"):
        read_sparse_binary(tmp_path / "absent.arff")
    with pytest.raises(WorldError, match="expected a readable UTF-8 file"):
        _read(tmp_path, HEADER + "{0 1}\n", "utf-16")


@given(
    st.integers(1, 3),
    st.lists(st.lists(st.floats(0, 1e6), min_size=4, max_size=4), min_size=1, max_size=5),
)
def test_histograms_lie_on_the_grid_within_one_unit_of_the_exact_shares(digits, weights):
    units = 10**digits
    table = np.array(weights)
    counts = np.round(on_grid(table, digits).astype(np.float64) * units)
    assert (counts.sum(axis=1) == units).all()
    assert (counts >= 0).all()
    totals = table.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, table / np.where(totals > 0, totals, 1.0), 0.25)
    assert (np.abs(counts - shares * units) < 1.0 + 1e-6).all()


def test_equal_remainders_go_to_the_lower_bins_and_nothing_becomes_even():
    histogram = on_grid(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), 1)
    assert np.allclose(histogram, [[0.4, 0.3, 0.3], [0.4, 0.3, 0.3]])
