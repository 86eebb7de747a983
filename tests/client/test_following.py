"""A client reads the answers of the partitions that it asks in: none is missed there, and no other is fetched."""

import asyncio
from collections import defaultdict

import pytest
from aiokafka import AIOKafkaProducer

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.client import logs
from hushstream.client.kafka import KafkaEventLog
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.schemas.errors import HushstreamError
from patience import Patience

pytestmark = pytest.mark.asyncio

PARTITIONS = 6
SHOP = {
    "deployment": "small",
    "items": {"capacity": 3},
    "features": {"dimension": 3},
    "expected_slots": 9,
    "encoder": {"codes": 4},
    "partitions": {"learner": PARTITIONS},
}


async def test_an_answer_is_delivered_however_soon_it_follows_and_others_are_not_fetched(tmp_path):
    system = prepare(tmp_path / "shop", parse_config(SHOP))
    async with EmbeddedBroker() as broker:
        await apply_async(Connection(broker.bootstrap, "small."), system)
        answering = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await answering.start()
        log, delivered = KafkaEventLog(broker.bootstrap, "small."), defaultdict(list)
        await log.start(lambda partition, offset, value: delivered[partition].append((offset, value)))
        sent = defaultdict(list)
        try:
            for turn in range(3):
                for partition in range(PARTITIONS):
                    # In even partitions this client asks, and more of them each turn while answers come in the others.
                    if partition % 2 == 0 and partition <= 2 * turn:
                        await log.append("contexts", partition, b"a question")
                    for number in range(20):
                        value = b"%d %d" % (turn, number)
                        found = await answering.send_and_wait("small.decisions", value, partition=partition)
                        if partition % 2 == 0 and partition <= 2 * turn:
                            sent[partition].append((found.offset, value))
            waiting = Patience(60)
            while {p: rows[-1] for p, rows in sent.items()} != {p: rows[-1] for p, rows in delivered.items()}:
                assert not waiting.over, delivered
                await asyncio.sleep(0.05)
        finally:
            await answering.stop()
            await log.stop()
    assert set(sent) == {0, 2, 4}
    assert delivered == sent, "each once, in order, from the first question on"


async def test_what_was_appended_is_in_the_log_once_that_is_closed(tmp_path):
    system = prepare(tmp_path / "shop", parse_config(SHOP))
    async with EmbeddedBroker() as broker:
        await apply_async(Connection(broker.bootstrap, "small."), system)
        log = KafkaEventLog(broker.bootstrap, "small.", linger_seconds=0.5)
        await log.start(lambda *answer: None)
        appended = [log.append(topic, 0, b"a record") for topic in ("contexts", "contexts", "clicks")]
        await log.stop()
        assert [one.done() and one.result() for one in appended] == [0, 1, 0]


async def test_a_partition_whose_end_nobody_tells_holds_up_no_other(tmp_path, monkeypatch):
    system = prepare(tmp_path / "shop", parse_config(SHOP))
    async with EmbeddedBroker() as broker:
        await apply_async(Connection(broker.bootstrap, "small."), system)
        answering = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await answering.start()
        log, delivered = KafkaEventLog(broker.bootstrap, "small."), asyncio.Queue()
        await log.start(lambda *answer: delivered.put_nowait(answer))
        tell, silent = log._consumer.end_offsets, asyncio.Event()

        async def some(places):
            return await (silent.wait() if places[0].partition == 1 else tell(places))

        monkeypatch.setattr(log._consumer, "end_offsets", some)
        monkeypatch.setattr(logs, "END_SECONDS", 2.0)
        try:
            without = log.append("contexts", 1, b"a question")
            for partition in (0, 2):
                await log.append("contexts", partition, b"a question")
                await answering.send_and_wait("small.decisions", b"an answer", partition=partition)
                assert (await delivered.get())[0] == partition
            with pytest.raises(HushstreamError, match=r"to tell where small.decisions/1 ends, got TimeoutError"):
                await without
        finally:
            await answering.stop()
            await log.stop()


async def test_who_waits_for_answers_of_a_client_that_is_closed_is_told(tmp_path):
    system = prepare(tmp_path / "shop", parse_config(SHOP))
    async with EmbeddedBroker() as broker:
        await apply_async(Connection(broker.bootstrap, "small."), system)
        log = KafkaEventLog(broker.bootstrap, "small.")
        await log.start(lambda *_: None)
        answers = log._answers
        await log.append("contexts", 0, b"a question")
        waiting = asyncio.create_task(answers.follow(1))
        while 1 not in answers._beginning:  # noqa: ASYNC110 - it is a task of this loop that does it
            await asyncio.sleep(0)
        await log.stop()
        for asked in (waiting, answers.follow(2), answers.follow(0)):
            with pytest.raises(HushstreamError, match=r"the client was closed|to tell where .* ends"):
                await asked
