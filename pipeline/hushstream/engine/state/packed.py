"""The packed state of a machine: a digest, a version and one Avro value.

The digest is checked first, so that damage is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import fastavro

from hushstream.schemas.errors import HushstreamError

Packed = TypeVar("Packed")

_DIGEST_BYTES = 16
_VERSION_BYTES = 4

PORTION_ITEMS = 256
PORTION_BYTES = 1 << 16
"""Bytes of array items that are packed in one step, about: this takes well below a millisecond."""


class OtherVersion(HushstreamError):
    """The state is intact, but in the form of another release. The worker must read the journal instead."""


class _Part(NamedTuple):
    """One field of a state: the schema of a record with this field alone, which has the same encoding as the field."""

    name: str
    is_array: bool
    schema: Any


@dataclass(frozen=True, slots=True)
class Form:
    """How a state is packed.

    Attributes:
        what: names the state in errors.
        version: of the form; raised with every change of the schema or of what a field means.
        schema: the parsed Avro schema.
        parts: the same for each field, in order.
    """

    what: str
    version: int
    schema: Any
    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, what: str, version: int, schema: dict[str, Any]) -> Form:
        """A form from a schema that is not parsed yet."""
        known: dict[str, Any] = {}
        parts = []
        for field in schema["fields"]:
            alone = {"type": "record", "name": f"{schema['name']}_{field['name']}", "fields": [field]}
            is_array = isinstance(field["type"], dict) and field["type"]["type"] == "array"
            parts.append(_Part(field["name"], is_array, fastavro.parse_schema(alone, known)))
        return cls(what, version, fastavro.parse_schema(schema), tuple(parts))

    def write(self, state: dict[str, Any]) -> bytes:
        """Pack a state."""
        stream = BytesIO()
        stream.write(self.version.to_bytes(_VERSION_BYTES, "little"))
        fastavro.schemaless_writer(stream, self.schema, state)
        value = stream.getvalue()
        return _digest(value) + value

    def portions(self, state: Mapping[str, Any]) -> Generator[None, None, bytes]:
        """Pack a state in steps; the last step returns the packed state, which `read` unpacks.

        Args:
            state: as for `write`; the value of an array may be any iterable, which is consumed while it is packed.
        """
        pieces = [self.version.to_bytes(_VERSION_BYTES, "little")]
        hasher = _hasher()
        hasher.update(pieces[0])
        for part in self.parts:
            for piece in _pieces(part, state[part.name]):
                hasher.update(piece)
                pieces.append(piece)
                yield
        return b"".join((hasher.digest(), *pieces))

    def read(self, packed: bytes) -> dict[str, Any]:
        """Unpack a state.

        Raises:
            HushstreamError: other or damaged bytes.
            OtherVersion: intact, and of another version.
        """
        value = packed[_DIGEST_BYTES:]
        if _digest(value) != packed[:_DIGEST_BYTES]:
            raise HushstreamError(f"snapshot: expected {self.what}, got damaged bytes")
        version = int.from_bytes(value[:_VERSION_BYTES], "little")
        if version != self.version:
            raise OtherVersion(f"snapshot: expected version {self.version} of {self.what}, got {version}")
        stream = BytesIO(value[_VERSION_BYTES:])
        try:
            state: Any = fastavro.schemaless_reader(stream, self.schema, None)
        except (EOFError, IndexError, ValueError, OverflowError, MemoryError) as error:
            raise HushstreamError(f"snapshot: expected {self.what}, got another one ({type(error).__name__})") from None
        if stream.read(1) or not isinstance(state, dict):
            raise HushstreamError(f"snapshot: expected {self.what}, got another one")
        return state


def _pieces(part: _Part, value: Any) -> Iterator[bytes]:
    """Encode a field in pieces: Avro writes an array as blocks of items, and ends it with an empty block."""
    if not part.is_array:
        yield _written(part, value)
        return
    end = _written(part, [])
    items = iter(value)
    count = 1
    while block := list(islice(items, count)):
        piece = _written(part, block).removesuffix(end)
        yield piece
        count = max(1, min(PORTION_ITEMS, len(block) * PORTION_BYTES // len(piece)))
    yield end


def _written(part: _Part, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, part.schema, {part.name: value})
    return stream.getvalue()


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"hush-state")


def _digest(value: bytes) -> bytes:
    hasher = _hasher()
    hasher.update(value)
    return hasher.digest()


def finished(portions: Generator[None, None, Packed]) -> Packed:
    """Run all portions without a pause, and return the result."""
    while True:
        try:
            next(portions)
        except StopIteration as end:
            packed: Packed = end.value
            return packed
