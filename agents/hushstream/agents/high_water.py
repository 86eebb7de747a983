"""The high-water mark of what was paid: a journal that is older than it would spend the same budget again.

Each home partition has a small file that names its journal and the last record under which a release was paid. It is
on disk before that release is sent. It lies in the data directory unless the settings name another folder, which is
better: a backup of the data then does not bring back an old mark with it. At take-up a journal that ends before the
mark (topics restored from an older copy) is refused: PRIVACY rule 4.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hushstream.agents.commits import journal_name
from hushstream.agents.errors import JournalLost, PartitionError
from hushstream.agents.settings import WorkerSettings
from hushstream.roles.machine import Output

LEDGER_TOPICS = ("ledger", "ledger-edge")
"""An output on one of these says that a release is paid for."""

_DIGEST_CHARACTERS = 32


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
        """
        path = self.path(partition)
        body = json.dumps({"journal": journal_name(genesis), "sequence": sequence}, sort_keys=True)
        fresh = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("w", encoding="ascii") as file:
                file.write(f"{_digest(body)} {body}\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError as error:
            raise JournalLost(
                f"{path}: what was paid for could not be noted ({error.strerror}); not released"
            ) from None

    def check(self, partition: int, genesis: bytes, sequence: int) -> None:
        """Refuse a journal that ends at ``sequence``, if more was paid under it.

        Raises:
            OlderThanPaid: it ends before the mark, or the mark is damaged.
        """
        path = self.path(partition)
        try:
            digest, _, body = path.read_text(encoding="ascii").rstrip("\n").partition(" ")
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise OlderThanPaid(f"{path}: expected a readable mark, got {type(error).__name__}") from None
        if len(digest) != _DIGEST_CHARACTERS or digest != _digest(body):
            raise OlderThanPaid(f"{path}: expected the mark of what was paid, got damaged content")
        held = json.loads(body)
        if held["journal"] == journal_name(genesis) and held["sequence"] > sequence:
            raise OlderThanPaid(
                f"partition {partition}: the journal ends at record {sequence}, but a release was paid with record "
                f"{held['sequence']} ({path}); the topics are an older copy. Bring the newer ones back: without them "
                f"the same budget would be spent twice"
            )


def pays(outputs: Iterable[Output]) -> bool:
    """Whether a release among these outputs is paid for."""
    return any(output.topic in LEDGER_TOPICS for output in outputs)


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=_DIGEST_CHARACTERS // 2, person=b"hush-paid").hexdigest()
