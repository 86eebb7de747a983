"""Positions: beginning, end, by time, seek."""

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import OffsetOutOfRangeError

BASE_MS = 1_700_000_000_000


@pytest.fixture
def timed_topic(bootstrap, make_topic):
    """Ten records, five to a batch, one second apart."""
    topic = make_topic()
    for start in (0, 5):
        with KafkaProducer(bootstrap_servers=bootstrap, linger_ms=200) as producer:
            for index in range(start, start + 5):
                producer.send(topic, b"%d" % index, partition=0, timestamp_ms=BASE_MS + 1000 * index)
    return topic


@pytest.fixture
def consumer(bootstrap):
    client = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    yield client
    client.close()


def test_beginning_and_end(consumer, timed_topic):
    partition = TopicPartition(timed_topic, 0)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 10}


@pytest.mark.parametrize(
    ("asked_ms", "offset"),
    [(0, 0), (BASE_MS, 0), (BASE_MS + 1, 1), (BASE_MS + 3000, 3), (BASE_MS + 4500, 5), (BASE_MS + 9000, 9)],
)
def test_the_first_record_that_is_not_older_is_found_inside_batches(consumer, timed_topic, asked_ms, offset):
    partition = TopicPartition(timed_topic, 0)
    found = consumer.offsets_for_times({partition: asked_ms})[partition]
    assert (found.offset, found.timestamp) == (offset, BASE_MS + 1000 * offset)


def test_a_time_after_the_last_record_has_no_offset(consumer, timed_topic):
    partition = TopicPartition(timed_topic, 0)
    assert consumer.offsets_for_times({partition: BASE_MS + 9001})[partition] is None


def test_times_out_of_order_give_the_first_offset_that_reaches_the_time(bootstrap, consumer, make_topic):
    topic = make_topic()
    for timestamp_ms in (BASE_MS + 10, BASE_MS + 30, BASE_MS + 20):
        with KafkaProducer(bootstrap_servers=bootstrap) as producer:
            producer.send(topic, b"x", timestamp_ms=timestamp_ms).get(10)
    partition = TopicPartition(topic, 0)
    assert consumer.offsets_for_times({partition: BASE_MS + 20})[partition].offset == 1


def test_a_compressed_batch_is_searched_too(bootstrap, consumer, make_topic):
    topic = make_topic()
    with KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip", linger_ms=200) as producer:
        for index in range(5):
            producer.send(topic, b"x", timestamp_ms=BASE_MS + index)
    partition = TopicPartition(topic, 0)
    assert consumer.offsets_for_times({partition: BASE_MS + 3})[partition].offset == 3


def test_seek_reads_from_the_middle_of_a_batch(consumer, timed_topic):
    partition = TopicPartition(timed_topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 3)
    records = next(iter(consumer.poll(timeout_ms=5000, max_records=2).values()))
    assert [record.offset for record in records] == [3, 4]


async def test_aiokafka_seeks_to_both_ends(bootstrap, timed_topic):
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    partition = AioTopicPartition(timed_topic, 0)
    consumer.assign([partition])
    await consumer.seek_to_end(partition)
    assert await consumer.position(partition) == 10
    await consumer.seek_to_beginning(partition)
    assert (await consumer.getone()).offset == 0
    await consumer.stop()


async def test_a_consumer_at_the_end_sees_only_what_comes_after(bootstrap, timed_topic):
    consumer = AIOKafkaConsumer(timed_topic, bootstrap_servers=bootstrap, auto_offset_reset="latest")
    await consumer.start()
    await consumer.seek_to_end()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(timed_topic, b"new")
    record = await consumer.getone()
    await consumer.stop()
    assert (record.offset, record.value) == (10, b"new")


async def test_an_offset_out_of_range_falls_back_to_the_reset_policy(bootstrap, timed_topic):
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    partition = AioTopicPartition(timed_topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 500)
    assert (await consumer.getone()).offset == 0
    await consumer.stop()


def test_records_that_were_deleted_are_gone_and_the_log_begins_behind_them(admin, bootstrap, consumer, timed_topic):
    """Inside a batch, and then all: offsets go on where they were."""
    partition = TopicPartition(timed_topic, 0)
    admin.delete_records({partition: 7})
    assert consumer.beginning_offsets([partition]) == {partition: 7}
    assert consumer.end_offsets([partition]) == {partition: 10}
    consumer.assign([partition])
    consumer.seek(partition, 2)
    assert next(consumer).offset == 7, "what is out of range begins where the log does"
    admin.delete_records({partition: -1})
    assert consumer.beginning_offsets([partition]) == {partition: 10}
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        assert producer.send(timed_topic, b"later", partition=0).get(10).offset == 10
    consumer.seek(partition, 10)
    assert next(consumer).value == b"later"
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({partition: 12})
