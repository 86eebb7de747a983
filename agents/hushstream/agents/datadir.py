"""Checks the folder of a process's state at its start: refuses a full disk, and a folder that another process uses."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hushstream.agents.errors import WorkerError

PROBE_BYTES = 1024 * 1024
"""Size of the probe file; a worker's first snapshots are smaller."""


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
            f"{error.strerror}; free some space, or name another folder with --state"
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


def force_folder(folder: Path) -> None:
    """Force the names in a folder to disk, so that a file that was renamed is still there after a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
