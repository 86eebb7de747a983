from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import avro.schema
import pytest

from hushstream.schemas import records
from hushstream.schemas.catalogue import CATALOGUE, SchemaError, load

VERSIONS = [version for versions in CATALOGUE.values() for version in versions]
IDS = [f"{version.name}/v{version.version}" for version in VERSIONS]


def mutated(name: str, change: Any) -> str:
    schema = json.loads(CATALOGUE[name][-1].text)
    change(schema["fields"])
    return json.dumps(schema)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_committed_version_reads_and_is_read_by_every_other(name, incompatibilities):
    assert incompatibilities([version.text for version in CATALOGUE[name]]) == []


def test_a_field_with_default_may_be_added(incompatibilities):
    changed = mutated("Context", lambda fields: fields.append({"name": "x", "type": "int", "default": 0}))
    assert incompatibilities([CATALOGUE["Context"][-1].text, changed]) == []


@pytest.mark.parametrize(
    ("change", "pairs"),
    [
        (lambda fields: fields.append({"name": "x", "type": "int"}), [(1, 0)]),
        (lambda fields: fields.pop(0), [(0, 1)]),
        (lambda fields: fields[0].update(type="long"), [(0, 1), (1, 0)]),
        (lambda fields: fields[5].update(type="long"), [(0, 1)]),
        (lambda fields: fields[0].update(name="renamed"), [(0, 1), (1, 0)]),
    ],
    ids=["added without default", "removed without default", "other type", "widened", "renamed"],
)
def test_a_change_that_breaks_readers_or_writers_is_found(change, pairs, incompatibilities):
    assert incompatibilities([CATALOGUE["Context"][-1].text, mutated("Context", change)]) == pairs


