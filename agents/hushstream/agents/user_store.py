"""A learner's spilled users on disk: one SQLite file for each partition, together with its snapshot.

What a machine puts to rest goes into a private database that vanishes with the process. At a snapshot's cut that
one is closed and another begun; saving moves what was cut into the file, in one transaction with the snapshot, while
the machine goes on reading and putting. So the file holds every user as they were at that snapshot, a crash leaves it
there, and a recovery reads the users that it meets and no others.

Each snapshot in the file has a number that is drawn for it. Whoever reads the file or writes a snapshot first sees
whether the one that is there is theirs; when another owner of the partition has written it since, they may do neither
any more, until they begin anew with what is there (`UserDatabase.rewind`). No transaction outlives a call, so that an
owner who sleeps, or has given the partition up, does not hold up the file's log.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hushstream.agents.datadir import DatadirUnusable
from hushstream.agents.errors import JournalLost, WorkerError
from hushstream.engine.spilled_users import StoredUser
from hushstream.schemas.errors import HushstreamError

logger = logging.getLogger(__name__)

_USERS = "CREATE TABLE IF NOT EXISTS users (key BLOB PRIMARY KEY, seen_ms INTEGER NOT NULL, value BLOB NOT NULL)"
_SEEN = "CREATE INDEX IF NOT EXISTS seen ON users (seen_ms)"
_SNAPSHOT = "CREATE TABLE IF NOT EXISTS snapshot (id INTEGER PRIMARY KEY, generation INTEGER, content BLOB)"
_PUT = "INSERT OR REPLACE INTO users VALUES (?, ?, ?)"
_GET = "SELECT value FROM users WHERE key = ?"
_UNSEEN = "SELECT key, seen_ms, value FROM users WHERE seen_ms < ?"
_ALL = "SELECT key, seen_ms, value FROM users"
_GENERATION = "SELECT coalesce((SELECT generation FROM snapshot), 0)"
# One statement sees one state of the file: whose it is, and what is in it.
_GET_WHOSE = f"SELECT ({_GENERATION}), ({_GET})"
_CONTENT_WHOSE = f"SELECT ({_GENERATION}), (SELECT content FROM snapshot)"
_UNSEEN_WHOSE = (
    f"SELECT whose.generation, key, seen_ms, value "
    f"FROM ({_GENERATION} AS generation) AS whose LEFT JOIN users ON seen_ms < ?"
)
_CACHE = "PRAGMA cache_size = -8192"
_BUSY_SECONDS = 0.5
"""Another process may hold the file for as long as it sleeps: whoever waits for it folds nothing meanwhile."""

_GENERATION_BYTES = 7
"""Of a snapshot's number: SQLite's integers have eight, with a sign."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class DamagedUserStore(WorkerError):
    """The users' file cannot be read."""


class UsersLost(JournalLost):
    """Another process holds the users' file, or has written a snapshot into it: the partition reloads."""


