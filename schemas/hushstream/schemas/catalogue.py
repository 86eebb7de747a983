"""Every committed version of every Avro schema, each made self-contained, found by name or by fingerprint.

A schema file is ``avro/<Name>/v<N>.avsc`` for a record that travels on its own and
``avro/shared/<Name>/v<N>.avsc`` for a type that only occurs inside others. A file names the shared types
that it uses, with their versions, in the attribute ``imports``; so a committed file never changes its meaning
when a shared type gets a new version.

A new version of a record that applications write (contexts, clicks, their batches, seals) rolls out without stopping
anything, in two releases:

1. ``v<N+1>.avsc`` adds fields with defaults and says ``"announced": true``. Everybody who has this release reads the
   new version, its new fields left out, and nobody writes it; old and new processes run side by side in any order.
2. The attribute is taken away, which changes no fingerprint, and applications begin to write the fields. It is rolled
   out when nobody runs a release before the first.

The order matters. A release before the first refuses the new version as of an unknown fingerprint. What was computed is
recomputed byte for byte, by `verify` and by each worker that takes over; for a newer one the record is good, so that
journal is a mismatch, and it stops. For the same reason a field that changes what a fold computes is used only where
the configuration says so, which makes another deployment; and a new version of a record that a role computes stays
announced until a deployment begins that has journals of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from hushstream.schemas.errors import HushstreamError

_SHARED = "shared"


class SchemaError(HushstreamError):
    """A schema file of this package is missing, names an unknown type, or repeats another one."""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One committed version of one record schema."""

    name: str
    version: int
    text: str
    """Self-contained JSON, shared types inlined, documentation kept."""
    fingerprint: bytes
    """CRC-64-AVRO of the parsing canonical form, 8 bytes, little-endian (Avro 1.12, Schema Fingerprints)."""
    parsed: Mapping[str, Any]
    """The form that fastavro reads and writes with."""
    announced: bool = False
    """Whether it is read only, until everybody can read it."""


def make_schema_version(name: str, version: int, schema: Mapping[str, Any]) -> SchemaVersion:
    """Parse a self-contained schema and take its fingerprint."""
    text = json.dumps(schema)
    canonical = to_parsing_canonical_form(json.loads(text))
    mark = bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    parsed = parse_schema(json.loads(text))
    _make_byte_defaults_bytes(parsed)
    return SchemaVersion(name, version, text, mark, parsed, schema.get("announced") is True)


def written(versions: Sequence[SchemaVersion]) -> SchemaVersion:
    """The version that is written and that values are read as: the newest that is not only announced.

    Args:
        versions: all of one record, oldest first.

    Raises:
        SchemaError: all are announced.
    """
    found = [version for version in versions if not version.announced]
    if not found:
        raise SchemaError(f"{versions[0].name}: expected a version that is written, found announced ones alone")
    return found[-1]


def _make_byte_defaults_bytes(schema: Any) -> None:
    """Give bytes fields a default of type bytes: fastavro would write and return the JSON string as it is."""
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
        seen: names already defined to the left; grows.
    """
    if isinstance(schema, str):
        if schema not in shared or schema in seen:
            return schema
        seen.add(schema)
        return inline(shared[schema], shared, seen)
    if isinstance(schema, list):
        return [inline(branch, shared, seen) for branch in schema]
    result = {key: value for key, value in schema.items() if key != "imports"}
    if "fields" in result:
        result["fields"] = [{**field, "type": inline(field["type"], shared, seen)} for field in result["fields"]]
    for inner in ("items", "values"):
        if inner in result:
            result[inner] = inline(result[inner], shared, seen)
    return result


def _read(root: Traversable, *parts: str) -> dict[str, Any]:
    node = root
    for part in parts:
        node = node / part
    if not node.is_file():
        raise SchemaError(f"expected a schema file {'/'.join(parts)}, found none")
    schema: dict[str, Any] = json.loads(node.read_text(encoding="utf-8"))
    return schema


def _imported(root: Traversable, schema: Mapping[str, Any], into: dict[str, Any]) -> dict[str, Any]:
    for item in schema.get("imports", ()):
        name, version = item.split("/")
        found = _read(root, _SHARED, name, f"{version}.avsc")
        if into.setdefault(name, found) != found:
            raise SchemaError(f"{schema['name']}: two versions of {name} in one schema")
        _imported(root, found, into)
    return into


def _versions(root: Traversable, name: str) -> Iterator[SchemaVersion]:
    numbers = sorted(int(entry.name[1:-5]) for entry in (root / name).iterdir() if entry.name.endswith(".avsc"))
    if numbers != list(range(1, len(numbers) + 1)):
        raise SchemaError(f"{name}: expected versions 1, 2, ... without a gap, found {numbers}")
    for number in numbers:
        schema = _read(root, name, f"v{number}.avsc")
        if schema.get("name") != name:
            raise SchemaError(f"{name}/v{number}.avsc: expected the name {name}, found {schema.get('name')}")
        yield make_schema_version(name, number, inline(schema, _imported(root, schema, {}), set()))


def load(root: Traversable) -> Mapping[str, tuple[SchemaVersion, ...]]:
    """Read a folder of schemas.

    Returns:
        All versions of every record that travels on its own, oldest first, by name.

    Raises:
        SchemaError: a file is missing, misnamed, or has the fingerprint of another one.
    """
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and entry.name != _SHARED)
    found = {name: tuple(_versions(root, name)) for name in names}
    marks: dict[bytes, SchemaVersion] = {}
    for version in (version for versions in found.values() for version in versions):
        other = marks.setdefault(version.fingerprint, version)
        if other is not version:
            raise SchemaError(f"{version.name}/v{version.version} has the fingerprint of {other.name}/v{other.version}")
    return found


CATALOGUE: Mapping[str, tuple[SchemaVersion, ...]] = load(files("hushstream.schemas") / "avro")
"""All versions of every record schema, oldest first, by name."""
