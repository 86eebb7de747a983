"""Avro single-object encoding (Avro 1.12, "Single-object encoding"): C3 01, fingerprint, body.

Values of any committed version of their schema can be read. They are returned in the form of the newest version, with
defaults for fields that the older version lacks. Values are written in a schema generation (`catalogue`): with the
newest version that belongs to it, and without newer fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any, TypeAlias

from fastavro import schemaless_reader, schemaless_writer

from hushstream.schemas.catalogue import CATALOGUE, FIRST_GENERATION, SchemaVersion, added, check_generations
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason

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
_Narrow = Callable[[Any], Any]


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


class _Narrowing:
    """Finds the fields of the newest version that must be left out to write a value with an older version."""

    def __init__(self, older: Any, newest: Any) -> None:
        self._older: dict[str, Any] = {}
        self._newest: dict[str, Any] = {}
        _name_records(older, self._older)
        _name_records(newest, self._newest)

    def of(self, newest: Any) -> _Narrow | None:
        """The function that removes newer fields from values of a type; None if there are none to remove."""
        if isinstance(newest, str):
            return self.of(self._newest[newest]) if newest in self._newest else None
        if "fields" in newest:
            return self._of_record(newest)
        if "items" in newest:
            inner = self.of(newest["items"])
            return None if inner is None else lambda items: [inner(item) for item in items]
        return None

    def _of_record(self, newest: Mapping[str, Any]) -> _Narrow | None:
        kept = {field["name"] for field in self._older[newest["name"]]["fields"]}
        added = {field["name"] for field in newest["fields"]} - kept
        found = {field["name"]: self.of(field["type"]) for field in newest["fields"] if field["name"] in kept}
        inner = {name: narrow for name, narrow in found.items() if narrow is not None}
        if not added and not inner:
            return None

        def narrow(record: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: inner[name](value) if name in inner else value
                for name, value in record.items()
                if name not in added
            }

        return narrow


def _name_records(schema: Any, into: dict[str, Any]) -> None:
    if isinstance(schema, dict):
        if "fields" in schema:
            into[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _name_records(field["type"], into)
        _name_records(schema.get("items"), into)


@dataclass(frozen=True, slots=True)
class _Form:
    """One schema version, ready to read or write.

    Attributes:
        newest: schema of the newest version, into which values are read; None if it is this one.
        ints: the fields that hold ints.
        narrow: removes the fields that newer versions added; None if there are none.
    """

    name: str
    schema_generation: int
    header: bytes
    schema: Mapping[str, Any]
    newest: Mapping[str, Any] | None
    ints: _Ints
    narrow: _Narrow | None


def _forms(versions: Sequence[SchemaVersion]) -> Iterator[_Form]:
    """The versions of one record, newest first."""
    check_generations(versions)
    newest = versions[-1]
    for version in reversed(versions):
        yield _Form(
            name=version.name,
            schema_generation=version.schema_generation,
            header=MAGIC + version.fingerprint,
            schema=version.parsed,
            newest=None if version is newest else newest.parsed,
            ints=(_ints_of(newest.parsed, {}) or (False, ()))[1] or (),
            narrow=_Narrowing(version.parsed, newest.parsed).of(newest.parsed),
        )


class Codec:
    """Encodes and decodes the records of a catalogue; the functions of this module do so for `CATALOGUE`."""

    __slots__ = ("_readers", "_writers", "newest_generation")

    def __init__(self, catalogue: Mapping[str, tuple[SchemaVersion, ...]]) -> None:
        self._writers: dict[str, tuple[_Form, ...]] = {}
        self._readers: dict[bytes, _Form] = {}
        self.add(catalogue)
        self.newest_generation = max(form.schema_generation for form in self._readers.values())

    def add(self, catalogue: Mapping[str, tuple[SchemaVersion, ...]]) -> None:
        """Add schemas."""
        self._writers |= {name: tuple(_forms(versions)) for name, versions in catalogue.items()}
        self._readers = {form.header: form for forms in self._writers.values() for form in forms}

    def encode(
        self,
        name: str,
        record: Mapping[str, Any],
        schema_generation: int = FIRST_GENERATION,
        most: int = MAX_VALUE_BYTES,
    ) -> bytes:
        """Write a record in a schema generation; a field with a default may be left out.

        Args:
            name: name of the schema.
            record: its fields; fields of later schema generations are not written.
            schema_generation: schema generation of all records; the first, unless an operator or a journal says
                otherwise.
            most: largest size in bytes. Only a record that is cut into parts may be larger than a record of a log.

        Raises:
            CodecError: no such schema; a field missing, unknown or of another type; a value too large.
        """
        form = self._form(name, schema_generation)
        stream = BytesIO()
        stream.write(form.header)
        try:
            fields = record if form.narrow is None else form.narrow(record)
            schemaless_writer(stream, form.schema, fields, strict_allow_default=True)
        except _WRITE_FAILURES:
            # The error is raised without its cause, because the text of the cause may quote the value.
            raise CodecError(Reason.NOT_ENCODABLE, _difference(form, record)) from None
        if not _ints_fit(record, form.ints):
            raise CodecError(Reason.NOT_ENCODABLE, f"{name}: expected ints of 32 bits, got a longer one")
        value = stream.getvalue()
        if len(value) > most:
            raise CodecError(Reason.TOO_LARGE, f"{name}: expected at most {most} bytes, got {len(value)}")
        return value

    def narrow(self, name: str, record: Mapping[str, Any], schema_generation: int) -> Mapping[str, Any]:
        """The fields of a record that a schema generation writes, to compare it with a record of that generation.

        Raises:
            CodecError: no such schema.
        """
        narrow = self._form(name, schema_generation).narrow
        found: Mapping[str, Any] = record if narrow is None else narrow(record)
        return found

    def generation_of(self, value: bytes) -> int:
        """The schema generation from which on values are written with the version of this value.

        Raises:
            CodecError: its version is unknown.
        """
        form = self._readers.get(value[:HEADER_BYTES])
        if form is None:
            raise CodecError(_header_fault(value))
        return form.schema_generation

    def _form(self, name: str, schema_generation: int) -> _Form:
        for form in self._writers.get(name, ()):
            if form.schema_generation <= schema_generation:
                return form
        raise CodecError(
            Reason.NOT_ENCODABLE,
            f"expected one of {sorted(self._writers)} in a schema generation from {FIRST_GENERATION} to "
            f"{self.newest_generation}, "
            f"got {name!r} in {schema_generation}",
        )

    def decode(
        self, value: bytes, expect: frozenset[str] | None = None, most: int = MAX_VALUE_BYTES
    ) -> tuple[str, dict[str, Any]]:
        """Read one record.

        Args:
            value: the whole value of a log record, or the joined parts of a record.
            expect: names of the schemas that are accepted; None accepts every known schema.
            most: largest size in bytes.

        Returns:
            The schema's name, and the fields of its newest version; enum symbols are str.

        Raises:
            CodecError: with the reason. No memory is allocated for a length inside the value that exceeds the value.
        """
        if len(value) > most:
            raise CodecError(Reason.TOO_LARGE, f"expected at most {most} bytes, got {len(value)}")
        stream = BytesIO(value)
        form = self._readers.get(stream.read(HEADER_BYTES))
        if form is None:
            raise CodecError(_header_fault(value))
        name = form.name
        if expect is not None and name not in expect:
            raise CodecError(Reason.UNEXPECTED_SCHEMA, f"expected one of {sorted(expect)}, got {name}")
        try:
            record: dict[str, Any] = schemaless_reader(stream, form.schema, form.newest)
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
    fields = (form.newest or form.schema)["fields"]
    missing = {field["name"] for field in fields if "default" not in field} - record.keys()
    unknown = {str(key) for key in record} - {field["name"] for field in fields}
    if missing or unknown:
        return f"{form.name}: missing fields [{_names(missing)}], unknown fields [{_names(unknown)}]"
    types = ", ".join(f"{key}: {type(value).__name__}" for key, value in record.items())
    return f"{form.name}: expected types, sizes and ranges of the schema, got {types}"


_CODEC = Codec(CATALOGUE)
encode = _CODEC.encode
decode = _CODEC.decode
narrow = _CODEC.narrow
generation_of = _CODEC.generation_of
NEWEST_GENERATION = _CODEC.newest_generation
"""The newest schema generation that this release knows."""


def readable(values: Iterable[bytes], expect: frozenset[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Decode the records among values, for what shows a topic to people; what somebody else wrote is passed over.

    Raises:
        CodecError: one is of a schema that this version does not have: a newer release may have written it.
    """
    for value in values:
        try:
            yield decode(value, expect)
        except CodecError as error:
            if error.reason is Reason.UNKNOWN_FINGERPRINT:
                raise


def register(root: Traversable) -> None:
    """Add the schemas of a system, from a folder as `hushstream.schemas.catalogue` describes it.

    Raises:
        SchemaError: see `hushstream.schemas.catalogue.added`.
    """
    _CODEC.add(added(root))


def require_generation(schema_generation: int) -> int:
    """Refuse a schema generation that this release cannot write.

    Raises:
        HushstreamError: this release does not know it.
    """
    if not FIRST_GENERATION <= schema_generation <= NEWEST_GENERATION:
        raise HushstreamError(
            f"schema generation: expected {FIRST_GENERATION} to {NEWEST_GENERATION}, which this release writes, got "
            f"{schema_generation}; "
            f"upgrade every worker and client before it is raised"
        )
    return schema_generation
