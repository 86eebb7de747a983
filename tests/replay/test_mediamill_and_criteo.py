"""Public logs that are read into worlds: Mediamill, Criteo and the Open Bandit Dataset, ARFF and histograms."""

from __future__ import annotations

import re
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_forms import CATEGORIES, NUMBERS, arff_head, arff_rows, criteo_rows, write_criteo, write_mediamill

from hushstream.replay.catalogue import make_world
from hushstream.replay.datasets.builtin import AbsentDatasetError, DatasetError
from hushstream.replay.datasets.store import fetch, list_datasets, locate
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.table import load_obd
from hushstream.replay.worlds.arff import read_arff
from hushstream.replay.worlds.criteo import read_impressions, shown, weights
from hushstream.replay.worlds.draws import on_grid
from hushstream.replay.worlds.multilabel import MultiLabelWorld, deal, read_mediamill
from hushstream.replay.worlds.world import WorldError

SECRET = "7secret7"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_mediamill(folder / "mediamill", 300)
    write_criteo(folder / "criteo", 1200)
    return folder


def _made(name: str, data: Path, **options: object) -> MultiLabelWorld:
    world = make_world(name, users=20, rounds=10, data_dir=str(data), **options)
    assert isinstance(world, MultiLabelWorld)
    return world


@pytest.mark.parametrize(("name", "shape"), [("mediamill", (20, 40)), ("criteo", (10, 40))])
def test_a_world_has_the_papers_shape_and_its_contexts_are_histograms_on_the_grid(data, name, shape):
    world = _made(name, data)
    assert (world.dimension, world.arms) == shape
    users = np.arange(20)
    for round_index in (0, 9):
        units = 10 * world.contexts(users, round_index)
        assert np.array_equal(units, np.round(units))
        assert np.array_equal(units.sum(axis=1), np.full(20, 10))
        assert (units >= 0).all()
    assert len(np.unique(world.table_contexts, axis=0)) > 10


@pytest.mark.parametrize("name", ["mediamill", "criteo"])
def test_rows_are_dealt_once_and_a_short_run_begins_a_long_one(data, name):
    long, short = _made(name, data), make_world(name, users=20, rounds=4, data_dir=str(data))
    assert np.unique(long.dealt).size == 200
    users, arms = np.arange(20), np.arange(20)
    for round_index in range(4):
        assert np.array_equal(long.contexts(users, round_index), short.contexts(users, round_index))
        assert np.array_equal(long.rewards(users, round_index, arms), short.rewards(users, round_index, arms))
    with pytest.raises(WorldError, match=f"{name}: users \\* rounds must be in 1..[0-9]+ .instances are dealt once"):
        make_world(name, users=100, rounds=100, data_dir=str(data))


def test_mediamills_arms_are_its_most_frequent_labels_and_a_true_one_is_rewarded(data):
    world, table = _made("mediamill", data, seed=3), read_mediamill(data / "mediamill")
    frequent = np.argsort(-table.labels.sum(axis=0), kind="stable")[:40]
    assert set(world.labels) == {table.label_names[label] for label in frequent}
    users = np.arange(20)
    for arm in range(40):
        truth = table.labels[world.dealt[2], table.label_names.index(world.labels[arm])]
        assert np.array_equal(world.rewards(users, 2, np.full(20, arm)), truth)


def test_a_feature_of_mediamill_counts_above_its_bound_alone(data):
    everything, nothing = _made("mediamill", data, present_above=0.0), _made("mediamill", data, present_above=1.0)
    even = np.repeat([0.1, 0.0], 10).astype(np.float32)
    assert (nothing.table_contexts == even).all()
    assert (everything.table_contexts == even).mean() > 0.9
    with pytest.raises(WorldError, match=r"present_above must be in 0..1, got 2"):
        _made("mediamill", data, present_above=2.0)


