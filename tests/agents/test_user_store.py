"""Spilled users on disk: a snapshot and its users are one, and nobody's older copy takes the place of a newer."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import storage
from hushstream.agents.errors import JournalLost
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.recovery.user_store import DamagedUserStore, UserDatabase, UsersLost
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.machine import NEVER_MS, StoredUser
from hushstream.engine.state.packed import StorageSeal
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from storage import KEYS, RING, SEAL

SHARED = Path(storage.__file__).parent
ANN, BOB = b"a" * 16, b"b" * 16


def save(store: UserDatabase, content: bytes) -> None:
    """A snapshot of what was put until now."""
    store.cut()
    store.save(content)


def run(script: str, place: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, which finds what tests share."""
    command = [sys.executable, "-c", script, str(place)]
    return subprocess.run(command, cwd=SHARED, check=False, capture_output=True, text=True, encoding="utf-8")


def user(key: bytes, value: bytes, seen_ms: int = 5) -> StoredUser:
    return StoredUser(key, seen_ms, value)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "deployment" / "0.users"


@pytest.fixture
def store(place: Path) -> Iterator[UserDatabase]:
    with closing(UserDatabase(place, SEAL)) as opened:
        yield opened


def test_who_was_put_is_there_at_once_and_in_the_file_after_a_snapshot(store, place):
    assert store.put([user(ANN, b"one"), user(BOB, b"two")])
    assert (store.get(ANN), store.get(b"c" * 16), store.snapshot()) == (b"one", None, None)
    with closing(UserDatabase(place, SEAL)) as other:
        assert other.get(ANN) is None
    save(store, b"first")
    assert store.put([user(ANN, b"three")])
    assert (store.get(ANN), store.get(BOB), store.snapshot()) == (b"three", b"two", b"first")
    with closing(UserDatabase(place, SEAL)) as other:
        assert (other.get(ANN), other.snapshot()) == (b"one", b"first")


def test_a_rewound_store_is_as_the_last_snapshot_left_it(store):
    store.put([user(ANN, b"one")])
    save(store, b"first")
    store.put([user(ANN, b"two"), user(BOB, b"two")])
    store.rewind()
    assert (store.get(ANN), store.get(BOB)) == (b"one", None)


def test_the_unseen_are_found_by_their_newest_state(store):
    store.put([user(ANN, b"old", 5), user(BOB, b"kept", NEVER_MS), user(b"c" * 16, b"old", 6)])
    save(store, b"first")
    store.put([user(ANN, b"new", 50)])
    assert list(store.unseen_since(6)) == []
    assert list(store.unseen_since(7)) == [user(b"c" * 16, b"old", 6)]
    assert {found.value for found in store.unseen_since(51)} == {b"new", b"old"}


def test_the_file_is_closed_to_others(store, place):
    store.put([user(ANN, b"one")])
    save(store, b"first")
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.parent.iterdir()} == {0o600}


def test_the_older_of_two_owners_reads_and_writes_nothing_until_it_begins_anew(place):
    """A worker that was stopped and wakes up again must not mix its users with those of its successor."""
    with closing(UserDatabase(place, SEAL)) as older, closing(UserDatabase(place, SEAL)) as newer:
        older.put([user(ANN, b"one")])
        save(older, b"first")
        newer.rewind()
        newer.put([user(ANN, b"two")])
        assert not older.behind
        save(newer, b"second")
        assert older.behind
        older.put([user(BOB, b"stale")])
        for _ in range(3):
            with pytest.raises(UsersLost, match="another owner"):
                save(older, b"stale")
        refused = (lambda: older.get(ANN), older.snapshot, lambda: list(older.unseen_since(0)))
        for read in refused:
            with pytest.raises(UsersLost, match="another owner"):
                read()
        assert (newer.get(ANN), newer.get(BOB), newer.snapshot()) == (b"two", None, b"second")
        older.rewind()
        assert not older.behind
        assert (older.get(ANN), older.get(BOB), older.snapshot()) == (b"two", None, b"second")


