"""People's own records: read through a mapping, refused by row and column, never by value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.features.schema import declare
from hushstream.replay.logged.log import LogError
from hushstream.replay.run import options_of, run_with
from hushstream.replay.studies.pdol.run import TRIED
from hushstream.replay.studies.pdol.worlds import load_records, record_mapping
from hushstream.systems.pdol.configuration import UNIT

TABLE = {
    "label": "bought",
    "positive": "yes",
    "bounds": {"age": [0, 100]},
    "categories": {"kind": ["a", "b"]},
    "node": "shop",
    "nodes": ["north", "south"],
}
CSV = "age,kind,shop,bought,extra\n50,a,north,yes,1\n100,b,south,no,2\n500,a,north,no,3\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_becomes_records_at_named_nodes(tmp_path):
    stream = load_records(write(tmp_path, "shop.csv", CSV), record_mapping(TABLE))
    assert (stream.dimension, stream.node_count, stream.refused, stream.public) == (4, 2, 0, False)
    assert stream.nodes.tolist() == [0, 1, 0]
    assert stream.rows.labels.tolist() == [1, -1, -1]
    dense = np.zeros((3, 4))
    for row in range(3):
        part = stream.rows.part(row, row + 1)
        dense[row, part.indices] = part.values / UNIT
    # age 50 of 0..100 is 0; 500 is cut to 1; a category and the constant are 1; rows are scaled to norm 1.
    assert dense[0] == pytest.approx([0, 2**-0.5, 0, 2**-0.5], abs=1e-3)
    assert dense[1] == pytest.approx([3**-0.5, 0, 3**-0.5, 3**-0.5], abs=1e-3)
    assert dense[2] == pytest.approx([3**-0.5, 3**-0.5, 0, 3**-0.5], abs=1e-3)


def test_parquet_gives_the_same_records(tmp_path):
    columns = {"age": [50, 100, 500], "kind": ["a", "b", "a"], "shop": ["north", "south", "north"]}
    pq.write_table(pa.table({**columns, "bought": ["yes", "no", "no"]}), tmp_path / "shop.parquet")
    mapping = record_mapping(TABLE)
    one = load_records(tmp_path / "shop.parquet", mapping)
    two = load_records(write(tmp_path, "shop.csv", CSV), mapping)
    for name in ("indptr", "indices", "values", "labels"):
        assert getattr(one.rows, name).tolist() == getattr(two.rows, name).tolist()


def test_svmlight_is_read_with_its_comments(tmp_path):
    path = write(tmp_path, "few.svm", "# head\n+1 1:0.5 3:2 # a\n\n-1 2:1\n1 3:1\n")
    mapping = record_mapping({"positive": "1", "nodes": 2, "dimension": 3, "public": True})
    stream = load_records(path, mapping)
    assert stream.rows.labels.tolist() == [1, -1, 1]
    assert stream.nodes.tolist() == [0, 1, 0]
    assert stream.rows.part(0, 1).indices.tolist() == [0, 2, 3]
    assert stream.public


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV.replace("50,a", "old,a"), "line 2.*age"),
        (CSV.replace("100,b", "100,z"), "line 3.*kind"),
        (CSV.replace("south", "west"), "line 3.*shop"),
        (CSV.replace("500,a,north,no", "500,a,north,"), "line 4.*bought"),
        (CSV.replace("50,a", "nan,a"), "line 2.*age"),
        (CSV.replace("age", "years"), "age"),
        ("age,kind,shop,bought\n", "no rows"),
    ],
)
def test_a_bad_value_is_named_by_its_place(tmp_path, text, message):
    with pytest.raises(LogError, match=message) as refused:
        load_records(write(tmp_path, "shop.csv", text), record_mapping(TABLE))
    assert "old" not in str(refused.value)
    assert "west" not in str(refused.value)


@pytest.mark.parametrize("line", ["1 4:1", "1 0:1", "1 a:1", "1 1:", "1 1:nan", "1 1:inf", "1 1"])
def test_a_bad_svmlight_line_is_named(tmp_path, line):
    mapping = record_mapping({"positive": "1", "nodes": 2, "dimension": 3})
    with pytest.raises(LogError, match="line 2: expected"):
        load_records(write(tmp_path, "bad.svm", f"1 1:1\n{line}\n"), mapping)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown key colour"),
        ({"positive": None}, "positive: expected a text"),
        ({"nodes": 3}, "names of the nodes"),
        ({"nodes": 0}, "nodes: expected 1 to"),
        ({"nodes": ["a", "a"]}, "different names"),
        ({"bounds": {"age": [3, 3]}}, "low below high"),
        ({"bounds": {"age": [0, float("inf")]}}, "finite"),
        ({"categories": {"age": ["a"]}}, "got both for age"),
        ({"public": "yes"}, "true or false"),
    ],
)
def test_a_bad_mapping_is_refused(change, message):
    with pytest.raises(LogError, match=message):
        record_mapping({**TABLE, **change})


def test_a_mapping_that_does_not_fit_the_file_is_refused(tmp_path):
    svm = record_mapping({"positive": "1", "nodes": 2, "dimension": 3})
    with pytest.raises(LogError, match="expected a mapping with label"):
        load_records(write(tmp_path, "shop.csv", CSV), svm)
    with pytest.raises(LogError, match="expected a mapping with dimension"):
        load_records(write(tmp_path, "few.svm", "1 1:1\n"), record_mapping(TABLE))
    with pytest.raises(LogError, match="missing key positive"):
        record_mapping({"nodes": 2})


NAMED = {
    **{key: TABLE[key] for key in TABLE if key not in ("bounds", "categories")},
    "features": {"age": {"kind": "number", "range": [0, 100]}, "kind": {"kind": "category", "vocabulary": ["a", "b"]}},
}


def test_columns_of_declared_features_become_the_cells_of_their_blocks(tmp_path):
    text = CSV + ",z,south,yes,4\n"
    stream = load_records(write(tmp_path, "shop.csv", text), NAMED)
    schema = declare(NAMED["features"])
    assert stream.dimension == schema.cells + 1
    told = [{"age": 50, "kind": "a"}, {"age": 100, "kind": "b"}, {"age": 500, "kind": "a"}, {"kind": "z"}]
    for row, values in enumerate(told):
        part = stream.rows.part(row, row + 1)
        blocks = schema.blocks(schema.read(schema.encode(values).row))
        dense = np.zeros(schema.cells)
        np.add.at(dense, blocks.cells[0], blocks.values[0])
        # Before the constant, all that is not 0, in proportion.
        found = np.zeros(schema.cells + 1)
        found[part.indices] = part.values / UNIT
        assert found[:-1] / np.linalg.norm(found[:-1]) == pytest.approx(dense / np.linalg.norm(dense), abs=2e-3)
    assert stream.nodes.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": {"age": [0, 1]}}, "bounds: expected none beside declared features"),
        ({"features": {"age": {"kind": "number"}}}, "features.age"),
        ({"features": {"colour": {"kind": "boolean"}}}, "colour"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(LogError, match=message):
        load_records(write(tmp_path, "shop.csv", CSV), {**NAMED, **changes})


# Whether sharing pays, said from a run of records.


@pytest.mark.parametrize("prediction", ["released", "node"])
def test_where_no_epsilon_helps_that_is_said_up_to_the_largest_that_is_allowed(prediction):
    """A few records of many features: nothing that is shared can be better than chance."""
    config = {"deployment": "few", "release": {"window_units": 20, "horizon": 8}, "prediction": {"place": prediction}}
    world = {"records": 240, "dimension": 60, "nodes": 4}
    played = run_with(
        options_of(
            "pdol", {"runner": "direct", "config": config, "dataset": "sparse-synthetic", "seed": 3, "world": world}
        )
    )
    assert max(TRIED) == LARGEST_EPSILON
    assert played.payoff.otherwise == "keep apart, as no epsilon up to 20 was shown to pay on these records"
