"""Every committed version of every Avro schema, each made self-contained, found by name or by fingerprint.

A schema file is ``avro/<Name>/v<N>.avsc`` for a record of its own, and ``avro/shared/<Name>/v<N>.avsc`` for a type that
only occurs inside others. A file names the shared types that it uses, with their versions, in the attribute
``imports``. So a committed file never changes its meaning when a shared type gets a new version.

A version after the first has an attribute ``edition``. It is the *schema generation* from which on this version is
written. A schema generation is a number for all records together, which operators raise (`hushstream worker
--schema-generation`); files only ever add versions. So a new version is rolled out without a stop, in two steps:

1. A release adds ``v<N+1>.avsc`` with the next schema generation; all added fields have defaults. Its processes read
   both versions, and continue to write the one of the configured generation. Old and new releases run side by side.
2. When no process runs an older release, applications included, operators raise the schema generation, one process
   after another.

`verify`, and each worker that takes over, recompute a role's outputs byte for byte. So every journal record names its
schema generation (`JournalHead`). The record, and what is released after it, are written in this generation. They are
recomputed in it, whatever the reader itself writes (`hushstream.engine.journal.chain`). Records that are not recomputed
may be of any schema generation.

The order of the steps matters. A release that does not know a version stops at a journal that holds it. In an input, it
refuses the record, because of its unknown fingerprint. A newer release accepts the same input, so its result would
differ from the journal, and it would stop, too. A schema generation changes how records are written. Of what a fold
computes it changes the name of noise alone; the journal record says under which name the noise was drawn, and a replay
uses that name. Any other field that changes what a fold computes is used only if the configuration says so, and another
configuration is another deployment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastavro.schema import parse_schema, to_parsing_canonical_form

from hushstream.schemas.errors import HushstreamError

_SHARED = "shared"

FIRST_GENERATION = 1
"""The schema generation of the first version of every record; every release can read it."""


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
    """The parsed schema, as fastavro uses it."""
    schema_generation: int = FIRST_GENERATION
    """The schema generation from which on it is written."""


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


def make_schema_version(name: str, version: int, schema: Mapping[str, Any]) -> SchemaVersion:
    """Parse a self-contained schema and take its fingerprint."""
    text = json.dumps(schema)
    canonical = to_parsing_canonical_form(json.loads(text))
    parsed = parse_schema(json.loads(text))
    _make_byte_defaults_bytes(parsed)
    return SchemaVersion(name, version, text, fingerprint(canonical), parsed, schema.get("edition", FIRST_GENERATION))


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


def _imported(shared: Traversable, schema: Mapping[str, Any], into: dict[str, Any]) -> dict[str, Any]:
    for item in schema.get("imports", ()):
        name, version = item.split("/")
        found = _read(shared, _SHARED, name, f"{version}.avsc")
        if into.setdefault(name, found) != found:
            raise SchemaError(f"{schema['name']}: two versions of {name} in one schema")
        _imported(shared, found, into)
    return into


def _versions(root: Traversable, shared: Traversable, name: str) -> Iterator[SchemaVersion]:
    numbers = sorted(int(entry.name[1:-5]) for entry in (root / name).iterdir() if entry.name.endswith(".avsc"))
    if numbers != list(range(1, len(numbers) + 1)):
        raise SchemaError(f"{name}: expected versions 1, 2, ... without a gap, found {numbers}")
    for number in numbers:
        schema = _read(root, name, f"v{number}.avsc")
        if schema.get("name") != name:
            raise SchemaError(f"{name}/v{number}.avsc: expected the name {name}, found {schema.get('name')}")
        yield make_schema_version(name, number, inline(schema, _imported(shared, schema, {}), set()))


def check_generations(versions: Sequence[SchemaVersion]) -> None:
    """Require that each version of one record, oldest first, comes with a later schema generation than the one before.

    Raises:
        SchemaError: it is not, or the first is not of the first schema generation.
    """
    found = [version.schema_generation for version in versions]
    if found[0] != FIRST_GENERATION or sorted(set(found)) != found:
        raise SchemaError(
            f"{versions[0].name}: expected schema generations that grow from {FIRST_GENERATION} on, found {found}"
        )


def load(root: Traversable, shared: Traversable | None = None) -> dict[str, tuple[SchemaVersion, ...]]:
    """Read a folder of schemas.

    Args:
        root: the folder.
        shared: the folder whose shared types they use; their own by default.

    Returns:
        All versions of every record that travels on its own, oldest first, by name.

    Raises:
        SchemaError: a file is missing, misnamed, of a schema generation out of order, or has the fingerprint of
            another one.
    """
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and entry.name != _SHARED)
    found = {name: tuple(_versions(root, shared or root, name)) for name in names}
    for versions in found.values():
        check_generations(versions)
    _require_own_fingerprints(found)
    return found


def _require_own_fingerprints(found: Mapping[str, tuple[SchemaVersion, ...]]) -> None:
    marks: dict[bytes, SchemaVersion] = {}
    for version in (version for versions in found.values() for version in versions):
        other = marks.setdefault(version.fingerprint, version)
        if other is not version:
            raise SchemaError(f"{version.name}/v{version.version} has the fingerprint of {other.name}/v{other.version}")


_OWN = files("hushstream.schemas") / "avro"

CATALOGUE: dict[str, tuple[SchemaVersion, ...]] = load(_OWN)
"""All versions of every record schema, oldest first, by name; systems may add theirs (`hushstream.schemas.codec`)."""


def added(root: Traversable) -> Mapping[str, tuple[SchemaVersion, ...]]:
    """Add the schemas of a folder to the known ones; they may use the shared types of this package.

    Returns:
        The new schemas; none if the folder was added before.

    Raises:
        SchemaError: as `load`; or another schema has the same name or fingerprint.
    """
    found = load(root, _OWN)
    for name, versions in found.items():
        known = CATALOGUE.get(name, versions)
        if [one.fingerprint for one in known] != [one.fingerprint for one in versions]:
            raise SchemaError(f"{name}: expected one schema of this name, got two")
    new = {name: versions for name, versions in found.items() if name not in CATALOGUE}
    _require_own_fingerprints({**CATALOGUE, **new})
    CATALOGUE.update(new)
    return new
