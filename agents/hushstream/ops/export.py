"""Exporting a deployment's logs into files, and reading such an export back.

An export is a folder with one file for each partition and ``manifest.json``, which is written last: a folder without it
is not an export. A file holds the values of its records one after the other, each with its key behind it, then a table
of int64 (little-endian) with one row for each record: offset, log time in milliseconds, end of its value in the file,
and bytes of its key (-1: it has none). All else about the partition is
in the manifest, with the file's digest. The digest finds damage, such as a truncated file or a bad disk. It has no key,
so it does not find deliberate changes; `hushstream.ops.check.verify` does.

An export holds everything, also what users do, in clear. So only the owner can read the folder and its files, and the
manifest says why.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.kafka.logs import as_records
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LogCopy, PartitionCopy, Pause, open_logs
from hushstream.schemas.errors import HushstreamError

MANIFEST = "manifest.json"
_NOTICE = "Only the owner can read its files; keep it that way, and delete the folder when it is no longer needed."

_FORMAT, _VERSION = "hushstream-export", 2
FILE_MODE = 0o600
"""Only the owner may read these files: they contain contexts and clicks."""
_FOLDER_MODE = 0o700
_DIGEST_BYTES = 32
_COLUMNS = 4


class ExportRefused(HushstreamError):
    """An export cannot be written to the folder."""


class DamagedExport(HushstreamError):
    """A file of an export is missing, truncated or changed."""


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """The manifest's entry for one partition: where its log begins and ends, and what its file holds."""

    topic: str
    partition: int
    file: str
    low: int
    high: int
    records: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        deployment, config_digest: the deployment whose logs were exported.
        counts: the number of the deployment's partitions, by topic.
        quiet: `LogCopy.consistent`, under the name that it has in the file.
        partitions: one entry for each file.
        notice: a warning that the files hold private data.
    """

    deployment: str
    config_digest: str
    counts: Mapping[str, int]
    quiet: bool
    partitions: tuple[ExportedPartition, ...]
    notice: str

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return sum(part.records for part in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """The plain values of ``manifest.json``."""
        return {"format": _FORMAT, "version": _VERSION, **asdict(self)}


def held_in_clear(system: System) -> str:
    """Say in words what an export of all topics holds in clear."""
    named = [topic.name for topic in system.topics if topic.names_users]
    if not named:
        return "what each zone keeps from the others in clear"
    return f"{' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))} in clear"


async def export_async(
    connection: Connection,
    system: System,
    directory: Path,
    topics: Collection[str] | None = None,
    pause: Pause | None = None,
    until: Mapping[TopicPartition, int] | None = None,
) -> Manifest:
    """Write a deployment's topics, up to the ends seen at the start, into a new folder.

    Args:
        connection: where the deployment is.
        system: the deployment.
        directory: a folder that does not exist yet, or is empty.
        topics: the topics to write; None for all.
        pause: how long to wait for a moment in which nobody writes.
        until: the partitions to write, each with the offset before which to stop; None writes all of them, to the end.

    Raises:
        ExportRefused: the folder is not empty, or cannot be created.
        HushstreamError: the topics cannot be read (`open_logs`).
    """
    counts = system.partitions
    async with open_logs(connection, counts, topics, pause) as logs:
        _prepare(directory)
        entries = []
        for source, (low, high) in _bounds(logs.cut.bounds, until).items():
            with _writing(directory), closing(_PartitionFile(directory, source)) as file:
                async for portion in logs.fetched(source, high):
                    file.add(as_records(portion), [record.key for record in portion])
                entries.append(file.finish(low, high))
        return _finish(directory, system, logs.cut.consistent, entries)


def _bounds(
    there: Mapping[TopicPartition, tuple[int, int]], until: Mapping[TopicPartition, int] | None
) -> Mapping[TopicPartition, tuple[int, int]]:
    if until is None:
        return there
    return {source: (there[source][0], min(there[source][1], end)) for source, end in until.items()}


def export_copy(copy: LogCopy, system: System, directory: Path) -> Manifest:
    """Write a copy into a new folder.

    Raises:
        ExportRefused: the folder is not empty, or cannot be created.
    """
    declared = ((topic, partition) for topic, count in system.partitions.items() for partition in range(count))
    _prepare(directory)
    entries = []
    for source in dict.fromkeys((*declared, *copy.parts)):
        part = copy.part(source)
        with _writing(directory), closing(_PartitionFile(directory, source)) as file:
            file.add(part.records, part.keys)
            entries.append(file.finish(part.low, part.high))
    return _finish(directory, system, copy.consistent, entries)


def open_export(directory: Path) -> LogCopy:
    """Open an export; its records are read from disk on demand.

    Raises:
        DamagedExport: the folder is not a complete export, or a file of it was changed.
    """
    manifest = read_manifest(directory)
    parts = {(one.topic, one.partition): _opened(directory / one.file, one) for one in manifest.partitions}
    return LogCopy(parts, manifest.quiet)


def _opened(path: Path, entry: ExportedPartition) -> PartitionCopy:
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, _hasher).hexdigest() != entry.digest:
                raise DamagedExport(f"{path}: expected the file that the manifest names, got another or a damaged one")
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if entry.size else b""
    except OSError as error:
        raise DamagedExport(f"{path}: expected an exported partition, got {type(error).__name__}") from None
    table = np.frombuffer(content, "<i8", offset=entry.size - _COLUMNS * 8 * entry.records).reshape(-1, _COLUMNS)
    offsets = np.concatenate(([entry.low - 1], table[:, 0], [entry.high]))
    if np.any(np.diff(offsets) <= 0) and entry.records:
        # The digest fits, so the file was written like this.
        raise DamagedExport(f"{path}: expected records in offset order between {entry.low} and {entry.high}")
    ends, sizes = table[:, 2], table[:, 3]
    keys = None
    if np.any(sizes >= 0):
        keys = [None if size < 0 else content[end : end + size] for end, size in zip(ends, sizes, strict=True)]
    return PartitionCopy(entry.low, entry.high, _StoredRecords(content, table), keys)


class _StoredRecords(Sequence[InputRecord]):
    """The records of one file, each read on demand."""

    def __init__(self, content: mmap.mmap | bytes, table: NDArray[np.int64]) -> None:
        """View ``content``, whose records ``table`` (n, 3) lists."""
        self._content, self._table = content, table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> InputRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[InputRecord]: ...

    def __getitem__(self, index: int | slice) -> InputRecord | list[InputRecord]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        offset, time_ms, end, _ = self._table[place].tolist()
        start = int(self._table[place - 1, 2] + max(0, self._table[place - 1, 3])) if place else 0
        return InputRecord(offset, time_ms, self._content[start:end])


class _PartitionFile:
    """Writes the file of one partition."""

    def __init__(self, directory: Path, source: TopicPartition) -> None:
        self._source, self._name = source, f"{source[0]}-{source[1]}.log"
        self._hasher, self._table, self._size = _hasher(), array("q"), 0
        self._file = _new_file(directory / self._name)
        self.close = self._file.close

    def add(self, records: Iterable[InputRecord], keys: Iterable[bytes | None] | None) -> None:
        """Write the next records, in offset order, with their keys (None: they have none)."""
        for record, key in zip(records, keys or repeat(None), strict=False):
            self._put(record.value)
            self._table.extend((record.offset, record.timestamp_ms, self._size, -1 if key is None else len(key)))
            self._put(key or b"")

    def finish(self, low: int, high: int) -> ExportedPartition:
        """Complete the file of a log with the offsets from ``low`` to below ``high``."""
        self._put(np.frombuffer(self._table, np.int64).astype("<i8").tobytes() if self._table else b"")
        self._file.flush()
        os.fsync(self._file.fileno())
        records = len(self._table) // _COLUMNS
        return ExportedPartition(*self._source, self._name, low, high, records, self._size, self._hasher.hexdigest())

    def _put(self, chunk: bytes) -> None:
        self._hasher.update(chunk)
        self._file.write(chunk)
        self._size += len(chunk)


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb")


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of an export.

    Raises:
        DamagedExport: there is no readable manifest of this format.
    """
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content.pop("format"), content.pop("version")) != (_FORMAT, _VERSION):
            raise DamagedExport(f"{path}: expected {_FORMAT} version {_VERSION}, got another format")
        lines = tuple(ExportedPartition(**line) for line in content.pop("partitions"))
        return Manifest(**content, partitions=lines)
    except FileNotFoundError:
        raise DamagedExport(f"{directory}: expected a complete export, it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedExport(f"{path}: expected an export's manifest, got {type(error).__name__}") from None


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turn an error of the disk into `ExportRefused`; errors of the network pass through."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise ExportRefused(f"export: cannot write to {directory} ({error.strerror})") from None


def _prepare(directory: Path) -> None:
    with _writing(directory):
        directory.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ExportRefused(f"export: expected {directory} to be new or empty, it holds files")
        directory.chmod(_FOLDER_MODE)


def _finish(directory: Path, system: System, consistent: bool, entries: Iterable[ExportedPartition]) -> Manifest:
    notice = f"This folder holds {held_in_clear(system)}, and what follows from it. {_NOTICE}"
    digest, counts = system.digest.hex(), system.partitions
    manifest = Manifest(system.config.deployment, digest, counts, consistent, tuple(entries), notice)
    with _writing(directory), _new_file(directory / MANIFEST) as file:
        file.write(json.dumps(manifest.as_json(), indent=2).encode())
    return manifest
