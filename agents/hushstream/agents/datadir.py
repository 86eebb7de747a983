"""Tests the folder of snapshots before a worker joins its group: a full disk shows before partitions are owned."""

from __future__ import annotations

import os
from pathlib import Path

from hushstream.agents.errors import WorkerError

PROBE_BYTES = 1024 * 1024
"""A worker's first snapshots are smaller than this."""


class DatadirUnusable(WorkerError):
    """The data directory cannot be written, or has no room."""


def check_datadir(folder: Path) -> None:
    """Make the folder, and see that it takes a file.

    Raises:
        DatadirUnusable: it does not; says why.
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


def owners_alone(path: str, flags: int) -> int:
    """An opener of files (`open`) that their owner alone may read and write."""
    return os.open(path, flags, 0o600)


def force_folder(folder: Path) -> None:
    """Force the names in a folder to disk: a file that was put in its place is there after a loss of power, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
