"""Where the broker's changes go before they count: nowhere (`Volatile`), or into a file that outlives it (`Disk`).

The file is SQLite's, in WAL mode with synchronous=FULL. A batch of records is one row. Whatever came while the disk was
busy is written in one transaction, so that one forced write serves a group of producers, and nothing is answered or
shown to a reader before it. A write that was torn is not in the file: SQLite drops what fails its checksums.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hushstream.broker.errors import BrokerStartError

log = logging.getLogger(__name__)

Statement = tuple[str, tuple[Any, ...]]
"""SQL and its parameters."""

FILE, _LOCK = "broker.sqlite", "broker.lock"
_VERSION, _APPLICATION = 2, 0x48757368
_CACHE_KIBIBYTES = 65_536
_OFFSET_BITS = 40
_FAULT = "a fault of the broker: memory and disk may differ, so nothing more is taken; start it again"
_TABLES = """
CREATE TABLE topics (name TEXT PRIMARY KEY, id BLOB NOT NULL, settings TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, number INTEGER NOT NULL,
    start_offset INTEGER NOT NULL, next_offset INTEGER NOT NULL
);
CREATE TABLE batches (
    place INTEGER PRIMARY KEY, records INTEGER NOT NULL, max_timestamp_ms INTEGER NOT NULL, size INTEGER NOT NULL,
    producer_id INTEGER NOT NULL, producer_epoch INTEGER NOT NULL, base_sequence INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE TABLE offsets (
    group_id TEXT, topic TEXT, number INTEGER, position INTEGER NOT NULL, leader_epoch INTEGER NOT NULL,
    metadata TEXT NOT NULL, PRIMARY KEY (group_id, topic, number)
) WITHOUT ROWID;
CREATE TABLE groups (group_id TEXT PRIMARY KEY, described TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cluster (id TEXT NOT NULL, closed INTEGER NOT NULL);
"""
"""`batches.place` is the number of the log, then the offset of the batch: one log's batches lie in order. `cluster`
holds one row; `closed` is final (`Node.close`)."""


def place_of(log_id: int, offset: int) -> int:
    """The key under which a log's batch lies."""
    return log_id << _OFFSET_BITS | offset


def log_and_offset(place: int) -> tuple[int, int]:
    """The log and the offset that a key stands for."""
    return place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Change:
    """A change, and what follows.

    Attributes:
        statements: what is written, all of it or nothing.
        kept: called once it is on disk, in the order in which changes came.
        refused: called if it is not; all that came after it is refused as well.
    """

    statements: Sequence[Statement]
    kept: Callable[[], None] = lambda: None
    refused: Callable[[], None] = lambda: None


class Storage(Protocol):
    """Where changes go."""

    durable: bool

    def put(self, change: Change) -> asyncio.Future[str]:
        """Take a change; the future holds why it was refused, empty if it was kept."""

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """What is kept."""

    def open(self) -> None:
        """Begin. Raises: BrokerStartError."""

    async def close(self) -> None:
        """End, after what was taken is kept."""


class Volatile:
    """Keeps nothing: all changes count at once, and are gone when the broker ends."""

    durable = False

    def put(self, change: Change) -> asyncio.Future[str]:
        """Let a change count."""
        change.kept()
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        done.set_result("")
        return done

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Nothing is kept."""
        return iter(())

    def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""


class Disk:
    """Keeps changes in a folder, which is this process's alone while it is open."""

    durable = True

    def __init__(self, folder: Path) -> None:
        """Prepare to keep changes below ``folder``; `open` reads and locks it."""
        self._folder = folder
        self._opened = ExitStack()
        self._writer: sqlite3.Connection
        self._reader: sqlite3.Connection
        self._queue: list[tuple[Change, asyncio.Future[str]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._refused = ""

    def open(self) -> None:
        """Lock the folder and open the file, a new one if there is none.

        Raises:
            BrokerStartError: another broker has it, it was written by another version, or it cannot be read or written.
        """
        with ExitStack() as opened:
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                # Only the owner may read: contexts lie here in clear. SQLite gives its other files the same rights.
                os.close(os.open(self._folder / FILE, os.O_RDWR | os.O_CREAT, 0o600))
                lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                opened.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BrokerStartError(
                    f"{self._folder}: another broker keeps its data there; end it, or name another folder (--data)"
                ) from None
            except OSError as error:
                raise BrokerStartError(
                    f"{self._folder}: expected a folder for data, got {error.strerror}; name another one (--data)"
                ) from None
            try:
                self._writer, self._reader = self._connect(opened), self._connect(opened)
                self._check()
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                    raise BrokerStartError(self._no_room(error)) from None
                raise BrokerStartError(f"{self._folder / FILE}: expected a broker's data, got: {error}") from None
            self._opened = opened.pop_all()

    def _no_room(self, error: sqlite3.Error) -> str:
        return f"{self._folder}: the disk refuses what is written ({error}); make room on it"

    def _connect(self, opened: ExitStack) -> sqlite3.Connection:
        made = sqlite3.connect(self._folder / FILE, isolation_level=None, check_same_thread=False)
        opened.callback(made.close)
        for setting in ("journal_mode=WAL", "synchronous=FULL", f"cache_size=-{_CACHE_KIBIBYTES}"):
            made.execute(f"PRAGMA {setting}").fetchall()
        return made

    def _check(self) -> None:
        ((tables,),) = self._writer.execute("SELECT count(*) FROM sqlite_master").fetchall()
        if not tables:
            made = f"PRAGMA application_id={_APPLICATION}; PRAGMA user_version={_VERSION};"
            self._writer.executescript(f"BEGIN; {_TABLES} {made} COMMIT;")
        found = [self._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if found != [_APPLICATION, _VERSION]:
            raise BrokerStartError(
                f"{self._folder / FILE}: expected data of version {_VERSION}, got version {found[1]}; start the "
                "release of hushstream that wrote it, or name another folder (--data)"
            )

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """What a query finds among what is kept; a full disk does not stop it."""
        return iter(self._reader.execute(query, values))

    def put(self, change: Change) -> asyncio.Future[str]:
        """Take a change, which is written with all others that come until the disk is free."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._writing is not None and self._writing.done():
            done.set_result(_FAULT)
            return done
        self._queue.append((change, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_queue())
        return done

    async def close(self) -> None:
        """Wait for what was taken, and unlock the folder."""
        if self._writing is not None:
            await self._writing
        self._opened.close()

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                group, self._queue = self._queue, []
                refused = await self._written([statement for change, _ in group for statement in change.statements])
                if refused:
                    # What came meanwhile was made for what is refused: its offsets follow those of this group.
                    group, self._queue = group + self._queue, []
                for change, done in group:
                    (change.refused if refused else change.kept)()
                    if not done.done():
                        done.set_result(refused)
        except Exception:
            log.critical("%s: %s", self._folder, _FAULT)
            raise
        self._writing = None

    async def _written(self, statements: Sequence[Statement]) -> str:
        """Write all of it and force it to disk; gives why it could not be, empty if it was."""
        if not statements:
            return ""
        try:
            # Python code runs here, and the wait for the disk elsewhere: a thread that ran statements would wait for
            # the interpreter's lock at each of them.
            self._writer.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                self._writer.execute(sql, values)
            await asyncio.to_thread(self._writer.execute, "COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            return self._told(self._no_room(error))
        return self._told("")

    def _told(self, refused: str) -> str:
        """Log a change from taken to refused, or back, once."""
        if refused and refused != self._refused:
            log.error("%s: nothing is taken until then, reads go on", refused)
        elif self._refused and not refused:
            log.warning("%s: the disk takes what is written again", self._folder)
        self._refused = refused
        return refused
