"""What the embedded broker does not do, it says; what does not fit, it refuses."""

from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from kafka.protocol import admin as admin_messages
from kafka.protocol import metadata as metadata_messages
from kafka.protocol.producer import InitProducerIdRequest

from hushstream.broker import BrokerSettings, BrokerStartError, EmbeddedBroker, ErrorCode
from hushstream.broker.errors import RequestRefused
from hushstream.broker.store import TopicStore


def store(**settings: int) -> TopicStore:
    made = TopicStore(BrokerSettings(**settings))
    made.create("t", 2, {})
    return made


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(RequestRefused) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unclean.leader.election.enable", "true"),
        ("min.cleanable.dirty.ratio", "2"),
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "zstd"),
        ("min.insync.replicas", "2"),
        ("remote.storage.enable", "true"),
    ],
)
def test_a_setting_it_cannot_honour_is_refused_not_ignored(name, value):
    assert refusal(lambda: store().create("u", 1, {name: value})) is ErrorCode.INVALID_CONFIG


def test_a_compacted_topic_keeps_every_record(make_batch):
    topics = store()
    topics.create("u", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"})
    for index in range(3):
        assert topics.append("u", 0, make_batch([b"of one key"])).base_offset == index
    assert topics.partition("u", 0).start_offset == 0


def test_a_full_partition_refuses_records_and_keeps_those_it_has(make_batch):
    batch = make_batch([b"x" * 1000])
    topics = store(max_bytes_per_partition=int(2.5 * len(batch)))
    for index in range(2):
        assert topics.append("t", 0, batch).base_offset == index
    assert refusal(lambda: topics.append("t", 0, batch)) is ErrorCode.POLICY_VIOLATION
    assert topics.append("t", 1, batch).base_offset == 0
    log = topics.partition("t", 0)
    assert (log.start_offset, log.next_offset, len(log.read(0, 1 << 20, True))) == (0, 2, 2 * len(batch))


def test_a_full_broker_refuses_records_until_a_topic_is_deleted(make_batch):
    batch = make_batch([b"x" * 1000])
    topics = store(max_bytes_total=2 * len(batch))
    topics.create("u", 1, {})
    topics.append("t", 0, batch)
    topics.append("t", 1, batch)
    assert refusal(lambda: topics.append("u", 0, batch)) is ErrorCode.POLICY_VIOLATION
    topics.delete("t")
    assert topics.append("u", 0, batch).base_offset == 0


def test_partitions_are_bounded():
    topics = store(max_partitions_total=5)
    assert refusal(lambda: topics.create("u", 4, {})) is ErrorCode.INVALID_PARTITIONS
    assert refusal(lambda: topics.grow("t", 6)) is ErrorCode.INVALID_PARTITIONS
    topics.create("u", 3, {})


def test_unsound_batches_are_refused(make_batch):
    topics = store()
    sound = make_batch([b"a", b"b"])
    wrong_magic = sound[:16] + b"\x01" + sound[17:]
    for bad in (b"", sound[:60], sound[:-1], sound + sound, wrong_magic):
        assert refusal(lambda bad=bad: topics.append("t", 0, bad)) is ErrorCode.CORRUPT_MESSAGE
    transactional = make_batch([b"a"], 1, 0, 0, transactional=True)
    assert refusal(lambda: topics.append("t", 0, transactional)) is ErrorCode.INVALID_RECORD
    assert topics.partition("t", 0).next_offset == 0


async def test_a_client_learns_at_once_that_the_partition_is_full(make_topics):
    async with EmbeddedBroker(BrokerSettings(max_bytes_per_partition=2000)) as broker:
        await make_topics(broker.bootstrap, t=1)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, request_timeout_ms=5000) as producer:
            await producer.send_and_wait("t", b"x" * 1500)
            with pytest.raises(KafkaError, match="PolicyViolation"):
                await producer.send_and_wait("t", b"x" * 1500)


async def test_a_transactional_producer_is_refused_without_endless_retries():
    async with EmbeddedBroker() as broker:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="tx")
        with pytest.raises(KafkaError):
            await producer.start()
        await producer.stop()


@pytest.fixture
def running() -> Iterator[str]:
    """An embedded broker in a thread of its own, for clients that block."""
    import asyncio
    import threading

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    broker = EmbeddedBroker()
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result(10)
    yield broker.bootstrap
    asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_transactions_and_access_control_get_an_error_code(running, connect):
    client = connect(running)
    init = client.ask(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000), 1)
    assert init.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    find = client.ask(metadata_messages.FindCoordinatorRequest(key="tx", key_type=1), 2)
    assert find.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    describe = admin_messages.DescribeAclsRequest(
        resource_type_filter=2,
        resource_name_filter=None,
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    assert client.ask(describe, 1).error_code == ErrorCode.SECURITY_DISABLED


async def test_an_address_other_machines_can_reach_needs_leave():
    with pytest.raises(BrokerStartError, match="not a loopback address"):
        await EmbeddedBroker(BrokerSettings(host="0.0.0.0")).start()
    with pytest.raises(BrokerStartError, match="not a loopback address"):
        await EmbeddedBroker(BrokerSettings(host="example.org")).start()
    assert BrokerSettings(host="::1").is_loopback()


async def test_two_brokers_never_give_out_one_producer_id():
    ids = {EmbeddedBroker()._node.new_producer_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(0 < identity < 1 << 63 for identity in ids)
