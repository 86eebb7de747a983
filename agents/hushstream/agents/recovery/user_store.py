"""Keeps a learner's spilled users on disk: one SQLite file for each partition, which also holds its snapshot.

When a machine spills users, they go into a private database that vanishes with the process. When a snapshot begins,
that database is complete, and a new one takes the next users. Saving the snapshot moves the complete one's users into
the file, in one transaction with the snapshot, while the machine goes on reading and spilling. So the file holds every
user as of that snapshot, also after a crash, and a recovery reads only the users that it needs.

Users are sealed under a key of the zone before SQLite sees them (`hushstream.engine.state.packed`). So they are sealed
in the file, in its log and in the private databases. After a key rotation, the next recovery of the partition seals
everything anew.

Each snapshot in the file has a random number. Every read of the file, and every save, first compares this number with
the one that this process has read or written last. If another owner of the partition has written the file since, both
are refused until the process begins anew with the file's content (`UserDatabase.rewind`). No transaction outlives a
call, so an owner that is suspended, or has lost the partition, does not keep the file's log from being emptied.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hushstream.agents.datadir import DatadirUnusable
from hushstream.agents.errors import JournalLost, WorkerError
from hushstream.engine.machine import StoredUser
from hushstream.engine.state.packed import SALT_BYTES, SealBroken, StorageSeal
from hushstream.schemas.errors import HushstreamError

logger = logging.getLogger(__name__)

_USERS = "CREATE TABLE IF NOT EXISTS sealed_users (key BLOB PRIMARY KEY, seen_ms INTEGER NOT NULL, value BLOB NOT NULL)"
_SEEN = "CREATE INDEX IF NOT EXISTS sealed_seen ON sealed_users (seen_ms)"
_SNAPSHOT = "CREATE TABLE IF NOT EXISTS sealed_snapshot (id INTEGER PRIMARY KEY, generation INTEGER, content BLOB)"
_SEAL_ANEW = (
    "UPDATE sealed_users SET value = sealed_user(opened_user(value, key, seen_ms), key, seen_ms)",
    "UPDATE sealed_snapshot SET generation = drawn(), content = sealed_file(opened_file(content))",
)
_PUT = "INSERT OR REPLACE INTO sealed_users VALUES (?, ?, ?)"
_GET = "SELECT value, seen_ms FROM sealed_users WHERE key = ?"
_GET_VALUE = "SELECT value FROM sealed_users WHERE key = ?"
_GET_SEEN = "SELECT seen_ms FROM sealed_users WHERE key = ?"
_UNSEEN = "SELECT key, seen_ms, value FROM sealed_users WHERE seen_ms < ?"
_ALL = "SELECT key, seen_ms, value FROM sealed_users"
_GENERATION = "SELECT coalesce((SELECT generation FROM sealed_snapshot), 0)"
# One statement reads the number and the content, so that both are of the same state of the file.
_GET_WHOSE = f"SELECT ({_GENERATION}), ({_GET_VALUE}), ({_GET_SEEN})"
_CONTENT_WHOSE = f"SELECT ({_GENERATION}), (SELECT content FROM sealed_snapshot)"
_UNSEEN_WHOSE = (
    f"SELECT whose.generation, key, seen_ms, value "
    f"FROM ({_GENERATION} AS generation) AS whose LEFT JOIN sealed_users ON seen_ms < ?"
)
_CACHE = "PRAGMA cache_size = -8192"
_BUSY_SECONDS = 0.5
"""How long to wait for a file that another process has locked. While a worker waits, it folds nothing."""

_GENERATION_BYTES = 7
"""The size of a snapshot's number: SQLite's integers have eight bytes, with a sign."""

_PURPOSE = "user"
_SEEN_BYTES = 8

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class DamagedUserStore(WorkerError):
    """The file of a partition's users cannot be read."""


class UsersLost(JournalLost):
    """Another process has locked the users' file, or has written a snapshot into it: the partition reloads."""


