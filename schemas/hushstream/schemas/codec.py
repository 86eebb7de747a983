"""Avro single-object encoding (Avro 1.12, "Single-object encoding"): C3 01, fingerprint, body.

Values are written with the newest version of a schema that is not only announced (`catalogue`) and read with any
committed one, as if of that version: what an older one lacks takes the default, what an announced one adds is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader, schemaless_writer

from hushstream.schemas.catalogue import CATALOGUE, SchemaVersion, written
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason

MAX_VALUE_BYTES = 1 << 20
"""No value above this size is written or decoded."""

MAGIC = b"\xc3\x01"
HEADER_BYTES = 10
"""Two bytes of magic and eight of fingerprint."""

_INT_LOW, _INT_HIGH = -(2**31), 2**31 - 1

# What fastavro raises on hostile bytes or wrong fields; anything else is a fault of ours and must surface.
_READ_FAILURES = (EOFError, IndexError, ValueError, OverflowError)
_WRITE_FAILURES = (ValueError, TypeError, OverflowError, KeyError, AttributeError)

_Check = Callable[[Any], bool]


class CodecError(HushstreamError):
    """Bytes that are not the expected record, or a record that cannot be written.

    ``reason`` is from a fixed list; the message never holds a value of the record.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


def _fits_int(value: int) -> bool:
    return _INT_LOW <= value <= _INT_HIGH


def _record_check(fields: list[tuple[str, _Check]]) -> _Check:
    def check(record: Mapping[str, Any]) -> bool:
        for name, fits in fields:  # noqa: SIM110 (a generator here costs more than the decode of a field)
            if not fits(record.get(name, 0)):  # A field left out took its default, which fits.
                return False
        return True

    return check


def _array_check(fits: _Check) -> _Check:
    return lambda items: all(map(fits, items))


def _int_check(schema: Any, named: dict[str, _Check | None]) -> _Check | None:
    """A check that every Avro int in a value has 32 bits (fastavro makes none); None for no ints."""
    if schema == "int":
        return _fits_int
    if isinstance(schema, str):
        return named.get(schema)
    if "fields" in schema:
        checks = [(field["name"], _int_check(field["type"], named)) for field in schema["fields"]]
        found = [(name, check) for name, check in checks if check is not None]
        named[schema["name"]] = _record_check(found) if found else None
        return named[schema["name"]]
    if "items" in schema:
        inner = _int_check(schema["items"], named)
        return None if inner is None else _array_check(inner)
    return None


@dataclass(frozen=True, slots=True)
class _Form:
    """One schema version, ready to read or write; ``resolve`` is the written version if this is another one."""

    name: str
    header: bytes
    schema: Mapping[str, Any]
    resolve: Mapping[str, Any] | None
    ints: _Check | None


def _form(version: SchemaVersion, current: SchemaVersion) -> _Form:
    return _Form(
        name=version.name,
        header=MAGIC + version.fingerprint,
        schema=version.parsed,
        resolve=None if version is current else current.parsed,
        ints=_int_check(current.parsed, {}),
    )


class Codec:
    """Encodes and decodes the records of a catalogue; the module's functions are those of `CATALOGUE`."""

    __slots__ = ("_readers", "_writers")

    def __init__(self, catalogue: Mapping[str, tuple[SchemaVersion, ...]]) -> None:
        forms = [_form(version, written(versions)) for versions in catalogue.values() for version in versions]
        self._readers = {form.header: form for form in forms}
        self._writers = {form.name: form for form in forms if form.resolve is None}

    def encode(self, name: str, record: Mapping[str, Any]) -> bytes:
        """Write a record with the written version of its schema; a field with a default may be left out.

        Raises:
            CodecError: no such schema; a field missing, unknown or of another type; a value too large.
        """
        form = self._writers.get(name)
        if form is None:
            raise CodecError(Reason.NOT_ENCODABLE, f"expected one of {sorted(self._writers)}, got {name!r}")
        stream = BytesIO()
        stream.write(form.header)
        try:
            schemaless_writer(stream, form.schema, record, strict_allow_default=True)
        except _WRITE_FAILURES:
            # Without its cause: the text of the cause may quote the value.
            raise CodecError(Reason.NOT_ENCODABLE, _difference(form, record)) from None
        if form.ints is not None and not form.ints(record):
            raise CodecError(Reason.NOT_ENCODABLE, f"{name}: expected ints of 32 bits, got a longer one")
        value = stream.getvalue()
        if len(value) > MAX_VALUE_BYTES:
            raise CodecError(Reason.TOO_LARGE, f"{name}: expected at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
        return value

    def decode(self, value: bytes, expect: frozenset[str] | None = None) -> tuple[str, dict[str, Any]]:
        """Read one record.

        Args:
            value: the whole value of a log record.
            expect: names that may come; None allows every known one.

        Returns:
            The schema's name, and the fields of its written version; enum symbols are str.

        Raises:
            CodecError: with the reason. A length declared inside the value that exceeds it allocates nothing.
        """
        if len(value) > MAX_VALUE_BYTES:
            raise CodecError(Reason.TOO_LARGE, f"expected at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
        stream = BytesIO(value)
        form = self._readers.get(stream.read(HEADER_BYTES))
        if form is None:
            raise CodecError(_header_fault(value))
        name = form.name
        if expect is not None and name not in expect:
            raise CodecError(Reason.UNEXPECTED_SCHEMA, f"expected one of {sorted(expect)}, got {name}")
        try:
            record: dict[str, Any] = schemaless_reader(stream, form.schema, form.resolve)
        except _READ_FAILURES:
            ended = stream.tell() >= len(value)
            raise CodecError(Reason.TRUNCATED if ended else Reason.MALFORMED, name) from None
        if stream.tell() != len(value):
            raise CodecError(Reason.TRAILING_BYTES, f"{name}: expected {stream.tell()} bytes, got {len(value)}")
        if form.ints is not None and not form.ints(record):
            raise CodecError(Reason.MALFORMED, f"{name}: expected ints of 32 bits, got a longer one")
        return name, record


def _header_fault(value: bytes) -> Reason:
    if len(value) < HEADER_BYTES or value[:2] != MAGIC:
        return Reason.NOT_SINGLE_OBJECT
    return Reason.UNKNOWN_FINGERPRINT


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _difference(form: _Form, record: Any) -> str:
    """Say how a record differs from its schema, in names and types only."""
    if not isinstance(record, Mapping):
        return f"{form.name}: expected a mapping, got {type(record).__name__}"
    fields = form.schema["fields"]
    missing = {field["name"] for field in fields if "default" not in field} - record.keys()
    unknown = {str(key) for key in record} - {field["name"] for field in fields}
    if missing or unknown:
        return f"{form.name}: missing fields [{_names(missing)}], unknown fields [{_names(unknown)}]"
    types = ", ".join(f"{key}: {type(value).__name__}" for key, value in record.items())
    return f"{form.name}: expected types, sizes and ranges of the schema, got {types}"


_CODEC = Codec(CATALOGUE)
encode = _CODEC.encode
decode = _CODEC.decode
