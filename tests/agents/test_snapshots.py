from __future__ import annotations

import fcntl
import stat
from pathlib import Path

import pytest

from hushstream.agents.recovery import snapshots
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from storage import KEYS, RING, SEAL, StorageKeys

SNAPSHOT = Snapshot(sequence=7, journal_offset=9, genesis=b"gen\nesis", state=b"\x00state\n" * 100)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(
        WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", deployment="dep", datadir=tmp_path), KEYS
    )


def test_a_snapshot_comes_back_as_it_was(store: SnapshotStore) -> None:
    store.save(3, SNAPSHOT)
    assert store.load(3) == SNAPSHOT
    assert store.load(4) is None


def test_it_is_named_by_deployment_role_and_partition_and_closed_to_others(
    store: SnapshotStore, tmp_path: Path
) -> None:
    store.save(3, SNAPSHOT)
    path = store.path(3)
    assert path == tmp_path / "dep" / "learner" / "3.snapshot"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_one_replaces_the_old_and_leaves_no_temporary_file(store: SnapshotStore) -> None:
    store.save(3, SNAPSHOT)
    store.save(3, Snapshot(8, 10, b"g", b"s"))
    assert store.load(3) == Snapshot(8, 10, b"g", b"s")
    assert [p.name for p in store.path(3).parent.iterdir()] == ["3.snapshot"]


def test_what_a_killed_process_left_half_written_goes_with_the_next_save_and_what_one_writes_stays(
    store: SnapshotStore,
) -> None:
    store.save(3, SNAPSHOT)
    folder = store.path(3).parent
    left, written, other = (folder / name for name in (".3.1.tmp", ".3.2.tmp", ".4.1.tmp"))
    left.write_bytes(b"users")
    other.write_bytes(b"of another partition")
    with written.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.save(3, SNAPSHOT)
        assert sorted(folder.iterdir()) == sorted([store.path(3), written, other])


def test_a_state_that_is_gathered_has_no_name_on_disk(store: SnapshotStore) -> None:
    with store.incoming() as file:
        file.write(b"users")
        assert list(store.path(0).parent.iterdir()) == []


def test_what_is_gathered_comes_back_at_any_size_of_read(store: SnapshotStore) -> None:
    with store.incoming() as file:
        for piece in (b"one", b"", b"two-", b"three"):
            file.write(piece)
        file.rewind()
        assert [file.read(size) for size in (2, 6, 0, 100, 1)] == [b"on", b"etwo-t", b"", b"hree", b""]
        file._file.seek(0)
        assert b"one" not in file._file.read()


def earlier(snapshot: Snapshot) -> bytes:
    """A snapshot's file as earlier releases wrote it: in clear."""
    return snapshots._pack(snapshot)


def test_a_snapshot_that_was_left_in_clear_is_read_once_and_sealed(store: SnapshotStore) -> None:
    path = store.path(3)
    path.parent.mkdir(parents=True)
    path.write_bytes(earlier(SNAPSHOT))
    aside, sealed = path.with_suffix(".other-version"), path.with_suffix(".damaged")
    aside.write_bytes(earlier(SNAPSHOT))
    sealed.write_bytes(b"".join(SEAL.pack_file(bytes(16), earlier(SNAPSHOT))))
    assert store.load(3) == SNAPSHOT
    assert SNAPSHOT.state[:12] not in path.read_bytes()
    assert (aside.exists(), sealed.exists()) == (False, True), "what was put aside in clear is gone, and nothing else"
    assert store.load(3) == SNAPSHOT


def test_a_snapshot_of_another_key_partition_or_role_is_not_gone_on_with(
    store: SnapshotStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(3, SNAPSHOT)
    content = store.path(3).read_bytes()
    store.path(4).write_bytes(content)
    assert store.load(4) is None
    assert "expected content as it was sealed for this partition" in caplog.text
    role = store._settings.model_copy(update={"role": "shuffler"})
    for settings, keys in ((role, KEYS), (store._settings, StorageKeys(KeyRing(0, 0, (), seeded_key(1, "edge"))))):
        other = SnapshotStore(settings, keys)
        other.path(3).parent.mkdir(parents=True, exist_ok=True)
        other.path(3).write_bytes(content)
        assert other.load(3) is None
    assert "under a key of this zone's key file" in caplog.text


def test_a_snapshot_under_an_earlier_key_is_sealed_under_the_current_one(store: SnapshotStore) -> None:
    store.save(3, SNAPSHOT)
    turned = KeyRing(0, 1, (), RING.key)
    assert SnapshotStore(store._settings, StorageKeys(turned)).load(3) == SNAPSHOT
    retired = KeyRing(1, 1, ((0, RING.key.key_id),), turned.of(1))
    assert SnapshotStore(store._settings, StorageKeys(retired)).load(3) == SNAPSHOT
    assert store.load(3) is None


@pytest.mark.parametrize("position", [0, 30, 60, -1])
def test_damage_anywhere_is_noticed_and_the_snapshot_ignored(
    store: SnapshotStore, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(3, SNAPSHOT)
    content = bytearray(store.path(3).read_bytes())
    content[position] ^= 1
    store.path(3).write_bytes(bytes(content))
    assert store.load(3) is None
    assert "damaged" in caplog.text


@pytest.mark.parametrize("length", [0, 5, 40])
def test_a_truncated_snapshot_is_ignored(store: SnapshotStore, length: int) -> None:
    store.save(3, SNAPSHOT)
    store.path(3).write_bytes(store.path(3).read_bytes()[:length])
    assert store.load(3) is None
