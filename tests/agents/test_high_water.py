"""What lies on a worker's disk: release marks, snapshots, and the keys under which both are sealed."""

from __future__ import annotations

import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hushstream.agents.errors import JournalLost
from hushstream.agents.recovery.marks import HighWater, OlderThanReleased
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.journal.marks import Mark
from hushstream.engine.state.packed import SALT_BYTES, SealBroken, StorageSeal
from hushstream.engine.state.published import PUBLIC_RING, StateSeal, StateUnreadable
from hushstream.privacy.errors import RetiredKey
from hushstream.privacy.key_files import KeyRing, StorageRing, check, load_ring, retire, rotate, storage_zone
from hushstream.privacy.keys import generate_keys, key_path, seeded_key
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import declare
from storage import KEYS, RING, StorageKeys


def marks(folder: Path, **changes: object) -> HighWater:
    values = {"bootstrap": "127.0.0.1:1", "role": "shuffler", "group": "g", "deployment": "dep", "datadir": folder}
    return HighWater(WorkerSettings(**{**values, **changes}))


def mark(sequence: int, journal: str = "aa", generation: int = 0) -> Mark:
    return Mark(journal, sequence, generation)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "release-marks").iterdir())


def test_the_highest_mark_of_each_journal_is_told(tmp_path):
    high = marks(tmp_path)
    assert high.noted(0) == ()
    for noted in (mark(7), mark(9), mark(2, "bb")):
        high.raise_to(0, noted)
    high.raise_to(1, mark(4))
    assert high.noted(0) == (mark(9), mark(2, "bb"))
    assert high.noted(1) == (mark(4),)
    high.raise_to(1, mark(3, generation=1))
    assert high.noted(1) == (mark(3, generation=1),), "what an operator went on with is later than all before"


def test_the_mark_outlives_its_writer_and_belongs_to_one_role_of_one_deployment(tmp_path):
    marks(tmp_path).raise_to(0, mark(7))
    assert marks(tmp_path).noted(0) == (mark(7),)
    assert marks(tmp_path, role="counter").noted(0) == ()
    assert marks(tmp_path, deployment="other").noted(0) == ()


def test_a_mark_is_its_owners_alone(tmp_path):
    marks(tmp_path).raise_to(0, mark(7))
    paths = [tmp_path / "release-marks", *(tmp_path / "release-marks").iterdir()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o600]


def test_an_owner_that_wakes_late_does_not_lower_the_mark(tmp_path):
    marks(tmp_path).raise_to(0, mark(31))
    marks(tmp_path).raise_to(0, mark(5))
    assert marks(tmp_path).noted(0) == (mark(31),)


def test_two_owners_that_note_at_once_leave_the_higher_mark(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda sequence: marks(tmp_path).raise_to(0, mark(sequence)), range(1, 200)))
    assert marks(tmp_path).noted(0) == (mark(199),)


def test_an_owner_that_was_stopped_between_looking_and_noting_does_not_lower_the_mark(tmp_path, monkeypatch):
    marks(tmp_path).raise_to(0, mark(31))
    with monkeypatch.context() as stopped:
        stopped.setattr(HighWater, "_highest", lambda *_: mark(4))  # what they saw before the other noted 31
        marks(tmp_path).raise_to(0, mark(5))
    assert marks(tmp_path).noted(0) == (mark(31),)
    marks(tmp_path).raise_to(0, mark(32))
    assert files(tmp_path) == ["dep.shuffler.0.aa.0-32.json"]


def test_a_journal_that_comes_back_after_another_is_still_held_to_its_mark(tmp_path):
    marks(tmp_path).raise_to(0, mark(7))
    marks(tmp_path).raise_to(0, mark(2, "bb"))
    assert marks(tmp_path).noted(0) == (mark(7), mark(2, "bb"))


def test_another_folder_keeps_the_mark_out_of_the_data(tmp_path):
    high = marks(tmp_path / "state", release_marks=tmp_path / "marks")
    high.raise_to(0, mark(7))
    assert list((tmp_path / "marks").iterdir())
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("position", [0, 20, 40, -2])
def test_a_damaged_mark_is_refused_not_believed(tmp_path, position):
    high = marks(tmp_path)
    high.raise_to(0, mark(7))
    (path,) = (tmp_path / "release-marks").iterdir()
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(OlderThanReleased, match=r"damaged|readable"):
        high.noted(0)
    with pytest.raises(OlderThanReleased, match=r"damaged|readable"):
        marks(tmp_path).raise_to(0, mark(8))


