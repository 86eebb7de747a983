"""Avro single-object encoding (Avro 1.12, "Single-object encoding"): C3 01, fingerprint, body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any, TypeAlias

from fastavro import schemaless_reader, schemaless_writer

from hushstream.schemas.catalogue import CATALOGUE, Schema, added
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import Reason

MAX_VALUE_BYTES = 1 << 20
"""No value above this size is written or decoded."""

MAGIC = b"\xc3\x01"
COMPRESSED = b"\xc3\x00compressed"
"""Readers return this value in place of a compressed batch, which is never decompressed. No writer sends this value."""

HEADER_BYTES = 10
"""Two bytes of magic and eight of fingerprint."""

_INT_LOW, _INT_HIGH = -(2**31), 2**31 - 1

# Errors that fastavro raises for hostile bytes or wrong fields. Any other error is a bug here, and must not be caught.
_READ_FAILURES = (EOFError, IndexError, ValueError, OverflowError)
_WRITE_FAILURES = (ValueError, TypeError, OverflowError, KeyError, AttributeError)

_Ints: TypeAlias = "tuple[tuple[str, bool, _Ints | None], ...]"
"""The fields of a record that hold ints: the name, whether it is a list, and which fields of what it holds are ints
(None: it is an int itself)."""


def fingerprint_of(value: bytes) -> bytes:
    """The 8 bytes at the position of the fingerprint in a single-object encoding; they are not checked."""
    return value[len(MAGIC) : HEADER_BYTES]


class CodecError(HushstreamError):
    """Bytes that are not the expected record, or a record that cannot be written.

    ``reason`` is from a fixed list; the message never holds a value of the record.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


def _ints_fit(record: Mapping[str, Any], ints: _Ints) -> bool:
    """Whether every Avro int in a record fits into 32 bits; fastavro does not check this."""
    for name, many, inner in ints:
        value = record.get(name)
        if value is None:
            continue  # Left out, so it took its default, which fits.
        for one in value if many else (value,):
            if not (_INT_LOW <= one <= _INT_HIGH if inner is None else _ints_fit(one, inner)):
                return False
    return True


def _ints_of(schema: Any, named: dict[str, tuple[bool, _Ints | None] | None]) -> tuple[bool, _Ints | None] | None:
    """Which ints a value of a schema holds, in the form of one field of `_Ints`; None if it holds none."""
    if schema == "int":
        return False, None
    if isinstance(schema, str):
        return named.get(schema)
    if "items" in schema:
        found = _ints_of(schema["items"], named)
        return None if found is None else (True, found[1])
    if "fields" in schema:
        fields = [(field["name"], _ints_of(field["type"], named)) for field in schema["fields"]]
        ints = tuple((name, *found) for name, found in fields if found is not None)
        named[schema["name"]] = (False, ints) if ints else None
        return named[schema["name"]]
    return None


@dataclass(frozen=True, slots=True)
class _Form:
    """A schema, ready to read or write.

    Attributes:
        ints: the fields that hold ints.
    """

    name: str
    header: bytes
    schema: Mapping[str, Any]
    ints: _Ints


_BY_NAME: dict[str, _Form] = {}
_BY_HEADER: dict[bytes, _Form] = {}


def _add(schemas: Iterable[Schema]) -> None:
    for schema in schemas:
        ints = (_ints_of(schema.parsed, {}) or (False, ()))[1] or ()
        form = _Form(schema.name, MAGIC + schema.fingerprint, schema.parsed, ints)
        _BY_NAME[form.name] = _BY_HEADER[form.header] = form


_add(CATALOGUE.values())


def register(root: Traversable) -> None:
    """Add the schemas of a system, from a folder as `hushstream.schemas.catalogue` describes it.

    Raises:
        SchemaError: see `hushstream.schemas.catalogue.added`.
    """
    _add(added(root).values())


def encode(name: str, record: Mapping[str, Any], most: int = MAX_VALUE_BYTES) -> bytes:
    """Write a record; a field with a default may be left out.

    Args:
        name: name of the schema.
        record: its fields.
        most: largest size in bytes. Only a record that is cut into parts may be larger than a record of a log.

    Raises:
        CodecError: no such schema; a field missing, unknown or of another type; a value too large.
    """
    form = _BY_NAME.get(name)
    if form is None:
        raise CodecError(Reason.NOT_ENCODABLE, f"expected one of {sorted(_BY_NAME)}, got {name!r}")
    stream = BytesIO()
    stream.write(form.header)
    try:
        schemaless_writer(stream, form.schema, record, strict_allow_default=True)
    except _WRITE_FAILURES:
        # The error is raised without its cause, because the text of the cause may quote the value.
        raise CodecError(Reason.NOT_ENCODABLE, _difference(form, record)) from None
    if not _ints_fit(record, form.ints):
        raise CodecError(Reason.NOT_ENCODABLE, f"{name}: expected ints of 32 bits, got a longer one")
    value = stream.getvalue()
    if len(value) > most:
        raise CodecError(Reason.TOO_LARGE, f"{name}: expected at most {most} bytes, got {len(value)}")
    return value


def decode(
    value: bytes, expect: frozenset[str] | None = None, most: int = MAX_VALUE_BYTES
) -> tuple[str, dict[str, Any]]:
    """Read one record.

    Args:
        value: the whole value of a log record, or the joined parts of a record.
        expect: names of the schemas that are accepted; None accepts every known schema.
        most: largest size in bytes.

    Returns:
        The schema's name, and its fields; enum symbols are str.

    Raises:
        CodecError: with the reason. No memory is allocated for a length inside the value that exceeds the value.
    """
    if len(value) > most:
        raise CodecError(Reason.TOO_LARGE, f"expected at most {most} bytes, got {len(value)}")
    stream = BytesIO(value)
    form = _BY_HEADER.get(stream.read(HEADER_BYTES))
    if form is None:
        raise CodecError(_header_fault(value))
    name = form.name
    if expect is not None and name not in expect:
        raise CodecError(Reason.UNEXPECTED_SCHEMA, f"expected one of {sorted(expect)}, got {name}")
    try:
        record: dict[str, Any] = schemaless_reader(stream, form.schema, None)
    except _READ_FAILURES:
        ended = stream.tell() >= len(value)
        raise CodecError(Reason.TRUNCATED if ended else Reason.MALFORMED, name) from None
    if stream.tell() != len(value):
        raise CodecError(Reason.TRAILING_BYTES, f"{name}: expected {stream.tell()} bytes, got {len(value)}")
    if not _ints_fit(record, form.ints):
        raise CodecError(Reason.MALFORMED, f"{name}: expected ints of 32 bits, got a longer one")
    return name, record


def _header_fault(value: bytes) -> Reason:
    if value == COMPRESSED:
        return Reason.COMPRESSED
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


def readable(values: Iterable[bytes], expect: frozenset[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Decode the records among values, for what shows a topic to people; what somebody else wrote is passed over.

    Raises:
        CodecError: one is of an unknown schema: another release may have written it.
    """
    for value in values:
        try:
            yield decode(value, expect)
        except CodecError as error:
            if error.reason is Reason.UNKNOWN_FINGERPRINT:
                raise
