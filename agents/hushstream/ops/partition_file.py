"""One exported partition as a file.

Layout, all numbers little-endian::

    magic    8 bytes   "HUSHLOG" and the format's version, one byte
    head     u16 length of the topic's name, the name, u32 partition, i64 low, i64 high
    records  i64 offset, i64 log time in milliseconds, u32 length of the value, the value; offsets increase
    end      i64 -1, u64 number of records
    digest   32 bytes of BLAKE2b over everything before

The digest finds damage, such as a truncated file or a bad disk. It has no key, so it does not find deliberate changes;
`hushstream.ops.check.verify` does.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, overload

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.log_copy import PartitionCopy
from hushstream.schemas.errors import HushstreamError

FILE_MODE = 0o600
"""Only the owner may read these files: they contain contexts and clicks."""

_MAGIC: Final = b"HUSHLOG\x01"
_NAME = struct.Struct("<H")
_HEAD = struct.Struct("<Iqq")
_RECORD = struct.Struct("<qqI")
_END = struct.Struct("<qQ")
_DIGEST_BYTES = 32
_HASHED_AT_ONCE = 1 << 20


class DamagedExport(HushstreamError):
    """A file of an export is missing, truncated or changed."""


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file: its number of records, its size in bytes, and its digest in hexadecimal."""

    records: int
    size: int
    digest: str


class PartitionWriter:
    """Writes one partition; the file appears under its name only when it is complete.

    Use it as a context manager and call `finish`; without `finish` no file is left.
    """

    def __init__(self, path: Path, source: TopicPartition, low: int, high: int) -> None:
        """Begin a file for ``source``, whose log begins at ``low`` and is copied up to ``high``, exclusively."""
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.unfinished")
        self._hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._records = self._size = 0
        self._file = os.fdopen(os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "wb")
        name = source[0].encode()
        self._put(_MAGIC + _NAME.pack(len(name)) + name + _HEAD.pack(source[1], low, high))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def add(self, records: Iterable[InputRecord]) -> None:
        """Write the next records, in offset order."""
        for record in records:
            self._put(_RECORD.pack(record.offset, record.timestamp_ms, len(record.value)) + record.value)
            self._records += 1

    def finish(self) -> Written:
        """Close the file and give it its name."""
        self._put(_END.pack(-1, self._records))
        self._file.write(self._hasher.digest())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unfinished.replace(self._path)
        return Written(self._records, self._size + _DIGEST_BYTES, self._hasher.hexdigest())

    def _put(self, chunk: bytes) -> None:
        self._hasher.update(chunk)
        self._file.write(chunk)
        self._size += len(chunk)


def open_partition(path: Path) -> tuple[TopicPartition, PartitionCopy, str]:
    """Open one file; its records are read from disk on demand.

    Returns:
        Topic and partition, the copy, and the digest in hexadecimal.

    Raises:
        DamagedExport: the file is missing, truncated or changed.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DamagedExport(f"{path}: expected an exported partition, got {type(error).__name__}") from None
    end = len(content) - _DIGEST_BYTES
    if content[: len(_MAGIC)] != _MAGIC:
        raise DamagedExport(f"{path}: expected an exported partition of format 1, got another kind of file")
    if end < len(_MAGIC) or _digest(content, end) != content[end:]:
        raise DamagedExport(f"{path}: its digest does not fit its content; it was damaged or truncated")
    try:
        source, low, high, at = _head(content)
        positions = _index(content, at, end, low, high)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        # The digest fits, so the file was written like this, but not by `PartitionWriter`.
        raise DamagedExport(f"{path}: expected records in offset order ({type(error).__name__})") from None
    return source, PartitionCopy(low, high, StoredRecords(content, positions)), content[end:].hex()


class StoredRecords(Sequence[InputRecord]):
    """The records of one file, each read on demand."""

    def __init__(self, content: mmap.mmap, positions: NDArray[np.int64]) -> None:
        """View ``content``, whose records begin at ``positions`` (n,)."""
        self._content = content
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> InputRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[InputRecord]: ...

    def __getitem__(self, index: int | slice) -> InputRecord | list[InputRecord]:
        if isinstance(index, slice):
            return [self._record(int(position)) for position in self._positions[index]]
        return self._record(int(self._positions[index]))

    def _record(self, position: int) -> InputRecord:
        offset, timestamp_ms, length = _RECORD.unpack_from(self._content, position)
        start = position + _RECORD.size
        return InputRecord(offset, timestamp_ms, self._content[start : start + length])


def _head(content: mmap.mmap) -> tuple[TopicPartition, int, int, int]:
    at = len(_MAGIC)
    (length,) = _NAME.unpack_from(content, at)
    at += _NAME.size
    topic = content[at : at + length].decode()
    at += length
    partition, low, high = _HEAD.unpack_from(content, at)
    return (topic, partition), low, high, at + _HEAD.size


def _index(content: mmap.mmap, at: int, end: int, low: int, high: int) -> NDArray[np.int64]:
    positions: list[int] = []
    while at + _END.size < end:
        offset, _, length = _RECORD.unpack_from(content, at)
        if not low <= offset < high:
            raise ValueError
        positions.append(at)
        low = offset + 1
        at += _RECORD.size + length
    if at + _END.size != end or _END.unpack_from(content, at) != (-1, len(positions)):
        raise ValueError
    return np.array(positions, np.int64)


def _digest(content: mmap.mmap, end: int) -> bytes:
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for start in range(0, end, _HASHED_AT_ONCE):
        hasher.update(content[start : min(end, start + _HASHED_AT_ONCE)])
    return hasher.digest()