def test_mulans_two_parts_are_read_as_the_one_file_and_either_line_end_does(tmp_path):
    rows = arff_rows(30)
    text = "\r\n".join([*arff_head(), *rows[:20]]) + "\r\n"
    (tmp_path / "mediamill-train.arff").write_bytes(text.encode())
    (tmp_path / "mediamill-test.arff").write_text("\n".join([*arff_head(), *rows[20:]]), encoding="utf-8")
    whole = tmp_path / "whole"
    write_mediamill(whole, 30)
    parts, one = read_mediamill(locate("mediamill", tmp_path)), read_mediamill(locate("mediamill", whole))
    assert np.array_equal(parts.numbers, one.numbers)
    assert np.array_equal(parts.labels, one.labels)
    assert len(one.labels) == 30


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (lambda row: row[:-2], "expected 221 values separated by commas, got 220"),
        (lambda row: f"{row},0", "expected 221 values separated by commas, got 222"),
        (lambda row: row[:-1], "expected numbers, got something else"),
        (lambda row: SECRET + row[6:], "expected numbers, got something else"),
        (lambda row: "?" + row[6:], "expected numbers, got something else"),
        (lambda row: "inf" + row[6:], "expected finite numbers"),
        (lambda row: row[:-1] + "7", "expected 0 or 1 for every attribute {0,1}"),
    ],
)
def test_a_malformed_row_of_mediamill_is_refused_with_its_line_and_without_its_content(tmp_path, row, message):
    path = tmp_path / "mediamill.arff"
    first, second = arff_rows(2)
    path.write_text("\n".join([*arff_head(), first, row(second)]), encoding="utf-8")
    with pytest.raises(WorldError, match=re.escape(f"{path}, line {len(arff_head()) + 2}: {message}")) as refused:
        read_mediamill(tmp_path)
    assert SECRET not in str(refused.value)


def test_attributes_of_another_corpus_are_refused(tmp_path):
    head = [line for line in arff_head() if "Class101" not in line]
    path = tmp_path / "mediamill.arff"
    path.write_text("\n".join([*head, arff_rows(1)[0][:-2]]), encoding="utf-8")
    with pytest.raises(WorldError, match=r"expected 120 numeric attributes and 101 of \{0,1\}, got 120 and 100"):
        read_mediamill(tmp_path)
    path.write_text("\n".join(["@attribute Att1 string", *arff_head()]), encoding="utf-8")
    with pytest.raises(WorldError, match="line 1: expected '@attribute NAME numeric'"):
        read_mediamill(tmp_path)


def test_a_value_is_the_count_of_categories_in_three_buckets_of_a_hash_without_key():
    categories = [b"%08x" % number for number in range(CATEGORIES - 1)] + [b""]
    counts = [0, 0, 0]
    for column, category in enumerate(categories[:-1], start=1):
        counts[crc32(b"C%d=" % column + category) % 3] += 1
    assert shown(categories) == (counts[0] * 27 + counts[1]) * 27 + counts[2]
    assert shown([b""] * CATEGORIES) == 0


def test_the_most_frequent_values_are_the_arms_and_other_rows_are_ignored(data):
    lines = (data / "criteo" / "train.txt").read_bytes().splitlines()
    values = [shown(line.split(b"\t")[14:]) for line in lines]
    found, counts = np.unique(values, return_counts=True)
    order = found[np.argsort(-counts, kind="stable")][:40].tolist()
    kept = read_impressions(data / "criteo" / "train.txt", 10_000, 40)
    expected = [
        (order.index(value), line[:1] == b"1") for value, line in zip(values, lines, strict=True) if value in order
    ]
    assert list(zip(kept.ranks.tolist(), kept.clicks.tolist(), strict=True)) == expected
    assert kept.read == 1200 > len(expected)
    assert np.bincount(kept.ranks)[0] == counts.max()


def test_the_reward_is_a_click_on_the_arm_that_was_logged(data):
    world = _made("criteo", data, seed=5)
    kept = read_impressions(data / "criteo" / "train.txt", 2_000_000, 40)
    assert sorted(world.labels, key=int) == [str(rank) for rank in range(1, 41)]
    users = np.arange(20)
    total = 0.0
    for round_index in range(10):
        every = np.array([world.rewards(users, round_index, np.full(20, arm)) for arm in range(40)])
        assert (every.sum(axis=0) <= 1).all()
        total += every.sum()
    # Which rows are dealt: the seed's permutation of those kept.
    dealt = deal("criteo", len(kept.ranks), 20, 10, 5)
    assert total == kept.clicks[dealt].sum()
    for round_index in range(10):
        arms = np.array([world.labels.index(str(rank + 1)) for rank in kept.ranks[dealt[round_index]]])
        assert np.array_equal(world.rewards(users, round_index, arms), kept.clicks[dealt[round_index]])


def test_weights_are_of_the_numbers_with_the_fewest_blanks_and_of_like_size():
    blank = np.nan
    numbers = np.zeros((4, NUMBERS), dtype=np.float32)
    numbers[:, 3:] = blank
    numbers[:, 0] = (1, blank, 3, -2)
    numbers[:, 2] = (0, 1000, 0, 1000)
    numbers[:, 12] = (5, 5, 5, 5)
    found = weights(numbers, 3)
    assert found.shape == (4, 3)
    assert np.array_equal(found[:, 0], np.zeros(4))
    assert found[:, 1] == pytest.approx([0, 2, 0, 2])
    assert found[:, 2] == pytest.approx([1, 1, 1, 1])
    logs = np.log([2, 1, 4, 1])
    assert weights(numbers, 4)[:, 0] == pytest.approx(logs / logs.mean())


