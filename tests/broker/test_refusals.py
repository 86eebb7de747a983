"""What the embedded broker refuses, and its command."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from kafka import KafkaAdminClient
from kafka.protocol import admin as admin_messages
from kafka.protocol import metadata as metadata_messages
from kafka.protocol.producer import InitProducerIdRequest

from hushstream.broker import BrokerSettings, BrokerStartError, EmbeddedBroker, ErrorCode, main
from hushstream.broker.disk import Volatile
from hushstream.broker.errors import RequestRefused
from hushstream.broker.store import TopicStore
from patience import patience


async def store(**settings: int) -> TopicStore:
    made = TopicStore(BrokerSettings(**settings), Volatile())
    await made.create("t", 2, {})
    return made


def append(topics: TopicStore, topic: str, partition: int, batch: bytes) -> int:
    appended, kept = topics.append(topic, partition, batch)
    assert kept.result() == ""
    return appended.base_offset


async def refusal(call: Callable[[], object]) -> ErrorCode:
    async def done() -> None:
        answer = call()
        if isinstance(answer, Awaitable):
            await answer

    with pytest.raises(RequestRefused) as caught:
        await done()
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
async def test_a_setting_it_cannot_honour_is_refused_not_ignored(name, value):
    topics = await store()
    assert await refusal(lambda: topics.create("u", 1, {name: value})) is ErrorCode.INVALID_CONFIG


async def test_in_memory_a_compacted_topic_keeps_every_record(make_batch):
    topics = await store()
    await topics.create("u", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"})
    for index in range(3):
        assert append(topics, "u", 0, make_batch([b"of one key"])) == index
    assert topics.partition("u", 0).start_offset == 0


async def test_a_full_partition_refuses_records_and_keeps_those_it_has(make_batch):
    batch = make_batch([b"x" * 1000])
    topics = await store(max_bytes_per_partition=int(2.5 * len(batch)))
    for index in range(2):
        assert append(topics, "t", 0, batch) == index
    assert await refusal(lambda: topics.append("t", 0, batch)) is ErrorCode.POLICY_VIOLATION
    assert append(topics, "t", 1, batch) == 0
    log = topics.partition("t", 0)
    assert (log.start_offset, log.next_offset, len(log.read(0, 1 << 20, True))) == (0, 2, 2 * len(batch))


async def test_a_full_broker_refuses_records_until_a_topic_is_deleted(make_batch):
    batch = make_batch([b"x" * 1000])
    topics = await store(max_bytes_total=2 * len(batch))
    await topics.create("u", 1, {})
    append(topics, "t", 0, batch)
    append(topics, "t", 1, batch)
    assert await refusal(lambda: topics.append("u", 0, batch)) is ErrorCode.POLICY_VIOLATION
    await topics.delete("t")
    assert append(topics, "u", 0, batch) == 0


async def test_partitions_are_bounded():
    topics = await store(max_partitions_total=5)
    assert await refusal(lambda: topics.create("u", 4, {})) is ErrorCode.INVALID_PARTITIONS
    assert await refusal(lambda: topics.grow("t", 6)) is ErrorCode.INVALID_PARTITIONS
    await topics.create("u", 3, {})


async def test_unsound_batches_are_refused(make_batch):
    topics = await store()
    sound = make_batch([b"a", b"b"])
    wrong_magic = sound[:16] + b"\x01" + sound[17:]
    for bad in (b"", sound[:60], sound[:-1], sound + sound, wrong_magic):
        assert await refusal(lambda bad=bad: topics.append("t", 0, bad)) is ErrorCode.CORRUPT_MESSAGE
    transactional = make_batch([b"a"], 1, 0, 0, transactional=True)
    assert await refusal(lambda: topics.append("t", 0, transactional)) is ErrorCode.INVALID_RECORD
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


@contextmanager
def broker_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "hushstream.broker", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_cleanly_by_signal(tmp_path, stop):
    ready = tmp_path / "ready"
    with broker_process("--port", "0", "--ready-file", str(ready)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("hushstream broker listening on 127.0.0.1:")
        bootstrap = line.split()[-1]
        assert ready.read_text(encoding="utf-8") == f"{bootstrap}\n"
        client = KafkaAdminClient(bootstrap_servers=bootstrap)
        process.send_signal(stop)
        out, err = process.communicate(timeout=patience(10))
        client.close()
        assert (process.returncode, out, err) == (0, "", "")


def test_a_port_in_use_is_one_line_and_exit_code_two(taken_port):
    with broker_process("--port", str(taken_port)) as process:
        out, err = process.communicate(timeout=patience(10))
        assert (process.returncode, out) == (2, "")
        assert err == (
            f"hushstream broker: port {taken_port} on 127.0.0.1 is in use by another process; "
            "name another one (--port)\n"
        )


@pytest.mark.parametrize(
    "arguments", [["--host", "0.0.0.0"], ["--host", "192.0.2.1"], ["--port", "70000"], ["--port", "99999999"]]
)
def test_an_address_it_may_not_or_cannot_use_is_exit_code_two(capsys, arguments):
    assert main(["--port", "0", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("hushstream broker: ")
    assert message.count("\n") == 1


def test_the_cap_of_a_partition_can_be_set(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--max-bytes-per-partition", "much"])
    assert caught.value.code == 2
    assert "--max-bytes-per-partition" in capsys.readouterr().err


async def test_stopping_does_not_wait_for_a_client_that_does_not_read(
    make_topics, make_batch, make_produce, make_fetch
):
    async with asyncio.timeout(patience(10)):
        async with EmbeddedBroker() as broker:
            await make_topics(broker.bootstrap, t=1)
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=1024)
            for request, version in [(make_produce("t", make_batch([b"x" * 1_000_000])), 8)] + [
                (make_fetch("t", 0, max_bytes=1 << 21, partition_max_bytes=1 << 21), 11) for _ in range(50)
            ]:
                request.API_VERSION = version
                request.with_header(correlation_id=1)
                writer.write(bytes(request.encode(header=True, framed=True)))
            await reader.readexactly(100)
        writer.close()