KILLED = """
import os, signal, sys
from pathlib import Path
from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.engine.machine import StoredUser
from storage import SEAL
store = UserDatabase(Path(sys.argv[1]), SEAL)
store.put([StoredUser(b"a" * 16, 5, b"one")])
store.cut()
store.save(b"first")
store.put([StoredUser(bytes([n // 256, n % 256]) * 8, 5, bytes(4000)) for n in range(5000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_last_snapshot_and_no_other_file(place):
    ended = run(KILLED, place)
    assert ended.returncode == -signal.SIGKILL
    with closing(UserDatabase(place, SEAL)) as store:
        assert (store.get(ANN), store.get(bytes(16)), store.snapshot()) == (b"one", None, b"first")
    assert [path.name for path in place.parent.iterdir()] == ["0.users"]


FULL = """
import resource, signal, sys
from pathlib import Path
from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.engine.machine import StoredUser
from storage import SEAL
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = UserDatabase(Path(sys.argv[1]), SEAL)
store.put([StoredUser(b"a" * 16, 5, b"one")])
store.cut()
store.save(b"first")
store.put([StoredUser(b"b" * 16, 5, b"two")])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
taken = store.put(StoredUser(n.to_bytes(16, "big"), 5, bytes(4000)) for n in range(10000))
found = [store.get(key) for key in (b"a" * 16, b"b" * 16, bytes(16))]
saved = True
store.put([StoredUser(b"b" * 16, 5, bytes(900000))])
store.cut()
try:
    store.save(bytes(900000))
except OSError:
    saved = False
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(taken, found, saved, store.snapshot(), len(store.get(b"b" * 16)))
"""


def test_without_room_nobody_is_lost_and_the_last_snapshot_stands(place):
    ended = run(FULL, place)
    assert ended.stdout.split("\n")[0] == "False [b'one', b'two', None] False b'first' 900000", ended.stderr


def test_a_snapshot_that_could_not_be_written_goes_into_the_next_one(place):
    with closing(UserDatabase(place, SEAL)) as store, closing(sqlite3.connect(place, isolation_level=None)) as holder:
        store.put([user(ANN, b"one"), user(BOB, b"one")])
        holder.execute("BEGIN IMMEDIATE")
        for content, value in ((b"first", b"two"), (b"second", b"three")):
            with pytest.raises(OSError, match="locked"):
                save(store, content)
            store.put([user(ANN, value)])
        holder.execute("ROLLBACK")
        assert (store.get(ANN), store.get(BOB)) == (b"three", b"one")
        save(store, b"third")
        store.put([user(ANN, b"later")])
        with closing(UserDatabase(place, SEAL)) as other:
            assert (other.get(ANN), other.get(BOB), other.snapshot()) == (b"three", b"one", b"third")


def test_what_is_put_after_the_cut_is_of_the_next_snapshot(store, place):
    store.put([user(ANN, b"one")])
    store.cut()
    store.put([user(ANN, b"later", 50), user(BOB, b"later", 60)])
    assert store.complete([user(BOB, b"one", 4)])
    for _ in ("before it is saved", "after"):
        assert (store.get(ANN), store.get(BOB)) == (b"later", b"later")
        assert list(store.unseen_since(55)) == [user(ANN, b"later", 50)]
        store.save(b"first")
    with closing(UserDatabase(place, SEAL)) as other:
        assert (other.get(ANN), other.get(BOB), other.snapshot()) == (b"one", b"one", b"first")


def test_a_thread_saves_while_the_machine_reads_and_puts(store, place):
    keys = [n.to_bytes(16, "big") for n in range(5000)]
    with ThreadPoolExecutor(1) as pool:
        for turn in range(5):
            value = b"%d" % turn
            store.put(user(key, value) for key in keys)
            store.cut()
            saving = pool.submit(store.save, value)
            store.put(user(key, b"later") for key in keys[:500])
            while not saving.done():
                assert {store.get(key) for key in keys[:500]} == {b"later"}
                assert {store.get(key) for key in keys[500:1000]} == {value}
                assert len(list(store.unseen_since(6))) == len(keys)
            saving.result()
            with closing(UserDatabase(place, SEAL)) as other:
                assert ({other.get(key) for key in keys}, other.snapshot()) == ({value}, value)


def test_a_partition_that_was_given_up_does_not_hold_up_its_heirs_log(tmp_path):
    settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path)
    given_up, heir = SnapshotStore(settings, KEYS), SnapshotStore(settings, KEYS)
    first = given_up.users(0)
    first.put([user(ANN, b"one")])
    first.cut()
    given_up.save(0, Snapshot(1, 1, b"g", b"s"))
    assert first.get(ANN) == b"one"
    users = heir.users(0)
    log = next(tmp_path.rglob("0.users")).with_name("0.users-wal")
    sizes = []
    for number in range(60):
        users.put(user(n.to_bytes(16, "big"), bytes(1000)) for n in range(1000))
        users.cut()
        heir.save(0, Snapshot(number, number, b"g", b"s"))
        sizes.append(log.stat().st_size)
    assert max(sizes[30:]) == max(sizes[:30]), "the log is begun anew again and again"


HELD = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "CREATE TABLE mine (n)")


def test_a_file_that_is_held_is_left_alone_and_asked_for_again(place, caplog):
    with closing(UserDatabase(place, SEAL)) as store:
        store.put([user(ANN, b"one")])
        save(store, b"first")
    with closing(sqlite3.connect(place, isolation_level=None)) as holder:
        for statement in HELD:
            holder.execute(statement)
        with pytest.raises(UsersLost, match="another process holds the users") as found:
            UserDatabase(place, SEAL)
        assert "move it away" not in str(found.value)
        assert issubclass(UsersLost, JournalLost), "the partition is tried again"
        holder.execute("ROLLBACK")
    assert not [record for record in caplog.records if record.name.startswith("hushstream")]
    assert not place.with_suffix(".damaged").exists()
    with closing(UserDatabase(place, SEAL)) as store:
        assert (store.get(ANN), store.snapshot()) == (b"one", b"first")


NO_ROOM = """
import resource, signal, sys
from pathlib import Path
from hushstream.agents.datadir import DatadirUnusable
from hushstream.agents.recovery.user_store import UserDatabase
from storage import SEAL
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    UserDatabase(Path(sys.argv[1]), SEAL)
except DatadirUnusable as error:
    print(error)