def each_name_defined_once(schema: Any, seen: set[str]) -> Any:
    """Put a name for a repeated definition, which avro's canonical form has and the standard forbids."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("name") in seen:
        return schema["name"]
    if "name" in schema:
        seen.add(schema["name"])
    result = dict(schema)
    if "fields" in result:
        result["fields"] = [{**item, "type": each_name_defined_once(item["type"], seen)} for item in result["fields"]]
    if "items" in result:
        result["items"] = each_name_defined_once(result["items"], seen)
    return result


def crc_64_avro(data: bytes) -> bytes:
    """Avro 1.12, "Schema Fingerprints", bit by bit; stored little-endian."""
    empty = 0xC15D213AA4D7A795
    state = empty
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (empty & -(state & 1))
    return state.to_bytes(8, "little")


@pytest.mark.parametrize("version", VERSIONS, ids=IDS)
def test_fingerprints_are_those_of_the_avro_package_and_of_the_specification(version):
    theirs = avro.schema.parse(version.text)
    form = json.loads(theirs.canonical_form)
    once = each_name_defined_once(form, set())
    canonical = json.dumps(once, separators=(",", ":"), ensure_ascii=False)
    assert version.fingerprint == crc_64_avro(canonical.encode())
    if once == form:
        assert version.fingerprint == theirs.fingerprint("CRC-64-AVRO")


def test_the_avro_package_is_asked_directly_for_most_schemas():
    forms = [json.loads(avro.schema.parse(version.text).canonical_form) for version in VERSIONS]
    assert sum(each_name_defined_once(form, set()) == form for form in forms) >= 8


@pytest.mark.parametrize("version", VERSIONS, ids=IDS)
def test_no_committed_schema_ever_changes(version, golden):
    assert version.fingerprint == golden[f"{version.name}/v{version.version}"]["fingerprint"]


def undocumented(schema: Any, path: str) -> list[str]:
    if not isinstance(schema, dict):
        return []
    found = [] if schema.get("doc") or schema["type"] == "array" else [path]
    for field in schema.get("fields", ()):
        if not field.get("doc"):
            found.append(f"{path}.{field['name']}")
        found += undocumented(field["type"], f"{path}.{field['name']}")
    return found + undocumented(schema.get("items"), f"{path}[]")


@pytest.mark.parametrize("version", VERSIONS, ids=IDS)
def test_every_type_and_field_is_documented(version):
    assert undocumented(json.loads(version.text), version.name) == []


@pytest.mark.parametrize("name", ["Genesis", "Decisions", "WindowJournal", "Model"])
def test_the_chain_is_the_last_field_of_every_journal_record(name):
    last = CATALOGUE[name][-1].parsed["fields"][-1]
    assert last["name"] == "chain"
    named = last["type"] if isinstance(last["type"], str) else last["type"]["name"]
    assert named == "hushstream.Fixed16"


def test_typed_dictionaries_have_the_fields_of_the_newest_schema():
    kinds = {field["name"]: field["type"] for field in CATALOGUE["Decisions"][-1].parsed["fields"]}
    head = {field["name"]: field["type"] for field in kinds["head"]["fields"]}
    typed = {records.Decisions: kinds, records.JournalHead: head}
    nested = {records.Debit: kinds["debits"], records.InputRange: head["inputs"]}
    typed |= {of: {field["name"]: field for field in kind["items"]["fields"]} for of, kind in nested.items()}
    for of, fields in typed.items():
        assert list(get_type_hints(of)) == list(fields)


def write(root: Path, path: str, **schema: Any) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    name = file.parent.name
    file.write_text(json.dumps({"type": "record", "name": name, "namespace": "hushstream", **schema}), encoding="utf-8")


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def test_a_shared_type_is_defined_once_and_by_the_version_that_a_schema_names(tmp_path):
    write(tmp_path, "shared/Part/v1.avsc", fields=[field("a", "int")])
    write(tmp_path, "shared/Part/v2.avsc", fields=[field("a", "int"), field("b", "int")])
    both = [field("x", "Part"), field("y", {"type": "array", "items": "Part"})]
    write(tmp_path, "Whole/v1.avsc", imports=["Part/v1"], fields=both)
    write(tmp_path, "Other/v1.avsc", imports=["Part/v2"], fields=both)
    found = load(tmp_path)
    sizes = {name: len(json.loads(found[name][0].text)["fields"][0]["type"]["fields"]) for name in found}
    assert sizes == {"Other": 2, "Whole": 1}
    assert json.loads(found["Whole"][0].text)["fields"][1]["type"]["items"] == "Part"


def test_a_folder_with_a_gap_a_twin_or_a_missing_import_is_refused(tmp_path):
    write(tmp_path / "gap", "A/v2.avsc", fields=[])
    with pytest.raises(SchemaError, match="without a gap"):
        load(tmp_path / "gap")
    write(tmp_path / "twin", "A/v1.avsc", fields=[field("a", "int")])
    write(tmp_path / "twin", "A/v2.avsc", fields=[{**field("a", "int"), "default": 0}], edition=2)
    with pytest.raises(SchemaError, match="fingerprint"):
        load(tmp_path / "twin")
    write(tmp_path / "missing", "A/v1.avsc", imports=["B/v1"], fields=[field("a", "B")])
    with pytest.raises(SchemaError, match=r"B/v1\.avsc"):
        load(tmp_path / "missing")
    write(tmp_path / "misnamed", "A/v1.avsc", name="B", fields=[])
    with pytest.raises(SchemaError, match="expected the name A"):
        load(tmp_path / "misnamed")


def test_versions_whose_generations_do_not_grow_are_refused(tmp_path):
    write(tmp_path / "late", "A/v1.avsc", fields=[], edition=2)
    with pytest.raises(SchemaError, match="grow from 1 on"):
        load(tmp_path / "late")
    write(tmp_path / "twice", "A/v1.avsc", fields=[])
    write(tmp_path / "twice", "A/v2.avsc", fields=[{**field("a", "int"), "default": 0}])
    with pytest.raises(SchemaError, match=r"found \[1, 1\]"):
        load(tmp_path / "twice")
    write(tmp_path / "grows", "A/v1.avsc", fields=[])
    write(tmp_path / "grows", "A/v2.avsc", fields=[{**field("a", "int"), "default": 0}], edition=5)
    assert [version.schema_generation for version in load(tmp_path / "grows")["A"]] == [1, 5]