def test_the_name_of_a_mark_is_on_disk_before_lower_marks_go(tmp_path, monkeypatch):
    high = marks(tmp_path)
    high.raise_to(0, mark(7))
    done: list[str] = []
    forced, replaced, unlinked = os.fsync, Path.replace, Path.unlink

    def fsync(descriptor: int) -> None:
        done.append("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        forced(descriptor)

    def replace(path: Path, target: Path) -> Path:
        done.append("replace")
        return replaced(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        done.append("unlink")
        unlinked(path, missing_ok)

    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", fsync)
        watched.setattr(Path, "replace", replace)
        watched.setattr(Path, "unlink", unlink)
        high.raise_to(0, mark(8))
    assert done == ["fsync file", "replace", "fsync folder", "unlink"]
    assert files(tmp_path) == ["dep.shuffler.0.aa.0-8.json"]


def test_the_folder_is_gone_through_for_the_first_mark_only(tmp_path, monkeypatch):
    marks(tmp_path).raise_to(0, mark(3))
    high = marks(tmp_path)
    high.raise_to(0, mark(7))
    with monkeypatch.context() as watched:
        watched.setattr(HighWater, "_stems", lambda *_: pytest.fail("the folder was gone through"))
        for sequence in (8, 9, 9, 4, 12):
            high.raise_to(0, mark(sequence))
    assert files(tmp_path) == ["dep.shuffler.0.aa.0-12.json"]


def test_a_mark_that_cannot_be_written_lets_nothing_out(tmp_path):
    (tmp_path / "release-marks").write_text("in the way", encoding="utf-8")
    with pytest.raises(JournalLost, match="the mark could not be written"):
        marks(tmp_path).raise_to(0, mark(7))


def test_a_file_that_says_no_place_is_not_passed_over(tmp_path):
    (tmp_path / "release-marks").mkdir()
    (tmp_path / "release-marks" / "dep.shuffler.0.aa.7.json").write_text("of another form", encoding="utf-8")
    with pytest.raises(OlderThanReleased, match="expected the name of a mark to end with GENERATION-RECORD"):
        marks(tmp_path).noted(0)


SNAPSHOT = Snapshot(sequence=7, journal_offset=9, genesis=b"gen\nesis", state=b"\x00state\n" * 100)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(
        WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", deployment="dep", datadir=tmp_path), KEYS
    )


def test_a_snapshot_comes_back_as_it_was(store):
    store.save(3, SNAPSHOT)
    assert store.load(3) == SNAPSHOT
    assert store.load(4) is None


def test_it_is_named_by_deployment_role_and_partition_and_closed_to_others(store, tmp_path):
    store.save(3, SNAPSHOT)
    path = store.path(3)
    assert path == tmp_path / "dep" / "learner" / "3.snapshot"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_one_replaces_the_old_and_leaves_no_temporary_file(store):
    store.save(3, SNAPSHOT)
    store.save(3, Snapshot(8, 10, b"g", b"s"))
    assert store.load(3) == Snapshot(8, 10, b"g", b"s")
    assert [p.name for p in store.path(3).parent.iterdir()] == ["3.snapshot"]


def test_what_a_killed_process_left_half_written_goes_with_the_next_save_and_what_one_writes_stays(store):
    store.save(3, SNAPSHOT)
    folder = store.path(3).parent
    left, written, other = (folder / name for name in (".3.1.tmp", ".3.2.tmp", ".4.1.tmp"))
    left.write_bytes(b"users")
    other.write_bytes(b"of another partition")
    with written.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.save(3, SNAPSHOT)
        assert sorted(folder.iterdir()) == sorted([store.path(3), written, other])


def test_a_state_that_is_gathered_has_no_name_on_disk(store):
    with store.incoming() as file:
        file.write(b"users")
        assert list(store.path(0).parent.iterdir()) == []


def test_what_is_gathered_comes_back_at_any_size_of_read(store):
    with store.incoming() as file:
        for piece in (b"one", b"", b"two-", b"three"):
            file.write(piece)
        file.rewind()
        assert [file.read(size) for size in (2, 6, 0, 100, 1)] == [b"on", b"etwo-t", b"", b"hree", b""]
        file._file.seek(0)
        assert b"one" not in file._file.read()


def test_a_snapshot_does_not_lie_in_clear(store):
    store.save(3, SNAPSHOT)
    assert SNAPSHOT.state[:12] not in store.path(3).read_bytes()
    assert store.load(3) == SNAPSHOT


def test_a_snapshot_of_another_key_partition_or_role_is_not_gone_on_with(store, tmp_path, caplog):
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


def test_a_snapshot_under_an_earlier_key_is_sealed_under_the_current_one(store):
    store.save(3, SNAPSHOT)
    turned = KeyRing(0, 1, (), RING.key)
    assert SnapshotStore(store._settings, StorageKeys(turned)).load(3) == SNAPSHOT
    retired = KeyRing(1, 1, ((0, RING.key.key_id),), turned.of(1))
    assert SnapshotStore(store._settings, StorageKeys(retired)).load(3) == SNAPSHOT
    assert store.load(3) is None


@pytest.mark.parametrize("position", [0, 30, 60, -1])
def test_damage_anywhere_is_noticed_and_the_snapshot_ignored(store, position, caplog):
    store.save(3, SNAPSHOT)
    content = bytearray(store.path(3).read_bytes())
    content[position] ^= 1
    store.path(3).write_bytes(bytes(content))
    assert store.load(3) is None
    assert "damaged" in caplog.text


ZONE, STORAGE = "edge", "storage-edge"
CONTENT = b"what ann likes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Key files of an earlier release: none of storage."""
    generate_keys(tmp_path, [ZONE])
    return tmp_path


@pytest.fixture(scope="module")
def shop() -> System:
    config = P2BConfig(
        "shop", 4, ContextConfig(3), 32, encoder=EncoderConfig(codes=4), release=ReleaseConfig(window_slots=8)
    )
    return declare(P2BSystem.fitted(config))


def seal(folder: Path) -> StorageSeal:
    """As a worker that is started now seals: it reads the key files."""
    return StorageSeal("shop", "learner", 0, ring(folder))


def ring(folder: Path) -> KeyRing:
    before, storage = load_ring(key_path(folder, ZONE)), KeySource(folder).storage(STORAGE)
    return before if storage is None else StorageRing.of_zone(storage, before)


def sealed(by: StorageSeal) -> bytes:
    return b"".join(by.pack_file(os.urandom(SALT_BYTES), CONTENT))


def test_the_storage_key_is_none_of_noise_and_follows_from_no_key_of_noise(folder):
    generate_keys(folder, [STORAGE])
    noise, storage = load_ring(key_path(folder, ZONE)), load_ring(key_path(folder, STORAGE))
    assert storage.key.key_id not in {key.key_id for key in noise.kept()}
    assert [one.problem for one in check(folder, [ZONE, STORAGE])] == [None, None]
    key_path(folder, STORAGE).unlink()
    generate_keys(folder, [STORAGE])
    assert load_ring(key_path(folder, STORAGE)).key.key_id != storage.key.key_id, "from the same zone's key another one"


def test_key_files_of_an_earlier_release_go_on_and_what_they_sealed_opens_under_a_storage_key(folder):
    old = sealed(seal(folder))
    assert seal(folder).unpack_file(old) == CONTENT
    generate_keys(folder, [STORAGE])
    now = seal(folder)
    assert now.unpack_file(old) == CONTENT
    assert now.is_other_key(old), "so it is sealed anew when the partition is taken up"
    assert not now.is_other_key(sealed(now))


def test_a_key_of_noise_that_is_destroyed_takes_no_state_with_it(folder):
    generate_keys(folder, [STORAGE])
    kept, published = sealed(seal(folder)), StateSeal("shop", "learner", 0, ring(folder)).pack(bytes(16), 0, CONTENT)
    rotate(key_path(folder, ZONE))
    retire(key_path(folder, ZONE), 0)
    assert seal(folder).unpack_file(kept) == CONTENT
    assert StateSeal("shop", "learner", 0, ring(folder)).unpack(published).content == CONTENT


def test_a_state_under_a_destroyed_storage_key_is_readable_by_nobody_nor_is_one_of_before(folder):
    before = sealed(seal(folder))
    generate_keys(folder, [STORAGE])
    first = sealed(seal(folder))
    rotate(key_path(folder, STORAGE))
    second = sealed(seal(folder))
    assert [seal(folder).unpack_file(one) for one in (before, first, second)] == [CONTENT] * 3
    retire(key_path(folder, STORAGE), 0)
    assert seal(folder).unpack_file(second) == CONTENT
    for gone in (before, first):
        with pytest.raises(SealBroken, match="under a key of this zone's key file"):
            seal(folder).unpack_file(gone)
    with pytest.raises(RetiredKey):
        load_ring(key_path(folder, STORAGE)).of(0)


@pytest.mark.parametrize("name", ["learner", "shuffler", "aggregator"])
def test_every_role_seals_under_the_storage_key_of_its_zone_and_an_aggregator_has_that_key_alone(name, shop, tmp_path):
    role = role_of(shop, name)
    generate_keys(tmp_path, role.key_zones)
    maker = MachineMaker(role, shop, KeySource(tmp_path))
    before = PUBLIC_RING if role.key_zone is None else load_ring(key_path(tmp_path, role.key_zone))
    assert maker.state_keys() == before
    generate_keys(tmp_path, [role.storage_zone])
    storage = load_ring(key_path(tmp_path, role.storage_zone))
    keys = maker.state_keys()
    assert keys.of(keys.current) == storage.of(storage.current)
    assert role.storage_zone == storage_zone(role.key_zone or role.zone)
    old = StateSeal("shop", name, 0, before).pack(bytes(16), 0, CONTENT)
    assert StateSeal("shop", name, 0, keys).unpack(old).content == CONTENT
    rotate(key_path(tmp_path, role.storage_zone))
    retire(key_path(tmp_path, role.storage_zone), 0)
    with pytest.raises(StateUnreadable):
        StateSeal("shop", name, 0, maker.state_keys()).unpack(old)


def test_seeds_give_storage_keys_too():
    one, other = KeySource(seed=7).storage(STORAGE), KeySource(seed=7).key(ZONE)
    assert one is not None
    assert one.key.key_id != other.key_id
