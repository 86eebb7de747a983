"""A learner's users at rest on disk: one SQLite file for each partition, together with its snapshot.

What a machine puts to rest between two snapshots goes into a private database that vanishes with the process;
a snapshot moves it into the file, in one transaction with the snapshot itself. So the file holds every user as
he was at that snapshot, a crash leaves it there, and a recovery reads the users that it meets and no others.

The file is read as it was when this process last wrote or opened it, however long ago (a read transaction in
WAL mode). When another owner of the partition has written it since, this process may not any more: its next
snapshot is refused, and a machine that it still keeps is `behind`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hushstream.agents.errors import WorkerError
from hushstream.roles.learner_users import StoredUser

logger = logging.getLogger(__name__)

_USERS = "CREATE TABLE IF NOT EXISTS users (key BLOB PRIMARY KEY, seen_ms INTEGER NOT NULL, value BLOB NOT NULL)"
_SEEN = "CREATE INDEX IF NOT EXISTS seen ON users (seen_ms)"
_SNAPSHOT = "CREATE TABLE IF NOT EXISTS snapshot (id INTEGER PRIMARY KEY, generation INTEGER, content BLOB)"
_PUT = "INSERT OR REPLACE INTO users VALUES (?, ?, ?)"
_GET = "SELECT value FROM users WHERE key = ?"
_UNSEEN = "SELECT key, seen_ms, value FROM users WHERE seen_ms < ?"
_CACHE = "PRAGMA cache_size = -8192"
_BUSY_SECONDS = 0.5
"""Another process may hold the file for as long as it sleeps: whoever waits for it folds nothing meanwhile."""


class DamagedUserStore(WorkerError):
    """The users' file cannot be read."""


class UserDatabase:
    """Users at rest of one partition (`hushstream.roles.learner_users.UserStore`)."""

    durable = True

    def __init__(self, path: Path) -> None:
        """Open or make the file; one that is damaged is put aside, as the journal holds all that it held."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Private databases hold users too: beside the file, not in a directory that others share.
        os.environ.setdefault("SQLITE_TMPDIR", str(path.parent))
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            self._main = _open_file(path)
        except sqlite3.DatabaseError as error:
            aside = path.with_suffix(".damaged")
            logger.warning("%s is damaged (%s); it was put aside and the journal is read instead", path, error)
            os.replace(path, aside)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._main = _open_file(path)
        self._private = _open_private()
        self._generation = self._look()

    def rewind(self) -> None:
        """Forget what was put since the last snapshot, and read the file as it is now: for a new machine."""
        self._main.execute("ROLLBACK")
        self._private.close()
        self._private = _open_private()
        self._generation = self._look()

    @property
    def behind(self) -> bool:
        """Whether another process has written a snapshot since this one wrote or opened the file."""
        with self._told(), closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as other:
            return _generation(other) != self._generation

    def get(self, key: bytes) -> bytes | None:
        """See `UserStore.get`."""
        with self._told():
            row = self._private.execute(_GET, (key,)).fetchone() or self._main.execute(_GET, (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, users: Iterable[StoredUser]) -> bool:
        """See `UserStore.put`."""
        try:
            with self._private:
                self._private.executemany(_PUT, users)
        except sqlite3.OperationalError as error:
            logger.warning("%s: users stay in memory, as none can be put to rest: %s", self._path, error)
            return False
        return True

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        """See `UserStore.unseen_since`."""
        with self._told():
            newer = {bytes(key) for (key,) in self._private.execute("SELECT key FROM users")}
            since = [StoredUser(*row) for row in self._private.execute(_UNSEEN, (seen_ms,))]
            for row in self._main.execute(_UNSEEN, (seen_ms,)):
                if bytes(row[0]) not in newer:
                    yield StoredUser(*row)
        yield from since

    def snapshot(self) -> bytes | None:
        """The last snapshot that was written with these users."""
        with self._told():
            row = self._main.execute("SELECT content FROM snapshot WHERE content IS NOT NULL").fetchone()
        return None if row is None else bytes(row[0])

    def save(self, content: bytes) -> None:
        """Write a snapshot, and everybody who was put since the last one, at once or not at all.

        Raises:
            OSError: there is no room, or another process wrote one meanwhile; the file is as it was.
        """
        rows = self._private.execute("SELECT key, seen_ms, value FROM users")
        try:
            self._main.executemany(_PUT, rows)
            self._main.execute("INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?)", (self._generation + 1, content))
            self._main.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._main.in_transaction:
                self._main.execute("ROLLBACK")
            self._main.execute("BEGIN")
            raise OSError(f"{self._path}: {error}") from None
        self._private.close()
        self._private = _open_private()
        self._generation = self._look()

    def put_aside(self) -> Path:
        """Copy the file as it is, and go on without any of its users and its snapshot; returns where the copy is."""
        aside = self._path.with_suffix(".other-version")
        aside.unlink(missing_ok=True)
        os.close(os.open(aside, os.O_RDWR | os.O_CREAT, 0o600))
        self._main.execute("ROLLBACK")
        self._main.execute("VACUUM INTO ?", (str(aside),))
        self._main.execute("BEGIN IMMEDIATE")
        self._main.execute("DELETE FROM users")
        self._main.execute("UPDATE snapshot SET generation = generation + 1, content = NULL")
        self._main.execute("COMMIT")
        self._main.execute("BEGIN")
        self.rewind()
        return aside

    def close(self) -> None:
        """Leave the file as the last snapshot made it."""
        self._private.close()
        self._main.close()

    def _look(self) -> int:
        """Begin to read the file as it is now."""
        self._main.execute("BEGIN")
        return _generation(self._main)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise DamagedUserStore(
                f"{self._path}: expected the users of this partition, got a file that cannot be read ({error}); "
                f"move it away and start again: the journal is read instead"
            ) from None


def _open_file(path: Path) -> sqlite3.Connection:
    # The driver saves snapshots from a thread, while it does nothing else here.
    main = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _CACHE, _USERS, _SEEN, _SNAPSHOT):
            main.execute(statement)
        _generation(main)
    except sqlite3.DatabaseError:
        main.close()
        raise
    return main


def _open_private() -> sqlite3.Connection:
    """A database on disk without a name: SQLite deletes it when it is closed, or the process ends."""
    private = sqlite3.connect("", check_same_thread=False)
    for statement in ("PRAGMA journal_mode = MEMORY", "PRAGMA synchronous = OFF", _CACHE, _USERS, _SEEN):
        private.execute(statement)
    return private


def _generation(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT generation FROM snapshot").fetchone()
    return 0 if row is None else int(row[0])
