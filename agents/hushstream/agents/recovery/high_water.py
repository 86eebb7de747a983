"""Keeps release marks on a worker's own disk, beside those in the zone's topic (`hushstream.agents.recovery.marks`).

A mark's file is on disk before anything that it covers is sent. Each higher mark is a new file; lower ones are deleted
afterwards, and the highest counts. So an owner that was suspended cannot lower the mark of the next owner, and no owner
waits for a suspended one. Files lie in the data directory unless the settings name another folder. Another folder is
better: a backup of the data then brings back no old mark, and a lost topic of marks is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from hushstream.agents.datadir import force_folder, owner_only
from hushstream.agents.errors import DiskRefused, PartitionError
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.marks import Mark

_DIGEST_CHARACTERS = 32


class OlderThanPaid(PartitionError):
    """By the marks, the journal is older than what was released from it; or the marks are damaged or missing."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """Keeps the mark files of one worker.

    Attributes:
        settings: name the folder of the files, the role and the deployment.
        raised: the last mark of each journal that this object wrote; only the first one needs a search of the folder.
    """

    settings: WorkerSettings
    raised: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the marks."""
        return self.settings.paid_marks or self.settings.datadir / "paid"

    def noted(self, partition: int) -> tuple[Mark, ...]:
        """The highest mark of each journal of a home partition.

        Raises:
            OlderThanPaid: a mark is damaged.
        """
        marks = []
        for start in sorted({name.rpartition(".")[0] + "." for name in self._stems(self._place(partition))}):
            mark = self._highest(start)
            if mark is not None:
                marks.append(mark)
        return tuple(marks)

    def raise_to(self, partition: int, mark: Mark) -> None:
        """Write a mark to disk, unless there is a higher one of the same journal.

        Raises:
            DiskRefused: the disk refused the write: nothing may be released, and the partition is tried again.
            OlderThanPaid: the existing mark is damaged.
        """
        start = f"{self._place(partition)}{mark.journal}."
        first, place = start not in self.raised, (mark.generation, mark.sequence)
        there = self._highest(start) if first else None
        known = self.raised.get(start, (-1, -1)) if there is None else (there.generation, there.sequence)
        if known >= place:
            return
        path = self._path(start, place)
        try:
            self._write(path, mark, first)
            for lower in [_place_of(stem) for stem in self._stems(start)] if first else [known]:
                if lower < place:
                    self._path(start, lower).unlink(missing_ok=True)
        except OSError as error:
            raise DiskRefused(f"{path}: the mark could not be written ({error.strerror}); not released") from None
        self.raised[start] = place

    def _write(self, path: Path, mark: Mark, first: bool) -> None:
        body = json.dumps(
            {"journal": mark.journal, "generation": mark.generation, "sequence": mark.sequence}, sort_keys=True
        )
        fresh = path.with_suffix(f".{os.getpid()}.new")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Only the owner may read the file: how far a journal has released is private to the zone (its topic is sealed).
        with open(fresh, "w", encoding="ascii", opener=owner_only) as file:
            file.write(f"{_digest(body)} {body}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        force_folder(self.folder)
        if first:
            force_folder(self.folder.parent)

    def _highest(self, start: str) -> Mark | None:
        """The highest mark among the files whose names begin with ``start``."""
        while stems := self._stems(start):
            place = max(map(_place_of, stems))
            path = self._path(start, place)
            try:
                digest, _, body = path.read_text(encoding="ascii").rstrip("\n").partition(" ")
            except FileNotFoundError:
                continue  # another process has written a higher one, and deleted this
            except (OSError, UnicodeDecodeError) as error:
                raise OlderThanPaid(f"{path}: expected a readable mark, got {type(error).__name__}") from None
            found = json.loads(body) if digest == _digest(body) else {}
            if (found.get("generation"), found.get("sequence")) != place:
                raise OlderThanPaid(f"{path}: expected a release mark, got damaged content")
            return Mark(found["journal"], found["sequence"], found["generation"])
        return None

    def _stems(self, start: str) -> list[str]:
        return [path.stem for path in self.folder.glob("*.json") if path.name.startswith(start)]

    def _path(self, start: str, place: tuple[int, int]) -> Path:
        return self.folder / f"{start}{place[0]}-{place[1]}.json"

    def _place(self, partition: int) -> str:
        return f"{self.settings.deployment}.{self.settings.role}.{partition}."


def _place_of(stem: str) -> tuple[int, int]:
    generation, _, sequence = stem.rpartition(".")[2].partition("-")
    if not (generation.isdecimal() and sequence.isdecimal()):
        raise OlderThanPaid(f"{stem}.json: expected the name of a mark to end with GENERATION-RECORD, got another")
    return int(generation), int(sequence)


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=_DIGEST_CHARACTERS // 2, person=b"hush-paid").hexdigest()
