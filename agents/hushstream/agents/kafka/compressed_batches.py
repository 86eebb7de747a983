"""Keeps compressed record batches compressed: a megabyte on the wire may be a gigabyte in memory.

No writer of a deployment compresses (`hushstream.schemas.topics`: sizes would tell what is in a record), so a
compressed batch is from somebody else. The header of a batch names its codec, in clear. A reader gets one record in
place of a compressed batch: at the batch's last offset, with the value `codec.COMPRESSED`. Decoding refuses that value,
and reading goes on behind it. Every reader gets the same record, so what follows from a log does not depend on who
reads it.

A topic with ``compression.type=uncompressed`` would not help: the broker then unpacks, in its own memory.

The hook is private API of aiokafka 0.14 (`PRIVATE_API`). It acts only on consumers that have `batches_stay_compressed`
as ``key_deserializer``; consumers of an application stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecord

from hushstream.schemas.codec import COMPRESSED

_Original = fetcher.PartitionRecords

PRIVATE_API: Mapping[str, Any] = {
    "PartitionRecords.__init__": _Original.__init__,
    "PartitionRecords._unpack_records": _Original._unpack_records,
    "Fetcher._proc_fetch_request": fetcher.Fetcher._proc_fetch_request,
}
"""The private functions of aiokafka that this module relies on; a test fails when their source changes."""


def batches_stay_compressed(key: bytes | None) -> bytes | None:
    """Return the key unchanged. A consumer that has this function as ``key_deserializer`` keeps batches compressed."""
    return key


class _Closed:
    """A compressed batch with the interface that the fetcher expects; it yields one record in place of its content."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        yield DefaultRecord(batch.next_offset - 1, batch.max_timestamp, batch.timestamp_type, None, COMPRESSED, [])


class _ClosedBatches:
    """The batches of a fetch, with each compressed one as `_Closed`."""

    __slots__ = ("_records",)

    def __init__(self, records: Any) -> None:
        self._records = records

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _Closed(batch) if batch.compression_type else batch


class _PartitionRecords(_Original):  # type: ignore[misc, valid-type]  # the library declares no types for it
    """Keeps batches compressed for a consumer with `batches_stay_compressed`; for any other it changes nothing."""

    def __init__(
        self, place: Any, records: Any, aborted: Any, offset: int, key_deserializer: Any, *others: Any
    ) -> None:
        if key_deserializer is batches_stay_compressed:
            records = _ClosedBatches(records)
        super().__init__(place, records, aborted, offset, key_deserializer, *others)


fetcher.PartitionRecords = _PartitionRecords