class UserDatabase:
    """Stores the spilled users of one partition (`hushstream.engine.machine.UserStore`).

    Only `save` may run in another thread while the machine calls the methods of `UserStore`.
    """

    durable = True
    empty = False
    """Only a look into the file would tell."""

    def __init__(self, path: Path, seal: StorageSeal) -> None:
        """Open or create the file.

        A damaged file, or one under a key that the zone no longer has, is moved aside: the journal has all its content.

        Args:
            path: the file.
            seal: the seal of its content.

        Raises:
            UsersLost: another process has locked the file.
            DatadirUnusable: the file cannot be opened or created, or there is no room.
        """
        self._path = path
        with self._own_errors():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The private databases hold users, too: put them beside the file, not into a shared temporary folder.
            os.environ.setdefault("SQLITE_TMPDIR", str(path.parent))
            self._main = _open_file(path, seal)
            self._seal_under(seal)
            self._generation = _generation(self._main)
            self._layers = [_open_private()]
            """The private databases since the file's snapshot, the oldest first; the last one takes new users."""
        self._saving: int | None = None
        """The number of the snapshot that is being written."""
        self._lock = threading.Lock()
        """A lock for reading and changing the layers and numbers. A save does not keep it locked while it writes."""

    def _seal_under(self, seal: StorageSeal) -> None:
        self._seal = seal
        self._writer = seal.writer(_PURPOSE, os.urandom(SALT_BYTES))

    def rewind(self, seal: StorageSeal | None = None) -> None:
        """Drop the users spilled since the last snapshot, and use the file as it is now: for a new machine.

        Args:
            seal: the new seal of its content, if the zone's keys may have changed.

        Raises:
            UsersLost, DatadirUnusable, DamagedUserStore: the file cannot be read.
        """
        with self._own_errors(), self._lock:
            for layer in self._layers:
                layer.close()
            if seal is not None:
                self._seal_anew_or_begin_anew(seal)
                self._seal_under(seal)
            self._layers = [_open_private()]
            self._generation = _generation(self._main)

    def _seal_anew_or_begin_anew(self, seal: StorageSeal) -> None:
        """Seal the file under the current key; if its key was destroyed while this process had the file open, empty it.

        Nobody can open the content any more: the users are recovered from the journal or from a published state.
        """
        try:
            _seal_anew(self._main, seal)
        except SealBroken as error:
            logger.warning(
                "%s is under a key that the zone no longer has (%s); it is emptied, and the journal is read instead",
                self._path,
                error,
            )
            _empty(self._main)

    @property
    def behind(self) -> bool:
        """Whether another process has written a snapshot since this one wrote or opened the file."""
        with self._own_errors():
            return _generation(self._main) != self._generation

    def get(self, key: bytes) -> bytes | None:
        """See `UserStore.get`.

        Raises:
            UsersLost: another owner has written the file.
        """
        with self._own_errors(), self._lock:
            for layer in reversed(self._layers):
                row = layer.execute(_GET, (key,)).fetchone()
                if row is not None:
                    return self._opened(key, row[1], row[0])
            generation, value, seen_ms = self._main.execute(_GET_WHOSE, (key, key)).fetchone()
            self._require_own(generation)
            return None if value is None else self._opened(key, seen_ms, value)

    def put(self, users: Iterable[StoredUser]) -> bool:
        return self._put(self._layers[-1], users)

    def cut(self) -> None:
        with self._own_errors(), self._lock:
            self._layers.append(_open_private())

    def complete(self, users: Iterable[StoredUser]) -> bool:
        return self._put(self._layers[-2], users)

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        """See `UserStore.unseen_since`.

        Raises:
            UsersLost: another owner has written the file.
        """
        with self._own_errors():
            newer: set[bytes] = set()
            since: list[StoredUser] = []
            with self._lock:
                for layer in reversed(self._layers):
                    found = [self._user(*row) for row in layer.execute(_UNSEEN, (seen_ms,))]
                    since.extend(user for user in found if user.key not in newer)
                    newer.update(bytes(key) for (key,) in layer.execute("SELECT key FROM sealed_users"))
                rows = self._main.execute(_UNSEEN_WHOSE, (seen_ms,))
                generation, *first = rows.fetchone()
                self._require_own(generation)
            if first[0] is not None and bytes(first[0]) not in newer:
                yield self._user(*first)
            for _, *row in rows:
                if bytes(row[0]) not in newer:
                    yield self._user(*row)
        yield from since

    def snapshot(self) -> bytes | None:
        """The last snapshot that was written with these users.

        Raises:
            UsersLost: another owner has written the file.
            SealBroken: it was altered.
        """
        with self._own_errors(), self._lock:
            generation, content = self._main.execute(_CONTENT_WHOSE).fetchone()
            self._require_own(generation)
        return None if content is None else self._seal.unpack_file(bytes(content))

    def save(self, content: bytes) -> None:
        """Write a snapshot, and all users who belong to it, in one transaction.

        These are the users who were spilled before the snapshot began, and those whom `complete` added for it.

        Raises:
            OSError: the snapshot could not be written; the file is unchanged.
            UsersLost: another owner has written the file, which stays as they left it; or the file is gone.
            DamagedUserStore: the file is damaged.
        """
        if not self._path.exists():
            raise UsersLost(f"{self._path}: somebody removed the file")
        saving, sealed = _drawn(), self._sealed_file(content)
        try:
            cut = self._merged()
            with closing(_connect(self._path)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                self._require_own(_generation(writer))
                self._saving = saving
                for layer in cut:
                    writer.executemany(_PUT, layer.execute(_ALL))
                writer.execute("INSERT OR REPLACE INTO sealed_snapshot VALUES (0, ?, ?)", (saving, sealed))
                writer.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._saving = None
            if _code(error) in _DAMAGED:
                raise self._own_error(error) from None
            raise OSError(f"{self._path}: {error}") from None
        with self._lock:
            self._generation, self._saving = saving, None
            del self._layers[: len(cut)]
        for layer in cut:
            layer.close()

    def saved_with(self, content: bytes) -> Iterator[StoredUser]:
        """Yield all users of the snapshot that was just saved; saves in the meantime do not change the result.

        Raises:
            UsersLost: the file has another snapshot now.
            OSError: the file cannot be read.
        """
        try:
            with closing(_connect(self._path)) as reading:
                reading.execute("BEGIN")
                row = reading.execute("SELECT content FROM sealed_snapshot").fetchone()
                if row is None or row[0] is None or self._seal.unpack_file(bytes(row[0])) != content:
                    raise UsersLost(f"{self._path}: another snapshot was written in the meantime")
                for row in reading.execute(_ALL):
                    yield self._user(*row)
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self._path}: {error}") from None

    def install(self, content: bytes, users: Iterable[StoredUser]) -> None:
        """Replace the snapshot and all users, and begin anew with these.

        Raises:
            OSError: they could not be written; the file is unchanged.
            UsersLost: another owner has written the file, which stays as they left it.
        """
        sealed = self._sealed_file(content)
        try:
            with closing(_connect(self._path)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                self._require_own(_generation(writer))
                writer.execute("DELETE FROM sealed_users")
                writer.executemany(_PUT, map(self._sealed, users))
                writer.execute("INSERT OR REPLACE INTO sealed_snapshot VALUES (0, ?, ?)", (_drawn(), sealed))
                writer.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self._path}: {error}") from None
        self.rewind()

    def put_aside(self) -> Path:
        """Copy the file, then empty it of users and snapshot; returns the path of the copy."""
        aside = self._path.with_suffix(".other-version")
        with self._own_errors():
            aside.unlink(missing_ok=True)
            _make_private_file(aside)
            with closing(_connect(self._path)) as writer:
                writer.execute("VACUUM INTO ?", (str(aside),))
        self.clear()
        return aside

    def clear(self) -> None:
        """Empty the file of its users and its snapshot."""
        with self._own_errors(), closing(_connect(self._path)) as writer:
            _empty(writer)
        self.rewind()

    def close(self) -> None:
        """Close the file and the private databases; the file stays as of the last snapshot."""
        for layer in self._layers:
            layer.close()
        self._main.close()

    def _put(self, layer: sqlite3.Connection, users: Iterable[StoredUser]) -> bool:
        try:
            with layer:
                layer.executemany(_PUT, map(self._sealed, users))
        except sqlite3.OperationalError as error:
            logger.warning("%s: users stay in memory, because they cannot be spilled: %s", self._path, error)
            return False
        return True

    def _merged(self) -> list[sqlite3.Connection]:
        """The layers that are complete: at most one, as layers of snapshots that failed are merged into it first."""
        while len(self._layers) > 2:
            older, newer = self._layers[:2]
            with older:
                older.executemany(_PUT, newer.execute(_ALL))
            with self._lock:
                del self._layers[1]
            newer.close()
        return self._layers[:-1]

    def _sealed(self, user: StoredUser) -> tuple[bytes, int, bytes]:
        return user.key, user.seen_ms, self._writer.seal(user.value, _associated_data(user.key, user.seen_ms))

    def _sealed_file(self, content: bytes) -> bytes:
        return b"".join(self._seal.pack_file(os.urandom(SALT_BYTES), content))

    def _opened(self, key: bytes, seen_ms: int, value: bytes) -> bytes:
        return self._seal.open(_PURPOSE, bytes(value), _associated_data(key, seen_ms))

    def _user(self, key: bytes, seen_ms: int, value: bytes) -> StoredUser:
        return StoredUser(key, seen_ms, self._opened(key, seen_ms, value))

    def _require_own(self, generation: int) -> None:
        if generation not in (self._generation, self._saving):
            raise UsersLost(f"{self._path}: another owner of the partition has written a newer snapshot")

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Turn SQLite's errors in the block into ours."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._own_error(error) from None
        except SealBroken as error:
            raise self._damaged(error) from None
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__) from None

    def _own_error(self, error: sqlite3.DatabaseError) -> HushstreamError:
        if _code(error) in _DAMAGED:
            return self._damaged(error)
        if _code(error) in _HELD:
            return UsersLost(f"{self._path}: another process holds the users of this partition ({error})")
        return self._unusable(str(error))

    def _damaged(self, error: Exception) -> DamagedUserStore:
        return DamagedUserStore(
            f"{self._path}: expected the users of this partition, got a file that cannot be read ({error}); "
            f"move it away and start again: the journal is read instead"
        )

    def _unusable(self, why: str) -> DatadirUnusable:
        return DatadirUnusable(
            f"{self._path}: expected to read and write the users of this partition there, got {why!r}; make sure that "
            f"there is room and the right to write"
        )


