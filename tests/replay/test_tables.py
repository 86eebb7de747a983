"""Tables of logs as users bring them: values, encodings, times and mappings, refused by line and column."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.values import ConfigurationError
from hushstream.features.checks import without_marks
from hushstream.features.schema import declare
from hushstream.replay.logged.drafts.deployment import shop_of_log
from hushstream.replay.logged.drafts.mapping import draft_mapping
from hushstream.replay.logged.log import LogError, LoggedDataset, concatenate
from hushstream.replay.logged.mapping import table_mapping
from hushstream.replay.logged.table import source_of, stream_table

MAPPING = """
user: who
timestamp: at
features: {warm: {kind: number, range: [0, 1], nodes: 2}, wet: {kind: number, range: [0, 1], nodes: 2}}
arm: shown
arms: [tea, milk, water]
reward: liked
propensity: chance
eligible: offered
position: place
"""
ONE_NUMBER = {"shop": {"kind": "number", "range": [0, 1]}}
X = {"features": {"x": {"kind": "number", "range": [0, 1]}}, "arm": "a", "arms": 2, "reward": "r"}
HEADER = "place,who,at,warm,wet,shown,liked,chance,offered\n"
ROWS = (
    "1,ann,2024-05-01T10:00:00Z,0.25,0.75,tea,1,0.5,tea|milk\n"
    "2,bob,2024-05-01T12:00:00.250+02:00,1,0,water,0,0.25,water\n"
    "3,ann,2024-05-01 10:00:01,5e-1,0.5,milk,0.5,1,tea|milk|water\n"
)


@pytest.fixture
def mapping(tmp_path):
    path = tmp_path / "mapping.yaml"
    path.write_text(MAPPING, encoding="utf-8")
    return path


def _csv(tmp_path, text: str, encoding: str = "utf-8"):
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode(encoding))
    return path


def _whole(path, mapping) -> LoggedDataset:
    return concatenate(list(stream_table(path, mapping)))


def _check_content(log) -> None:
    assert len(log) == 3
    assert log.arms == 3
    assert log.arm_names == ("tea", "milk", "water")
    assert log.users.tolist() == ["ann", "bob", "ann"]
    first = int(datetime(2024, 5, 1, 10, tzinfo=UTC).timestamp() * 1000)
    assert log.timestamps_ms.tolist() == [first, first + 250, first + 1000]
    assert log.contexts.dtype == np.float32
    assert log.visits.tolist() == [{"warm": 0.25, "wet": 0.75}, {"warm": 1.0, "wet": 0.0}, {"warm": 0.5, "wet": 0.5}]
    assert log.contexts[:, 1].tolist() == pytest.approx([0.25, 1.0, 0.5], abs=1e-4)
    assert log.chosen.tolist() == [0, 2, 1]
    assert log.rewards.tolist() == [1.0, 0.0, 0.5]
    assert log.propensities.tolist() == [0.5, 0.25, 1.0]
    assert log.eligible.tolist() == [[True, True, False], [False, False, True], [True, True, True]]
    assert log.positions.tolist() == [1, 2, 3]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_csv_is_read_with_and_without_a_byte_order_mark(tmp_path, mapping, encoding):
    _check_content(_whole(_csv(tmp_path, HEADER + ROWS, encoding), mapping))


def test_a_parquet_file_holds_the_same_log(tmp_path, mapping):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    at = [datetime(2024, 5, 1, 10, 0, second, part, tzinfo=UTC) for second, part in ((0, 0), (0, 250_000), (1, 0))]
    table = pyarrow.table(
        {
            "at": pyarrow.array(at, pyarrow.timestamp("us", tz="UTC")),
            "who": ["ann", "bob", "ann"],
            "wet": pyarrow.array([0.75, 0.0, 0.5], pyarrow.float32()),
            "warm": [0.25, 1.0, 0.5],
            "shown": pyarrow.array(["tea", "water", "milk"]).dictionary_encode(),
            "liked": [1.0, 0.0, 0.5],
            "chance": [0.5, 0.25, 1.0],
            "offered": [["tea", "milk"], ["water"], ["tea", "milk", "water"]],
            "place": [1, 2, 3],
            "unused": [None, None, None],
        }
    )
    path = tmp_path / "log.parquet"
    parquet.write_table(table, path)
    _check_content(_whole(path, mapping))
    pieces = list(stream_table(path, mapping, chunk_rows=2))
    assert [len(piece) for piece in pieces] == [2, 1]
    half = f"SELECT * EXCLUDE shown, shown FROM '{path}'"
    _check_content(_whole(f"duckdb:{half} WHERE place < 2 UNION ALL ({half} WHERE place > 1 ORDER BY place)", mapping))


def test_pieces_of_any_size_join_to_the_whole(tmp_path, mapping):
    path = _csv(tmp_path, HEADER + ROWS * 10)
    whole = _whole(path, mapping)
    for chunk_rows in (1, 7, 30, 31):
        pieces = list(stream_table(path, mapping, chunk_rows=chunk_rows))
        assert max(len(piece) for piece in pieces) <= chunk_rows
        assert np.array_equal(np.concatenate([piece.chosen for piece in pieces]), whole.chosen)
        assert np.array_equal(np.concatenate([piece.contexts for piece in pieces]), whole.contexts)


def test_user_and_time_may_be_left_out_and_arms_may_be_numbers(tmp_path):
    path = _csv(tmp_path, "x;a;r\n0.5;1;0\n0.25;0;1\n")
    mapping = table_mapping({**X, "delimiter": ";"})
    pieces = list(stream_table(path, mapping, chunk_rows=1))
    assert [piece.users[0] for piece in pieces] == ["0", "1"]
    assert [int(piece.timestamps_ms[0]) for piece in pieces] == [0, 1]
    assert [int(piece.chosen[0]) for piece in pieces] == [1, 0]
    assert pieces[0].propensities is None


@pytest.mark.parametrize(("unit", "text", "milliseconds"), [("s", "1.5", 1500), ("ms", "1500", 1500)])
def test_times_may_be_counts(tmp_path, unit, text, milliseconds):
    path = _csv(tmp_path, f"t,x,a,r\n{text},1,0,0\n")
    keys = {**X, "timestamp": "t", "timestamp_unit": unit}
    assert _whole(path, table_mapping(keys)).timestamps_ms.tolist() == [milliseconds]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("warm", "hot", "line 3, column warm: expected a number such as 1234.5, .*, got another value"),
        ("liked", "1.01", r"line 3, column liked: expected a reward from 0 to 1, .*, got another number"),
        ("liked", "-1", "line 3, column liked: expected a reward from 0 to 1"),
        ("chance", "0", r"line 3, column chance: expected a probability from 1e-09 to 1"),
        ("shown", "wine", "line 3, column shown: expected one of the 3 arms"),
        ("offered", "tea", "line 3: the arm shown is not among the eligible ones"),
        ("offered", "", "line 3, column offered: expected at least one arm, got nothing"),
        ("offered", "milk|beer", "line 3, column offered: expected one of the 3 arms"),
        ("at", "yesterday", "line 3, column at: expected an ISO 8601 time such as"),
        ("place", "1.5", "line 3, column place: expected an integer, got a fraction"),
    ],
)
def test_a_wrong_value_is_refused_by_line_and_column_without_being_shown(tmp_path, mapping, column, value, message):
    names = HEADER.strip().split(",")
    good, target = ROWS.splitlines()[0], ROWS.splitlines()[2].split(",")
    target[names.index(column)] = value
    path = _csv(tmp_path, HEADER + good + "\n" + ",".join(target) + "\n")
    with pytest.raises(LogError, match=message) as caught:
        _whole(path, mapping)
    assert len(value) < 4 or value not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the table has no rows"),
        (HEADER, "the table has no rows"),
        ("place,who,at,warm,shown,liked,offered\n", "missing column wet, chance; it has place, who"),
        (HEADER.replace("who", "warm") + ROWS, "missing column who"),
        (
            HEADER.replace("place", "warm").replace("who", "place,who", 1),
            "column 'warm' occurs more than once",
        ),
        (HEADER + ROWS + "1,2\n", "line 5: expected 9 fields, got 2"),
        (HEADER + '1,"ann,2024\n', "line 2: not CSV"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, mapping, text, message):
    with pytest.raises(LogError, match=message):
        _whole(_csv(tmp_path, text), mapping)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_first_line_without_any_of_the_columns_is_not_shown(tmp_path, mapping, suffix):
    path = tmp_path / f"log.{suffix}"
    path.write_text(ROWS if suffix == "csv" else '{"ann": 1}\n{"ann": 2}\n', encoding="utf-8")
    with pytest.raises(LogError, match=r"missing column warm, .*; is the first line a header") as caught:
        _whole(path, mapping)
    assert "ann" not in str(caught.value)


def test_other_encodings_and_absent_files_are_refused(tmp_path, mapping):
    with pytest.raises(LogError, match="save it as `CSV UTF-8`"):
        _whole(_csv(tmp_path, HEADER + ROWS.replace("ann", "änn"), "latin-1"), mapping)
    with pytest.raises(LogError, match="expected a file, got none"):
        _whole(tmp_path / "absent.csv", mapping)
    wrong = tmp_path / "log.parquet"
    wrong.write_bytes(b"not parquet at all")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(LogError, match="expected a Parquet file"):
        _whole(wrong, mapping)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC", 'Parser Error: syntax error at or near "SELEC"'),
        ("SELECT * FROM 'none.parquet'", "IO Error: No files found that match the pattern"),
        ("SELECT 1 AS who", "missing column .*warm"),
        ("SET threads = 1", "missing column .*; it has Success"),
        ("", "expected a last statement that gives rows, got none"),
    ],
)
def test_a_query_that_gives_no_log_is_refused_in_the_words_of_its_database(sql, message, mapping):
    with pytest.raises(LogError, match=message):
        _whole(f"duckdb:{sql}", mapping)


def test_a_value_that_a_query_cannot_convert_is_not_repeated(mapping, tmp_path):
    """DuckDB's message quotes the cell; somebody's value belongs into no output."""
    path = _csv(tmp_path, HEADER + ROWS)
    with pytest.raises(LogError, match="expected rows, got ConversionException of DuckDB") as told:
        _whole(f"duckdb:SELECT * REPLACE (CAST(who AS INTEGER) AS who) FROM '{path}'", mapping)
    assert "ann" not in str(told.value).replace(f"'{path}'", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MAPPING + "colour: red\n", "unknown key colour; known: arm, arms"),
        (MAPPING.replace("reward: liked\n", ""), "missing key reward"),
        ("arm: a\narms: 2\nreward: r\n", r"missing key features \(declared here, or by the --deployment\)"),
        (MAPPING.replace("[tea, milk, water]", "many"), "arms: expected 2 to .*, as a number or as a list of names"),
        (MAPPING.replace("[tea, milk, water]", "1"), "arms: expected 2 to"),
        (MAPPING.replace("user: who", "user: 7"), "user: expected a text, got int"),
        (MAPPING.replace("[tea,", "[no, on,"), "arms: expected a list of different names, in quotes where YAML reads"),
        (MAPPING.replace("[tea,", "[2026-01-01,"), "in quotes where YAML reads another value"),
        (MAPPING.replace("[tea,", "[null, 1.50,"), "in quotes where YAML reads another value"),
        (MAPPING + "arm: wanted\n", "expected YAML with each key once"),
        (MAPPING + "no: wanted\n", "line 11: expected keys that are texts, got one that YAML reads as bool"),
        (MAPPING + "timestamp_unit: fortnight\n", "timestamp_unit: expected one of iso, s, ms"),
        (MAPPING + "delimiter: '::'\n", "delimiter: expected one character, got 2"),
        ("- a\n- b\n", "expected keys and values, got a list"),
        ("user: [", "line 1: expected YAML"),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path, text, message):
    path = tmp_path / "mapping.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LogError, match=message):
        table_mapping(path)


def test_a_missing_mapping_is_refused(tmp_path):
    with pytest.raises(LogError, match="expected a configuration file, got none"):
        table_mapping(tmp_path / "absent.yaml")


VISITS = 400
ITEMS = ("boots", "novel", "tent")


def columns(**changed: Sequence[Any]) -> dict[str, list[Any]]:
    """A plain log, with some columns put in place or beside."""
    plain: dict[str, Sequence[Any]] = {
        "customer": [f"c{row % 90}" for row in range(VISITS)],
        "country": [("de", "fr")[row % 2] for row in range(VISITS)],
        "offer": [ITEMS[row * 7 % 3] for row in range(VISITS)],
        "bought": [int(row % 5 == 0) for row in range(VISITS)],
    }
    return {name: list(values) for name, values in {**plain, **changed}.items()}


def csv_of(
    path: Path, table: dict[str, list[Any]], delimiter: str = ",", encoding: str = "utf-8", first: str = ""
) -> Path:
    lines = [delimiter.join(table), *(delimiter.join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text(first + "\n".join(lines) + "\n", encoding=encoding)
    return path


def drafted(log: Path, tmp_path: Path) -> tuple[dict[str, Any], LoggedDataset]:
    """The features that are drafted, and the whole log, read with both drafts."""
    mapping, deployment = draft_mapping(log), tmp_path / "drafted.yaml"
    deployment.write_text(shop_of_log(log, "shop").text(), encoding="utf-8")
    features = read_yaml(deployment)["features"]
    read = table_mapping(yaml.safe_load(mapping), declare(without_marks(features)))
    return features, concatenate(list(stream_table(log, read)))


@pytest.mark.parametrize(
    "marker",
    [
        *("NA", "N/A", "n/a", "null", "NULL", "\\N", "?", "-", "inf", "NaN", "none", "#N/A"),
        *("-nan", "-nan(ind)", "-1.#IND", "1.#QNAN", "#N/A N/A", "#NA", "(null)", "[NULL]", "<null>", "(not set)"),
    ],
)
@pytest.mark.parametrize("every", [4, VISITS])
def test_a_marker_of_a_missing_value_leaves_a_column_of_numbers_one(marker, every, tmp_path):
    ages = [marker if row % every == 1 else 18 + row % 60 for row in range(VISITS)]
    features, log = drafted(csv_of(tmp_path / "log.csv", columns(age=ages)), tmp_path)
    assert features["age"]["kind"] == "number"
    assert log.visits is not None
    assert [visit["age"] is None for visit in log.visits] == [row % every == 1 for row in range(VISITS)]


@pytest.mark.parametrize("key", ["customer", "at", "propensity", "position"])
@pytest.mark.parametrize("nothing", ["", "NULL"])
def test_a_column_without_any_value_means_nothing(key, nothing, tmp_path):
    _, log = drafted(csv_of(tmp_path / "log.csv", columns(**{key: [nothing] * VISITS})), tmp_path)
    assert (log.positions, log.propensities, int(log.timestamps_ms[5])) == (None, None, 5)


def test_a_draft_has_as_many_features_as_a_deployment_may_have(tmp_path):
    table = columns(**{f"f{place}": [row * place % 11 for row in range(VISITS)] for place in range(1, 80)})
    path = csv_of(tmp_path / "log.csv", table)
    assert len(drafted(path, tmp_path)[0]) == 64
    assert "# f79: left out, as a deployment has 64 features at most" in shop_of_log(path, "shop").text()


def test_a_tag_that_is_too_long_is_in_no_draft(tmp_path):
    path = csv_of(tmp_path / "log.csv", columns(seen=["a;b" if row % 2 else "a;" + "x" * 200 for row in range(VISITS)]))
    assert drafted(path, tmp_path)[0]["seen"]["vocabulary"] == ["a", "b"]


def test_as_a_category_such_a_text_is_a_value(tmp_path):
    table = columns(country=[("de", "NA")[row % 2] for row in range(VISITS)])
    assert drafted(csv_of(tmp_path / "log.csv", table), tmp_path)[0]["country"]["vocabulary"] == ["NA", "de"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["12,50", "7,10"], "comma, a unit or a currency"),
        (["€ 12.50", "€ 7"], "comma, a unit or a currency"),
        (["1,200", "$90"], "comma, a unit or a currency"),
        (["1.200 EUR", "90.5 EUR"], "comma, a unit or a currency"),
        (["12%", "7%", "<NA>", "#DIV/0!"], "comma, a unit or a currency"),
        (["12k", "8k", "(7.50)", "\N{MINUS SIGN}3"], "comma, a unit or a currency"),
        (["1 200", "12\u202f000"], "comma, a unit or a currency"),
        (["1'200", "900.50"], "comma, a unit or a currency"),
        (["1.200.000", "90.000"], "comma, a unit or a currency"),
        (["1,23,456", "78"], "comma, a unit or a currency"),
        (["₹500", "₹90"], "comma, a unit or a currency"),
        (["USD 12", "EUR 7.5"], "comma, a unit or a currency"),
        (["Rs. 500", "Rs 90"], "comma, a unit or a currency"),
        (["12 min", "7 min"], "comma, a unit or a currency"),
        (["0x1f", "0xB"], "comma, a unit or a currency"),
        (["1/2", "3/4"], "comma, a unit or a currency"),
        (["1:30 PM", "10:45 a.m."], "comma, a unit or a currency"),
        (["PT10M", "P1DT2H"], "comma, a unit or a currency"),
        (["28.03.2026", "1.4.2026 10:00"], "points in time"),
        (["03/28/2026", "4/1/2026 1:30 PM"], "points in time"),
        (["2026/03/28 10:00", "2026/04/01 10:00"], "points in time"),
        (["2026-03", "2026-04"], "points in time"),
        (["Sat, 28 Mar 2026 10:00:00 GMT", "Wed Apr 1 10:00:00 2026"], "points in time"),
        (["NO", ""], "the same"),
        (["TRUE", "TRUE"], "the same"),
        (["85kg", "12 zł"], "comma, a unit or a currency"),
        (["[1, 2]", "[3]"], "its cells hold JSON"),
        (["2026-03-01", "2026-03-02"], "points in time"),
        ([*range(20, 39), "forty"], "numbers but for a few texts"),
    ],
)
def test_numbers_that_are_written_otherwise_are_left_out_with_the_reason(values, reason, tmp_path):
    table = columns(spend=[values[row * 13 % len(values)] for row in range(VISITS)])
    draft = shop_of_log(csv_of(tmp_path / "log.csv", table, delimiter=";"), "shop").text()
    assert reason in next(line for line in draft.splitlines() if line.startswith("# spend: left out"))


@pytest.mark.parametrize(
    "values", [["4.12.1", "4.9"], ["A1", "B2", "XL", "3D"], ["18-24", "25-34"], ["10.0.0.1", "::1"], ["P", "PT"]]
)
def test_a_name_with_digits_in_it_is_a_category(values, tmp_path):
    table = columns(seen=[values[row * 13 % len(values)] for row in range(VISITS)])
    assert drafted(csv_of(tmp_path / "log.csv", table), tmp_path)[0]["seen"]["vocabulary"] == sorted(values)


@pytest.mark.parametrize("name", ["", "index", "Unnamed: 0"])
@pytest.mark.parametrize(
    "numbers",
    [range(VISITS), [row * 2 + row % 2 for row in range(VISITS)], [row * 7 % VISITS for row in range(VISITS)]],
)
def test_the_index_of_a_data_frame_is_no_feature(name, numbers, tmp_path):
    """Also of one whose rows were filtered, or shuffled."""
    table = {name: list(numbers), **columns()}
    features, _ = drafted(csv_of(tmp_path / "log.csv", table, delimiter="|"), tmp_path)
    assert list(features) == ["country"]


@pytest.mark.parametrize("name", ["from_rows", "Bought\n(yes/no)", "null: [", "größe"])
def test_a_column_with_a_name_that_no_feature_may_have_is_left_out_and_the_draft_can_be_read(name, tmp_path):
    path = csv_of(tmp_path / "log.csv", columns(**{f'"{name}"': list("xyyx" * 100)}))
    assert list(drafted(path, tmp_path)[0]) == ["country"]


@pytest.mark.parametrize("name", ["place", "rank", "position"])
def test_a_place_that_is_no_number_is_no_place_on_the_screen(name, tmp_path):
    features, log = drafted(csv_of(tmp_path / "log.csv", columns(**{name: ["Rom", "Bonn"] * 200})), tmp_path)
    assert features[name]["vocabulary"] == ["Bonn", "Rom"]
    assert log.positions is None


def test_a_first_column_called_pk_makes_no_zip_archive(tmp_path):
    table = {"PK": list(range(VISITS)), **columns()}
    assert list(drafted(csv_of(tmp_path / "log.csv", table), tmp_path)[0]) == ["country"]


@pytest.mark.parametrize("quote", ["", '"'])
def test_blanks_around_fields_do_not_count(quote, tmp_path):
    table = {f" {name}": [f" {quote}{one}{quote}" for one in values] for name, values in columns().items()}
    features, log = drafted(csv_of(tmp_path / "log.csv", table), tmp_path)
    assert (features["country"]["vocabulary"], log.arm_names) == (["de", "fr"], ITEMS)
    assert log.visits is not None
    assert {visit["country"] for visit in log.visits} == {"de", "fr"}


def test_a_drafted_vocabulary_has_the_values_as_they_are_read(tmp_path):
    towns = ["Ko\N{COMBINING DIAERESIS}ln", "Köln", "Köln ", "Rom"]
    features, _ = drafted(
        csv_of(tmp_path / "log.csv", columns(town=[towns[row % 4] for row in range(VISITS)])), tmp_path
    )
    assert features["town"]["vocabulary"] == ["Köln", "Rom"]


def test_items_that_come_late_in_a_log_are_in_the_draft(tmp_path):
    table = {name: values * 51 for name, values in columns().items()}
    table["offer"][-1] = "lamp"
    path = csv_of(tmp_path / "log.csv", table)
    assert table_mapping(yaml.safe_load(draft_mapping(path)), draft=True).arm_count == 4


@pytest.mark.parametrize("name", ["null", "2027", "on", "no", "1e3", "2026-01-01", "~"])
def test_a_draft_with_an_odd_name_is_one_that_its_reader_accepts(name, tmp_path):
    features, log = drafted(csv_of(tmp_path / "log.csv", columns(**{name: list("xyyx" * 100)})), tmp_path)
    assert (name == "~") or features[name]["vocabulary"] == ["x", "y"]
    assert len(log) == VISITS


@pytest.mark.parametrize("pair", [("True", "False"), ("true", "false"), ("yes", "no"), (1, 0)])
def test_a_reward_may_be_a_truth(pair, tmp_path):
    table = columns(bought=[pair[row % 5 != 0] for row in range(VISITS)])
    _, log = drafted(csv_of(tmp_path / "log.csv", table), tmp_path)
    assert log.rewards.tolist() == [float(row % 5 == 0) for row in range(VISITS)]


@pytest.mark.parametrize("ids", [(101, 205, 50871), (1, 2, 3), ("007", "7", "08")])
def test_ids_that_are_numbers_are_names(ids, tmp_path):
    table = columns(offer=[ids[row * 7 % 3] for row in range(VISITS)])
    _, log = drafted(csv_of(tmp_path / "log.csv", table), tmp_path)
    assert log.arm_names == tuple(sorted(map(str, ids)))
    assert log.arms == 3


def test_ids_that_a_data_frame_made_fractions_are_the_same_names(tmp_path):
    table = columns(offer=[float((101, 205, 50871)[row * 7 % 3]) for row in range(VISITS)])
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "log.parquet")
    assert drafted(tmp_path / "log.parquet", tmp_path)[1].arm_names == ("101", "205", "50871")


@pytest.mark.parametrize(("suffix", "nothing"), [("csv", ""), ("csv", "None"), ("csv", "NULL"), ("parquet", None)])
def test_rows_in_which_nothing_was_shown_are_left_out_and_counted(suffix, nothing, tmp_path):
    table = columns(offer=[nothing if row % 10 == 0 else ITEMS[row % 3] for row in range(VISITS)])
    path = tmp_path / f"log.{suffix}"
    if suffix == "csv":
        csv_of(path, table)
    else:
        pyarrow.parquet.write_table(pyarrow.table(table), path)
    assert shop_of_log(path, "shop").users == 81, "the other 9 were shown nothing"
    _, log = drafted(path, tmp_path)
    assert (log.arm_names, len(log), log.left_out) == (
        ITEMS,
        VISITS - VISITS // 10,
        VISITS // 10,
    )


def test_a_propensity_that_no_decision_could_state_is_refused_with_its_row(tmp_path):
    table = columns(chance=[1e-300 if row == 7 else 0.5 for row in range(VISITS)])
    with pytest.raises(LogError, match="line 9, column chance: expected a probability from 1e-09 to 1"):
        drafted(csv_of(tmp_path / "log.csv", table), tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("first", ["", "sep=;\n", '"sep=;"\n', "\n", "sep=;\n\r\n"])
def test_encodings_and_the_first_line_of_excel_are_read(encoding, first, tmp_path):
    table = columns(city=["Köln", "Zürich"] * (VISITS // 2))
    path = csv_of(tmp_path / "log.csv", table, ";", encoding, first)
    assert drafted(path, tmp_path)[0]["city"]["vocabulary"] == ["Köln", "Zürich"]


def test_an_item_that_the_mapping_calls_none_is_an_item(tmp_path):
    path = csv_of(
        tmp_path / "log.csv", columns(offer=[("none", "boots")[row % 2] for row in range(VISITS)], shop=[1] * VISITS)
    )
    mapping = table_mapping({"arm": "offer", "arms": ["none", "boots"], "reward": "bought", "features": ONE_NUMBER})
    assert [len(log) for log in stream_table(path, mapping)] == [VISITS]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-32"])
def test_another_encoding_is_refused_with_the_way_out(encoding, tmp_path):
    path = csv_of(tmp_path / "log.csv", columns(city=["Köln"] * VISITS), encoding=encoding)
    with pytest.raises(LogError, match="save it as `CSV UTF-8`"):
        draft_mapping(path)


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_json_is_a_table_and_nested_objects_are_columns(suffix, tmp_path):
    rows = [
        {
            "customer": {"id": f"c{row % 90}", "country": "de"},
            "age": row % 40 or None,
            "offer": ITEMS[row % 3],
            "bought": row % 5 == 0,
        }
        for row in range(VISITS)
    ]
    text = json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows))
    (tmp_path / f"log.{suffix}").write_text(text, encoding="utf-8")
    features, log = drafted(tmp_path / f"log.{suffix}", tmp_path)
    assert set(features) == {"customer_country", "age"}
    assert features["age"]["kind"] == "number"
    assert log.users[1] == "c1"
    assert log.rewards.sum() == VISITS / 5


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"_label_cost": -1, "_label_probability": 0.5, "a": [1], "c": {}}', "Vowpal Wabbit's DSJSON"),
        ("[1, 2", "expected JSON"),
        ("7", "expected a JSON object"),
        ("{", "expected one JSON object"),
        ('{"bought": 1, "bought": 0}', "each key once"),
        ('[{"bought": 1, "bought": 0}]', "each key of an object once"),
        ("9" * 5_000, "expected one JSON object"),
    ],
)
def test_other_json_is_refused_by_what_it_is(line, wanted, tmp_path):
    (tmp_path / "log.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(LogError, match=wanted):
        draft_mapping(tmp_path / "log.jsonl")


def test_half_an_emoji_and_numbers_beyond_a_float_are_read_from_json_or_refused_by_their_line(tmp_path):
    rows = [dict(zip(columns(), row, strict=True)) for row in zip(*columns().values(), strict=True)]
    rows[3]["country"] = "\ud83d"
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert drafted(path, tmp_path)[0]["country"]["vocabulary"] == ["\\ud83d", "de", "fr"]
    path.write_text("\n".join(json.dumps({**row, "spend": 10**400}) for row in rows), encoding="utf-8")
    assert "spend" not in drafted(path, tmp_path)[0]
    path.write_text("\n".join(json.dumps({**row, "bought": 10**400}) for row in rows), encoding="utf-8")
    with pytest.raises(LogError, match="line 1, column bought: expected a reward from 0 to 1"):
        draft_mapping(path)


@pytest.mark.parametrize("scale", [0, 2])
def test_ids_and_numbers_of_a_warehouse_are_decimals(scale, tmp_path):
    table = columns(
        offer=[(101, 205, 50871)[row * 7 % 3] for row in range(VISITS)], age=[row % 60 for row in range(VISITS)]
    )
    kind = pyarrow.decimal128(30, scale)
    made = {name: pyarrow.array(values, kind if isinstance(values[0], int) else None) for name, values in table.items()}
    pyarrow.parquet.write_table(pyarrow.table(made), tmp_path / "log.parquet")
    features, log = drafted(tmp_path / "log.parquet", tmp_path)
    assert (log.arm_names, features["age"]["kind"]) == (("101", "205", "50871"), "number")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_time_of_day_may_have_seconds(suffix, tmp_path):
    path, hours = tmp_path / f"log.{suffix}", [time(row % 24, 30, 36) for row in range(VISITS)]
    if suffix == "csv":
        csv_of(path, columns(opened=hours))
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns(opened=hours)), path)
    features, log = drafted(path, tmp_path)
    assert features["opened"] == {"kind": "time_of_day"}
    assert log.visits is not None
    assert log.visits[1]["opened"] == pytest.approx(1.51)


def test_times_to_the_nanosecond_and_texts_as_bytes_are_read_from_parquet(tmp_path):
    moments = pyarrow.array([1_700_000_000_000_000_001 + row * 10**9 for row in range(VISITS)], pyarrow.timestamp("ns"))
    table = {**columns(), "offer": [ITEMS[row % 3].encode() for row in range(VISITS)], "at": moments}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "log.parquet")
    _, log = drafted(tmp_path / "log.parquet", tmp_path)
    assert log.arm_names == ITEMS
    assert log.timestamps_ms[1] == 1_700_000_001_000


@pytest.mark.parametrize("text", ["2026-03-28 22:00:00 UTC", "2026-03-28T22:00:00Z", "2026-03-28 22:00:00+00:00"])
def test_a_time_in_utc_is_read_however_it_says_so(text, tmp_path):
    _, log = drafted(csv_of(tmp_path / "log.csv", columns(at=[text] * VISITS)), tmp_path)
    assert log.timestamps_ms[0] == round(datetime(2026, 3, 28, 22, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"at": [1_700_000_000_000_000_000] * VISITS},
            "column at: expected a time in ms since 1970, before",
        ),
        ({"bought": [0, 100] * (VISITS // 2)}, "line 3, column bought: expected a reward from 0 to 1"),
        ({"bought": ["", 1] * (VISITS // 2)}, r"column bought: .* \(write 0 where nothing came of it"),
        ({"country": list(range(VISITS))}, "got none: 'country' is left out as it numbers the rows"),
    ],
)
def test_a_cell_or_column_that_cannot_be_used_is_named_with_what_to_do(changed, message, tmp_path):
    rest = {} if "country" in changed else {"country": ["de", "fr"] * (VISITS // 2)}
    with pytest.raises(LogError, match=message):
        drafted(csv_of(tmp_path / "log.csv", columns(**rest, **changed)), tmp_path)


@pytest.mark.parametrize(
    ("items", "names"),
    [
        (["101.0", "205", "101"], ["101", "205"]),
        (["007", "7"], ["007", "7"]),
        ([" boots ", "boots", "tent"], ["boots", "tent"]),
        (["Cafe\N{COMBINING ACUTE ACCENT}", "Caf\N{LATIN SMALL LETTER E WITH ACUTE}", "tent"], ["Café", "tent"]),
    ],
)
def test_an_item_has_one_name_however_it_is_written(items, names, tmp_path):
    table = columns(offer=[items[row // 3 % len(items)] for row in range(VISITS)])
    _, log = drafted(csv_of(tmp_path / "log.csv", table), tmp_path)
    assert list(log.arm_names) == names


@pytest.mark.parametrize("nobody", ["NULL", "(not set)", "Anonymous", "guest", "-1", str(UUID(int=0)), UUID(int=0).hex])
def test_visitors_without_an_id_are_not_one_user(nobody, tmp_path):
    """Neither to the log nor to the size of the draft."""
    table = columns(customer=[nobody if row % 3 == 0 else f"c{row % 90}" for row in range(VISITS)])
    path = csv_of(tmp_path / "log.csv", table)
    _, log = drafted(path, tmp_path)
    assert len(set(log.users)) == len(range(0, VISITS, 3)) + len({row % 90 for row in range(VISITS) if row % 3})
    assert shop_of_log(path, "shop").users == len(set(log.users))


def test_a_code_made_of_digits_is_no_number(tmp_path):
    table = columns(zip=[("01067", "80331")[row % 2] for row in range(VISITS)])
    assert drafted(csv_of(tmp_path / "log.csv", table), tmp_path)[0]["zip"]["vocabulary"] == ["01067", "80331"]


@pytest.mark.parametrize("nested", [False, True])
def test_two_columns_of_one_name_are_refused_in_parquet_as_in_json(nested, tmp_path):
    table = columns()
    names = [*table, "customer" if nested else "offer"]
    twice = pyarrow.array([{"id": 7}] * VISITS) if nested else pyarrow.array(ITEMS[:1] * VISITS)
    made = pyarrow.Table.from_arrays([*map(pyarrow.array, table.values()), twice], names=names)
    if nested:
        made = made.rename_columns(["customer_id", *names[1:]])
    pyarrow.parquet.write_table(made, tmp_path / "log.parquet")
    with pytest.raises(LogError, match=f"got {'customer_id' if nested else 'offer'} twice: rename one"):
        draft_mapping(tmp_path / "log.parquet")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            pandas.DataFrame([["tent", 1, 2]], columns=["offer", 2027, "age"]),
            "missing column bought; .* offer, 2027, age",
        ),
        (pandas.DataFrame([["tent", 1, 1]], columns=["offer", "bought", "bought"]), "different names, got one twice"),
        (pandas.DataFrame([[1]], columns=pandas.MultiIndex.from_product([["a"], ["offer"]])), "missing column age"),
        (polars.DataFrame({"offer": ["tent"], "bought": [1], "age": [b"7"]}), "row 1, column age: expected a text"),
        (
            polars.DataFrame({"offer": ["tent"], "bought": [1], "age": [{"years": 7}]}),
            "row 1, column age: expected a text",
        ),
        (polars.DataFrame({"offer": ["tent"], "bought": [1], "age": [["7"]]}), "row 1, column age: expected a text"),
    ],
)
def test_a_data_frame_that_cannot_be_read_is_refused_by_what_it_has(frame, message):
    schema = declare({"age": {"kind": "category", "vocabulary": ["7"]}})
    mapping = table_mapping({"arm": "offer", "arms": list(ITEMS), "reward": "bought"}, schema)
    with pytest.raises(LogError, match=message):
        list(stream_table(frame, mapping))


def test_a_parquet_file_is_read_as_json_is(tmp_path):
    """Structs are flattened, dates are times, bytes of whatever type are texts, infinity is missing."""
    table = columns()
    item = pyarrow.array([one.encode() for one in table["offer"]]).dictionary_encode()
    made = pyarrow.table({
        "who": pyarrow.array([{"id": one} for one in table["customer"]]), "offer": item,
        "country": pyarrow.array([one.encode() for one in table["country"]], pyarrow.binary(2)),
        "at": pyarrow.array([date(2026, 3, 1 + row % 20) for row in range(VISITS)]), "bought": table["bought"],
        "spend": pyarrow.array([math.inf if row % 9 == 0 else float(row % 50) for row in range(VISITS)]),
    })  # fmt: skip
    pyarrow.parquet.write_table(made, tmp_path / "log.parquet")
    features, log = drafted(tmp_path / "log.parquet", tmp_path)
    assert (list(log.arm_names), len(set(log.users))) == (sorted(set(table["offer"])), 90)
    assert features["country"]["vocabulary"] == ["de", "fr"]
    assert features["spend"]["kind"] == "number"
    assert int(log.timestamps_ms[1]) == datetime(2026, 3, 2, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"at": [46_082.5 + row / 100 for row in range(VISITS)]},
            "column at: .* as spreadsheets count",
        ),
        ({"bought": [1 + row % 5 for row in range(VISITS)]}, "take the lowest away, then divide by the largest"),
        ({"chance": ["33.3%"] * VISITS}, "column chance: .* without a decimal comma or a percent sign"),
        ({"date": [2020, 2026] * 200}, "column date: expected times, got years"),
        ({"offer": ["tent"] * VISITS}, "column offer: expected two items at least"),
        ({"offer": ["tent", "book\x07"] * 200}, "line 3, column offer: expected an id .* got a control character"),
        ({"offer": ["tent", "b" * 300] * 200}, "line 3, column offer: expected an id .* of at most"),
        ({"customer": ["1.23457E+12"] * VISITS}, "line 2, column customer: .* got one that a spreadsheet has rounded"),
        ({"position": ["1", "NA"] * 200}, "line 3, column position: expected an integer"),
    ],
)
def test_a_draft_refuses_what_its_own_reader_would(changed, message, tmp_path):
    with pytest.raises(LogError, match=message):
        draft_mapping(csv_of(tmp_path / "log.csv", columns(**changed), delimiter=";"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0), "a gzip archive: unpack it"),
        ("log.txt", b"3:0:0.3 | gb age:33\n1:1:0.3 | de age:20\n", "Vowpal Wabbit's text format"),
        ("log.csv", b'{"a": 1}\n', "got JSON: name the file .jsonl"),
        ("log.csv", "a;b\n1;2\n".encode("utf-16-le"), "save it as `CSV UTF-8`"),
        ("log.csv", b"PAR1\x15\x04\xff\xfe", "a Parquet file is named .parquet"),
        ("log.txt", b"|user age:33 |item tent\n|user age:20 |item boots\n", "Vowpal Wabbit's text format"),
        (
            "log.json",
            b'{"a": {"0": 1, "1": 2}, "b": {"0": 3, "1": 4}}',
            "for each row, got one in all",
        ),
        ("log.jsonl", b'{"user": {"id": 7}, "user_id": "s"}\n' * 2, "got user_id twice: rename one"),
        (
            "log.jsonl",
            b'{"offer": ["tent"], "bought": 1, "a": 2}\n' * 9,
            "or as a whole number, got list",
        ),
    ],
)
def test_another_format_is_told_by_its_name(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LogError, match=message):
        draft_mapping(tmp_path / name)


def test_a_date_that_can_be_read_in_two_ways_is_refused(tmp_path):
    with pytest.raises(LogError, match="03/28/2026 are not read"):
        drafted(csv_of(tmp_path / "log.csv", columns(at=["03/04/2026 10:00"] * VISITS)), tmp_path)


@pytest.mark.parametrize("key", ["2020", "on", "no", "null", "~", "1.5", "2026-01-01", "[a, b]"])
def test_a_key_that_yaml_reads_as_no_text_is_refused_with_its_line(key, tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(f"deployment: shop\nfeatures:\n  {key}: {{kind: boolean}}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"line 3: expected keys that are texts, got one that YAML reads as"):
        read_yaml(path)
    path.write_text(f'deployment: shop\nfeatures:\n  "{key}": {{kind: boolean}}\n', encoding="utf-8")
    assert read_yaml(path)["features"] == {key: {"kind": "boolean"}}


def test_what_a_source_needs_is_told_at_once_and_after_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("hushstream.replay.logged.table.find_spec", lambda name: None)
    said = (
        r"expected duckdb and pyarrow to be installed: pip install 'hushstream\[duckdb\]', or in a clone pip install -e"
    )
    with pytest.raises(LogError, match=said):
        draft_mapping(source_of("duckdb:SELECT 1"))
    with pytest.raises(LogError, match="expected a file, got none"):
        draft_mapping(tmp_path / "log.parquet")
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    with pytest.raises(LogError, match="expected pyarrow to be installed"):
        draft_mapping(tmp_path / "log.parquet")
