"""The high-water mark of what was paid: a journal that is older than it would spend the same budget again.

Each home partition has a small file that names its journal and the last record under which a release was paid. It is
on disk before that release is sent, and only rises: of two owners that share a folder, the one that slept does not
lower what the other noted (a lock beside the file keeps them apart). It lies in the data directory unless the settings
name another folder, which is better: a backup of the data then does not bring back an old mark with it. At take-up a
journal that ends before the mark (topics restored from an older copy) is refused: PRIVACY rule 4. The mark is read
before the journal's end is asked for: what another owner pays for after that is no sign of an older copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hushstream.agents.commits import journal_name
from hushstream.agents.errors import JournalLost, PartitionError
from hushstream.agents.settings import WorkerSettings
from hushstream.roles.machine import Output

LEDGER_TOPICS = ("ledger", "ledger-edge")
"""An output on one of these says that a release is paid for."""

_DIGEST_CHARACTERS = 32
_LOCK_SECONDS = 5.0
_LOCK_RETRY_SECONDS = 0.02


class OlderThanPaid(PartitionError):
    """The journal ends before the last release that was paid, or the mark cannot be believed."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """The marks of one worker."""

    settings: WorkerSettings

    def path(self, partition: int) -> Path:
        """Where a partition's mark is."""
        folder = self.settings.paid_marks or self.settings.datadir / "paid"
        return folder / f"{self.settings.deployment}.{self.settings.role}.{partition}.json"

    def raise_to(self, partition: int, genesis: bytes, sequence: int) -> None:
        """Note on disk, before the release is sent, that record ``sequence`` of a journal paid for one.

        Raises:
            JournalLost: the disk refused: nothing may be released, and the partition is tried again.
            OlderThanPaid: the mark that is there is damaged.
        """
        path = self.path(partition)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".lock").open("w") as lock:
                _hold(lock.fileno())
                if self.noted(partition, genesis) < sequence:
                    _write(path, {"journal": journal_name(genesis), "sequence": sequence})
        except OSError as error:
            raise JournalLost(
                f"{path}: what was paid for could not be noted ({error.strerror}); not released"
            ) from None

    def noted(self, partition: int, genesis: bytes) -> int:
        """The last record of a journal under which a release was paid; 0 if none is known.

        Raises:
            OlderThanPaid: the mark is damaged.
        """
        path = self.path(partition)
        try:
            digest, _, body = path.read_text(encoding="ascii").rstrip("\n").partition(" ")
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise OlderThanPaid(f"{path}: expected a readable mark, got {type(error).__name__}") from None
        if len(digest) != _DIGEST_CHARACTERS or digest != _digest(body):
            raise OlderThanPaid(f"{path}: expected the mark of what was paid, got damaged content")
        held = json.loads(body)
        return int(held["sequence"]) if held["journal"] == journal_name(genesis) else 0

    def check(self, partition: int, paid: int, sequence: int) -> None:
        """Refuse a journal that ends at ``sequence``, if ``paid`` was `noted` before its end was asked for.

        Raises:
            OlderThanPaid: it ends before the mark.
        """
        if paid > sequence:
            raise OlderThanPaid(
                f"partition {partition}: the journal ends at record {sequence}, but a release was paid with record "
                f"{paid} ({self.path(partition)}); the topics are an older copy. Bring the newer ones back: without "
                f"them the same budget would be spent twice"
            )


def pays(outputs: Iterable[Output]) -> bool:
    """Whether a release among these outputs is paid for."""
    return any(output.topic in LEDGER_TOPICS for output in outputs)


def _hold(lock: int) -> None:
    """Lock a file until it is closed; a holder that was stopped is not waited for without end."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = f"another process has held its lock for {_LOCK_SECONDS:g} s"
                raise TimeoutError(errno.ETIMEDOUT, reason) from None
            time.sleep(_LOCK_RETRY_SECONDS)
        else:
            return


def _write(path: Path, mark: Mapping[str, object]) -> None:
    """Put a mark in the place of the one before; it is on disk when this returns."""
    body = json.dumps(mark, sort_keys=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="ascii") as file:
        file.write(f"{_digest(body)} {body}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=_DIGEST_CHARACTERS // 2, person=b"hush-paid").hexdigest()