def _code(error: sqlite3.DatabaseError) -> int:
    """SQLite's primary result code; raises an error that is not SQLite's."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        raise error
    return code & 0xFF


def _drawn() -> int:
    """Draw a random number for a snapshot."""
    return int.from_bytes(os.urandom(_GENERATION_BYTES), "big")


def _associated_data(key: bytes, seen_ms: int) -> bytes:
    """Bind a sealed value to its user and time: the value of another user, or of another time, does not open there."""
    return seen_ms.to_bytes(_SEEN_BYTES, "little", signed=True) + key


def _open_file(path: Path, seal: StorageSeal) -> sqlite3.Connection:
    """Connect to the file, and create it if needed; a damaged file, or one under a lost key, is moved aside."""
    _make_private_file(path)
    try:
        return _prepared(path, seal)
    except SealBroken as error:
        why = str(error)
    except sqlite3.DatabaseError as error:
        if _code(error) not in _DAMAGED:
            raise
        why = str(error)
    logger.warning("%s is damaged (%s); it was moved aside, and the journal is read instead", path, why)
    os.replace(path, path.with_suffix(".damaged"))
    _make_private_file(path)
    return _prepared(path, seal)


def _make_private_file(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _prepared(path: Path, seal: StorageSeal) -> sqlite3.Connection:
    main = _connect(path)
    try:
        for statement in ("PRAGMA journal_mode = WAL", _USERS, _SEEN, _SNAPSHOT):
            main.execute(statement)
        _seal_anew(main, seal)
        _generation(main)
    except (sqlite3.DatabaseError, SealBroken):
        main.close()
        raise
    return main


def _seal_anew(main: sqlite3.Connection, seal: StorageSeal) -> None:
    """Seal everything under the zone's current key, if the last snapshot is under another key.

    Raises:
        SealBroken: the zone no longer has that key.
    """
    row = main.execute("SELECT content FROM sealed_snapshot WHERE content IS NOT NULL").fetchone()
    if row is not None and seal.is_other_key(bytes(row[0])):
        _rewrite(main, seal)


def _empty(connection: sqlite3.Connection) -> None:
    """Remove all users and the snapshot, and draw a new number."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM sealed_users")
    connection.execute("UPDATE sealed_snapshot SET generation = ?, content = NULL", (_drawn(),))
    connection.execute("COMMIT")


