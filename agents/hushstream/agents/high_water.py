"""The high-water mark of what was released: a journal that is older would draw the same noise over other data.

Each journal of a home partition has a small file that names it and the last record under which something out of a
mechanism, or a debit, was sent. It is on disk before that is sent, also where one debit pays for many releases. A
higher mark is a file of its own, the lower ones go afterwards, and the highest counts: so an owner that slept cannot
lower what the next one noted, and nobody waits for one that sleeps. It lies in the data directory unless the settings
name another folder, which is better: a backup of the data then does not bring back an old mark with it. At take-up a
journal that ends before the mark (topics restored from an older copy) is refused: PRIVACY rule 4. The mark is read
before the journal's end is asked for: what another owner pays for after that is no sign of an older copy.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hushstream.agents.commits import journal_name
from hushstream.agents.datadir import force_folder
from hushstream.agents.errors import JournalLost, PartitionError
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.machine import Output

RELEASED_TOPICS = ("releases", "crowds", "lift", "ledger", "ledger-edge")
"""An output on one of these carries noise that may not be drawn again, or the debit that pays for it."""

_DIGEST_CHARACTERS = 32


class OlderThanPaid(PartitionError):
    """The journal ends before the last release that was sent, or the mark cannot be believed."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """The marks of one worker.

    Attributes:
        settings: say where the marks are, and of which role and deployment.
        raised: the last mark that this object made of each journal: the folder is gone through for the first only.
    """

    settings: WorkerSettings
    raised: dict[str, int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the marks are."""
        return self.settings.paid_marks or self.settings.datadir / "paid"

    def marks(self, partition: int, genesis: bytes) -> dict[int, Path]:
        """The files of a journal's marks by the record that they name; more than one only for a moment."""
        start = self._start(partition, genesis)
        names = [path for path in self.folder.glob("*.json") if path.name.startswith(start)]
        return {int(path.stem.removeprefix(start)): path for path in names}

    def raise_to(self, partition: int, genesis: bytes, sequence: int) -> None:
        """Note on disk, before the release is sent, that record ``sequence`` of a journal makes one.

        Raises:
            JournalLost: the disk refused: nothing may be released, and the partition is tried again.
            OlderThanPaid: the mark that is there is damaged.
        """
        start = self._start(partition, genesis)
        first = start not in self.raised
        if (self.noted(partition, genesis) if first else self.raised[start]) >= sequence:
            return
        path = self.folder / f"{start}{sequence}.json"
        body = json.dumps({"journal": journal_name(genesis), "sequence": sequence}, sort_keys=True)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("w", encoding="ascii") as file:
                file.write(f"{_digest(body)} {body}\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            force_folder(self.folder)
            if first:
                force_folder(self.folder.parent)
            lower = self.marks(partition, genesis) if first else [self.raised[start]]
            for number in lower:
                if number < sequence:
                    (self.folder / f"{start}{number}.json").unlink(missing_ok=True)
        except OSError as error:
            raise JournalLost(f"{path}: what is released could not be noted ({error.strerror}); not released") from None
        self.raised[start] = sequence

    def noted(self, partition: int, genesis: bytes) -> int:
        """The last record of a journal under which a release was sent; 0 if none is known.

        Raises:
            OlderThanPaid: the mark is damaged.
        """
        while marks := self.marks(partition, genesis):
            highest = max(marks)
            path = marks[highest]
            try:
                digest, _, body = path.read_text(encoding="ascii").rstrip("\n").partition(" ")
            except FileNotFoundError:
                continue  # a higher one has come meanwhile
            except (OSError, UnicodeDecodeError) as error:
                raise OlderThanPaid(f"{path}: expected a readable mark, got {type(error).__name__}") from None
            if digest != _digest(body) or json.loads(body)["sequence"] != highest:
                raise OlderThanPaid(f"{path}: expected the mark of what was paid, got damaged content")
            return highest
        return 0

    def check(self, partition: int, paid: int, sequence: int) -> None:
        """Refuse a journal that ends at ``sequence``, if ``paid`` was `noted` before its end was asked for.

        Raises:
            OlderThanPaid: it ends before the mark.
        """
        if paid > sequence:
            raise OlderThanPaid(
                f"partition {partition}: the journal ends at record {sequence}, but a release was sent with record "
                f"{paid} ({self.folder}); the topics are an older copy. Bring the newer ones back: without "
                f"them the same budget would be spent twice, on noise that is out already"
            )

    def _start(self, partition: int, genesis: bytes) -> str:
        return f"{self.settings.deployment}.{self.settings.role}.{partition}.{journal_name(genesis)}."


def releases(outputs: Iterable[Output]) -> bool:
    """Whether something among these outputs came out of a mechanism, or pays for what does."""
    return any(output.topic in RELEASED_TOPICS for output in outputs)


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=_DIGEST_CHARACTERS // 2, person=b"hush-paid").hexdigest()
