"""The folder of a process's state: refuses a full disk or a folder in use, and keeps the worker's id in its group."""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from hushstream.agents.errors import WorkerError

PROBE_BYTES = 1024 * 1024
"""Size of the probe file; a worker's first snapshots are smaller."""

_FOLDER, _SUFFIX = "members", ".member"


class DatadirUnusable(WorkerError):
    """The data directory cannot be written, or has no room."""


def check_datadir(folder: Path) -> None:
    """Make the folder if it is missing, and write, force to disk and remove a probe file in it.

    Raises:
        DatadirUnusable: the probe could not be written; the message says why.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                # Some file systems find out that they are full only here.
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise DatadirUnusable(
            f"data directory {folder}: expected room for {PROBE_BYTES} bytes and the right to write, got "
            f"{error.strerror}; free some space"
        ) from None


@contextmanager
def locked_folder(folder: Path, process: str) -> Iterator[None]:
    """Lock a folder for this process, until the context is left or the process ends.

    Args:
        folder: the state folder; it must be writable.
        process: what kind of process this is, in words, for the message.

    Raises:
        DatadirUnusable: another process has locked the folder.
    """
    with open(folder / ".lock", "w", encoding="utf-8", opener=owner_only) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatadirUnusable(
                f"data directory {folder}: expected one of its own, got one in which another {process} works; end that "
                f"one, or name another folder with --state"
            ) from None
        yield


def owner_only(path: str, flags: int) -> int:
    """Open a file so that only its owner may read and write it; this is an opener for `open`."""
    return os.open(path, flags, 0o600)


class Seat:
    """The instance id by which a worker's group knows it again after a restart (static membership, KIP-345).

    A worker that was killed keeps its partitions until its session ends. If it is started again before, in the same
    data directory, it has the same instance id: the group gives it the partitions that it had, and no other member
    notices. The id is in a file that is locked while the process runs, so workers that share the directory have an id
    each.

    Attributes:
        instance: its instance id.
    """

    def __init__(self, datadir: Path, group: str) -> None:
        """Lock the first file that no running process has, and make it if there is none.

        Raises:
            OSError: the file cannot be written or locked.
        """
        folder = datadir / _FOLDER / group
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A data directory may be copied, or moved to another machine: its ids stay with the machine.
        places = (folder / f"{socket.gethostname()}.{number}{_SUFFIX}" for number in count())
        self._file = next(file for file in map(_locked, places) if file is not None)
        self._file.seek(0)
        self.instance = self._file.read()
        if not self.instance:
            self.instance = uuid.uuid4().hex
            self._file.write(self.instance)
            self._file.flush()

    def leave(self) -> None:
        """Unlock the file."""
        self._file.close()


def _locked(path: Path) -> IO[str] | None:
    """Open and lock a file; None if somebody else has locked it."""
    file = open(path, "a+", encoding="utf-8", opener=owner_only)  # noqa: SIM115 - it stays open, as its lock does
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
