"""Decodes requests and encodes responses, with the message schemas that kafka-python ships.

The decoder of kafka-python trusts its input (it never reads brokers' requests), so the checks live here: the
whole frame must be consumed, nothing may be read past its end, and no field may be null unless its schema
says so. Versions are capped below the flexible ones except where a newer field is wanted.
"""

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer

from hushstream.broker.errors import ErrorCode, MalformedRequest

PRODUCE = 0
METADATA = 3
API_VERSIONS = 18
READS = frozenset({1, 2, METADATA, 9, 10, 15, 16, API_VERSIONS, 22, 29, 32})
"""What a broker serves that was closed: nothing that writes, and no groups (22 gives numbers to producers)."""

# Requests other than produce carry only names and group metadata.
MAX_CONTROL_REQUEST_BYTES = 4 << 20
# A flexible version has integers of any length, whose cost grows with the square of that length.
MAX_FLEXIBLE_REQUEST_BYTES = 64 << 10

# librdkafka keeps four bytes for the number of topics, of which a null takes one; Apache Kafka ignores what is left.
_LEFT_BY_LIBRDKAFKA = 3

_FRAME_HEAD = struct.Struct(">ihh")
_HEADER_REST = struct.Struct(">ih")
FRAME_HEAD_BYTES = _FRAME_HEAD.size


@dataclass(frozen=True, slots=True)
class Api:
    """One request type: its schemas and the versions served."""

    request: Any
    response: Any
    min_version: int
    max_version: int


def _api(module: Any, name: str, versions: tuple[int, int]) -> Api:
    return Api(getattr(module, f"{name}Request"), getattr(module, f"{name}Response"), *versions)


APIS: dict[int, Api] = {
    PRODUCE: _api(producer, "Produce", (3, 8)),
    1: _api(consumer, "Fetch", (4, 11)),
    2: _api(consumer, "ListOffsets", (1, 5)),
    METADATA: _api(metadata, "Metadata", (0, 12)),
    8: _api(consumer, "OffsetCommit", (2, 6)),
    9: _api(consumer, "OffsetFetch", (1, 5)),
    10: _api(metadata, "FindCoordinator", (0, 2)),
    11: _api(consumer, "JoinGroup", (0, 5)),
    12: _api(consumer, "Heartbeat", (0, 2)),
    13: _api(consumer, "LeaveGroup", (0, 2)),
    14: _api(consumer, "SyncGroup", (0, 3)),
    15: _api(admin, "DescribeGroups", (0, 3)),
    16: _api(admin, "ListGroups", (0, 4)),
    API_VERSIONS: _api(metadata, "ApiVersions", (0, 3)),
    19: _api(admin, "CreateTopics", (2, 4)),
    20: _api(admin, "DeleteTopics", (1, 3)),
    21: _api(admin, "DeleteRecords", (0, 1)),
    22: _api(producer, "InitProducerId", (0, 1)),
    29: _api(admin, "DescribeAcls", (0, 1)),
    30: _api(admin, "CreateAcls", (0, 1)),
    31: _api(admin, "DeleteAcls", (0, 1)),
    32: _api(admin, "DescribeConfigs", (1, 2)),
    33: _api(admin, "AlterConfigs", (0, 1)),
    37: _api(admin, "CreatePartitions", (0, 1)),
}


@dataclass(frozen=True, slots=True)
class FrameHead:
    """The first eight bytes of a request, which are enough to refuse it before its body is read."""

    rest_bytes: int
    api_key: int
    version: int


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request. `body` is None for an ApiVersions request of a version that is not served."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any


def parse_frame_head(head: bytes, max_request_bytes: int) -> FrameHead:
    """Read size, API key and version.

    Raises:
        MalformedRequest: unknown API or version, or a size outside its limit.
    """
    size, api_key, version = _FRAME_HEAD.unpack(head)
    api = APIS.get(api_key)
    if api is None:
        raise MalformedRequest(f"API key {api_key} is not served")
    if api_key != API_VERSIONS and not api.min_version <= version <= api.max_version:
        raise MalformedRequest(
            f"API key {api_key} is served in versions {api.min_version} to {api.max_version}, not {version}"
        )
    limit = max_request_bytes if api_key == PRODUCE else min(max_request_bytes, MAX_CONTROL_REQUEST_BYTES)
    if api.request.flexible_version_q(version):
        limit = min(limit, MAX_FLEXIBLE_REQUEST_BYTES)
    smallest = FRAME_HEAD_BYTES - 4 + _HEADER_REST.size
    if not smallest <= size <= limit:
        raise MalformedRequest(f"request of {size} bytes, expected {smallest} to {limit}")
    return FrameHead(size - (FRAME_HEAD_BYTES - 4), api_key, version)