"""


def test_without_room_at_a_take_up_the_folder_is_named_and_what_to_do(place):
    ended = run(NO_ROOM, place)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{place}: expected to read and write the users of this partition there, got")
    assert "make sure that there is room and the right to write" in ended.stdout
    assert not place.with_suffix(".damaged").exists()


def test_a_damaged_file_is_put_aside_and_said_to_be(place, caplog):
    place.parent.mkdir(parents=True)
    place.write_bytes(b"no database" * 1000)
    with caplog.at_level(logging.WARNING), closing(UserDatabase(place, SEAL)) as store:
        assert store.snapshot() is None
    assert "damaged" in caplog.text
    assert place.with_suffix(".damaged").exists()


def test_damage_found_later_names_the_file_and_the_way_out(place):
    with closing(UserDatabase(place, SEAL)) as store:
        store.put([user(n.to_bytes(16, "big"), bytes(500)) for n in range(2000)])
        save(store, b"first")
    with place.open("r+b") as file:
        file.seek(20 * 4096)
        file.write(os.urandom(150 * 4096))
    with (
        closing(UserDatabase(place, SEAL)) as store,
        pytest.raises(DamagedUserStore, match="move it away and start again"),
    ):
        _ = [store.get(n.to_bytes(16, "big")) for n in range(2000)]


def test_the_snapshots_of_a_partition_with_users_lie_with_them(tmp_path):
    settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path)
    snapshots = SnapshotStore(settings, KEYS)
    users = snapshots.users(3)
    users.put([user(ANN, b"one")])
    users.cut()
    assert snapshots.load(3) is None
    snapshot = Snapshot(7, 9, b"gen\nesis", b"\x00state\n")
    snapshots.save(3, snapshot)
    assert not snapshots.path(3).exists()
    again = SnapshotStore(settings, KEYS)
    assert again.users(3).get(ANN) == b"one"
    assert again.load(3) == snapshot
    again.save(3, Snapshot(8, 10, b"g", b"s"))
    assert snapshots.behind(3)
    assert not again.behind(3)


def test_what_is_put_aside_is_kept_whole_and_nobody_is_left(store, place):
    store.put([user(ANN, b"one")])
    save(store, b"first")
    with closing(UserDatabase(place, SEAL)) as other:
        store.put([user(BOB, b"two")])
        aside = store.put_aside()
        assert (store.get(ANN), store.get(BOB), store.snapshot()) == (None, None, None)
        assert list(store.unseen_since(100)) == []
        assert other.behind, "whoever held the file before has lost it"
        with pytest.raises(UsersLost):
            other.get(ANN)
    with closing(UserDatabase(aside, SEAL)) as kept:
        assert (kept.get(ANN), kept.snapshot()) == (b"one", b"first")
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    store.put([user(BOB, b"three")])
    save(store, b"second")
    with closing(UserDatabase(place, SEAL)) as again:
        assert (again.get(ANN), again.get(BOB), again.snapshot()) == (None, b"three", b"second")


def test_a_snapshot_file_is_put_aside_under_another_name(tmp_path):
    snapshots = SnapshotStore(
        WorkerSettings(bootstrap="127.0.0.1:1", role="shuffler", group="g", datadir=tmp_path), KEYS
    )
    snapshots.save(2, Snapshot(7, 9, b"genesis", b"state"))
    content = snapshots.path(2).read_bytes()
    assert snapshots.put_aside(2).read_bytes() == content
    assert snapshots.load(2) is None


def test_a_file_that_was_taken_away_reloads_the_partition_which_begins_with_a_new_one(tmp_path):
    store = SnapshotStore(
        WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", deployment="dep", datadir=tmp_path), KEYS
    )
    store.users(0).put([StoredUser(b"k" * 16, 1, b"v")])
    store.users(0).cut()
    shutil.rmtree(tmp_path / "dep")
    with pytest.raises(UsersLost, match="somebody removed the file"):
        store.save(0, Snapshot(1, 2, b"g", b"s"))
    assert store.users(0).get(b"k" * 16) is None
    store.save(0, Snapshot(1, 2, b"g", b"s"))
    assert store.load(0) == Snapshot(1, 2, b"g", b"s")


# Sealed.

TURNED = KeyRing(0, 1, (), RING.key)
RETIRED = KeyRing(1, 1, ((0, RING.key.key_id),), TURNED.of(1))


def under(ring: KeyRing, partition: int = 0) -> StorageSeal:
    return StorageSeal("deployment", "learner", partition, ring)


def everything(place: Path) -> bytes:
    """All bytes of the file, and of its log."""
    return b"".join(path.read_bytes() for path in sorted(place.parent.glob(f"{place.name}*")))


def test_no_user_lies_in_clear_in_the_file_its_log_or_a_private_database(store, place):
    store.put([user(ANN, b"what ann likes")])
    private = store._layers[-1]
    assert b"what ann likes" not in private.serialize()
    assert ANN in private.serialize()
    save(store, b"the window of ann")
    store.put([user(BOB, b"what bob likes")])
    assert ANN in everything(place)
    assert not any(secret in everything(place) for secret in (b"what ann", b"of ann", b"what bob"))


def test_users_under_a_key_that_was_destroyed_are_forgotten_where_the_file_is_held_open(place, caplog):
    """The key turned and was retired while the process ran: at its next take-up the journal gives the users again."""
    with closing(UserDatabase(place, under(RING))) as store:
        store.put([user(ANN, b"one")])
        save(store, b"first")
        store.rewind(under(RETIRED))
        assert "is under a key that the zone no longer has" in caplog.text
        assert "the journal is read instead" in caplog.text
        assert (store.get(ANN), store.snapshot(), list(store.unseen_since(10))) == (None, None, [])
        store.put([user(ANN, b"two")])
        save(store, b"second")
    with closing(UserDatabase(place, under(RETIRED))) as later:
        assert (later.get(ANN), later.snapshot()) == (b"two", b"second")


def test_when_the_key_has_turned_all_is_sealed_anew_and_the_earlier_key_may_go(place):
    with closing(UserDatabase(place, under(RING))) as older:
        older.put([user(ANN, b"one")])
        save(older, b"first")
        with closing(UserDatabase(place, under(TURNED))) as newer:
            assert (newer.get(ANN), newer.snapshot()) == (b"one", b"first")
        assert older.behind, "whoever has the earlier key alone reads no more"
        older.rewind(under(TURNED))
        assert older.get(ANN) == b"one"
    with closing(UserDatabase(place, under(RETIRED))) as last:
        assert (last.get(ANN), last.snapshot()) == (b"one", b"first")


@pytest.mark.parametrize("seal", [under(KeyRing(0, 0, (), seeded_key(9, "edge"))), under(RETIRED)])
def test_a_file_under_a_key_that_is_not_at_hand_is_put_aside(place, seal, caplog):
    with closing(UserDatabase(place, SEAL)) as store:
        store.put([user(ANN, b"one")])
        save(store, b"first")
    with closing(UserDatabase(place, seal)) as other:
        assert (other.get(ANN), other.snapshot()) == (None, None)
    assert "expected content under a key of this zone's key file" in caplog.text
    assert place.with_suffix(".damaged").exists()


@pytest.mark.parametrize("change", ["value = zeroblob(100)", "seen_ms = 6", "key = CAST('b' AS BLOB)"])
def test_an_altered_user_is_refused(place, change):
    with closing(UserDatabase(place, SEAL)) as store:
        store.put([user(ANN, b"one")])
        save(store, b"first")
        store._main.execute(f"UPDATE sealed_users SET {change}")
        with pytest.raises(DamagedUserStore, match="move it away and start again"):
            _ = [store.get(key) for key in (ANN, b"b")]
        with pytest.raises(DamagedUserStore, match="move it away and start again"):
            list(store.unseen_since(10))


def test_an_altered_snapshot_takes_its_users_with_it(tmp_path, caplog):
    settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path)
    snapshots = SnapshotStore(settings, KEYS)
    users = snapshots.users(0)
    users.put([user(ANN, b"one")])
    users.cut()
    snapshots.save(0, Snapshot(7, 9, b"genesis", b"state"))
    users._main.execute("UPDATE sealed_snapshot SET content = CAST(content || x'00' AS BLOB)")
    assert snapshots.load(0) is None
    assert "is damaged and was ignored" in caplog.text
    assert users.get(ANN) is None