def _rewrite(main: sqlite3.Connection, seal: StorageSeal) -> None:
    """Seal all users and the snapshot under the zone's current key, in one transaction.

    Raises:
        SealBroken: a value could not be opened.
    """
    writer, broken = seal.writer(_PURPOSE, os.urandom(SALT_BYTES)), list[SealBroken]()

    def opened(open_it: Callable[[], bytes]) -> bytes:
        try:
            return open_it()
        except SealBroken as error:
            broken.append(error)
            raise

    def sealed_user(value: bytes, key: bytes, seen_ms: int) -> bytes:
        return writer.seal(value, _associated_data(key, seen_ms))

    def opened_user(value: bytes, key: bytes, seen_ms: int) -> bytes:
        return opened(lambda: seal.open(_PURPOSE, value, _associated_data(key, seen_ms)))

    def sealed_file(content: bytes | None) -> bytes | None:
        return None if content is None else b"".join(seal.pack_file(os.urandom(SALT_BYTES), content))

    def opened_file(content: bytes) -> bytes:
        return opened(lambda: seal.unpack_file(content))

    for name, arguments, function in (
        ("sealed_user", 3, sealed_user), ("opened_user", 3, opened_user),
        ("sealed_file", 1, sealed_file), ("opened_file", 1, opened_file), ("drawn", 0, _drawn),
    ):  # fmt: skip
        main.create_function(name, arguments, function)
    main.execute("BEGIN IMMEDIATE")
    try:
        for statement in _SEAL_ANEW:
            main.execute(statement)
        main.execute("COMMIT")
    except sqlite3.DatabaseError:
        main.execute("ROLLBACK")
        if broken:
            raise broken[0] from None
        raise


def _connect(path: Path) -> sqlite3.Connection:
    # Never create the file here: if somebody has removed it, a new one would be without users. Threads share the
    # connection, one at a time.
    where = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(where, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA synchronous = FULL", _CACHE):
        connection.execute(statement)
    return connection


def _open_private() -> sqlite3.Connection:
    """A database on disk without a name: SQLite deletes it when it is closed, or the process ends."""
    private = sqlite3.connect("", check_same_thread=False)
    for statement in ("PRAGMA journal_mode = MEMORY", "PRAGMA synchronous = OFF", _CACHE, _USERS, _SEEN):
        private.execute(statement)
    return private


def _generation(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_GENERATION).fetchone()[0])
