"""A client that speaks single requests, for what no library would send on its own."""

import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kafka.protocol import consumer as consumer_messages
from kafka.protocol import producer as producer_messages
from kafka.record.default_records import DefaultRecordBatchBuilder

from patience import patience


class RawClient:
    """Sends one kafka-python request at a time over its own connection."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=patience(30))
        self._correlation_id = 0

    def send(self, request: Any, version: int) -> None:
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id="raw")
        self.socket.sendall(request.encode(header=True, framed=True))

    def receive(self, request: Any) -> Any:
        header = request.header.get_response_class()
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        return header.decode(frame, header=True)

    def ask(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return self.receive(request)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
        return data


def build_batch(
    values: Sequence[bytes],
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamps_ms: Sequence[int] | None = None,
    transactional: bool = False,
) -> bytes:
    """One record batch of magic 2."""
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer_id, epoch, sequence, 1 << 24)
    now_ms = int(time.time() * 1000)
    for index, value in enumerate(values):
        builder.append(index, timestamps_ms[index] if timestamps_ms else now_ms, None, value, [])
    return bytes(builder.build())


def produce_request(topic: str, batch: bytes | None, partition: int = 0, acks: int = -1) -> Any:
    """A produce request of one batch."""
    request = producer_messages.ProduceRequest
    data = request.TopicProduceData.PartitionProduceData(index=partition, records=batch)
    topic_data = request.TopicProduceData(name=topic, partition_data=[data])
    return request(acks=acks, timeout_ms=5000, topic_data=[topic_data], transactional_id=None)


def fetch_request(topic: str, offset: int, **fields: int) -> Any:
    """A fetch request of partition 0; `fields` are max_wait_ms, min_bytes, max_bytes, partition_max_bytes."""
    request = consumer_messages.FetchRequest
    partition = request.FetchTopic.FetchPartition(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=fields.pop("partition_max_bytes", 1 << 20),
    )
    settings = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20} | fields
    return request(
        replica_id=-1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[request.FetchTopic(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
        **settings,
    )


@pytest.fixture
def connect() -> Iterator[Callable[[str], RawClient]]:
    clients: list[RawClient] = []

    def open_client(bootstrap: str) -> RawClient:
        clients.append(RawClient(bootstrap))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


async def create_topics(bootstrap: str, **partitions: int) -> None:
    """Create topics by name, as a client does."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await client.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()])
    finally:
        await client.close()


@pytest.fixture
def make_topics() -> Callable[..., Awaitable[None]]:
    return create_topics


@pytest.fixture
def make_batch() -> Callable[..., bytes]:
    return build_batch


@pytest.fixture
def make_produce() -> Callable[..., Any]:
    return produce_request


@pytest.fixture
def make_fetch() -> Callable[..., Any]:
    return fetch_request
