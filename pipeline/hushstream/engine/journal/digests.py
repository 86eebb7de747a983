"""Digests of a machine's input and of what it will release, keyed where that is private."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

from hushstream.engine.records import InputRecord, InputSlice, Output

DIGEST_BYTES = 16
"""Of every digest here."""

START = bytes(DIGEST_BYTES)
"""A running digest before its first record."""


class Digester(Protocol):
    """A digest of 16 bytes over chunks; keyed where the content is private."""

    def digest(self, purpose: str, *chunks: bytes) -> bytes:
        """Digest length-prefixed ``chunks`` for one stated ``purpose``."""

    @property
    def key_id(self) -> bytes:
        """8 bytes that name the key."""

    @property
    def reproducible(self) -> bool:
        """True for keys made from a seed: nothing under them is private."""


class PublicDigester:
    """Digests without a key, for roles that hold none and journal public values only."""

    key_id = bytes(8)
    reproducible = False

    def digest(self, purpose: str, *chunks: bytes) -> bytes:
        """Digest length-prefixed ``chunks``; ``purpose`` separates uses."""
        hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=purpose.encode()[:16])
        for chunk in chunks:
            hasher.update(len(chunk).to_bytes(8, "little"))
            hasher.update(chunk)
        return hasher.digest()


def digest_records(digester: Digester, slices: Iterable[InputSlice]) -> bytes:
    """Digest input slices: names, ranges, offsets, log times and values (16 bytes, order-sensitive)."""
    chunks: list[bytes] = []
    for part in slices:
        records = part.records
        n = len(records)
        chunks.append(f"{part.topic}/{part.partition}/{part.low}/{part.high}".encode())
        chunks.append(struct.pack(f"<{n}q", *[record.offset for record in records]))
        chunks.append(struct.pack(f"<{n}q", *[record.timestamp_ms for record in records]))
        chunks.append(struct.pack(f"<{n}q", *[len(record.value) for record in records]))
        chunks.append(b"".join([record.value for record in records]))
    return digester.digest("input", *chunks)


def running_digest(digester: Digester, records: Iterable[InputRecord], running: bytes = START) -> bytes:
    """Continue a digest record by record, so that batch boundaries do not matter.

    Args:
        digester: keyed where the records are private.
        records: in order.
        running: the digest of those before them, from the start of a journal record's range.
    """
    for record in records:
        place = struct.pack("<qq", record.offset, record.timestamp_ms)
        running = digester.digest("running", running, place, record.value)
    return running


def digest_outputs(digester: Digester, outputs: Sequence[Output]) -> bytes:
    """Digest what will be released, in order (16 bytes)."""
    chunks: list[bytes] = []
    for output in outputs:
        chunks.append(f"{output.topic}/{output.partition}".encode())
        chunks.append(output.value)
    return digester.digest("release", *chunks)
