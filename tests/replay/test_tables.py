"""People's own logs: what is read, and what is refused with which words."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime

import numpy as np
import pytest

from hushstream.replay.logged.log import LogError, LoggedDataset, concatenate
from hushstream.replay.logged.mapping import load_mapping, parse_mapping
from hushstream.replay.logged.table import stream_table

MAPPING = """
user: who
timestamp: at
context: [warm, wet]
arm: shown
arms: [tea, milk, water]
reward: liked
propensity: chance
eligible: offered
position: place
"""
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
    assert log.contexts.tolist() == [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]
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
    mapping = parse_mapping({"context": ["x"], "arm": "a", "arms": 2, "reward": "r", "delimiter": ";"}, "here")
    pieces = list(stream_table(path, mapping, chunk_rows=1))
    assert [piece.users[0] for piece in pieces] == ["0", "1"]
    assert [int(piece.timestamps_ms[0]) for piece in pieces] == [0, 1]
    assert [int(piece.chosen[0]) for piece in pieces] == [1, 0]
    assert pieces[0].propensities is None


@pytest.mark.parametrize(("unit", "text", "milliseconds"), [("s", "1.5", 1500), ("ms", "1500", 1500)])
def test_times_may_be_counts(tmp_path, unit, text, milliseconds):
    path = _csv(tmp_path, f"t,x,a,r\n{text},1,0,0\n")
    keys = {"timestamp": "t", "timestamp_unit": unit, "context": ["x"], "arm": "a", "arms": 2, "reward": "r"}
    assert _whole(path, parse_mapping(keys, "here")).timestamps_ms.tolist() == [milliseconds]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("warm", "hot", "line 3, column warm: expected a finite number, got a text"),
        ("warm", "nan", "line 3, column warm: expected a finite number, got another number"),
        ("wet", "inf", "line 3, column wet: expected a finite number, got another number"),
        ("wet", "", "line 3, column wet: expected a finite number, got nothing"),
        ("liked", "1.01", r"line 3, column liked: expected a number in \[0, 1\], got another number"),
        ("liked", "-1", r"line 3, column liked: expected a number in \[0, 1\]"),
        ("chance", "0", r"line 3, column chance: expected a number in \(0, 1\]"),
        ("shown", "wine", "line 3, column shown: expected one of the 3 arms"),
        ("offered", "tea", "line 3: the arm shown is not among the eligible ones"),
        ("offered", "", "line 3, column offered: expected at least one arm, got nothing"),
        ("offered", "milk|beer", "line 3, column offered: expected one of the 3 arms"),
        ("at", "yesterday", "line 3, column at: expected an ISO 8601 time, got a text"),
        ("who", "", "line 3, column who: expected a text, got nothing"),
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
        ("place,who,at,warm,shown,liked,offered\n", "missing column wet, chance; the file has place, who"),
        (HEADER.replace("who", "warm") + ROWS, "missing column who"),
        (HEADER.replace("place", "warm").replace("who", "place,who", 1), "column warm occurs more than once"),
        (HEADER + ROWS + "1,2\n", "line 5: expected 9 fields, got 2"),
        (HEADER + '1,"ann,2024\n', "line 2: not CSV"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, mapping, text, message):
    with pytest.raises(LogError, match=message):
        _whole(_csv(tmp_path, text), mapping)


def test_other_encodings_and_absent_files_are_refused(tmp_path, mapping):
    with pytest.raises(LogError, match="expected UTF-8"):
        _whole(_csv(tmp_path, HEADER + ROWS, "utf-16"), mapping)
    with pytest.raises(LogError, match="expected a file, got none"):
        _whole(tmp_path / "absent.csv", mapping)
    wrong = tmp_path / "log.parquet"
    wrong.write_bytes(b"not parquet at all")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(LogError, match="expected a Parquet file"):
        _whole(wrong, mapping)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, mapping, monkeypatch):
    original = builtins.__import__

    def without_pyarrow(name, *rest, **options):
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return original(name, *rest, **options)

    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(LogError, match=r"needs pyarrow: install hushstream\[parquet\]"):
        _whole(path, mapping)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MAPPING + "colour: red\n", "unknown key colour; known: context, arm, arms"),
        (MAPPING.replace("reward: liked\n", ""), "missing key reward"),
        (MAPPING.replace("[warm, wet]", "warm"), "context: expected a list of names"),
        (MAPPING.replace("[warm, wet]", "[warm, warm]"), "context: a name occurs twice"),
        (MAPPING.replace("[tea, milk, water]", "many"), "arms: expected a number or a list of names"),
        (MAPPING.replace("[tea, milk, water]", "1"), "arms: expected at least 2, got 1"),
        (MAPPING.replace("user: who", "user: 7"), "user: expected a non-empty text, got int"),
        (MAPPING + "timestamp_unit: fortnight\n", "timestamp_unit: expected one of iso, s, ms"),
        (MAPPING + "delimiter: '::'\n", "delimiter: expected one character, got 2"),
        ("- a\n- b\n", "expected keys with values, got list"),
        ("user: [", "line 1: expected YAML"),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path, text, message):
    path = tmp_path / "mapping.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LogError, match=message):
        load_mapping(path)


def test_a_missing_mapping_is_refused(tmp_path):
    with pytest.raises(LogError, match="expected a readable UTF-8 mapping file, got No such file or directory"):
        load_mapping(tmp_path / "absent.yaml")
