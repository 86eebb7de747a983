"""Checks record batches of magic 2 and stamps them with their offset; otherwise they are opaque bytes.

Layout: Apache Kafka documentation, section "Record Batch".
"""

import struct
import zlib
from dataclasses import dataclass

from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from hushstream.broker.errors import ErrorCode, RequestRefused

HEADER_BYTES = 61
NO_PRODUCER_ID = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_OFFSET = 17
_CRC_COVERS_FROM = 21
_ATTRIBUTES_OFFSET = 21
_MAX_TIMESTAMP_OFFSET = 35
# Base offset, batch length, partition leader epoch: the fields in front of `magic`, outside the CRC.
_PLACEMENT = struct.Struct(">qii")
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CODEC, _GZIP = 0x07, 1
_GZIP_WINDOW = 31
_UNPACKED_LIMIT = 16 * 1024 * 1024
"""Largest unpacked size of a compressed batch that the broker opens."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fields of a record batch that the broker acts on."""

    attributes: int
    record_count: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def read_header(batch: bytes) -> BatchHeader:
    """Check one produced record batch and return its header.

    Raises:
        RequestRefused: CORRUPT_MESSAGE for a wrong length, magic or CRC; INVALID_RECORD for a transactional
            or control batch and for a record count that contradicts the offsets.
    """
    if len(batch) < HEADER_BYTES:
        raise RequestRefused(
            ErrorCode.CORRUPT_MESSAGE, f"a record batch has at least {HEADER_BYTES} bytes, got {len(batch)}"
        )
    fields = _HEADER.unpack_from(batch, 0)
    _, length, _, magic, crc, attributes, last_delta, _, max_ms, producer_id, epoch, sequence, count = fields
    if magic != 2:
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, f"record batches have magic 2, got {magic}")
    if length + 12 != len(batch):
        raise RequestRefused(
            ErrorCode.CORRUPT_MESSAGE, f"one record batch of {length + 12} bytes declared, got {len(batch)}"
        )
    if calc_crc32c(memoryview(batch)[_CRC_COVERS_FROM:]) != crc:
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, "the record batch fails its CRC-32C")
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise RequestRefused(ErrorCode.INVALID_RECORD, "transactions are not supported by the embedded broker")
    if count < 1 or last_delta != count - 1:
        raise RequestRefused(ErrorCode.INVALID_RECORD, f"{count} records with a last offset delta of {last_delta}")
    return BatchHeader(attributes, count, max_ms, producer_id, epoch, sequence)


def stamp(batch: bytes, base_offset: int, append_time_ms: int | None) -> bytes:
    """Make the batch as it is stored: with its offset and, for LogAppendTime, the broker's time.

    The CRC covers the time, so it is then computed anew; it does not cover the offset.
    """
    placed = _PLACEMENT.pack(base_offset, len(batch) - 12, 0)
    if append_time_ms is None:
        return b"".join((placed, memoryview(batch)[_PLACEMENT.size :]))
    stamped = bytearray(batch)
    stamped[: _PLACEMENT.size] = placed
    attributes = int.from_bytes(batch[_ATTRIBUTES_OFFSET : _ATTRIBUTES_OFFSET + 2], "big", signed=True)
    struct.pack_into(">h", stamped, _ATTRIBUTES_OFFSET, attributes | _LOG_APPEND_TIME)
    struct.pack_into(">q", stamped, _MAX_TIMESTAMP_OFFSET, append_time_ms)
    struct.pack_into(">I", stamped, _CRC_OFFSET, calc_crc32c(memoryview(stamped)[_CRC_COVERS_FROM:]))
    return bytes(stamped)


def first_record_from(batch: bytes, timestamp_ms: int) -> tuple[int, int]:
    """Find offset and time of the first record of a stored batch that is not older than `timestamp_ms`.

    The caller knows that there is one (the batch's largest timestamp is not smaller).

    Raises:
        RequestRefused: the batch is compressed with a codec other than gzip, or is too large when unpacked.
    """
    _require_openable(batch)
    try:
        opened = MemoryRecords(batch).next_batch()
        assert opened is not None
        for record in opened:
            if record.timestamp is not None and record.timestamp >= timestamp_ms:
                return int(record.offset), int(record.timestamp)
    except (RuntimeError, ValueError, struct.error, IndexError) as error:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"cannot look inside the batch: {type(error).__name__}"
        ) from None
    raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, "no record of the batch reaches its largest timestamp")


def _require_openable(batch: bytes) -> None:
    """Refuse a compressed batch before it is unpacked, unless its unpacked size is known and within the limit."""
    codec = int.from_bytes(batch[_ATTRIBUTES_OFFSET : _ATTRIBUTES_OFFSET + 2], "big") & _CODEC
    if not codec:
        return
    if codec != _GZIP:
        raise RequestRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"cannot look inside a batch of codec {codec}")
    opened, left = zlib.decompressobj(_GZIP_WINDOW), batch[HEADER_BYTES:]
    try:
        unpacked = len(opened.decompress(left, _UNPACKED_LIMIT + 1))
    except zlib.error:
        raise RequestRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "cannot look inside: this is no gzip") from None
    if unpacked > _UNPACKED_LIMIT:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"cannot look inside a batch of more than {_UNPACKED_LIMIT} bytes"
        )
