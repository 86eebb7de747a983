"""Records generated from their schemas, and the frozen examples."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastavro import json_reader
from hypothesis import strategies as st

from hushstream.schemas.catalogue import CATALOGUE, Schema

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
def records_of() -> Callable[[Schema], st.SearchStrategy[dict[str, Any]]]:
    """A strategy for the records of a schema, made from its text."""
    return lambda schema: strategy(json.loads(schema.text), {})


@pytest.fixture(scope="session")
def golden() -> Mapping[str, Mapping[str, Any]]:
    """By name: the fingerprint, a record, and its frozen value."""
    found = {}
    for name, entry in json.loads(GOLDEN.read_text(encoding="utf-8")).items():
        (record,) = json_reader(io.StringIO(json.dumps(entry["record"])), json.loads(CATALOGUE[name].text))
        found[name] = {
            "fingerprint": bytes.fromhex(entry["fingerprint"]),
            "record": record,
            "value": bytes.fromhex(entry["value"]),
        }
    return found
