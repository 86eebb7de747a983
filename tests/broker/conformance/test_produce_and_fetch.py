"""What producers and consumers rely on."""

import asyncio
import threading
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from kafka.protocol.producer import InitProducerIdRequest

from patience import Patience, patience

CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_OUT_OF_RANGE = 1
INVALID_REQUIRED_ACKS = 21
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47


def read_all(bootstrap: str, topic: str, partitions: int = 1) -> list[Any]:
    """Every record of a topic up to its present end, with kafka-python."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None)
    assigned = [TopicPartition(topic, index) for index in range(partitions)]
    consumer.assign(assigned)
    wanted = sum(consumer.end_offsets(assigned).values())
    records: list[Any] = []
    waiting = Patience(20)
    while len(records) < wanted and not waiting.over:
        for batch in consumer.poll(timeout_ms=500).values():
            records.extend(batch)
    consumer.close()
    assert len(records) == wanted
    return records


def produced(response: Any) -> tuple[int, int]:
    partition = response.responses[0].partition_responses[0]
    return partition.error_code, partition.base_offset


def fetched(response: Any) -> Any:
    return response.responses[0].partitions[0]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_level_stores_records_in_order(bootstrap, make_topic, acks):
    topic = make_topic()
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False)
    for index in range(20):
        producer.send(topic, b"%d" % index)
    producer.close()
    assert [record.value for record in read_all(bootstrap, topic)] == [b"%d" % index for index in range(20)]


def test_key_value_headers_and_timestamp_come_back_unchanged(bootstrap, make_topic):
    topic = make_topic()
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        sent = producer.send(topic, key=b"k", value=b"\x00v", headers=[("h", b"1")], timestamp_ms=1_600_000_000_123)
        assert sent.get(10).offset == 0
        producer.send(topic, key=b"only a key", value=None).get(10)
    first, second = read_all(bootstrap, topic)
    assert (first.key, first.value, first.timestamp) == (b"k", b"\x00v", 1_600_000_000_123)
    assert list(first.headers) == [("h", b"1")]
    assert (second.key, second.value, second.offset) == (b"only a key", None, 1)


def test_compressed_batches_come_back_whole(bootstrap, make_topic):
    topic = make_topic()
    with KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip", linger_ms=50) as producer:
        for index in range(50):
            producer.send(topic, b"%d" % index)
    assert [record.value for record in read_all(bootstrap, topic)] == [b"%d" % index for index in range(50)]


async def test_idempotent_producer_fills_offsets_without_gaps(bootstrap, make_topic):
    topic = make_topic(partitions=2)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        futures = [await producer.send(topic, b"%d" % index, partition=index % 2) for index in range(200)]
        offsets = [(await future).offset for future in futures]
    assert offsets[0::2] == list(range(100))
    assert offsets[1::2] == list(range(100))


def test_a_repeated_idempotent_batch_is_stored_once(
    bootstrap, make_topic, connect, make_batch, make_produce, make_fetch
):
    topic = make_topic()
    client = connect(bootstrap)
    ids = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 1)
    assert ids.error_code == 0
    first = make_batch([b"a", b"b"], ids.producer_id, ids.producer_epoch, 0)
    second = make_batch([b"c"], ids.producer_id, ids.producer_epoch, 2)
    assert produced(client.ask(make_produce(topic, first), 8)) == (0, 0)
    assert produced(client.ask(make_produce(topic, second), 8)) == (0, 2)
    assert produced(client.ask(make_produce(topic, first), 8)) == (0, 0)
    assert produced(client.ask(make_produce(topic, second), 8)) == (0, 2)
    assert fetched(client.ask(make_fetch(topic, 0), 11)).high_watermark == 3


def test_a_gap_in_the_sequence_is_refused(bootstrap, make_topic, connect, make_batch, make_produce):
    topic = make_topic()
    client = connect(bootstrap)
    ids = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 1)
    begin = make_batch([b"a"], ids.producer_id, 0, 0)
    gap = make_batch([b"c"], ids.producer_id, 0, 2)
    assert produced(client.ask(make_produce(topic, begin), 8)) == (0, 0)
    assert produced(client.ask(make_produce(topic, gap), 8))[0] == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_producer_epoch_is_fenced(bootstrap, make_topic, connect, make_batch, make_produce):
    topic = make_topic()
    client = connect(bootstrap)
    ids = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 1)
    for epoch, expected in ((0, 0), (1, 0), (0, INVALID_PRODUCER_EPOCH)):
        batch = make_batch([b"a"], ids.producer_id, epoch, 0)
        assert produced(client.ask(make_produce(topic, batch), 8))[0] == expected


def test_a_new_epoch_begins_at_sequence_zero(bootstrap, make_topic, connect, make_batch, make_produce):
    topic = make_topic()
    client = connect(bootstrap)
    ids = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 1)
    assert produced(client.ask(make_produce(topic, make_batch([b"a"], ids.producer_id, 0, 0)), 8))[0] == 0
    late = make_batch([b"a"], ids.producer_id, 1, 1)
    assert produced(client.ask(make_produce(topic, late), 8))[0] == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_fails_its_crc_is_refused(bootstrap, make_topic, connect, make_batch, make_produce):
    topic = make_topic()
    client = connect(bootstrap)
    batch = bytearray(make_batch([b"payload"]))
    batch[-1] ^= 1
    assert produced(client.ask(make_produce(topic, bytes(batch)), 8))[0] == CORRUPT_MESSAGE


def test_a_produce_with_unknown_acks_is_refused(bootstrap, make_topic, connect, make_batch, make_produce):
    client = connect(bootstrap)
    answer = client.ask(make_produce(make_topic(), make_batch([b"a"]), acks=2), 8)
    assert produced(answer)[0] == INVALID_REQUIRED_ACKS


def test_unknown_topics_and_partitions_are_errors_and_are_not_created(
    bootstrap, admin, make_topic, unique, connect, make_batch, make_produce, make_fetch
):
    absent = unique("absent")
    client = connect(bootstrap)
    assert produced(client.ask(make_produce(absent, make_batch([b"a"])), 8))[0] == UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(client.ask(make_fetch(absent, 0), 11)).error_code == UNKNOWN_TOPIC_OR_PARTITION
    beyond = make_produce(make_topic(), make_batch([b"a"]), partition=5)
    assert produced(client.ask(beyond, 8))[0] == UNKNOWN_TOPIC_OR_PARTITION
    assert admin.describe_topics([absent])[0]["error_code"] == UNKNOWN_TOPIC_OR_PARTITION
    assert absent not in admin.list_topics()


def test_a_batch_above_the_topics_limit_is_refused(bootstrap, make_topic):
    topic = make_topic(max_message_bytes="2000")
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        assert producer.send(topic, b"x" * 1000).get(10).offset == 0
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"x" * 4000).get(10)


def test_log_append_time_replaces_the_producers_time(bootstrap, make_topic):
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000) - 2000
    with KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        sent = [producer.send(topic, b"%d" % index, timestamp_ms=1000 + index) for index in range(3)]
        reported = {future.get(10).timestamp for future in sent}
    after_ms = int(time.time() * 1000) + 2000
    records = read_all(bootstrap, topic)
    assert [record.value for record in records] == [b"0", b"1", b"2"]
    assert {record.timestamp for record in records} == reported
    assert all(before_ms <= timestamp <= after_ms for timestamp in reported)
    assert {record.timestamp_type for record in records} == {1}


def test_a_fetch_at_the_end_waits_and_returns_empty(bootstrap, make_topic, connect, make_fetch):
    topic = make_topic()
    client = connect(bootstrap)
    started = time.monotonic()
    partition = fetched(client.ask(make_fetch(topic, 0, max_wait_ms=300), 11))
    assert time.monotonic() - started >= 0.25
    assert (partition.error_code, partition.high_watermark, bytes(partition.records or b"")) == (0, 0, b"")


def test_a_waiting_fetch_is_answered_by_an_append(bootstrap, make_topic, connect, make_batch, make_produce, make_fetch):
    topic = make_topic()
    reader, writer = connect(bootstrap), connect(bootstrap)
    # Longer than the client waits for an answer.
    request = make_fetch(topic, 0, max_wait_ms=600_000)
    reader.send(request, 11)
    timer = threading.Timer(0.2, lambda: writer.ask(make_produce(topic, make_batch([b"late"])), 8))
    started = time.monotonic()
    timer.start()
    partition = fetched(reader.receive(request))
    timer.join()
    assert time.monotonic() - started > 0.1
    assert b"late" in bytes(partition.records)


def test_a_fetch_waits_for_min_bytes(bootstrap, make_topic, connect, make_batch, make_produce, make_fetch):
    topic = make_topic()
    client = connect(bootstrap)
    assert produced(client.ask(make_produce(topic, make_batch([b"x" * 10])), 8)) == (0, 0)
    started = time.monotonic()
    partition = fetched(client.ask(make_fetch(topic, 0, max_wait_ms=300, min_bytes=10_000), 11))
    assert time.monotonic() - started >= 0.25
    assert b"x" * 10 in bytes(partition.records)


def test_a_fetch_respects_max_bytes_but_returns_one_batch(
    bootstrap, make_topic, connect, make_batch, make_produce, make_fetch
):
    topic = make_topic()
    client = connect(bootstrap)
    sizes = []
    for index in range(4):
        batch = make_batch([b"%d" % index * 500])
        sizes.append(len(batch))
        assert produced(client.ask(make_produce(topic, batch), 8)) == (0, index)
    one = fetched(client.ask(make_fetch(topic, 1, max_bytes=1, partition_max_bytes=1), 11))
    assert len(one.records) == sizes[1]
    two = fetched(client.ask(make_fetch(topic, 0, partition_max_bytes=sizes[0] + sizes[1]), 11))
    assert len(two.records) == sizes[0] + sizes[1]


def test_an_offset_past_the_end_is_out_of_range(bootstrap, make_topic, connect, make_fetch):
    client = connect(bootstrap)
    assert fetched(client.ask(make_fetch(make_topic(), 7), 11)).error_code == OFFSET_OUT_OF_RANGE


def test_a_batch_keeps_its_bytes_behind_the_offset(
    bootstrap, make_topic, connect, make_batch, make_produce, make_fetch
):
    topic = make_topic()
    client = connect(bootstrap)
    batches = [make_batch([b"a", b"b"]), make_batch([b"c"])]
    for batch in batches:
        client.ask(make_produce(topic, batch), 8)
    records = bytes(fetched(client.ask(make_fetch(topic, 0), 11)).records)
    second = records[len(batches[0]) :]
    assert records[16 : len(batches[0])] == batches[0][16:]
    assert second[16:] == batches[1][16:]
    assert int.from_bytes(second[:8], "big") == 2


async def test_many_waiting_consumers_all_see_a_record(bootstrap, make_topic):
    topic = make_topic()
    consumers = [AIOKafkaConsumer(topic, bootstrap_servers=bootstrap) for _ in range(4)]
    for consumer in consumers:
        await consumer.start()
        await consumer.seek_to_beginning()
    waiting = [asyncio.create_task(consumer.getone()) for consumer in consumers]
    await asyncio.sleep(0.2)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"for all")
    records = await asyncio.wait_for(asyncio.gather(*waiting), patience(10))
    for consumer in consumers:
        await consumer.stop()
    assert {record.value for record in records} == {b"for all"}
