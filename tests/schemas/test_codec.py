from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import avro.io
import avro.schema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushstream.schemas.catalogue import CATALOGUE, SchemaError, SchemaVersion, make_schema_version
from hushstream.schemas.codec import (
    COMPRESSED,
    HEADER_BYTES,
    MAX_VALUE_BYTES,
    NEWEST_GENERATION,
    Codec,
    CodecError,
    decode,
    encode,
    generation_of,
    readable,
)
from hushstream.schemas.reasons import Reason

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
    return b"\xc3\x01" + CATALOGUE[name][-1].fingerprint


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
    record = data.draw(records_of(CATALOGUE[name][-1]))
    assert decode(encode(name, record, NEWEST_GENERATION)) == (name, record)


@pytest.mark.parametrize("name", CATALOGUE)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_avro_package_writes_our_bytes_and_reads_our_record(name, records_of, data):
    version = CATALOGUE[name][-1]
    record = data.draw(records_of(version))
    schema = avro.schema.parse(version.text)
    stream = io.BytesIO()
    avro.io.DatumWriter(schema).write(record, avro.io.BinaryEncoder(stream))
    value = encode(name, record, NEWEST_GENERATION)
    assert value == b"\xc3\x01" + version.fingerprint + stream.getvalue()
    body = avro.io.BinaryDecoder(io.BytesIO(value[HEADER_BYTES:]))
    assert avro.io.DatumReader(schema).read(body) == record


@pytest.mark.parametrize(
    "key", [f"{version.name}/v{version.version}" for versions in CATALOGUE.values() for version in versions]
)
def test_frozen_bytes_stay_readable_and_are_still_written_in_their_generation(key, golden):
    name, version = key.split("/v")
    record, value = golden[key]["record"], golden[key]["value"]
    found, fields = decode(value)
    assert found == name
    assert fields.items() >= record.items()
    schema_generation = CATALOGUE[name][int(version) - 1].schema_generation
    assert encode(name, record, schema_generation) == value
    assert generation_of(value) == schema_generation


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_slot_has_one_size(records_of, data):
    assert len(encode("SlotReport", data.draw(records_of(CATALOGUE["SlotReport"][-1])))) == 82
    assert len(encode("SealedSlot", data.draw(records_of(CATALOGUE["SealedSlot"][-1])))) == 130


@pytest.mark.parametrize("name", ["Genesis", "Decisions", "WindowJournal", "Model"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_journal_record_ends_with_its_chain(name, records_of, data):
    record = data.draw(records_of(CATALOGUE[name][-1]))
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
    assert reason_of(header("Feedback") + long(2) + bytes(20)) is Reason.MALFORMED


def test_ints_beyond_32_bits_are_found_inside_nested_records(golden):
    record = golden["WindowJournal/v1"]["record"]
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


def grown(name: str, *added: dict[str, Any], schema_generation: int = 2) -> SchemaVersion:
    """A second version of a record, with more fields."""
    schema = json.loads(CATALOGUE[name][0].text)
    return make_schema_version(name, 2, {**schema, "edition": schema_generation, "fields": [*schema["fields"], *added]})


NOTE = {"name": "note", "type": "bytes", "default": "\u00e9"}
COUNT = {"name": "count", "type": "int", "default": 7}
TICK = {"config_digest": bytes(16)}


def test_a_newer_version_reads_older_values_and_fills_in_its_defaults():
    first = CATALOGUE["Tick"][0]
    before, after = Codec({"Tick": (first,)}), Codec({"Tick": (first, grown("Tick", NOTE, COUNT))})
    expected = {**TICK, "note": b"\xe9", "count": 7}
    assert after.decode(before.encode("Tick", TICK)) == ("Tick", expected)
    newer = after.encode("Tick", TICK, schema_generation=2)
    assert after.decode(newer) == ("Tick", expected)
    assert [after.generation_of(value) for value in (before.encode("Tick", TICK), newer)] == [1, 2]
    for refuses in (before.decode, before.generation_of):
        with pytest.raises(CodecError) as caught:
            refuses(newer)
        assert caught.value.reason is Reason.UNKNOWN_FINGERPRINT


def test_a_generation_is_written_with_the_newest_version_that_it_has_and_without_what_came_later():
    first, second = CATALOGUE["Tick"][0], grown("Tick", COUNT, schema_generation=3)
    before, after = Codec({"Tick": (first,)}), Codec({"Tick": (first, second)})
    assert (before.newest_generation, after.newest_generation) == (1, 3)
    record = {**TICK, "count": 9}
    for schema_generation in (1, 2):
        assert after.encode("Tick", record, schema_generation) == before.encode("Tick", TICK)
        assert after.narrow("Tick", record, schema_generation) == TICK
    for schema_generation in (3, 4):
        assert after.decode(after.encode("Tick", record, schema_generation)) == ("Tick", record)
        assert after.narrow("Tick", record, schema_generation) == record
    with pytest.raises(CodecError, match=r"unknown fields \[surplus\]"):
        after.encode("Tick", {**record, "surplus": 1})
    with pytest.raises(CodecError, match="schema generation from 1 to 3, got 'Tick' in 0"):
        after.encode("Tick", record, 0)
    with pytest.raises(CodecError, match="32 bits"):
        after.encode("Tick", {**TICK, "count": 2**31})
    with pytest.raises(SchemaError, match="grow from 1 on"):
        Codec({"Tick": (second,)})


def test_what_came_later_is_left_out_inside_nested_records_and_arrays_too(golden):
    first = CATALOGUE["WindowJournal"][0]
    schema = json.loads(first.text)
    head = next(field["type"] for field in schema["fields"] if field["name"] == "head")
    ranges = next(field["type"]["items"] for field in head["fields"] if field["name"] == "inputs")
    for nested in (head, ranges):
        nested["fields"].append(COUNT)
    second = make_schema_version("WindowJournal", 2, {**schema, "edition": 2})
    before, after = Codec({"WindowJournal": (first,)}), Codec({"WindowJournal": (first, second)})
    record = golden["WindowJournal/v1"]["record"]
    inputs = [{**part, "count": 3} for part in record["head"]["inputs"]]
    counted = {**record, "head": {**record["head"], "inputs": inputs, "count": 4}}
    assert after.encode("WindowJournal", counted) == before.encode("WindowJournal", record)
    assert after.decode(after.encode("WindowJournal", counted, 2))[1] == counted


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


def test_what_shows_a_topic_passes_over_garbage_but_not_what_a_newer_release_wrote() -> None:
    own = encode("SlotReport", SLOT)
    assert list(readable([b"garbage", own, own[:-1], b""])) == [decode(own)]
    assert not list(readable([own], frozenset({"Lift"})))
    with pytest.raises(CodecError, match=Reason.UNKNOWN_FINGERPRINT.value):
        list(readable([b"\xc3\x01" + bytes(8) + b"newer"]))