def test_rows_may_be_limited_and_what_follows_is_not_read(tmp_path):
    rows = criteo_rows(600)
    (tmp_path / "train.txt").write_bytes("\r\n".join([*rows, "not a row"]).encode())
    assert read_impressions(tmp_path / "train.txt", 600, 40).read == 600
    with pytest.raises(WorldError, match="line 601: expected 0 or 1, 13 whole numbers"):
        read_impressions(tmp_path / "train.txt", 601, 40)
    assert make_world("criteo", users=5, rounds=5, rows=600, data_dir=str(tmp_path)).arms == 40
    with pytest.raises(WorldError, match=r"expected at least 40 values of the hashed categories as arms, got [0-9]"):
        read_impressions(tmp_path / "train.txt", 9, 40)


def _field(row: str, place: int, value: str) -> str:
    fields = row.split("\t")
    return "\t".join([*fields[:place], value, *fields[place + 1 :]])


@pytest.mark.parametrize(
    "row",
    [
        lambda row: row.rsplit("\t", 1)[0],
        lambda row: f"{row}\t",
        lambda row: _field(row, 0, ""),
        lambda row: _field(row, 3, SECRET),
        lambda row: _field(row, 13, "1.5"),
        lambda row: _field(row, 15, SECRET),
        lambda row: _field(row, 39, "68fd"),
        lambda row: _field(row, 39, ""),
        lambda row: SECRET * 1000,
    ],
)
def test_a_malformed_last_row_of_criteo_is_refused_with_its_line_and_without_its_content(tmp_path, row):
    path = tmp_path / "train.txt"
    first, second = criteo_rows(2)
    path.write_bytes(f"{first}\n{row(second)}".encode())
    with pytest.raises(WorldError, match=re.escape(f"{path}, line 2: expected 0 or 1, 13 whole numbers")) as refused:
        read_impressions(path, 10, 2)
    assert SECRET not in str(refused.value)


def test_an_empty_or_absent_log_is_refused(tmp_path):
    with pytest.raises(WorldError, match="expected a readable file"):
        read_impressions(tmp_path / "train.txt", 10, 2)
    (tmp_path / "train.txt").write_bytes(b"")
    with pytest.raises(WorldError, match="expected at least one row, got none"):
        read_impressions(tmp_path / "train.txt", 10, 2)


def test_files_without_checksum_are_found_listed_and_copied_as_they_come(data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HUSHSTREAM_DATA", raising=False)
    listed = {dataset.name: place for dataset, place in list_datasets(data)}
    assert (listed["mediamill"], listed["criteo"]) == (data / "mediamill", data / "criteo")
    copied = fetch("mediamill", data_dir=data)
    assert (copied / "mediamill.arff").read_bytes() == (data / "mediamill" / "mediamill.arff").read_bytes()
    assert locate("mediamill") == copied
    assert fetch("mediamill") == copied
    with pytest.raises(DatasetError, match=r"train.txt cannot be fetched: .*not checked"):
        fetch("criteo")


def test_what_is_expected_where_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HUSHSTREAM_DATA", raising=False)
    with pytest.raises(
        AbsentDatasetError, match=r"give a local folder with train.txt by --data-dir or HUSHSTREAM_DATA"
    ):
        locate("criteo")
    with pytest.raises(AbsentDatasetError, match=r"train.txt is missing$"):
        locate("criteo", tmp_path)
    with pytest.raises(AbsentDatasetError, match=r"mediamill-train.arff is missing .or, instead, mediamill.arff.$"):
        locate("mediamill", tmp_path)


HEADER = """@relation made-up

@attribute red {0,1}
@attribute 'dark blue' {0, 1}
@ATTRIBUTE green {0,1}
@data
"""


def _read(tmp_path, text: str, encoding: str = "utf-8"):
    path = tmp_path / "table.arff"
    path.write_bytes(text.encode(encoding))
    return read_arff(path)


def test_rows_are_read_with_comments_blank_rows_and_a_byte_order_mark(tmp_path):
    table = _read(tmp_path, "% note\n" + HEADER + "{0 1,2 1}\n\n{}\n% more\n{1 0,2 1}\n", "utf-8-sig")
    assert table.label_names == ("red", "dark blue", "green")
    assert table.labels.tolist() == [[True, False, True], [False] * 3, [False, False, True]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "{0 1\n", "line 7: expected a sparse row"),
        (HEADER + "{}\n1,0\n", "line 8: expected 3 values separated by commas, got 2"),
        (HEADER + "{0 2}\n", "line 7: expected a sparse row"),
        (HEADER + "{-1 1}\n", "line 7: expected a sparse row"),
        (HEADER + "{3 1}\n", "line 7: expected indices below 3, got 3"),
        (HEADER + "{1 1,0 1}\n", "line 7: expected indices in increasing order"),
        (HEADER + "{1 1,1 1}\n", "line 7: expected indices in increasing order"),
        (HEADER, "expected attributes and rows, got 3 and 0"),
        ("", "expected attributes and rows, got 0 and 0"),
        ("@attribute a {0,1}\n@attribute a {0,1}\n@data\n{}\n", "an attribute name occurs twice"),
    ],
)
def test_what_is_not_the_format_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(WorldError, match=message):
        _read(tmp_path, text)


