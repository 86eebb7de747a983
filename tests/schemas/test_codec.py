"""Schemas and their codec: frozen bytes, refusals with a reason, and no more memory than a record deserves."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any, get_type_hints

import avro.io
import avro.schema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushstream.schemas import rows
from hushstream.schemas.catalogue import CATALOGUE, SchemaError, load
from hushstream.schemas.codec import (
    COMPRESSED,
    HEADER_BYTES,
    MAX_VALUE_BYTES,
    CodecError,
    decode,
    encode,
    readable,
)
from hushstream.schemas.rows import Reason

SLOT = {
    "report_id": bytes(16),
    "period": bytes(8),
    "config_digest": bytes(16),
    "content": bytes(32),
}
CONTEXT = {"event_id": "e", "user": "u", "context": bytes(8)}


def reason_of(value: bytes, expect: frozenset[str] | None = None) -> Reason:
    with pytest.raises(CodecError) as caught:
        decode(value, expect)
    return caught.value.reason


def header(name: str) -> bytes:
    return b"\xc3\x01" + CATALOGUE[name].fingerprint


def long(number: int) -> bytes:
    """Avro's zigzag varint."""
    left = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


@pytest.mark.parametrize("name", CATALOGUE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(name, records_of, data):
    record = data.draw(records_of(CATALOGUE[name]))
    assert decode(encode(name, record)) == (name, record)


@pytest.mark.parametrize("name", CATALOGUE)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_avro_package_writes_our_bytes_and_reads_our_record(name, records_of, data):
    version = CATALOGUE[name]
    record = data.draw(records_of(version))
    schema = avro.schema.parse(version.text)
    stream = io.BytesIO()
    avro.io.DatumWriter(schema).write(record, avro.io.BinaryEncoder(stream))
    value = encode(name, record)
    assert value == b"\xc3\x01" + version.fingerprint + stream.getvalue()
    body = avro.io.BinaryDecoder(io.BytesIO(value[HEADER_BYTES:]))
    assert avro.io.DatumReader(schema).read(body) == record


@pytest.mark.parametrize("name", CATALOGUE)
def test_frozen_bytes_are_still_written_and_read(name, golden):
    record, value = golden[name]["record"], golden[name]["value"]
    assert decode(value) == (name, record)
    assert encode(name, record) == value


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_slot_has_one_size(records_of, data):
    assert len(encode("SlotReport", data.draw(records_of(CATALOGUE["SlotReport"])))) == 82


@pytest.mark.parametrize("name", ["Genesis", "Decisions", "WindowJournal", "Model"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_journal_record_ends_with_its_chain(name, records_of, data):
    record = data.draw(records_of(CATALOGUE[name]))
    blank = encode(name, {**record, "chain": bytes(16)})
    assert encode(name, record) == blank[:-16] + record["chain"]


def test_fields_with_a_default_may_be_left_out():
    _, fields = decode(encode("Context", CONTEXT))
    assert fields == {**CONTEXT, "line": "private", "eligible": b"", "baseline": -1, "after_click": -1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"user": None}, "user: NoneType"),
        ({"context": "text"}, "context: str"),
        ({"surplus": 1}, "surplus"),
        ({"baseline": 2**31}, "32 bits"),
        ({"after_click": 2**63}, "after_click: int"),
        ({"user": "\ud800"}, "user: str"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_name_and_type(change, says):
    with pytest.raises(CodecError, match=says) as caught:
        encode("Context", {**CONTEXT, **change})
    assert caught.value.reason is Reason.NOT_ENCODABLE


def test_a_missing_field_an_unknown_schema_and_a_wrong_fixed_size_are_refused():
    with pytest.raises(CodecError, match=r"missing fields \[context, user\]"):
        encode("Context", {"event_id": "e"})
    with pytest.raises(CodecError, match="got 'Nothing'"):
        encode("Nothing", {})
    with pytest.raises(CodecError, match="content: bytes"):
        encode("SlotReport", {**SLOT, "content": bytes(31)})
    with pytest.raises(CodecError, match="got list"):
        encode("Context", [1])  # type: ignore[arg-type]


def test_an_error_never_quotes_the_record():
    secret = "planted-canary"
    with pytest.raises(CodecError) as caught:
        encode("Feedback", {"kind": secret, "event_id": secret, "user": secret, "arm": 1})
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_value_over_the_limit_is_refused_before_it_is_decoded_and_is_never_written():
    fits = encode("Context", {**CONTEXT, "context": bytes(MAX_VALUE_BYTES - 64)})
    assert decode(fits)[0] == "Context"
    with pytest.raises(CodecError) as caught:
        encode("Context", {**CONTEXT, "context": bytes(MAX_VALUE_BYTES)})
    assert caught.value.reason is Reason.TOO_LARGE
    assert reason_of(header("Context") + bytes(10 * MAX_VALUE_BYTES)) is Reason.TOO_LARGE


def test_each_way_to_be_no_record_has_its_reason():
    value = encode("Seal", {"phase": 300, "origin": 1, "config_digest": bytes(16)})
    assert reason_of(b"") is Reason.NOT_SINGLE_OBJECT
    assert reason_of(value[:9]) is Reason.NOT_SINGLE_OBJECT
    assert reason_of(b"{" + value[1:]) is Reason.NOT_SINGLE_OBJECT
    assert reason_of(value[:2] + bytes(8) + value[10:]) is Reason.UNKNOWN_FINGERPRINT
    assert reason_of(value, frozenset({"Tick"})) is Reason.UNEXPECTED_SCHEMA
    assert [reason_of(value[:end]) for end in range(10, len(value))] == [Reason.TRUNCATED] * (len(value) - 10)
    assert reason_of(value + b"\0") is Reason.TRAILING_BYTES
    assert reason_of(value[:12] + long(2**31) + value[13:]) is Reason.MALFORMED
    assert reason_of(header("Context") + long(2) + b"\xff\xff" + bytes(20)) is Reason.MALFORMED
    assert reason_of(header("Feedback") + long(3) + bytes(20)) is Reason.MALFORMED


def test_ints_beyond_32_bits_are_found_inside_nested_records(golden):
    record = golden["WindowJournal"]["record"]
    inputs = [*record["head"]["inputs"], {"topic": "reports", "partition": 2**31, "low": 0, "high": 1}]
    with pytest.raises(CodecError, match="32 bits"):
        encode("WindowJournal", {**record, "head": {**record["head"], "inputs": inputs}})


@pytest.mark.parametrize("length", [2**31, 2**40, 2**62, 2**63 - 1, -1, -50, -(2**31), -(2**63)])
@pytest.mark.parametrize("name", ["Context", "ContextBatch"])
def test_a_declared_length_beyond_the_record_allocates_nothing(name, length):
    value = header(name) + long(length) + b"\x02a" * 20
    tracemalloc.start()
    try:
        assert reason_of(value) in (Reason.TRUNCATED, Reason.MALFORMED, Reason.TRAILING_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 65_536
    finally:
        tracemalloc.stop()


def test_an_array_of_empty_strings_cannot_grow_beyond_a_small_multiple_of_its_record():
    count = MAX_VALUE_BYTES - 64
    value = header("ContextBatch") + long(count) + bytes(count)
    tracemalloc.start()
    try:
        assert reason_of(value) is Reason.TRUNCATED
        assert tracemalloc.get_traced_memory()[1] < 16 * MAX_VALUE_BYTES
    finally:
        tracemalloc.stop()


def mutation(rng: np.random.Generator, value: bytes) -> bytes:
    data = bytearray(value)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(data) + 1))
        match rng.integers(0, 4):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = rng.bytes(int(rng.integers(1, 12)))
            case 2:
                data[at : at + 1] = rng.bytes(1)
            case _:
                data[at : at + int(rng.integers(1, 9))] = b"\xff" * int(rng.integers(0, 9))
    return bytes(data)


def test_damaged_values_raise_nothing_but_codec_errors(golden):
    rng = np.random.default_rng(20260101)
    values = [entry["value"] for entry in golden.values()]
    outcomes: dict[str, int] = {}
    for turn in range(15_000):
        value = values[turn % len(values)]
        head = value[:HEADER_BYTES]
        damaged = head + mutation(rng, value[HEADER_BYTES:]) if rng.random() < 0.7 else head + rng.bytes(turn % 90)
        try:
            outcome = decode(damaged)[0]
        except CodecError as error:
            outcome = error.reason
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes.keys() >= {Reason.TRUNCATED, Reason.MALFORMED, Reason.TRAILING_BYTES, *CATALOGUE}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_refused_with_a_reason(data):
    without_header = Reason.COMPRESSED if data == COMPRESSED else Reason.NOT_SINGLE_OBJECT
    assert reason_of(data) in (without_header, Reason.UNKNOWN_FINGERPRINT)


def test_what_shows_a_topic_passes_over_garbage_but_not_what_another_release_wrote():
    own = encode("SlotReport", SLOT)
    assert list(readable([b"garbage", own, own[:-1], b""])) == [decode(own)]
    assert not list(readable([own], frozenset({"Lift"})))
    with pytest.raises(CodecError, match=Reason.UNKNOWN_FINGERPRINT.value):
        list(readable([b"\xc3\x01" + bytes(8) + b"newer"]))


SCHEMAS = list(CATALOGUE.values())


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


@pytest.mark.parametrize("schema", SCHEMAS, ids=list(CATALOGUE))
def test_fingerprints_are_those_of_the_avro_package_and_of_the_specification(schema):
    theirs = avro.schema.parse(schema.text)
    form = json.loads(theirs.canonical_form)
    once = each_name_defined_once(form, set())
    canonical = json.dumps(once, separators=(",", ":"), ensure_ascii=False)
    assert schema.fingerprint == crc_64_avro(canonical.encode())
    if once == form:
        assert schema.fingerprint == theirs.fingerprint("CRC-64-AVRO")


def test_the_avro_package_is_asked_directly_for_most_schemas():
    forms = [json.loads(avro.schema.parse(version.text).canonical_form) for version in SCHEMAS]
    assert sum(each_name_defined_once(form, set()) == form for form in forms) >= 8


@pytest.mark.parametrize("schema", SCHEMAS, ids=list(CATALOGUE))
def test_a_change_of_a_schema_does_not_go_unseen(schema, golden):
    assert schema.fingerprint == golden[schema.name]["fingerprint"]


def undocumented(schema: Any, path: str) -> list[str]:
    if not isinstance(schema, dict):
        return []
    found = [] if schema.get("doc") or schema["type"] == "array" else [path]
    for field in schema.get("fields", ()):
        if not field.get("doc"):
            found.append(f"{path}.{field['name']}")
        found += undocumented(field["type"], f"{path}.{field['name']}")
    return found + undocumented(schema.get("items"), f"{path}[]")


@pytest.mark.parametrize("schema", SCHEMAS, ids=list(CATALOGUE))
def test_every_type_and_field_is_documented(schema):
    assert undocumented(json.loads(schema.text), schema.name) == []


@pytest.mark.parametrize("name", ["Genesis", "Decisions", "WindowJournal", "Model"])
def test_the_chain_is_the_last_field_of_every_journal_record(name):
    last = CATALOGUE[name].parsed["fields"][-1]
    assert last["name"] == "chain"
    named = last["type"] if isinstance(last["type"], str) else last["type"]["name"]
    assert named == "hushstream.Fixed16"


def test_typed_dictionaries_have_the_fields_of_the_schema():
    kinds = {field["name"]: field["type"] for field in CATALOGUE["Decisions"].parsed["fields"]}
    head = {field["name"]: field["type"] for field in kinds["head"]["fields"]}
    typed = {rows.Decisions: kinds, rows.JournalHead: head}
    nested = {rows.Debit: kinds["debits"], rows.InputRange: head["inputs"]}
    typed |= {of: {field["name"]: field for field in kind["items"]["fields"]} for of, kind in nested.items()}
    for of, fields in typed.items():
        assert list(get_type_hints(of)) == list(fields)


def write(root: Path, path: str, **schema: Any) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    (root / "shared").mkdir(exist_ok=True)
    made = {"type": "record", "name": file.stem, "namespace": "hushstream", **schema}
    file.write_text(json.dumps(made), encoding="utf-8")


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def test_a_shared_type_is_defined_once(tmp_path):
    write(tmp_path, "shared/Part.avsc", fields=[field("a", "int")])
    write(tmp_path, "Whole.avsc", fields=[field("x", "Part"), field("y", {"type": "array", "items": "Part"})])
    fields = json.loads(load(tmp_path)["Whole"].text)["fields"]
    assert fields[0]["type"]["fields"] == [field("a", "int")]
    assert fields[1]["type"]["items"] == "Part"


def test_a_folder_with_a_twin_a_wrong_name_or_an_unknown_type_is_refused(tmp_path):
    write(tmp_path / "twin", "A.avsc", fields=[field("a", "int")])
    write(tmp_path / "twin", "B.avsc", fields=[field("a", "int")])
    assert load(tmp_path / "twin").keys() == {"A", "B"}
    write(tmp_path / "unknown", "A.avsc", fields=[field("a", "B")])
    with pytest.raises(SchemaError, match=r"A\.avsc: no shared type of the name"):
        load(tmp_path / "unknown")
    write(tmp_path / "misnamed", "A.avsc", name="B", fields=[])
    with pytest.raises(SchemaError, match="expected the name A"):
        load(tmp_path / "misnamed")
