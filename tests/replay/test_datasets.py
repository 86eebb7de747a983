"""Datasets by name: found, checked, described; a wrong or absent file is said to be so."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from hushstream.replay import registry as offers
from hushstream.replay.datasets import store
from hushstream.replay.datasets.builtin import BUILTIN
from hushstream.replay.datasets.dataset import Dataset, DatasetError, DatasetFile
from hushstream.replay.datasets.registry import find_dataset, known_datasets
from hushstream.replay.datasets.store import cache_folder, inspect, list_datasets, locate


def _summarise(folder: Path):
    return {"rows": len((folder / "rows.txt").read_text(encoding="utf-8").splitlines())}


@pytest.fixture
def toy(monkeypatch) -> Dataset:
    """A dataset of one file, known by name."""
    content = b"one\ntwo\n"
    dataset = Dataset(
        name="toy",
        description="two rows",
        licence="none",
        page="here",
        files=(DatasetFile("rows.txt", hashlib.sha256(content).hexdigest(), len(content)),),
        archive_url=None,
        verified=False,
        note="made up",
        folders=("toy", "toy-files"),
        summarise=_summarise,
    )
    monkeypatch.setattr("hushstream.replay.datasets.registry.BUILTIN", (*BUILTIN, dataset))
    return dataset


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HUSHSTREAM_DATA", raising=False)
    return tmp_path / "cache" / "hushstream" / "datasets"


def _put(folder: Path, content: bytes = b"one\ntwo\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "rows.txt").write_bytes(content)
    return folder


def test_the_cache_follows_the_desktop_convention():
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/hushstream/datasets")
    assert cache_folder({}) == Path.home() / ".cache" / "hushstream" / "datasets"


def test_every_built_in_dataset_names_its_files_licence_and_origin():
    assert {"synthetic", "tmc2007", "ml-100k", "obd"} <= set(known_datasets())
    for dataset in BUILTIN:
        assert dataset.licence
        assert dataset.page.startswith("https://") or not dataset.files
        for file in dataset.files:
            assert not Path(file.path).is_absolute()
            assert ".." not in Path(file.path).parts
            if file.sha256 is None:
                assert (file.size_bytes, file.url, file.member) == (None, None, None)
                assert "not checked" in dataset.note
                continue
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert (file.url is None) != (file.member is None)
            assert file.member is None or dataset.archive_url is not None


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(DatasetError, match=r"unknown dataset 'mars'; known: .*ml-100k.*synthetic"):
        find_dataset("mars")


@pytest.mark.parametrize("place", ["data/toy", "data/toy-files", "data"])
def test_a_data_folder_may_hold_the_dataset_under_its_names_or_be_it(tmp_path, toy, cache, monkeypatch, place):
    folder = _put(tmp_path / place)
    assert locate("toy", tmp_path / "data") == folder
    monkeypatch.setenv("HUSHSTREAM_DATA", str(tmp_path / "data"))
    assert locate("toy") == folder
    assert inspect("toy") == {"rows": 2}
    assert {dataset.name: held for dataset, held in list_datasets()}["toy"] == folder


def test_without_a_data_folder_the_cache_is_looked_at(toy, cache):
    with pytest.raises(DatasetError, match=r"hushstream datasets fetch toy.*HUSHSTREAM_DATA"):
        locate("toy")
    folder = _put(cache / "toy")
    assert locate("toy") == folder


def test_a_changed_file_is_refused_and_a_users_own_file_is_kept(tmp_path, toy, cache):
    folder = _put(tmp_path / "data" / "toy", b"one\ntwO\n")
    with pytest.raises(DatasetError, match=r"expected sha256 [0-9a-f]{64}, got [0-9a-f]{64}"):
        locate("toy", tmp_path / "data")
    (folder / "rows.txt").write_bytes(b"one\n")
    with pytest.raises(DatasetError, match="expected 8 bytes, got 4"):
        locate("toy", tmp_path / "data")
    assert (folder / "rows.txt").exists()


def test_a_data_folder_without_the_dataset_says_what_is_missing(tmp_path, toy, cache):
    with pytest.raises(DatasetError, match=r"expected its files in .*toy-files.*rows.txt is missing"):
        locate("toy", tmp_path)


def test_the_simulated_dataset_has_no_files_but_a_summary(cache):
    with pytest.raises(DatasetError, match="is simulated and has no files"):
        locate("synthetic")
    summary = inspect("synthetic")
    assert (summary["users"], summary["arms"]) == (2000, 10)
    # Random arms earn 1 / K whatever the weights.
    assert summary["random_arm_reward"] == pytest.approx(0.1, abs=0.005)


class _Entry:
    def __init__(self, value: object) -> None:
        self.name, self.value = "other", value

    def load(self) -> object:
        return self.value


def test_datasets_of_other_packages_are_found_and_clashes_refused(toy, monkeypatch):
    other = Dataset(**{**_fields(toy), "name": "other"})
    monkeypatch.setattr(offers, "entry_points", lambda group: [_Entry(other), _Entry(toy)])
    assert known_datasets()["other"] is other
    clash = Dataset(**{**_fields(toy), "note": "another"})
    monkeypatch.setattr(offers, "entry_points", lambda group: [_Entry(clash)])
    with pytest.raises(DatasetError, match="two packages offer a dataset named 'toy'"):
        known_datasets()
    monkeypatch.setattr(offers, "entry_points", lambda group: [_Entry(7)])
    with pytest.raises(DatasetError, match="expected Dataset, got int"):
        known_datasets()


def _fields(dataset: Dataset) -> dict[str, object]:
    return {name: getattr(dataset, name) for name in Dataset.__slots__}


def test_an_unreadable_checksum_target_is_named(tmp_path):
    with pytest.raises(DatasetError, match="expected a readable file, got: No such file"):
        store.check_file(tmp_path / "absent", DatasetFile("absent", "0" * 64, 1))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ml-100k", {"rows": 100_000, "users": 943, "items": 1682, "arms": 18}),
        ("tmc2007", {"rows": 28_596, "dimension": 500, "arms": 22}),
        ("obd", {"rows": 60_000, "arms_all": 80, "arms_men": 34, "arms_women": 46}),
        ("filmtrust", {"rows": 35_497, "users": 1508, "items": 2071}),
        ("lastfm", {"rows": 92_834, "users": 1892, "friendships": 25_434}),
    ],
)
def test_the_real_files_are_the_published_ones(data_folder, name, expected):
    summary = inspect(name, data_folder)
    assert {key: summary[key] for key in expected} == expected
