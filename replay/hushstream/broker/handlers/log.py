"""Answers produce, fetch, and requests for offsets by time."""

import asyncio
import logging
from typing import Any

from kafka.protocol import consumer as messages
from kafka.protocol import producer as producer_messages

from hushstream.broker.errors import ErrorCode, MalformedRequest, RequestRefused
from hushstream.broker.node import LEADER_EPOCH, Client, Node
from hushstream.broker.store import NOWHERE, Appended, PartitionLog
from hushstream.broker.wire import Request

log = logging.getLogger(__name__)

_LATEST = -1
_EARLIEST = -2
_READ_COMMITTED = 1


async def produce(node: Node, client: Client, request: Request) -> Any:
    """Store record batches. With acks=0 there is no answer, and an error closes the connection."""
    response = producer_messages.ProduceResponse
    body = request.body
    # All of it is on its way before the first wait: the disk is forced once for the whole request.
    staged = [
        (topic.name, [(data.index, _staged(node, body, topic.name, data)) for data in topic.partition_data])
        for topic in body.topic_data
    ]
    topics = []
    for name, partitions in staged:
        answers = [_stored(name, index, *await _settled(on_its_way)) for index, on_its_way in partitions]
        topics.append(response.TopicProduceResponse(name=name, partition_responses=answers))
    if body.acks != 0:
        return response(responses=topics, throttle_time_ms=0)
    for topic in topics:
        for partition in topic.partition_responses:
            if partition.error_code:
                code = ErrorCode(partition.error_code).name
                raise MalformedRequest(f"produce with acks=0 refused: {code}, {partition.error_message}")
    return None


def _staged(node: Node, body: Any, topic: str, data: Any) -> tuple[Appended, asyncio.Future[str]] | RequestRefused:
    try:
        if body.acks not in (-1, 0, 1):
            raise RequestRefused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1, 0 or 1, got {body.acks}")
        if body.transactional_id is not None:
            raise RequestRefused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the embedded broker has no transactions"
            )
        return node.store.append(topic, data.index, data.records or b"")
    except RequestRefused as refused:
        return refused


async def _settled(
    on_its_way: tuple[Appended, asyncio.Future[str]] | RequestRefused,
) -> tuple[Appended, RequestRefused | None]:
    if isinstance(on_its_way, RequestRefused):
        return NOWHERE, on_its_way
    appended, kept = on_its_way
    refused = await kept
    return (NOWHERE, RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, refused)) if refused else (appended, None)


def _stored(topic: str, index: int, appended: Appended, refused: RequestRefused | None) -> Any:
    if refused is not None and refused.code is ErrorCode.POLICY_VIOLATION:
        log.warning("produce to %s-%d refused: %s", topic, index, refused.message)
    return producer_messages.ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=0 if refused is None else int(refused.code),
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time_ms,
        log_start_offset=0 if refused is None else -1,
        record_errors=[],
        error_message=None if refused is None else refused.message,
    )


async def fetch(node: Node, client: Client, request: Request) -> Any:
    """Give record batches from the requested offsets; waits up to max_wait for min_bytes.

    Every fetch is a full one: session 0 tells clients that the broker keeps no fetch session.
    """
    body = request.body
    if body.session_id != 0:
        return messages.FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND), responses=[])
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, body.max_wait_ms) / 1000
    while True:
        logs, available = _positions(node, body)
        if available is None or available >= body.min_bytes or loop.time() >= deadline:
            return _fetched(node, body)
        await _wait_for_append(logs, deadline)


def _positions(node: Node, body: Any) -> tuple[list[PartitionLog], int | None]:
    """The requested logs, and how many bytes they hold after the offsets; None if an error must be answered at once."""
    logs: list[PartitionLog] = []
    available = 0
    for topic in body.topics:
        for entry in topic.partitions:
            try:
                position = _position(node, topic.topic, entry)
            except RequestRefused:
                return logs, None
            logs.append(position)
            available += position.available_bytes(entry.fetch_offset)
    return logs, available


def _position(node: Node, topic: str, entry: Any) -> PartitionLog:
    position = node.store.partition(topic, entry.partition)
    _check_leader_epoch(entry.current_leader_epoch)
    if not position.start_offset <= entry.fetch_offset <= position.next_offset:
        raise RequestRefused(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log ends at {position.next_offset}")
    return position


def _check_leader_epoch(epoch: int) -> None:
    if epoch > LEADER_EPOCH:
        raise RequestRefused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"the leader epoch is {LEADER_EPOCH}, got {epoch}")


async def _wait_for_append(logs: list[PartitionLog], deadline: float) -> None:
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    for position in logs:
        position.waiting.add(woken)
    timer = loop.call_at(deadline, _wake, woken)
    try:
        await woken
    finally:
        timer.cancel()
        for position in logs:
            position.waiting.discard(woken)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fetched(node: Node, body: Any) -> Any:
    response = messages.FetchResponse
    room = max(0, body.max_bytes)
    nothing_yet = True
    topics = []
    for topic in body.topics:
        partitions = []
        for entry in topic.partitions:
            data, partition = _fetched_one(node, body, topic.topic, entry, room, nothing_yet)
            room = max(0, room - len(data))
            nothing_yet = nothing_yet and not data
            partitions.append(partition)
        topics.append(response.FetchableTopicResponse(topic=topic.topic, partitions=partitions))
    return response(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)


def _fetched_one(node: Node, body: Any, topic: str, entry: Any, room: int, at_least_one: bool) -> tuple[bytes, Any]:
    response = messages.FetchResponse.FetchableTopicResponse.PartitionData
    aborted: list[Any] | None = [] if body.isolation_level == _READ_COMMITTED else None
    try:
        position = _position(node, topic, entry)
    except RequestRefused as refused:
        return b"", response(
            partition_index=entry.partition,
            error_code=int(refused.code),
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=aborted,
            preferred_read_replica=-1,
            records=b"",
        )
    data = position.read(entry.fetch_offset, min(room, max(0, entry.partition_max_bytes)), at_least_one)
    return data, response(
        partition_index=entry.partition,
        error_code=0,
        high_watermark=position.next_offset,
        last_stable_offset=position.next_offset,
        log_start_offset=position.start_offset,
        aborted_transactions=aborted,
        preferred_read_replica=-1,
        records=data,
    )


async def list_offsets(node: Node, client: Client, request: Request) -> Any:
    """Give the first offset of a log, its next one, or that of the first record that is not older than a time."""
    response = messages.ListOffsetsResponse
    topics = []
    for topic in request.body.topics:
        partitions = [_list_offset(node, topic.name, entry) for entry in topic.partitions]
        topics.append(response.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return response(throttle_time_ms=0, topics=topics)


def _list_offset(node: Node, topic: str, entry: Any) -> Any:
    response = messages.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    code, offset, timestamp_ms = ErrorCode.NONE, -1, -1
    try:
        _check_leader_epoch(entry.current_leader_epoch)
        position = node.store.partition(topic, entry.partition_index)
        if entry.timestamp == _LATEST:
            offset = position.next_offset
        elif entry.timestamp == _EARLIEST:
            offset = position.start_offset
        elif entry.timestamp < 0:
            raise RequestRefused(ErrorCode.UNSUPPORTED_VERSION, f"no offset is defined for {entry.timestamp}")
        else:
            found = position.find_time(entry.timestamp)
            if found is not None:
                offset, timestamp_ms = found
    except RequestRefused as refused:
        code = refused.code
    return response(
        partition_index=entry.partition_index,
        error_code=int(code),
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=LEADER_EPOCH if offset >= 0 else -1,
    )