def test_a_missing_file_and_other_encodings_are_refused(tmp_path):
    with pytest.raises(WorldError, match="expected a readable UTF-8 file"):
        read_arff(tmp_path / "absent.arff")
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


OBD_HEADER = (
    ",timestamp,item_id,position,click,propensity_score,"
    "user_feature_0,user_feature_1,user_feature_2,user_feature_3,user-item_affinity_0\n"
)


def _write(folder, policy: str, rows: str):
    path = folder / policy / "men" / "men.csv"
    path.parent.mkdir(parents=True)
    path.write_text(OBD_HEADER + rows, encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    _write(
        tmp_path,
        "random",
        "0,2019-11-24 00:00:17.004101+00:00,33,2,0,0.0294,f0,a,x,q,0.0\n"
        "1,2019-11-24 00:00:18+00:00,0,1,1,0.0294,e0,a,y,q,0.0\n",
    )
    _write(tmp_path, "bts", "0,2019-11-24 00:00:19+00:00,5,3,1,0.5,d0,b,x,q,0.0\n")
    return tmp_path


def test_rows_become_columns(folder):
    log = load_obd(folder, policy="random", campaign="men")
    assert log.name == "obd/random/men"
    assert log.arms == 34
    assert log.chosen.tolist() == [33, 0]
    assert log.positions.tolist() == [2, 1]
    assert log.rewards.tolist() == [0.0, 1.0]
    assert log.propensities.tolist() == [0.0294, 0.0294]
    assert log.timestamps_ms.tolist() == [1_574_553_617_004, 1_574_553_618_000]


def test_both_policies_share_one_declaration_of_user_features(folder):
    random, bts = load_obd(folder, "random", "men"), load_obd(folder, "bts", "men")
    assert random.schema == bts.schema
    # Sorted values d0 e0 f0 other | a b other | x y other | q other: twelve cells.
    assert random.contexts.tolist()[0] == [0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert bts.contexts.tolist()[0] == [1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0]
    assert random.visits[0] == {f"user_feature_{number}": one for number, one in enumerate(["f0", "a", "x", "q"])}
    assert random.users.tolist() == ["f0-a-x-q", "e0-a-y-q"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "the table has no rows"),
        ("0,2019-11-24 00:00:17+00:00,1\n", "line 2: expected 11 fields, got 3"),
        ("0,2019-11-24 00:00:17+00:00,one,2,0,0.1,a,b,c,d,0.0\n", "line 2, column item_id: expected a"),
        ("0,2019-11-24 00:00:17+00:00,34,2,0,0.1,a,b,c,d,0.0\n", r"line 2, column item_id: expected an arm in 0\.\.33"),
        (
            "0,2019-11-24 00:00:17+00:00,3,2,0,0.0,a,b,c,d,0.0\n",
            "expected a probability from 1e-09 to 1",
        ),
    ],
)
def test_a_wrong_log_is_refused(tmp_path, rows, message):
    _write(tmp_path, "random", rows)
    with pytest.raises(LogError, match=message):
        load_obd(tmp_path, "random", "men")


def test_unknown_logs_are_refused(folder):
    with pytest.raises(LogError, match="expected policy in"):
        load_obd(folder, policy="greedy")
    with pytest.raises(LogError, match="expected a file, got none"):
        load_obd(folder, policy="random", campaign="women")


def test_the_real_logs_have_their_published_clicks(data_folder):
    folder = data_folder / "open-bandit-small"
    clicks = {
        (policy, c): load_obd(folder, policy, c).rewards.sum() for policy in ("random", "bts") for c in ("all", "men")
    }
    assert clicks == {("random", "all"): 38, ("random", "men"): 46, ("bts", "all"): 42, ("bts", "men"): 69}
