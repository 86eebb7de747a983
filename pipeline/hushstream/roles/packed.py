"""Packed state of a machine: one Avro value behind its digest, so that damage is found before it is believed."""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import Any

import fastavro

from hushstream.schemas.errors import HushstreamError

_DIGEST_BYTES = 16


def write(state: dict[str, Any], schema: Any) -> bytes:
    """Pack a state."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, state)
    value = stream.getvalue()
    return _digest(value) + value


def read(packed: bytes, schema: Any, what: str) -> dict[str, Any]:
    """Unpack a state.

    Args:
        packed: what `write` gave.
        schema: the parsed schema that it was written with.
        what: names the state in the error.

    Raises:
        HushstreamError: other or damaged bytes, or written with another schema.
    """
    value = packed[_DIGEST_BYTES:]
    if _digest(value) != packed[:_DIGEST_BYTES]:
        raise HushstreamError(f"snapshot: expected {what}, got damaged bytes")
    stream = BytesIO(value)
    try:
        state: Any = fastavro.schemaless_reader(stream, schema, None)
    except (EOFError, IndexError, ValueError, OverflowError, MemoryError) as error:
        raise HushstreamError(f"snapshot: expected {what}, got another one ({type(error).__name__})") from None
    if stream.read(1) or not isinstance(state, dict):
        raise HushstreamError(f"snapshot: expected {what}, got another one")
    return state


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES, person=b"hush-state").digest()