class UserDatabase:
    """Spilled users of one partition (`hushstream.engine.spilled_users.UserStore`).

    `save` may run in a thread of its own while the machine calls what `UserStore` has; nothing else may.
    """

    durable = True

    def __init__(self, path: Path) -> None:
        """Open or make the file; one that is damaged is put aside, as the journal holds all that it held.

        Raises:
            UsersLost: another process holds the file now.
            DatadirUnusable: it cannot be opened or made, or there is no room.
        """
        self._path = path
        with self._judged():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Private databases hold users too: beside the file, not in a directory that others share.
            os.environ.setdefault("SQLITE_TMPDIR", str(path.parent))
            self._main = _open_file(path)
            self._generation = _generation(self._main)
            self._layers = [_open_private()]
            """What was put since the file's snapshot, the oldest first: the last one takes what is put now."""
        self._saving: int | None = None
        """The number of the snapshot that is being written."""
        self._lock = threading.Lock()
        """Held while layers and numbers are read or changed, never for as long as a save takes."""

    def rewind(self) -> None:
        """Forget what was put since the last snapshot, and read the file as it is now: for a new machine.

        Raises:
            UsersLost, DatadirUnusable, DamagedUserStore: the file cannot be read.
        """
        with self._judged(), self._lock:
            for layer in self._layers:
                layer.close()
            self._layers = [_open_private()]
            self._generation = _generation(self._main)

    @property
    def behind(self) -> bool:
        """Whether another process has written a snapshot since this one wrote or opened the file."""
        with self._judged():
            return _generation(self._main) != self._generation

    def get(self, key: bytes) -> bytes | None:
        """See `UserStore.get`.

        Raises:
            UsersLost: another owner has written the file.
        """
        with self._judged(), self._lock:
            for layer in reversed(self._layers):
                row = layer.execute(_GET, (key,)).fetchone()
                if row is not None:
                    return bytes(row[0])
            generation, value = self._main.execute(_GET_WHOSE, (key,)).fetchone()
            self._require_own(generation)
        return None if value is None else bytes(value)

    def put(self, users: Iterable[StoredUser]) -> bool:
        return self._put(self._layers[-1], users)

    def cut(self) -> None:
        with self._judged(), self._lock:
            self._layers.append(_open_private())

    def complete(self, users: Iterable[StoredUser]) -> bool:
        return self._put(self._layers[-2], users)

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        """See `UserStore.unseen_since`.

        Raises:
            UsersLost: another owner has written the file.
        """
        with self._judged():
            newer: set[bytes] = set()
            since: list[StoredUser] = []
            with self._lock:
                for layer in reversed(self._layers):
                    found = [StoredUser(*row) for row in layer.execute(_UNSEEN, (seen_ms,))]
                    since.extend(user for user in found if user.key not in newer)
                    newer.update(bytes(key) for (key,) in layer.execute("SELECT key FROM users"))
                rows = self._main.execute(_UNSEEN_WHOSE, (seen_ms,))
                generation, *first = rows.fetchone()
                self._require_own(generation)
            if first[0] is not None and bytes(first[0]) not in newer:
                yield StoredUser(*first)
            for _, *row in rows:
                if bytes(row[0]) not in newer:
                    yield StoredUser(*row)
        yield from since

    def snapshot(self) -> bytes | None:
        """The last snapshot that was written with these users.

        Raises:
            UsersLost: another owner has written the file.
        """
        with self._judged(), self._lock:
            generation, content = self._main.execute(_CONTENT_WHOSE).fetchone()
            self._require_own(generation)
        return None if content is None else bytes(content)

    def save(self, content: bytes) -> None:
        """Write a snapshot, and everybody who was put before its cut or completes it, at once or not at all.

        Raises:
            OSError: it could not be written; the file is as it was.
            UsersLost: another owner has written the file, which is as they left it; or it is gone.
            DamagedUserStore: the file is damaged.
        """
        if not self._path.exists():
            raise UsersLost(f"{self._path}: somebody took the file away")
        saving = int.from_bytes(os.urandom(_GENERATION_BYTES), "big")
        try:
            cut = self._merged()
            with closing(_connect(self._path)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                self._require_own(_generation(writer))
                self._saving = saving
                for layer in cut:
                    writer.executemany(_PUT, layer.execute(_ALL))
                writer.execute("INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?)", (saving, content))
                writer.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._saving = None
            if _code(error) in _DAMAGED:
                raise self._meaning(error) from None
            raise OSError(f"{self._path}: {error}") from None
        with self._lock:
            self._generation, self._saving = saving, None
            del self._layers[: len(cut)]
        for layer in cut:
            layer.close()

    def saved_with(self, content: bytes) -> Iterator[StoredUser]:
        """All users as they lie with the snapshot that was just saved, whatever is saved meanwhile.

        Raises:
            UsersLost: another snapshot lies there.
            OSError: the file cannot be read.
        """
        try:
            with closing(_connect(self._path)) as reading:
                reading.execute("BEGIN")
                if reading.execute("SELECT content FROM snapshot").fetchone() != (content,):
                    raise UsersLost(f"{self._path}: another snapshot was written meanwhile")
                for row in reading.execute(_ALL):
                    yield StoredUser(*row)
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self._path}: {error}") from None

    def install(self, content: bytes, users: Iterable[StoredUser]) -> None:
        """Replace the snapshot, and everybody with it, and begin anew with those.

        Raises:
            OSError: they could not be written; the file is as it was.
            UsersLost: another owner has written the file, which is as they left it.
        """
        drawn = int.from_bytes(os.urandom(_GENERATION_BYTES), "big")
        try:
            with closing(_connect(self._path)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                self._require_own(_generation(writer))
                writer.execute("DELETE FROM users")
                writer.executemany(_PUT, users)
                writer.execute("INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?)", (drawn, content))
                writer.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self._path}: {error}") from None
        self.rewind()

    def put_aside(self) -> Path:
        """Copy the file as it is, and go on without any of its users and its snapshot; returns where the copy is."""
        aside = self._path.with_suffix(".other-version")
        with self._judged():
            aside.unlink(missing_ok=True)
            _make_private_file(aside)
            with closing(_connect(self._path)) as writer:
                writer.execute("VACUUM INTO ?", (str(aside),))
        self.clear()
        return aside

    def clear(self) -> None:
        """Go on without any of the file's users and its snapshot."""
        with self._judged(), closing(_connect(self._path)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("DELETE FROM users")
            drawn = int.from_bytes(os.urandom(_GENERATION_BYTES), "big")
            writer.execute("UPDATE snapshot SET generation = ?, content = NULL", (drawn,))
            writer.execute("COMMIT")
        self.rewind()

    def close(self) -> None:
        """Leave the file as the last snapshot made it."""
        for layer in self._layers:
            layer.close()
        self._main.close()

    def _put(self, layer: sqlite3.Connection, users: Iterable[StoredUser]) -> bool:
        try:
            with layer:
                layer.executemany(_PUT, users)
        except sqlite3.OperationalError as error:
            logger.warning("%s: users stay in memory, as none can be spilled: %s", self._path, error)
            return False
        return True

    def _merged(self) -> list[sqlite3.Connection]:
        """What was cut, at most one layer: those of snapshots that could not be written are put together with it."""
        while len(self._layers) > 2:
            older, newer = self._layers[:2]
            with older:
                older.executemany(_PUT, newer.execute(_ALL))
            with self._lock:
                del self._layers[1]
            newer.close()
        return self._layers[:-1]

    def _require_own(self, generation: int) -> None:
        if generation not in (self._generation, self._saving):
            raise UsersLost(f"{self._path}: another owner of the partition has written a newer snapshot")

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Say what an error of the file means for the partition."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._meaning(error) from None
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__) from None

    def _meaning(self, error: sqlite3.DatabaseError) -> HushstreamError:
        if _code(error) in _DAMAGED:
            return DamagedUserStore(
                f"{self._path}: expected the users of this partition, got a file that cannot be read ({error}); "
                f"move it away and start again: the journal is read instead"
            )
        if _code(error) in _HELD:
            return UsersLost(f"{self._path}: another process holds the users of this partition ({error})")
        return self._unusable(str(error))

    def _unusable(self, why: str) -> DatadirUnusable:
        return DatadirUnusable(
            f"{self._path}: expected to read and write the users of this partition there, got {why!r}; see that there "
            f"is room and the right to write, or name another folder with --state"
        )


def _code(error: sqlite3.DatabaseError) -> int:
    """SQLite's primary result code; raises an error that is not SQLite's."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        raise error
    return code & 0xFF


def _open_file(path: Path) -> sqlite3.Connection:
    """A connection to the file, made if there is none; put aside is only what SQLite itself calls damaged."""
    _make_private_file(path)
    try:
        return _prepared(path)
    except sqlite3.DatabaseError as error:
        if _code(error) not in _DAMAGED:
            raise
        logger.warning("%s is damaged (%s); it was put aside and the journal is read instead", path, error)
    os.replace(path, path.with_suffix(".damaged"))
    _make_private_file(path)
    return _prepared(path)


def _make_private_file(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _prepared(path: Path) -> sqlite3.Connection:
    main = _connect(path)
    try:
        for statement in ("PRAGMA journal_mode = WAL", _USERS, _SEEN, _SNAPSHOT):
            main.execute(statement)
        _generation(main)
    except sqlite3.DatabaseError:
        main.close()
        raise
    return main


def _connect(path: Path) -> sqlite3.Connection:
    # A file that somebody took away must not be made anew, without a user. Threads take turns with a connection.
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
