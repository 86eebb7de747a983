"""A refused record is put on its topic again, once, while the log has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer

from hushstream.agents.worker.deployment import KeySource
from hushstream.broker import EmbeddedBroker
from hushstream.ops import dead_letters, topics
from hushstream.ops.connection import Connection
from hushstream.ops.dead_letters import Letter, letters_of
from hushstream.ops.live import Pause, copy_async
from hushstream.ops.requeue import RecordGone, Requeued, one_event, requeue_async, require_there
from hushstream.privacy.key_files import load_key, retire, rotate
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.schemas import codec
from hushstream.schemas.batches import (
    encode_context_batch,
    encode_feedback_batch,
    encode_label_batch,
    encode_record_batch,
)
from hushstream.schemas.errors import HushstreamError

QUICK = Pause(moment_seconds=0.02, within_seconds=1.0)
TOPICS = ("contexts", "clicks", *(f"dead-letters-{zone}" for zone in ("edge", "shuffler", "server")))


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[Connection]:
    async with EmbeddedBroker() as broker:
        yield Connection(broker.bootstrap, "mine.")


@pytest_asyncio.fixture
async def published(deployment: Any, connection: Connection) -> None:
    """A finished run on a broker."""
    await topics.apply_async(connection, deployment.system)
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap, enable_idempotence=True) as producer:
        sent = [
            await producer.send(connection.prefix + topic, record.value, partition=number)
            for (topic, number), records in deployment.log.partitions()
            for record in records
            if topic in TOPICS
        ]
        await asyncio.gather(*sent)


async def refused(connection: Connection, deployment: Any) -> tuple[Letter, ...]:
    """What the learners refused."""
    topic = letters_of(deployment.system, "edge")
    counts = deployment.system.partitions
    return dead_letters.read(await copy_async(connection, counts, {topic}, QUICK), (topic,), counts)


async def values(connection: Connection, deployment: Any, topic: str, partition: int) -> list[bytes]:
    found = await copy_async(connection, deployment.system.partitions, {topic}, QUICK)
    return [record.value for record in found.part((topic, partition)).records]


@pytest.mark.usefixtures("published")
async def test_requeued_twice_is_requeued_once(deployment: Any, connection: Connection) -> None:
    letters = await refused(connection, deployment)
    letter = next(one for one in letters if one.topic == "contexts" and one.partition == 1)
    before = await values(connection, deployment, "contexts", 1)
    first = await requeue_async(connection, deployment.system, letter, deployment.keys)
    assert first == Requeued("contexts", 1, letter.offset, letter.row, len(before), written=True)
    assert await values(connection, deployment, "contexts", 1) == [*before, before[letter.offset]]
    second = await requeue_async(connection, deployment.system, letter, deployment.keys)
    assert second == replace(first, written=False)
    assert "there again already" in str(second)
    assert len(await values(connection, deployment, "contexts", 1)) == len(before) + 1


@pytest.mark.usefixtures("published")
async def test_every_dead_letter_of_a_run_can_be_put_again_in_its_own_partition(
    deployment: Any, connection: Connection
) -> None:
    letters = await refused(connection, deployment)
    found = [await requeue_async(connection, deployment.system, letter, deployment.keys) for letter in letters]
    assert [(one.topic, one.partition) for one in found] == [(one.topic, one.partition) for one in letters]
    assert all(one.written for one in found)
    assert len(found) == 12


@pytest.mark.usefixtures("published")
async def test_what_its_writer_has_sent_again_is_not_put_a_third_time(deployment: Any, connection: Connection) -> None:
    letters = await refused(connection, deployment)
    letter = next(one for one in letters if one.topic == "clicks")
    before = await values(connection, deployment, "clicks", letter.partition)
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap) as producer:
        await producer.send_and_wait("mine.clicks", before[letter.offset], partition=letter.partition)
    found = await requeue_async(connection, deployment.system, letter, deployment.keys)
    assert (found.offset, found.written) == (len(before), False)


@pytest.mark.usefixtures("published")
async def test_a_record_that_retention_deleted_is_said_to_be_gone(deployment: Any, connection: Connection) -> None:
    letters = await refused(connection, deployment)
    letter = replace(letters[0], offset=10**6)
    with pytest.raises(RecordGone, match=r"the log ends at \d+; the topic was wiped or replaced"):
        await requeue_async(connection, deployment.system, letter, deployment.keys)
    require_there(letters[0], low=0, high=letters[0].offset + 1)
    require_there(letters[0], low=letters[0].offset, high=letters[0].offset + 1)
    with pytest.raises(RecordGone, match="retention has deleted it, the log begins at 1000000; ask its writer"):
        require_there(letters[0], low=10**6, high=10**7)


@pytest.mark.usefixtures("published")
async def test_another_record_in_its_place_is_never_put_in_its_name(deployment: Any, connection: Connection) -> None:
    letters = await refused(connection, deployment)
    before = await values(connection, deployment, "contexts", 0)
    letter = next(one for one in letters if (one.topic, one.partition) == ("contexts", 0))
    with pytest.raises(RecordGone, match="another digest"):
        await requeue_async(connection, deployment.system, replace(letter, offset=letter.offset - 1), deployment.keys)
    with pytest.raises(RecordGone, match="the key of that time was not given"):
        await requeue_async(connection, deployment.system, letter, KeySource(seed=8))
    assert await values(connection, deployment, "contexts", 0) == before


@pytest.mark.usefixtures("published")
async def test_after_the_key_has_turned_letters_of_both_keys_are_still_put_again(
    deployment: Any, connection: Connection, tmp_path: Path
) -> None:
    generate_keys(tmp_path, ("edge",))
    first = load_key(key_path(tmp_path, "edge"))
    rotate(key_path(tmp_path, "edge"))
    second, keys = load_key(key_path(tmp_path, "edge")), KeySource(folder=tmp_path)
    assert first != second
    letters = await refused(connection, deployment)
    contexts = [one for one in letters if (one.topic, one.partition) == ("contexts", 0)][:2]
    stored = await values(connection, deployment, "contexts", 0)
    for letter, key in zip(contexts, (first, second), strict=True):
        digest = key.digest("dead-letter", stored[letter.offset]).hex()
        assert (await requeue_async(connection, deployment.system, replace(letter, digest=digest), keys)).written
    retire(key_path(tmp_path, "edge"), 0)
    old = first.digest("dead-letter", stored[contexts[0].offset]).hex()
    with pytest.raises(RecordGone, match="the key of that time was not given"):
        await requeue_async(connection, deployment.system, replace(contexts[0], digest=old), keys)


@pytest.mark.usefixtures("published")
async def test_nobody_but_its_role_writes_a_journal(deployment: Any, connection: Connection) -> None:
    letters = await refused(connection, deployment)
    with pytest.raises(HushstreamError, match="expected a record of an input, got one of models"):
        await requeue_async(connection, deployment.system, replace(letters[0], topic="models"), deployment.keys)


@pytest.mark.usefixtures("published")
async def test_of_a_batch_the_refused_row_alone_is_put_again(deployment: Any, connection: Connection) -> None:
    contexts = np.arange(12, dtype=np.float32).reshape(3, 4)
    batch = encode_context_batch(["a", "b", "c"], ["u", "v", "w"], contexts, baselines=[0, 1, 2])
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap) as producer:
        sent = await producer.send_and_wait("mine.contexts", batch, partition=0)
    letters = await refused(connection, deployment)
    digest = deployment.keys.key("edge").digest("dead-letter", batch).hex()
    letter = replace(letters[0], topic="contexts", partition=0, offset=sent.offset, row=1, digest=digest)
    assert (await requeue_async(connection, deployment.system, letter, deployment.keys)).written
    assert not (await requeue_async(connection, deployment.system, letter, deployment.keys)).written
    name, fields = codec.decode((await values(connection, deployment, "contexts", 0))[-1])
    assert (name, fields["event_id"], fields["user"], fields["baseline"]) == ("Context", "b", "v", 1)
    assert np.array_equal(np.frombuffer(fields["context"], "<f4"), contexts[1])


def test_a_row_of_any_batch_is_the_event_that_it_was() -> None:
    masks = [b"\x01", b"\x03"]
    batch = encode_context_batch(["a", "b"], ["u", "v"], np.eye(2), track="x", eligible=masks, after_clicks=[-1, 9])
    fields = {"event_id": "b", "user": "v", "line": "x", "context": np.eye(2, dtype="<f4")[1].tobytes()}
    assert one_event(batch, 1) == codec.encode("Context", {**fields, "eligible": b"\x03", "after_click": 9})
    clicks = encode_feedback_batch([1, 0], ["a", "b"], ["u", "v"], [3, 4], [0.25, 0.0])
    click = {"kind": "reward", "event_id": "a", "user": "u", "arm": 3, "reward": 0.25}
    assert one_event(clicks, 0) == codec.encode("Feedback", click)
    assert one_event(codec.encode("Feedback", click), 0) == codec.encode("Feedback", click)
    records = encode_record_batch(["a", "b"], ["u", "v"], [0, 1], [2, 1], [3, 5, 7], [1, 2, 9], after_phase=4)
    record = {"event_id": "b", "user": "v", "node": 1, "after_phase": 4}
    row = {"indices": np.array([7], "<i4").tobytes(), "values": np.array([9], "<i4").tobytes()}
    assert one_event(records, 1) == codec.encode("Record", {**record, **row})
    labels = encode_label_batch(["a", "b"], ["u", "v"], [1, -1])
    assert one_event(labels, 1) == codec.encode("Label", {"event_id": "b", "user": "v", "label": -1})
    for value in (batch, clicks, records, labels):
        with pytest.raises(HushstreamError, match="expected a record with row 7, got none"):
            one_event(value, 7)
