"""Every Avro schema, each made self-contained, found by name or by fingerprint.

A schema file is ``avro/NAME.avsc`` for a record of its own, and ``avro/shared/NAME.avsc`` for a type that only occurs
inside others, which any record may use by its name.

A record has one schema. Another one is another fingerprint, which no running process reads. So records, and the
deployments that hold them, are of one release.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastavro.schema import UnknownType, parse_schema, to_parsing_canonical_form

from hushstream.schemas.errors import HushstreamError

_SHARED = "shared"


class SchemaError(HushstreamError):
    """A schema file is misnamed, names an unknown type, or repeats another one."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of one record."""

    name: str
    text: str
    """Self-contained JSON, shared types inlined, documentation kept."""
    fingerprint: bytes
    """CRC-64-AVRO of the parsing canonical form, 8 bytes, little-endian (Avro 1.12, Schema Fingerprints)."""
    parsed: Mapping[str, Any]
    """The parsed schema, as fastavro uses it."""


def fingerprint(canonical: str) -> bytes:
    """CRC-64-AVRO of a parsing canonical form, 8 bytes, little-endian (Avro 1.12, Schema Fingerprints).

    fastavro would build its table again for each schema. That took longer at a worker's start than reading all schemas.
    """
    found = _EMPTY
    for byte in canonical.encode():
        found = (found >> 8) ^ _TABLE[(found ^ byte) & 0xFF]
    return found.to_bytes(8, "little")


def _shifted(remainder: int) -> int:
    for _ in range(8):
        remainder = (remainder >> 1) ^ (_EMPTY & -(remainder & 1))
    return remainder


_EMPTY = 0xC15D213AA4D7A795
_TABLE = tuple(map(_shifted, range(256)))


def make_schema(definition: Mapping[str, Any]) -> Schema:
    """Parse a self-contained schema and take its fingerprint."""
    text = json.dumps(definition)
    canonical = to_parsing_canonical_form(json.loads(text))
    parsed = parse_schema(json.loads(text))
    _make_byte_defaults_bytes(parsed)
    return Schema(definition["name"], text, fingerprint(canonical), parsed)


def _make_byte_defaults_bytes(schema: Any) -> None:
    """Convert defaults of bytes fields to type bytes. fastavro would write and return the JSON string unchanged."""
    if isinstance(schema, list):
        for branch in schema:
            _make_byte_defaults_bytes(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if field["type"] == "bytes" and isinstance(field.get("default"), str):
                field["default"] = field["default"].encode("latin-1")
            _make_byte_defaults_bytes(field["type"])
        for inner in ("items", "values"):
            _make_byte_defaults_bytes(schema.get(inner))


def inline(schema: Any, shared: Mapping[str, Any], seen: set[str]) -> Any:
    """Put the definition of a shared type where its name first occurs, as Avro's name rule asks.

    Args:
        schema: a schema as JSON gives it.
        shared: definitions by name, themselves not yet inlined.
        seen: names that are defined already; it grows.
    """
    if isinstance(schema, str):
        if schema not in shared or schema in seen:
            return schema
        seen.add(schema)
        return inline(shared[schema], shared, seen)
    if isinstance(schema, list):
        return [inline(branch, shared, seen) for branch in schema]
    result = dict(schema)
    if "fields" in result:
        result["fields"] = [{**field, "type": inline(field["type"], shared, seen)} for field in result["fields"]]
    for inner in ("items", "values"):
        if inner in result:
            result[inner] = inline(result[inner], shared, seen)
    return result


def _definitions(folder: Traversable) -> dict[str, Any]:
    """The schemas of a folder as JSON gives them, by name, in the order of their names."""
    suffix, found = ".avsc", {}
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if not file.name.endswith(suffix):
            continue
        name, definition = file.name.removesuffix(suffix), json.loads(file.read_text(encoding="utf-8"))
        if definition.get("name") != name:
            raise SchemaError(f"{file.name}: expected the name {name}, found {definition.get('name')}")
        found[name] = definition
    return found


def load(root: Traversable, shared: Traversable | None = None) -> dict[str, Schema]:
    """Read a folder of schemas.

    Args:
        root: the folder.
        shared: the folder whose shared types they use; their own by default.

    Returns:
        The schema of every record that travels on its own, by name.

    Raises:
        SchemaError: a file is misnamed, names an unknown type, or has the fingerprint of another one.
    """
    types = _definitions((shared or root) / _SHARED)
    found = {}
    for name, definition in _definitions(root).items():
        try:
            found[name] = make_schema(inline(definition, types, set()))
        except UnknownType as error:
            raise SchemaError(f"{name}.avsc: no shared type of the name {error.name}") from None
    _require_own_fingerprints(found.values())
    return found


def _require_own_fingerprints(schemas: Iterable[Schema]) -> None:
    names: dict[bytes, str] = {}
    for schema in schemas:
        other = names.setdefault(schema.fingerprint, schema.name)
        if other != schema.name:
            raise SchemaError(f"{schema.name} has the fingerprint of {other}")


_OWN = files("hushstream.schemas") / "avro"

CATALOGUE: dict[str, Schema] = load(_OWN)
"""The schema of every record, by name; systems may add theirs (`hushstream.schemas.codec`)."""


def added(root: Traversable) -> Mapping[str, Schema]:
    """Add the schemas of a folder to the known ones; they may use the shared types of this package.

    Returns:
        The new schemas; none if the folder was added before.

    Raises:
        SchemaError: as `load`; or another schema has the same name or fingerprint.
    """
    found = load(root, _OWN)
    for name, schema in found.items():
        if CATALOGUE.get(name, schema).fingerprint != schema.fingerprint:
            raise SchemaError(f"{name}: expected one schema of this name, got two")
    new = {name: schema for name, schema in found.items() if name not in CATALOGUE}
    _require_own_fingerprints([*CATALOGUE.values(), *new.values()])
    CATALOGUE.update(new)
    return new
