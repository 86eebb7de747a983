"""Datasets: where files are looked for, and how they are fetched, checked and copied."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hushstream.replay import study
from hushstream.replay import study as offers
from hushstream.replay.catalogue import WORLDS, find_world, inspect_dataset, known_worlds, played_by, system_of
from hushstream.replay.datasets import store
from hushstream.replay.datasets.builtin import (
    BUILTIN,
    DATASETS,
    Dataset,
    DatasetError,
    DatasetFile,
    find_dataset,
    known_datasets,
)
from hushstream.replay.datasets.store import (
    cache_folder,
    fetch,
    fetch_dataset,
    list_datasets,
    locate,
)
from hushstream.replay.experiments.catalogue import known_experiments
from hushstream.replay.experiments.findings import EXPERIMENTS
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.table import LOGS, known_logs
from hushstream.replay.studies.colin.worlds import CollaborativeWorld, colin
from hushstream.replay.worlds.synthetic import SyntheticWorld, synthetic
from hushstream.replay.worlds.world import WorldError


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
        note="made up",
        folders=("toy", "toy-files"),
    )
    monkeypatch.setattr("hushstream.replay.datasets.builtin.BUILTIN", (*BUILTIN, dataset))
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
    assert inspect_dataset("toy") == {"bytes": 8}
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


def test_the_simulated_dataset_has_no_files_but_sizes(cache):
    with pytest.raises(DatasetError, match="is simulated and has no files"):
        locate("synthetic")
    sizes = inspect_dataset("synthetic")
    assert (sizes["users"], sizes["arms"], sizes["weights"]) == (2000, 10, "10 x 10")
    assert "bytes" not in sizes


def test_datasets_of_other_packages_are_found_and_clashes_refused(toy, monkeypatch):
    other = Dataset(**{**_fields(toy), "name": "other"})
    monkeypatch.setattr(offers, "entry_points", lambda group: [_Entry("other", other), _Entry("other", toy)])
    assert known_datasets()["other"] is other
    clash = Dataset(**{**_fields(toy), "note": "another"})
    monkeypatch.setattr(offers, "entry_points", lambda group: [_Entry("other", clash)])
    with pytest.raises(DatasetError, match="two packages offer a dataset named 'toy'"):
        known_datasets()
    monkeypatch.setattr(offers, "entry_points", lambda group: [_Entry("other", 7)])
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
        ("ml-ratings", {"users": "100000", "features": "1682 x 20", "user_count": 943}),
        ("tmc2007", {"table_labels": "28596 x 20"}),
        ("obd", {"arms": 80, "contexts": "10000 x 30"}),
        ("filmtrust", {"bytes": 426_269}),
        ("lastfm", {"bytes": 3_708_367, "cluster_of": "1892"}),
    ],
)
def test_the_real_files_are_the_published_ones(data_folder, name, expected):
    sizes = inspect_dataset(name, data_folder)
    assert {key: sizes[key] for key in expected} == expected


CONTENT = bytes(range(256)) * 2048


@dataclass
class Site:
    """What the server offers, how it misbehaves, and how often it was asked.

    Attributes:
        pages: content by path.
        drop_after: bytes after which the next answer is cut.
        status: error status of the next answer.
        announced: the length that answers announce; None for the right one.
        asked: how many requests came.
    """

    pages: dict[str, bytes] = field(default_factory=dict)
    drop_after: int | None = None
    status: int = 404
    announced: str | None = None
    asked: int = 0
    address: str = ""


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked += 1
            if self.path not in site.pages:
                self.send_error(site.status)
                return
            whole = site.pages[self.path]
            self.send_response(200)
            self.send_header("Content-Length", site.announced or str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[: site.drop_after])

        def log_message(self, *_: object) -> None:
            """Keep the test output clean."""

    return Handler


@pytest.fixture
def site(monkeypatch) -> Iterator[Site]:
    monkeypatch.delenv("HUSHSTREAM_DATA", raising=False)
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def _file(path: str, content: bytes, **where: str) -> DatasetFile:
    return DatasetFile(path, hashlib.sha256(content).hexdigest(), len(content), **where)


def _dataset(*files: DatasetFile, archive_url: str | None = None) -> Dataset:
    return Dataset(
        name="toy",
        description="made up",
        licence="none",
        page="here",
        files=files,
        archive_url=archive_url,
        note="made up",
        folders=("toy",),
    )


@pytest.fixture
def single(site) -> Dataset:
    site.pages["/rows.bin"] = CONTENT
    return _dataset(_file("deep/rows.bin", CONTENT, url=f"{site.address}/rows.bin"))


def _fetch(dataset: Dataset, dest: Path, data_dir: Path | None = None) -> Path:
    return fetch_dataset(dataset, dest=dest, data_dir=data_dir)


def _left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_file_is_fetched_once(site, single, tmp_path):
    folder = _fetch(single, tmp_path)
    assert (folder / "deep" / "rows.bin").read_bytes() == CONTENT
    assert _left(tmp_path) == {"toy/deep/rows.bin"}
    _fetch(single, tmp_path)
    assert site.asked == 1


def test_a_dropped_connection_leaves_nothing_and_a_later_call_loads_the_file(site, single, tmp_path):
    site.drop_after = 100_000
    with pytest.raises(DatasetError, match=r"not loaded: .*; call again"):
        _fetch(single, tmp_path)
    assert _left(tmp_path) == set()
    site.drop_after = None
    assert (_fetch(single, tmp_path) / "deep" / "rows.bin").read_bytes() == CONTENT


def test_a_length_that_is_no_number_is_none_and_the_checksum_decides(site, single, tmp_path):
    site.announced = "unknown"
    assert (_fetch(single, tmp_path) / "deep" / "rows.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_leaves_no_file(site, single, tmp_path):
    site.pages["/rows.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(DatasetError, match=r"expected sha256 \w{64}, got \w{64}; the file was removed"):
        _fetch(single, tmp_path)
    assert _left(tmp_path) == set()


def test_a_wrong_file_in_place_is_replaced_by_the_right_one_only(site, single, tmp_path):
    target = tmp_path / "toy" / "deep" / "rows.bin"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    site.pages["/rows.bin"] = b"also wrong"
    with pytest.raises(DatasetError, match="expected 524288 bytes, got 10"):
        _fetch(single, tmp_path)
    assert target.read_bytes() == b"old"
    site.pages["/rows.bin"] = CONTENT
    _fetch(single, tmp_path)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 503])
def test_a_refusal_is_told(site, single, tmp_path, status):
    site.pages.clear()
    site.status = status
    with pytest.raises(DatasetError, match=f"not loaded: HTTP Error {status}"):
        _fetch(single, tmp_path)


def test_an_absent_server_is_told_without_a_traceback_of_sockets(single, tmp_path):
    # Port 9 of loopback (discard) has no listener here; the connection is refused.
    gone = _dataset(replace(single.files[0], url="http://127.0.0.1:9/rows.bin"))
    with pytest.raises(DatasetError, match=r"not loaded: .*refused"):
        _fetch(gone, tmp_path)


@pytest.fixture
def archive(site) -> Dataset:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("inner/a.txt", b"alpha" * 1000)
        packed.writestr("inner/b.txt", b"beta")
        packed.writestr("inner/unwanted.txt", b"no")
        packed.writestr("../escape.txt", b"no")
    site.pages["/all.zip"] = buffer.getvalue()
    return _dataset(
        _file("a.txt", b"alpha" * 1000, member="inner/a.txt"),
        _file("sub/b.txt", b"beta", member="inner/b.txt"),
        archive_url=f"{site.address}/all.zip",
    )


def test_only_the_members_that_are_needed_leave_an_archive(site, archive, tmp_path):
    folder = _fetch(archive, tmp_path)
    assert _left(tmp_path) == {"toy/a.txt", "toy/sub/b.txt"}
    assert (folder / "a.txt").read_bytes() == b"alpha" * 1000


def test_an_archive_that_lacks_or_changed_a_member_is_refused(site, archive, tmp_path):
    absent = _dataset(_file("c.txt", b"gamma", member="inner/c.txt"), archive_url=archive.archive_url)
    with pytest.raises(DatasetError, match=r"expected a member inner/c\.txt"):
        _fetch(absent, tmp_path)
    longer = _dataset(_file("b.txt", b"betas", member="inner/b.txt"), archive_url=archive.archive_url)
    with pytest.raises(DatasetError, match=r"inner/b\.txt: expected 5 bytes, got 4"):
        _fetch(longer, tmp_path)
    other = _dataset(_file("b.txt", b"BETA", member="inner/b.txt"), archive_url=archive.archive_url)
    with pytest.raises(DatasetError, match=r"expected sha256 .*; the file was removed"):
        _fetch(other, tmp_path)
    site.pages["/all.zip"] = b"<html>please log in</html>"
    with pytest.raises(DatasetError, match="expected a whole zip archive, got something else"):
        _fetch(archive, tmp_path)
    assert _left(tmp_path) == set()


def test_a_local_folder_takes_the_place_of_the_publisher(site, single, tmp_path, monkeypatch):
    source = tmp_path / "data" / "toy" / "deep" / "rows.bin"
    source.parent.mkdir(parents=True)
    source.write_bytes(CONTENT)
    folder = _fetch(single, tmp_path / "by-option", data_dir=tmp_path / "data")
    assert (folder / "deep" / "rows.bin").read_bytes() == CONTENT
    monkeypatch.setenv("HUSHSTREAM_DATA", str(tmp_path / "data"))
    folder = _fetch(single, tmp_path / "by-variable")
    assert (folder / "deep" / "rows.bin").read_bytes() == CONTENT
    assert site.asked == 0


def test_a_wrong_local_file_is_refused_and_kept(single, tmp_path):
    source = tmp_path / "data" / "toy" / "deep" / "rows.bin"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"mine")
    with pytest.raises(DatasetError, match="expected 524288 bytes, got 4"):
        _fetch(single, tmp_path / "dest", data_dir=tmp_path / "data")
    assert source.read_bytes() == b"mine"
    assert _left(tmp_path / "dest") == set()


def test_what_has_no_files_or_no_name_cannot_be_fetched(tmp_path):
    with pytest.raises(DatasetError, match="is simulated: there is nothing to fetch"):
        fetch("synthetic", tmp_path)
    with pytest.raises(DatasetError, match="unknown dataset"):
        fetch("mars", tmp_path)


def test_real_files_pass_from_a_local_folder_into_the_cache(data_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = fetch("ml-100k", data_dir=data_folder)
    assert folder == tmp_path / "hushstream" / "datasets" / "ml-100k"
    assert _left(folder) == {"u.data", "u.genre", "u.item", "u.user"}


def test_an_archive_damaged_inside_is_refused(site, archive, tmp_path):
    damaged = bytearray(site.pages["/all.zip"])
    first_name_ends = damaged.index(b"inner/a.txt") + len(b"inner/a.txt")
    damaged[first_name_ends : first_name_ends + 8] = b"\xff" * 8
    site.pages["/all.zip"] = bytes(damaged)
    with pytest.raises(DatasetError, match="expected a whole zip archive"):
        _fetch(archive, tmp_path)
    assert not {name for name in _left(tmp_path) if not name.endswith(".part")}


# What goes by name: one form for datasets, worlds, logs and experiments, of this package and of others.


class _Entry:
    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value

    def load(self) -> object:
        return self.value


@pytest.fixture
def offer(monkeypatch):
    """Have another package offer one thing."""

    def offering(wanted: str, name: str, value: object) -> None:
        found = [_Entry(name, value)]
        monkeypatch.setattr(study, "entry_points", lambda group: found if group == wanted else [])

    return offering


KINDS = [(DATASETS, known_datasets), (WORLDS, known_worlds), (LOGS, known_logs), (EXPERIMENTS, known_experiments)]


@pytest.mark.parametrize(("kind", "known"), KINDS, ids=[kind.what for kind, _ in KINDS])
def test_what_is_offered_twice_or_is_something_else_is_refused_in_the_same_words(offer, kind, known):
    name, mine = next(iter(known().items()))
    offer(kind.group, name, mine)
    assert known()[name] is mine
    offer(kind.group, "other", 7)
    with pytest.raises(kind.error, match=f"entry point other of {kind.group}: expected .*, got int"):
        known()


@pytest.mark.parametrize(("kind", "known", "error"), [(WORLDS, known_worlds, WorldError), (LOGS, known_logs, LogError)])
def test_another_packages_factory_is_found_by_its_entry_point_and_may_not_take_a_name(offer, kind, known, error):
    def made() -> SyntheticWorld:
        return synthetic()

    taken = next(iter(known()))
    offer(kind.group, "made", made)
    assert known()["made"] is made
    offer(kind.group, taken, made)
    with pytest.raises(error, match=f"two packages offer a {kind.what} named"):
        known()


def test_a_world_is_for_the_system_that_the_class_of_its_factory_is_for(offer):
    def related() -> CollaborativeWorld:
        return colin()

    for made, system in ((related, "colin"), (lambda: synthetic(), "p2b")):
        offer(WORLDS.group, "made", made)
        assert (system_of("made"), played_by("made")) == (system, (f"replay {system}",))
    assert system_of("colin") == "colin"
    assert system_of("ml-100k") == "p2b"


OF_USERS_FILES = {"own-ratings", "own-records", "own-vendors"}
"""Worlds that are made of whatever file their user names."""


def test_every_world_and_log_of_this_package_is_a_dataset_of_the_same_name():
    names = {*known_worlds(), *known_logs()}
    assert names - OF_USERS_FILES <= set(known_datasets())
    assert all(played_by(name) for name in names)
    with pytest.raises(WorldError, match=r"unknown world 'nothing'; known: catalogue, colin, .*tmc2007, vendors$"):
        find_world("nothing")


def test_what_comes_with_the_package_is_registered_in_one_place():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not set(project.get("entry-points", {})) & {kind.group for kind, _ in KINDS}
