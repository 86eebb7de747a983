"""Dead letters: listed, shown without content, and put again once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.broker import EmbeddedBroker
from hushstream.engine.catalogue import ITEMS
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.records import InputRecord
from hushstream.ops import dead_letters, topics
from hushstream.ops.connection import Connection
from hushstream.ops.dead_letters import Letter, RecordGone, Requeued, letters_of, plan, require_there, row_alone
from hushstream.ops.log_copy import LogCopy, Pause, copy_async, whole
from hushstream.ops.logs.losses import Plan
from hushstream.privacy.key_files import load_key, retire, rotate
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.replay.runners.direct import DirectDriver, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.batches import (
    encode_context_batch,
    encode_feedback_batch,
    encode_label_batch,
    encode_record_batch,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import Reason

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


async def requeue(connection: Connection, system: Any, letter: Any, keys: KeySource) -> Plan[Requeued]:
    """As `hushstream logs repair letter --write` does."""
    planned = await plan(connection, system, [letter], keys)
    await planned.act()
    return planned


@pytest.mark.usefixtures("published")
async def test_requeued_twice_is_requeued_once(deployment, connection):
    letters = await refused(connection, deployment)
    letter = next(one for one in letters if one.topic == "contexts" and one.partition == 1)
    before = await values(connection, deployment, "contexts", 1)
    first = await requeue(connection, deployment.system, letter, deployment.keys)
    assert first.rows == (Requeued("contexts", 1, letter.offset, letter.row, len(before[letter.offset])),)
    assert await values(connection, deployment, "contexts", 1) == [*before, before[letter.offset]]
    second = await requeue(connection, deployment.system, letter, deployment.keys)
    again = f"contexts/1 offset {letter.offset} row 0: it is there again already, at offset {len(before)}"
    assert (second.rows, second.remarks) == ((), (again,))
    assert len(await values(connection, deployment, "contexts", 1)) == len(before) + 1


@pytest.mark.usefixtures("published")
async def test_every_dead_letter_of_a_run_can_be_put_again_in_its_own_partition(deployment, connection):
    letters = await refused(connection, deployment)
    assert len(letters) == 12
    planned = await plan(connection, deployment.system, [*letters, letters[0]], deployment.keys)
    assert [(one.topic, one.partition) for one in planned.rows] == [(one.topic, one.partition) for one in letters], (
        "one of which several partitions say that they refused it is put again once"
    )
    before = {
        place: await values(connection, deployment, *place) for place in {(o.topic, o.partition) for o in letters}
    }
    await planned.act()
    for place, known in before.items():
        assert len(await values(connection, deployment, *place)) == len(known) + sum(
            (one.topic, one.partition) == place for one in letters
        )


@pytest.mark.usefixtures("published")
async def test_what_its_writer_has_sent_again_is_not_put_a_third_time(deployment, connection):
    letters = await refused(connection, deployment)
    letter = next(one for one in letters if one.topic == "clicks")
    before = await values(connection, deployment, "clicks", letter.partition)
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap) as producer:
        await producer.send_and_wait("mine.clicks", before[letter.offset], partition=letter.partition)
    found = await requeue(connection, deployment.system, letter, deployment.keys)
    assert found.rows == ()
    assert found.remarks[0].endswith(f"it is there again already, at offset {len(before)}")


@pytest.mark.usefixtures("published")
async def test_a_record_that_retention_deleted_is_said_to_be_gone(deployment, connection):
    letters = await refused(connection, deployment)
    letter = replace(letters[0], offset=10**6)
    with pytest.raises(RecordGone, match=r"the log ends at \d+; the topic was wiped or replaced"):
        await requeue(connection, deployment.system, letter, deployment.keys)
    require_there(letters[0], low=0, high=letters[0].offset + 1)
    require_there(letters[0], low=letters[0].offset, high=letters[0].offset + 1)
    with pytest.raises(RecordGone, match="retention has deleted it, the log begins at 1000000; ask its writer"):
        require_there(letters[0], low=10**6, high=10**7)


@pytest.mark.usefixtures("published")
async def test_another_record_in_its_place_is_never_put_in_its_name(deployment, connection):
    letters = await refused(connection, deployment)
    before = await values(connection, deployment, "contexts", 0)
    letter = next(one for one in letters if (one.topic, one.partition) == ("contexts", 0))
    with pytest.raises(RecordGone, match="another digest"):
        await requeue(connection, deployment.system, replace(letter, offset=letter.offset - 1), deployment.keys)
    with pytest.raises(RecordGone, match="the key of that time was not given"):
        await requeue(connection, deployment.system, letter, KeySource(seed=8))
    assert await values(connection, deployment, "contexts", 0) == before


@pytest.mark.usefixtures("published")
async def test_after_the_key_has_turned_letters_of_both_keys_are_still_put_again(deployment, connection, tmp_path):
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
        assert (await requeue(connection, deployment.system, replace(letter, digest=digest), keys)).rows
    retire(key_path(tmp_path, "edge"), 0)
    old = first.digest("dead-letter", stored[contexts[0].offset]).hex()
    with pytest.raises(RecordGone, match="the key of that time was not given"):
        await requeue(connection, deployment.system, replace(contexts[0], digest=old), keys)


@pytest.mark.usefixtures("published")
async def test_nobody_but_its_role_writes_a_journal(deployment, connection):
    letters = await refused(connection, deployment)
    with pytest.raises(HushstreamError, match="expected a record of an input, got one of models"):
        await requeue(connection, deployment.system, replace(letters[0], topic="models"), deployment.keys)


@pytest.mark.usefixtures("published")
async def test_of_a_batch_the_refused_row_alone_is_put_again(deployment, connection):
    contexts = np.arange(12, dtype=np.float32).reshape(3, 4)
    batch = encode_context_batch(["a", "b", "c"], ["u", "v", "w"], contexts, baselines=[0, 1, 2])
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap) as producer:
        sent = await producer.send_and_wait("mine.contexts", batch, partition=0)
    letters = await refused(connection, deployment)
    digest = deployment.keys.key("edge").digest("dead-letter", batch).hex()
    letter = replace(letters[0], topic="contexts", partition=0, offset=sent.offset, row=1, digest=digest)
    assert (await requeue(connection, deployment.system, letter, deployment.keys)).rows
    assert not (await requeue(connection, deployment.system, letter, deployment.keys)).rows
    alone = encode_context_batch(["b"], ["v"], contexts[1:2], baselines=[1])
    assert (await values(connection, deployment, "contexts", 0))[-1] == alone


def test_a_row_of_any_batch_is_the_event_that_it_was():
    masks, both = [b"\x01", b"\x03"], (["a", "b"], ["u", "v"])
    batch = encode_context_batch(*both, np.eye(2), track="x", eligible=masks, after_clicks=[-1, 9])
    alone = encode_context_batch(["b"], ["v"], np.eye(2)[1:], track="x", eligible=masks[1:], after_clicks=[9])
    assert row_alone(batch, 1) == alone
    digest = bytes(range(16))
    rows = {"event_ids": both[0], "users": both[1], "rows": b"abcd", "features_digest": digest}
    declared = codec.encode("FeatureContextBatch", rows)
    cut = {"event_ids": ["b"], "users": ["v"], "rows": b"cd", "features_digest": digest}
    assert row_alone(declared, 1) == codec.encode("FeatureContextBatch", cut)
    clicks = encode_feedback_batch([1, 0], *both, [3, 4], [0.25, 0.0])
    assert row_alone(clicks, 0) == encode_feedback_batch([1], ["a"], ["u"], [3], [0.25])
    click = codec.encode("Feedback", {"kind": "reward", "event_id": "a", "user": "u", "arm": 3, "reward": 0.25})
    assert row_alone(click, 0) == click
    records = encode_record_batch(*both, [0, 1], [2, 1], [3, 5, 7], [1, 2, 9], after_phase=4)
    assert row_alone(records, 1) == encode_record_batch(["b"], ["v"], [1], [1], [7], [9], after_phase=4)
    labels = encode_label_batch(*both, [1, -1])
    assert row_alone(labels, 1) == encode_label_batch(["b"], ["v"], [-1])
    for value in (batch, declared, clicks, records, labels):
        with pytest.raises(HushstreamError, match="expected a record with row 7, got none"):
            row_alone(value, 7)


def topics_of(system: System) -> tuple[str, ...]:
    return tuple(topic.name for topic in system.topics if topic.holds_dead_letters)


def letters_in(
    copy: LogCopy, system: System, only: tuple[str, int, int] | None = None
) -> tuple[dead_letters.Letter, ...]:
    """The dead letters of a deployment, or those of one record."""
    return dead_letters.read(copy, topics_of(system), system.partitions, only)


def summary_of(copy: LogCopy, system: System) -> tuple[dead_letters.Summary, ...]:
    return dead_letters.summarise(copy, topics_of(system), system.partitions)


def test_every_refused_record_is_listed_with_its_place_and_reason(deployment):
    letters = letters_in(deployment.copy, deployment.system)
    assert len(letters) == 12
    assert {letter.zone for letter in letters} == {"edge"}
    assert all(letter.partition == letter.filed_partition and letter.times == 1 for letter in letters)
    reasons = {letter.reason for letter in letters if letter.topic == "contexts"}
    assert {str(Refusal.UNKNOWN_LINE), str(Reason.NOT_SINGLE_OBJECT)} <= reasons
    for letter in letters:
        value = deployment.log.slice(letter.topic, letter.partition, letter.offset, letter.offset + 1).records[0].value
        assert deployment.keys.key("edge").digest("dead-letter", value).hex() == letter.digest


def test_a_summary_counts_by_reason_and_partition(invaded):
    letters = letters_in(invaded.copy, invaded.system)
    summary = summary_of(invaded.copy, invaded.system)
    assert sum(one.count for one in summary) == len(letters) == 12 + 8 + 2
    foreign = [one for one in summary if one.reason == Refusal.OTHER_CONFIGURATION]
    assert {(one.zone, one.topic, one.partition, one.count) for one in foreign} == {
        ("shuffler", "reports", 0, 2),
        ("shuffler", "reports", 1, 2),
    }
    assert [one.count for one in summary] == sorted((one.count for one in summary), reverse=True)
    assert foreign[0].first_offset < foreign[0].last_offset


def test_those_of_a_record_are_found_by_its_place(deployment):
    letters = letters_in(deployment.copy, deployment.system)
    wanted = letters[3]
    place = (wanted.topic, wanted.partition, wanted.offset)
    (one,) = letters_in(deployment.copy, deployment.system, place)
    assert one == wanted
    with pytest.raises(dead_letters.UnknownDeadLetter, match="contexts/1 offset 9999"):
        letters_in(deployment.copy, deployment.system, ("contexts", 1, 9999))


def test_a_million_of_them_are_counted_without_decoding_each(deployment, monkeypatch):
    """853,000 took 67 s, of which the decoding and a text of all records, which nobody printed, took 50."""
    fields = {"zone": "edge", "role": "learner", "reason": "malformed_avro", "topic": "clicks", "row": -1}
    count = 20_000
    records = [
        InputRecord(
            n, 0, codec.encode("DeadLetter", {**fields, "partition": n % 2, "offset": n * 7, "digest": bytes(16)})
        )
        for n in range(count)
    ]
    decoded: list[str] = []
    decode = codec.decode
    monkeypatch.setattr(codec, "decode", lambda value, kinds: decoded.append("one") or decode(value, kinds))
    copy = LogCopy({("dead-letters-edge", 0): whole(records)})
    summary = summary_of(copy, deployment.system)
    assert [(one.partition, one.count) for one in summary] == [(0, count // 2), (1, count // 2)]
    assert [(one.first_offset, one.last_offset) for one in summary] == [(0, (count - 2) * 7), (7, (count - 1) * 7)]
    (found,) = letters_in(copy, deployment.system, ("clicks", 1, 71 * 7))
    assert (found.offset, found.filed_offset) == (497, 71)
    assert len(decoded) == 2 + 2 + 1
    assert len(repr(copy)) < 200, "asyncio.run makes the text of what it returns"


def test_a_repeated_dead_letter_is_one(deployment, editor):
    source = ("dead-letters-edge", 0)
    records = editor.copy.part(source).records
    letters = letters_in(editor.inserted(source, len(records), records[2].value), deployment.system)
    assert len(letters) == 12
    assert [letter.filed_offset for letter in letters if letter.times == 2] == [2]


def test_no_payload_is_in_a_listing(deployment):
    shown = str(letters_in(deployment.copy, deployment.system))
    assert "not a record" not in shown
    assert "nan" not in shown


def test_what_is_no_dead_letter_is_an_error_that_says_where(deployment, editor):
    with pytest.raises(HushstreamError, match="dead-letters-edge/0 offset 0: expected a dead letter"):
        letters_in(editor.inserted(("dead-letters-edge", 0), 0, b"noise"), deployment.system)


def test_a_record_that_each_partition_of_a_role_reads_and_refuses_is_listed_once_at_its_own_place(tmp_path):
    """The only partition of `items` was listed as three: each letter named the partition of its writer."""
    config = {
        "system": "p2b",
        "deployment": "shop",
        "items": {"named": True, "capacity": 3},
        "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
        "release": {"form": "features", "window_units": 100},
        "expected_slots": 100,
        "partitions": {"learner": 3},
    }
    system = prepare(tmp_path, parse_config(config))
    log = MemoryLog()
    offset = log.append(ITEMS, 0, b"no change of the catalogue")
    DirectDriver(log, all_machines(system, KeySource(seed=1)), bytes(32)).pump()
    letters = letters_in(LogCopy.of(log), system)
    assert [letter.filed_partition for letter in letters] == [0, 1, 2]
    (listed,) = summary_of(LogCopy.of(log), system)
    assert (listed.topic, listed.partition, listed.count) == (ITEMS, 0, 1)
    assert (listed.first_offset, listed.last_offset) == (offset, offset)
    assert letters_in(LogCopy.of(log), system, (ITEMS, 0, offset)) == letters
