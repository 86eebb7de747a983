"""Records generated from their schemas, and the frozen examples."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import avro.compatibility
import avro.schema
import pytest
from fastavro import json_reader
from hypothesis import strategies as st

from hushstream.schemas.catalogue import CATALOGUE, SchemaVersion

GOLDEN = Path(__file__).parent / "golden" / "values.json"

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=40),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
}


def strategy(schema: Any, named: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        return PRIMITIVES[schema] if schema in PRIMITIVES else named[schema]
    kind = schema["type"]
    if kind == "array":
        return st.lists(strategy(schema["items"], named), max_size=4)
    if kind == "fixed":
        named[schema["name"]] = st.binary(min_size=schema["size"], max_size=schema["size"])
    elif kind == "enum":
        named[schema["name"]] = st.sampled_from(schema["symbols"])
    elif kind == "record":
        named[schema["name"]] = st.fixed_dictionaries(
            {field["name"]: strategy(field["type"], named) for field in schema["fields"]}
        )
    return named[schema["name"]]


@pytest.fixture(scope="session")
def records_of() -> Callable[[SchemaVersion], st.SearchStrategy[dict[str, Any]]]:
    """A strategy for the records of a schema version, made from its text."""
    return lambda version: strategy(json.loads(version.text), {})


@pytest.fixture(scope="session")
def golden() -> Mapping[str, Mapping[str, Any]]:
    """By "Name/vN": the fingerprint, a record, and its frozen value."""
    found = {}
    for key, entry in json.loads(GOLDEN.read_text(encoding="utf-8")).items():
        name, number = key.split("/v")
        version = next(v for v in CATALOGUE[name] if v.version == int(number))
        (record,) = json_reader(io.StringIO(json.dumps(entry["record"])), json.loads(version.text))
        found[key] = {
            "fingerprint": bytes.fromhex(entry["fingerprint"]),
            "record": record,
            "value": bytes.fromhex(entry["value"]),
        }
    return found


@pytest.fixture(scope="session")
def incompatibilities() -> Callable[[Sequence[str]], list[tuple[int, int]]]:
    """FULL_TRANSITIVE: the pairs (reader, writer) of schema texts that cannot read one another."""

    def check(texts: Sequence[str]) -> list[tuple[int, int]]:
        schemas = [avro.schema.parse(text) for text in texts]
        checker = avro.compatibility.ReaderWriterCompatibilityChecker
        compatible = avro.compatibility.SchemaCompatibilityType.compatible
        return [
            (reader, writer)
            for reader in range(len(schemas))
            for writer in range(len(schemas))
            if checker().get_compatibility(schemas[reader], schemas[writer]).compatibility != compatible
        ]

    return check
