"""Bytes that are no request close their own connection, with one line in the log, and harm nothing else."""

import asyncio
import logging
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata

from hushstream.broker import BrokerSettings, EmbeddedBroker
from hushstream.broker.errors import MalformedRequest
from hushstream.broker.wire import APIS, FRAME_HEAD_BYTES, parse_frame_head, parse_request
from patience import patience

MAX_BYTES = 1 << 20


def framed(request: Any, version: int) -> bytes:
    request.API_VERSION = version
    request.with_header(correlation_id=7, client_id="fuzz")
    return bytes(request.encode(header=True, framed=True))


def sound_frames() -> list[bytes]:
    """Real requests, flexible and not, with strings, arrays, bytes and nulls."""
    join = consumer.JoinGroupRequest
    create = admin.CreateTopicsRequest
    asked = metadata.MetadataRequest.MetadataRequestTopic
    topic = create.CreatableTopic(
        name="topic",
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[create.CreatableTopic.CreatableTopicConfig(name="retention.ms", value="1")],
    )
    return [
        framed(metadata.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
        framed(metadata.MetadataRequest(topics=[asked(name="topic")]), 12),
        framed(metadata.MetadataRequest(topics=None), 5),
        framed(
            join(
                group_id="g",
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                member_id="",
                protocol_type="consumer",
                protocols=[join.JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01")],
            ),
            2,
        ),
        framed(create(topics=[topic], timeout_ms=1, validate_only=True), 4),
        framed(admin.ListGroupsRequest(states_filter=["Stable"]), 4),
    ]


def parse(frame: bytes) -> Any:
    head = parse_frame_head(frame[:FRAME_HEAD_BYTES], MAX_BYTES)
    return parse_request(head, frame[FRAME_HEAD_BYTES:])


@pytest.mark.parametrize("index", range(len(sound_frames())))
def test_sound_requests_are_decoded(index):
    request = parse(sound_frames()[index])
    assert (request.correlation_id, request.client_id) == (7, "fuzz")
    assert request.body is not None


@pytest.mark.parametrize("index", range(len(sound_frames())))
def test_every_truncation_is_malformed(index):
    frame = sound_frames()[index]
    for length in range(FRAME_HEAD_BYTES, len(frame)):
        cut = struct.pack(">i", length - 4) + frame[4:length]
        with pytest.raises(MalformedRequest):
            parse(cut)


@pytest.mark.parametrize("index", range(len(sound_frames())))
def test_trailing_bytes_are_malformed(index):
    frame = sound_frames()[index]
    longer = struct.pack(">i", len(frame) - 3) + frame[4:] + b"\x00"
    with pytest.raises(MalformedRequest):
        parse(longer)


def test_what_librdkafka_leaves_behind_a_request_for_all_topics_is_taken_and_no_other_length():
    head, body = b"\0\3\0\x0c\0\0\0\3\0\x07rdkafka", b"\0\0\0\0\0"
    request = parse(struct.pack(">i", len(head) + 8) + head + body + b"\1\0\0")
    assert (request.correlation_id, request.client_id, request.body.topics) == (3, "rdkafka", None)
    for left in (b"\0", b"\0" * 2, b"\0" * 4):
        with pytest.raises(MalformedRequest):
            parse(struct.pack(">i", len(head + body + left)) + head + body + left)


def test_a_null_where_none_is_allowed_is_malformed():
    frame = bytearray(framed(consumer.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 1))
    at = frame.index(b"\x00\x01g")
    null_group = frame[:at] + b"\xff\xff" + frame[at + 3 :]
    null_group[:4] = struct.pack(">i", len(null_group) - 4)
    with pytest.raises(MalformedRequest, match="null"):
        parse(bytes(null_group))


@pytest.mark.parametrize(
    ("size", "api_key", "version"),
    [(-1, 3, 5), (3, 3, 5), (MAX_BYTES + 1, 0, 8), (100, 999, 0), (100, -1, 0), (100, 3, 99), (100, 0, 2)],
)
def test_an_impossible_head_is_refused_before_the_body_is_read(size, api_key, version):
    with pytest.raises(MalformedRequest):
        parse_frame_head(struct.pack(">ihh", size, api_key, version), MAX_BYTES)


def test_flexible_requests_are_kept_small():
    with pytest.raises(MalformedRequest, match="expected"):
        parse_frame_head(struct.pack(">ihh", 1 << 17, 3, 12), MAX_BYTES)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_parser_answers_any_bytes_with_a_request_or_a_refusal(data):
    key = data.draw(st.sampled_from(sorted(APIS)))
    version = data.draw(st.integers(APIS[key].min_version, APIS[key].max_version))
    body = data.draw(st.binary(min_size=6, max_size=200))
    frame = struct.pack(">ihh", len(body) + 4, key, version) + body
    try:
        request = parse(frame)
    except MalformedRequest:
        return
    assert request.api_key == key


def mutated(frame: bytes, generator: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(generator.randint(1, 4)):
        changed[generator.randrange(4, len(changed))] = generator.choice(
            (0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256))
        )
    return bytes(changed)


def test_mutated_requests_are_decoded_or_refused():
    generator = random.Random(20)
    frames = sound_frames()
    outcomes = {True: 0, False: 0}
    for _ in range(4000):
        try:
            parse(mutated(generator.choice(frames), generator))
            outcomes[True] += 1
        except MalformedRequest:
            outcomes[False] += 1
    assert min(outcomes.values()) > 100


async def exchange(port: int, sent: bytes) -> bytes:
    """What comes back until the broker closes or is silent for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    received = b""
    try:
        async with asyncio.timeout(0.05):
            while chunk := await reader.read(65536):
                received += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    writer.close()
    return received


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(patience(5)):
        return await reader.read(1) == b""


BAD: dict[str, bytes] = {
    "random": random.Random(1).randbytes(64),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "oversized": struct.pack(">ihh", 1 << 30, 0, 8),
    "negative size": struct.pack(">ihh", -5, 0, 8),
    "unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unserved version": struct.pack(">ihhih", 10, 3, 77, 1, -1),
    "garbage body": struct.pack(">ihh", 40, 3, 5) + b"\xfe" * 36,
}


@pytest.mark.parametrize("name", BAD)
async def test_a_malformed_request_closes_its_connection_with_one_log_line(name, caplog):
    async with EmbeddedBroker() as broker:
        bystander_reader, bystander = await asyncio.open_connection("127.0.0.1", broker.port)
        with caplog.at_level(logging.INFO):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(BAD[name])
            assert await is_closed(reader)
            writer.close()
        lines = [record for record in caplog.records if record.name.startswith("hushstream.broker")]
        assert len(lines) == 1
        assert "closing the connection" in lines[0].getMessage()
        assert not any(record.exc_info for record in caplog.records)
        bystander.write(framed(metadata.MetadataRequest(topics=None), 5))
        async with asyncio.timeout(patience(5)):
            assert len(await bystander_reader.readexactly(8)) == 8
        bystander.close()


async def test_an_ending_within_a_request_is_one_log_line(caplog):
    async with EmbeddedBroker() as broker:
        with caplog.at_level(logging.INFO):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(struct.pack(">ihh", 100, 3, 5) + b"half")
            writer.write_eof()
            assert await is_closed(reader)
            writer.close()
        told = [record.getMessage() for record in caplog.records if record.name.startswith("hushstream")]
        assert [line.rsplit(" ", 4)[1:] for line in told] == [["ended", "within", "a", "request"]]


async def test_random_and_mutated_requests_never_harm_the_broker(caplog):
    """Seeded: 150 connections, half with noise, half with mutated requests that may well be decoded."""
    generator = random.Random(3)
    frames = sound_frames()
    async with EmbeddedBroker(BrokerSettings(max_request_bytes=1 << 16)) as broker:
        with caplog.at_level(logging.WARNING):
            for index in range(15):
                noise = [generator.randbytes(generator.randint(1, 300)) for _ in range(5)]
                changed = [mutated(generator.choice(frames), generator) for _ in range(5)]
                await asyncio.gather(*(exchange(broker.port, sent) for sent in noise + changed))
                answer = await exchange(broker.port, frames[0])
                assert len(answer) > 50, f"no answer to a sound request after round {index}"
        # Clients of other tests, whose topics are gone, may log beside the broker and the event loop.
        said = [record for record in caplog.records if record.name.partition(".")[0] not in ("kafka", "aiokafka")]
        assert not any(record.exc_info for record in said)
        assert all(record.name.startswith("hushstream.broker") for record in said)


async def test_an_api_versions_request_of_the_future_is_answered_in_version_zero():
    async with EmbeddedBroker() as broker:
        head = struct.pack(">hhih", 18, 99, 5, -1)
        answer = await exchange(broker.port, struct.pack(">i", len(head)) + head)
    size, correlation_id, error_code, count = struct.unpack_from(">iihi", answer)
    assert (size, correlation_id, error_code) == (len(answer) - 4, 5, 35)
    assert count == len(APIS)


async def test_a_refused_produce_without_acks_closes_the_connection(make_produce, make_batch):
    async with EmbeddedBroker() as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(framed(make_produce("absent", make_batch([b"a"]), acks=0), 8))
        assert await is_closed(reader)
        writer.close()
