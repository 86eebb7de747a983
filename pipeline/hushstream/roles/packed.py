"""Packed state of a machine: a version and one Avro value behind a digest, so that damage is found first."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro

from hushstream.schemas.errors import HushstreamError

_DIGEST_BYTES = 16
_VERSION_BYTES = 4


class OtherVersion(HushstreamError):
    """The state is intact, but of another release's form: the journal is to be read instead."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a state is packed.

    Attributes:
        what: names the state in errors.
        version: of the form; raised with every change of the schema or of what a field means.
        schema: Avro's, parsed.
    """

    what: str
    version: int
    schema: Any

    @classmethod
    def of(cls, what: str, version: int, schema: dict[str, Any]) -> Form:
        """With a schema that is not parsed yet."""
        return cls(what, version, fastavro.parse_schema(schema))

    def write(self, state: dict[str, Any]) -> bytes:
        """Pack a state."""
        stream = BytesIO()
        stream.write(self.version.to_bytes(_VERSION_BYTES, "little"))
        fastavro.schemaless_writer(stream, self.schema, state)
        value = stream.getvalue()
        return _digest(value) + value

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


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES, person=b"hush-state").digest()