def parse_request(head: FrameHead, rest: bytes) -> Request:
    """Decode the rest of the header, and the body.

    Raises:
        MalformedRequest: the bytes do not follow the schema of their API and version.
    """
    api = APIS[head.api_key]
    if not api.min_version <= head.version <= api.max_version:
        correlation_id = int(_HEADER_REST.unpack_from(rest, 0)[0])
        return Request(head.api_key, head.version, correlation_id, "", None)
    flexible = bool(api.request.flexible_version_q(head.version))
    try:
        correlation_id, client_id, position = _parse_header_rest(rest, flexible)
        # Not the public decode(), which does not tell how far it has read.
        decode = api.request._struct.compiled_decode_from(
            head.version, compact=flexible, tagged=flexible, data_class=api.request
        )
        body, end = decode(memoryview(rest), position)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise MalformedRequest(f"API key {head.api_key} version {head.version}: {type(error).__name__}") from None
    all_topics = head.api_key == METADATA and flexible and body.topics is None
    if end != len(rest) and not (all_topics and len(rest) - end == _LEFT_BY_LIBRDKAFKA):
        raise MalformedRequest(
            f"API key {head.api_key} version {head.version}: fields end at byte {end} of {len(rest)}"
        )
    _refuse_nulls(body, api.request._struct, head.version)
    return Request(head.api_key, head.version, correlation_id, client_id, body)


def _parse_header_rest(rest: bytes, flexible: bool) -> tuple[int, str, int]:
    correlation_id, length = _HEADER_REST.unpack_from(rest, 0)
    position = _HEADER_REST.size
    client_id = ""
    if length >= 0:
        client_id = rest[position : position + length].decode()
        position += length
    if flexible:
        position = _skip_tagged_fields(rest, position)
    return correlation_id, client_id, position


def _skip_tagged_fields(data: bytes, position: int) -> int:
    count, position = _unsigned_varint(data, position)
    for _ in range(count):
        _, position = _unsigned_varint(data, position)
        size, position = _unsigned_varint(data, position)
        position += size
        if position > len(data):
            raise ValueError("tagged field past the end")
    return position


def _unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("integer of more than five bytes")


def _refuse_nulls(item: Any, schema: Any, version: int) -> None:
    for field in schema.untagged_fields(version):
        value = getattr(item, field.name)
        if value is None:
            # An absent topic id is all zeros on the wire and None here.
            if field.type_str != "uuid" and not field.nullable_for_version_q(version):
                raise MalformedRequest(f"{field.name} is null, which version {version} does not allow")
        elif field.is_struct_array():
            for child in value:
                _refuse_nulls(child, field.array_of, version)
        elif field.is_struct():
            _refuse_nulls(value, field, version)
        elif field.is_array() and None in value:
            raise MalformedRequest(f"{field.name} holds a null, which version {version} does not allow")


def encode_response(request: Request, response: Any) -> bytearray:
    """The framed bytes of `response` for the client that sent `request`."""
    # A client that asks in a version we do not serve is answered in version 0, which every client reads.
    response.API_VERSION = 0 if request.body is None else request.version
    response.with_header(correlation_id=request.correlation_id)
    encoded: bytearray = response.encode(header=True, framed=True)
    return encoded


def api_versions_response(error: ErrorCode, closed: bool) -> Any:
    """What this broker serves, as the body of an ApiVersions response."""
    response = APIS[API_VERSIONS].response
    keys = [
        response.ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
        for key, api in sorted(APIS.items())
        if key in READS or not closed
    ]
    return response(error_code=int(error), api_keys=keys)
