"""A state follows its partition: published, found by another worker whose disk knows nothing, or refused clearly."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from hushstream.agents.errors import InputsDeleted, JournalTruncated, TopicsReplaced
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery import losses, state_topic
from hushstream.agents.recovery.beginning import Beginning
from hushstream.agents.recovery.recovery import Recovery
from hushstream.agents.recovery.snapshots import RecoveredMachine, Snapshot, SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.recovery.user_store import UserDatabase, UsersLost
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.homes import OutputEnds
from hushstream.agents.worker.roles import role_work
from hushstream.broker import EmbeddedBroker
from hushstream.engine.journal.notes import Checkpoint, Note, NoteSeal
from hushstream.engine.machine import StoredUser
from hushstream.engine.records import InputRecord, InputSlice, Output
from hushstream.engine.state.published import CHECKPOINT, HEAD, SLOTS, padded, record_digest, slot_key
from hushstream.ops.connection import Connection
from hushstream.ops.logs.inputs import continue_offsets, look
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas.errors import HushstreamError
from recordings import KEYS, VARIANTS, recorded

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = [(1_000_000 + i, b"k%d" % (i % 5)) for i in range(60)]
STATE, JOURNAL, INPUT = ("state-counting", 0), ("journal-counting", 0), ("events", 0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[AIOKafkaProducer]:
    async with EmbeddedBroker() as running:
        producer = AIOKafkaProducer(bootstrap_servers=running.bootstrap, enable_idempotence=True)
        await producer.start()
        producer.bootstrap = running.bootstrap
        yield producer
        await producer.stop()


class Zone:
    """A factory whose zone has this key."""

    def __init__(self, make: Any, key: Key) -> None:
        self._make, self._key = make, key

    def __call__(self, partition: int) -> Any:
        return self._make(partition)

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Any:
        return self(partition)

    def state_keys(self) -> KeyRing:
        return KeyRing(0, 0, (), self._key)


class Partition:
    """One partition of the counting machine: its topics, and workers on disks of their own."""

    number = 0

    def __init__(self, broker: AIOKafkaProducer, machines: Any, folder: Path) -> None:
        Partition.number += 1
        self.broker, self.machines, self.folder = broker, machines, folder
        self.prefix = f"p{Partition.number}."
        self.key = Key(b"\x07" * 31 + b"\x01")

    async def create(self) -> Partition:
        admin = await self._admin()
        names = [self.prefix + topic for topic in (STATE[0], JOURNAL[0], INPUT[0], "counts", "dead")]
        await admin.create_topics([NewTopic(name, 1, 1) for name in names])
        await admin.close()
        return self

    async def delete(self, topic: str, before: int = -1) -> None:
        admin = await self._admin()
        await admin.delete_records({TopicPartition(self.prefix + topic, 0): RecordsToDelete(before)})
        await admin.close()

    async def make_again(self, topic: str) -> None:
        admin = await self._admin()
        await admin.delete_topics([self.prefix + topic])
        await admin.create_topics([NewTopic(self.prefix + topic, 1, 1)])
        await admin.close()

    async def send(self, output: Output) -> Awaitable[Any]:
        future: Awaitable[Any] = await self.broker.send(
            self.prefix + output.topic, output.value, output.key, output.partition
        )
        return future

    async def records(self, place: tuple[str, int]) -> list[Any]:
        """(offset, key, value) of a log."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.broker.bootstrap, enable_auto_commit=False)
        await consumer.start()
        at = TopicPartition(self.prefix + place[0], place[1])
        consumer.assign([at])
        await consumer.seek_to_beginning()
        end, found = (await consumer.end_offsets([at]))[at], []
        while await consumer.position(at) < end:
            found += [(r.offset, r.key, r.value) for r in (await consumer.getmany(at, timeout_ms=500)).get(at, [])]
        await consumer.stop()
        return found

    def worker(self, disk: str, key: Key | None = None, accept: tuple[str, ...] = ()) -> Worker:
        return Worker(self, disk, key or self.key, accept)

    async def _admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.broker.bootstrap)
        await admin.start()
        return admin


class Worker:
    """Folds in the place of the driver, in the driver's order."""

    def __init__(self, partition: Partition, disk: str, key: Key, accept: tuple[str, ...] = ()) -> None:
        self.partition = partition
        self.settings = WorkerSettings(
            bootstrap=partition.broker.bootstrap, role="counting", group="g", topic_prefix=partition.prefix,
            datadir=partition.folder / disk, state_bytes_per_second=1 << 30, accept_loss=accept,
            place="--deployment shop",
        )  # fmt: skip
        make, topics = partition.machines.counting(targets=1)
        self.zone = Zone(make, key)
        self.snapshots = SnapshotStore(self.settings, self.zone)
        ends = OutputEnds(self.settings, topics)
        self.states = PublishedStates(self.settings, STATE[0], self.zone, partition, self.snapshots, ends)
        self.recovery = Recovery(self.settings, self.zone, partition, self.snapshots, lambda: True, states=self.states)
        self.recovered: RecoveredMachine

    def note_seal(self) -> NoteSeal:
        return NoteSeal(self.settings.deployment, self.settings.role, 0, self.zone.state_keys())

    async def take_up(self) -> Worker:
        self.recovered = await self.recovery.run(0, [])
        return self

    async def work(self, values: list[bytes]) -> Worker:
        """Let these come, and fold and journal them."""
        recovered, machine, partition = self.recovered, self.recovered.machine, self.partition
        low, records = machine.positions().get(INPUT, 0), []
        for value in values:
            sent = await partition.broker.send_and_wait(partition.prefix + INPUT[0], value, partition=0)
            records.append(InputRecord(sent.offset, sent.timestamp, value))
        (step,) = machine.fold([InputSlice(*INPUT, low, records[-1].offset + 1, tuple(records))])
        await (await partition.send(Output(*JOURNAL, step.journal)))
        recovered.sequence, recovered.journal_offset = recovered.sequence + 1, recovered.journal_offset + 1
        recovered.record = record_digest(step.journal)
        return self

    def save(self) -> Snapshot:
        recovered = self.recovered
        folded = sum(recovered.machine.positions().values())
        snapshot = Snapshot(
            recovered.sequence,
            recovered.journal_offset,
            recovered.genesis,
            recovered.machine.snapshot(),
            folded,
            recovered.record,
        )
        self.snapshots.save(0, snapshot)
        return snapshot

    async def publish(self, parts: int | None = None) -> bool:
        """Publish; after so many parts the worker is gone."""
        asked = iter(range(1 << 30))
        return await self.states.publish(0, self.save(), lambda: parts is None or next(asked) < parts)


@pytest_asyncio.fixture(loop_scope="module")
async def partition(broker: AIOKafkaProducer, machines: Any, tmp_path: Path, monkeypatch: Any) -> Partition:
    # Several parts, of a state that is small.
    monkeypatch.setattr(state_topic, "PART_BYTES", 1024)
    return await Partition(broker, machines, tmp_path).create()


VALUES = [b"k%d" % number for number in range(12)]


async def test_another_worker_goes_on_where_the_inputs_are_deleted(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    assert await first.publish()
    await first.work(VALUES[:3])
    state = first.recovered.machine.snapshot()
    await partition.delete("events", len(VALUES))
    other = await partition.worker("b").take_up()
    assert (other.recovered.sequence, other.recovered.replayed) == (2, 1)
    assert other.recovered.machine.snapshot() == state
    await other.work(VALUES)
    assert (await partition.worker("a").take_up()).recovered.sequence == 3, (
        "an older state is always safe to go on from"
    )


async def test_a_disk_that_lies_behind_is_brought_up_to_date_and_one_ahead_is_left_alone(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    first.save()
    other = await partition.worker("b").take_up()
    await other.work(VALUES)
    await other.publish()
    await partition.delete("events")
    again = await partition.worker("a").take_up()
    assert (again.recovered.sequence, again.recovered.replayed) == (2, 0)
    await again.work(VALUES)
    again.save()
    assert (await partition.worker("a").take_up()).recovered.replayed == 0
    assert (await partition.worker("b").take_up()).recovered.replayed == 1


async def test_a_worker_that_had_no_time_to_publish_its_last_state_says_what_that_asks_for(partition, caplog):
    worker = await partition.worker("a").take_up()
    await worker.work(VALUES)
    snapshot = worker.save()
    place = (worker.recovered.sequence, snapshot.folded)
    assert not await worker.states.publish_if_due(0, snapshot, lambda: True, seconds_left=0.0)
    assert f"state not published to {partition.prefix}state-counting: TimeoutError" in caplog.text
    worker.states.warn_if_unpublished(0, place)
    assert f"ended before its newest state was published to {partition.prefix}state-counting" in caplog.text
    assert "Start a worker on this state folder before" in caplog.text
    caplog.clear()
    assert await worker.states.publish_if_due(0, snapshot, lambda: True, seconds_left=60.0)
    worker.states.warn_if_unpublished(0, place)
    assert caplog.text == ""


async def test_a_journal_without_its_beginning_goes_on_from_a_state_with_the_same_bytes(partition):
    first = await partition.worker("a").take_up()
    for _ in range(3):
        await first.work(VALUES)
    await first.publish()
    await first.work(VALUES[:5])
    journal = await partition.records(JOURNAL)
    await partition.delete(JOURNAL[0], before=3)  # what stays is the record that the state stands on, and what follows
    other = await partition.worker("b").take_up()
    assert (other.recovered.sequence, other.recovered.replayed) == (4, 1)
    assert other.recovered.machine.snapshot() == first.recovered.machine.snapshot()
    await other.work(VALUES)
    assert [record for record in await partition.records(JOURNAL) if record[0] < 5] == journal[3:]
    assert (await partition.worker("c").take_up()).recovered.sequence == 5
    await partition.delete(JOURNAL[0], before=4)
    gone = r"begins at offset 4, and does not hold record 3, with which the snapshot in topic p\d+\.state-counting ends"
    with pytest.raises(JournalTruncated, match=gone):
        await partition.worker("d").take_up()


async def test_a_journal_without_its_beginning_and_without_a_state_is_refused(partition):
    first = await partition.worker("a").take_up()
    for _ in range(3):
        await first.work(VALUES)
    await partition.delete(JOURNAL[0], before=2)
    none = (
        r"journal-counting/0: the journal begins at offset 2, its first records were deleted, and there is no state "
        r"to begin with: none is in the data directory, and topic p\d+\.state-counting holds no newer state; bring the"
    )
    with pytest.raises(JournalTruncated, match=none):
        await partition.worker("b").take_up()
    await first.publish()
    found = await partition.records(STATE)
    await partition.delete(STATE[0])
    await _again(partition, found, altered=1)
    with pytest.raises(JournalTruncated, match=r"no state to begin with: .* of no use: .*got altered content"):
        await partition.worker("b").take_up()


async def test_a_checkpoint_says_where_everything_ended_that_the_role_writes(partition):
    worker = await partition.worker("a").take_up()
    await worker.work(VALUES)
    for _ in range(3):
        await (await partition.send(Output("counts", 0, b"sent")))
    await worker.publish()
    opened = [worker.states.seal(0).unpack(value) for _, _, value in await partition.records(STATE)]
    (checkpoint,) = [Checkpoint.read(part.content) for part in opened if part.number == CHECKPOINT]
    (head,) = [part.head() for part in opened if part.number == HEAD]
    assert (checkpoint.sequence, checkpoint.record, checkpoint.state) == (1, head.record, head.digest)
    assert [checkpoint.end(place) for place in (("counts", 0), ("dead", 0), ("elsewhere", 0))] == [3, 0, None]


async def test_what_was_never_folded_and_what_was_are_told_apart(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    await partition.delete("events")
    folded = (
        r"events/0: must be read from offset 0, but the log begins at 12; those records were folded up to journal "
        r"record 1, but the newest state found ends with record 0, and topic "
        r"p\d+\.state-counting holds no newer state; bring the data directory of the last owner"
    )
    with pytest.raises(InputsDeleted, match=folded):
        await partition.worker("b").take_up()
    first.save()
    for _ in range(3):
        await partition.broker.send_and_wait(partition.prefix + "events", b"k1", partition=0)
    await partition.delete("events")
    never = r"must be read from offset 12, but the log begins at 15; 3 records were deleted before they were folded"
    with pytest.raises(InputsDeleted, match=never):
        await partition.worker("a").take_up()


async def test_what_was_never_folded_is_gone_on_without_by_the_word_that_the_refusal_names(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    assert await first.publish()
    for _ in range(3):
        await partition.broker.send_and_wait(partition.prefix + "events", b"lost", partition=0)
    await partition.delete("events")
    with pytest.raises(InputsDeleted, match=r"--accept-loss 0:events/0:12-15 \(nothing will follow from them"):
        await partition.worker("a", accept=("0:events/0:12-14",)).take_up()
    accepting = await partition.worker("a", accept=("0:events/0:12-15",)).take_up()
    assert accepting.recovered.begins == {INPUT: 15}
    noted = await partition.records(JOURNAL)
    (note,) = [found for _, _, value in noted if (found := accepting.note_seal().unpack(value)) is not None]
    assert (note.kind, note.source, note.low, note.high) == ("lost", INPUT, 12, 15)
    assert note.after_ms > 0
    again = await partition.worker("a").take_up()  # it is said once, and by whoever comes next it is read
    assert again.recovered.begins == {INPUT: 15}
    assert await partition.records(JOURNAL) == noted
    await again.work(VALUES[:2])
    state = again.recovered.machine.snapshot()
    for disk in ("a", "b"):  # from the state on disk, and from the published one, both from before the loss
        other = await partition.worker(disk).take_up()
        assert (other.recovered.sequence, other.recovered.machine.snapshot()) == (2, state)
    assert again.recovered.machine.positions()[INPUT] == 17


async def test_whoever_goes_on_without_lost_input_publishes_the_state_that_others_need_then(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    assert await first.publish()
    await first.work(VALUES[:4])
    first.save()  # on its disk alone: the published state is a record behind
    for _ in range(3):
        await partition.broker.send_and_wait(partition.prefix + "events", b"lost", partition=0)
    await partition.delete("events")
    with pytest.raises(InputsDeleted, match=r"folded up to journal record 2, but the newest state .* ends with rec"):
        await partition.worker("b").take_up()
    accepting = await partition.worker("a", accept=("0:events/0:16-19",)).take_up()
    state = accepting.recovered.machine.snapshot()
    other = await partition.worker("b").take_up()
    assert (other.recovered.sequence, other.recovered.machine.snapshot()) == (2, state)
    assert other.recovered.begins == {INPUT: 19}
    published = len(await partition.records(STATE))
    await partition.worker("a", accept=("0:events/0:16-19",)).take_up()
    assert len(await partition.records(STATE)) == published, "it is there"


@pytest.mark.parametrize("written", [2, 20])
async def test_an_input_that_was_deleted_and_made_again_is_resumed_where_it_was_folded(partition, written):
    """By its offsets while it is shorter than what was folded, by its records once it has grown beyond."""
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    first.save()
    await partition.make_again("events")
    new = [b"new%d" % number for number in range(written)]
    for value in new:
        await partition.broker.send_and_wait(partition.prefix + "events", value, partition=0)
    with pytest.raises(
        TopicsReplaced, match="logs repair input events --partition 0 --at 12 --write --deployment shop`"
    ):
        await partition.worker("a").take_up()

    connection = Connection(partition.broker.bootstrap, partition.prefix)
    planned = await look(connection, INPUT, 12)
    assert (planned.first, planned.end, planned.moved) == (0, written, min(written, 13))
    assert len(await partition.records(INPUT)) == written, "a plan writes nothing"
    await continue_offsets(connection, planned)
    with pytest.raises(InputsDeleted, match="--accept-loss 0:events/0:12-13"):
        await partition.worker("a").take_up()
    resumed = await partition.worker("a", accept=("0:events/0:12-13",)).take_up()
    kept = await partition.records(INPUT)
    assert [offset for offset, _, _ in kept] == list(range(13, 13 + written))
    assert sorted(value for _, _, value in kept) == sorted(new)
    await resumed.work(VALUES[:2])
    resumed.save()
    again = await partition.worker("a").take_up()
    assert again.recovered.machine.snapshot() == resumed.recovered.machine.snapshot()
    with pytest.raises(HushstreamError, match="begins at 13: nothing is to be done"):
        await look(connection, INPUT, 12)


@pytest.mark.parametrize("written", [2, 20])
async def test_the_command_that_is_named_fits_the_journal_where_the_state_is_older(partition, written):
    """`logs repair input` takes no other offset than that of the journal."""
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    first.save()
    await first.work(VALUES[:3])
    await partition.make_again("events")
    for number in range(written):
        await partition.broker.send_and_wait(partition.prefix + "events", b"new%d" % number, partition=0)
    with pytest.raises(
        TopicsReplaced, match=r"up to offset 15.* logs repair input events --partition 0 --at 15 --write"
    ):
        await partition.worker("a").take_up()
    connection = Connection(partition.broker.bootstrap, partition.prefix)
    await continue_offsets(connection, await look(connection, INPUT, 15))
    with pytest.raises(InputsDeleted, match=r"newest state found .* bring the data directory of the last owner"):
        await partition.worker("a").take_up()
    first.save()
    with pytest.raises(InputsDeleted, match="--accept-loss 0:events/0:15-16"):
        await partition.worker("a").take_up()
    resumed = await partition.worker("a", accept=("0:events/0:15-16",)).take_up()
    await resumed.work(VALUES[:2])


async def test_an_input_that_is_gone_before_any_state_was_saved_is_refused_with_what_helps(partition):
    """The refusal said that the topic was wiped, and nothing else."""
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    await partition.make_again("events")
    helps = r"the log ends at 0.*; the newest state .*; bring the data directory of the last owner, or the topic"
    with pytest.raises(TopicsReplaced, match=helps):
        await partition.worker("a").take_up()


async def test_an_input_whose_last_records_are_gone_is_told_by_its_log_times(partition, monkeypatch):
    """Made again, grown beyond what was folded, and shortened since: no digest can be compared."""
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    first.save()
    await partition.make_again("events")
    for number in range(20):
        await partition.broker.send_and_wait(partition.prefix + "events", b"new%d" % number, partition=0)
    await partition.delete("events", 11)
    await partition.worker("a").take_up()
    monkeypatch.setattr(losses, "_CLOCKS_APART_MS", 0)
    with pytest.raises(TopicsReplaced, match=r"but offset 11 is of .* logs repair input events --partition 0 --at 12"):
        await partition.worker("a").take_up()


class Kept:
    """Reads logs in memory, of which what lies before their offset in ``firsts`` was deleted."""

    def __init__(self, records: Any, firsts: Any) -> None:
        self._records, self._firsts = records, firsts

    async def first_offsets(self, sources: Any) -> dict[Any, int]:
        return {one: self._firsts.get(one, 0) for one in sources}

    async def end_offsets(self, sources: Any) -> dict[Any, int]:
        return {one: len(self._records[one]) for one in sources}

    def open(self, positions: Any) -> None:
        """Nothing is open."""

    async def read(self, source: Any, low: int, high: int) -> Any:
        return self._records[source][low:high]


@pytest.mark.parametrize(
    ("role", "topic", "journaled"), [("shuffler", "reports", "journal-shuffler"), ("learner", "contexts", "decisions")]
)
async def test_what_no_journal_record_covers_may_come_long_after_the_last_one(role, topic, journaled):
    """A shuffler that was started for an hour before its first report was told that they are of another topic. What a
    journal record covers and is younger than it is of another one."""
    variant = next(one for one in VARIANTS if one.name == "p2b-windows")
    log = await asyncio.to_thread(recorded, variant)
    place, journal = (topic, 0), log.records[journaled, 0]
    machine = role_work(role, log.system, KEYS).make_machine(0)
    machine.start(journal[0].value)
    covered = next(part.high for part in machine.entry(journal[1].value).inputs if part.topic == topic)
    hour = 3_600_000

    def later(count: int) -> Any:
        moved = [record._replace(timestamp_ms=record.timestamp_ms + hour) for record in log.records[place][count:]]
        return {**log.records, place: [*log.records[place][:count], *moved]}

    async def told(last: int, first: int, records: Any) -> Any:
        value = journal[last].value if last else None
        return await losses.other_log(machine, value, last + 1, Kept(records, {place: first}), {place: first})

    assert await told(0, 0, later(0)) is None
    assert await told(1, covered, later(covered)) is None
    found = await told(1, covered - 1, later(0))
    assert found is not None
    assert f"but offset {covered - 1} is of" in found[1]


async def test_an_input_is_the_same_when_what_a_forgotten_user_wrote_was_taken_out(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    first.save()
    kept = await partition.records(INPUT)
    await partition.make_again("events")
    for number, (_, _, value) in enumerate(kept):
        value = value if number != len(kept) - 2 else b""
        await partition.broker.send_and_wait(partition.prefix + "events", value, partition=0)
    assert (await partition.worker("a").take_up()).recovered.replayed == 0


async def test_a_loss_that_somebody_without_the_key_noted_is_refused(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    first.save()
    await partition.broker.send_and_wait(partition.prefix + "events", b"lost", partition=0)
    await partition.delete("events")
    stranger = partition.worker("c", Key(b"\x09" * 31 + b"\x02"))
    await (await partition.send(Output(*JOURNAL, stranger.note_seal().pack(Note("lost", INPUT, 12, 13)))))
    with pytest.raises(InputsDeleted, match="--accept-loss 0:events/0:12-13"):
        await partition.worker("a").take_up()


@pytest.mark.parametrize("fault", ["half-written", "altered part", "altered head", "other key"])
async def test_what_is_not_whole_is_passed_over_for_an_older_state(partition, fault, caplog):
    caplog.set_level(logging.WARNING)
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    await first.publish()
    await first.work(VALUES)
    older = len(await partition.records(STATE))
    if fault == "half-written":
        assert not await first.publish(parts=2)
    elif fault == "other key":
        stranger = partition.worker("a", Key(b"\x09" * 31 + b"\x02"))
        stranger.recovered, stranger.states._last = first.recovered, first.states._last
        await stranger.publish()
    else:
        await first.publish()
        found = (await partition.records(STATE))[older:]
        await partition.delete(STATE[0])
        older = 0
        await _again(partition, found, 1 if fault == "altered part" else -1)
    await partition.delete("events", len(VALUES))
    if older:
        other = await partition.worker("b").take_up()
        assert (other.recovered.sequence, other.recovered.replayed) == (2, 1)
        assert other.recovered.machine.snapshot() == first.recovered.machine.snapshot()
        return
    why = {"altered part": "expected part of a state as it was sealed, got altered content", "altered head": "altered"}
    with pytest.raises(InputsDeleted, match=f"holds states that are of no use: offset .*{why[fault]}"):
        await partition.worker("b").take_up()


async def _again(partition: Partition, found: list[Any], altered: int | None = None) -> None:
    """Put records back, one of them with one byte changed."""
    for index, (_, key, value) in enumerate(found):
        if altered is not None and index == altered % len(found):
            value = value[:-1] + bytes([value[-1] ^ 1])
        await (await partition.send(Output(*STATE, value, key)))


async def test_a_state_of_a_lost_branch_is_refused(partition):
    first = await partition.worker("a").take_up()
    await first.work(VALUES)
    kept = await partition.records(JOURNAL)
    await first.work(VALUES)
    await first.publish()
    lost = await Partition(partition.broker, partition.machines, partition.folder).create()
    for _, _, value in kept:
        await (await lost.send(Output(*JOURNAL, value)))
    for _, key, value in await partition.records(STATE):
        await (await lost.send(Output(*STATE, value, key)))
    with pytest.raises(TopicsReplaced, match=r"snapshot in topic p\d+\.state-counting ends with a record 2 that"):
        await lost.worker("b").take_up()
    empty = await Partition(partition.broker, partition.machines, partition.folder).create()
    for _, key, value in await partition.records(STATE):
        await (await empty.send(Output(*STATE, value, key)))
    with pytest.raises(TopicsReplaced, match=r"journal is empty, but topic p\d+\.state-counting continues one"):
        await empty.worker("b").take_up()


async def test_a_compacted_topic_holds_few_states_and_nothing_of_the_older_ones(partition):
    worker = await partition.worker("a").take_up()
    sizes = []
    for round_ in range(2 * SLOTS):
        # A state that grows, and then shrinks: keys that were counted are gone.
        await worker.work([b"k%d" % number for number in range(4000 if round_ == 2 else 1)])
        if round_ > 2:
            worker.recovered.machine._state.clear()
        await worker.publish()
        sizes.append(worker.states._last[0].size)
    assert sizes[2] > 2 * sizes[-1], "it shrank"
    await worker.states.publish(0, worker.save(), lambda: False)
    compacted = {key: (offset, value) for offset, key, value in await partition.records(STATE)}
    seal = worker.states.seal(0)
    names = {seal.unpack(value).publication for _, value in compacted.values() if value}
    assert len(names) == SLOTS
    await partition.delete(STATE[0])
    for key, (_, value) in sorted(compacted.items(), key=lambda item: item[1][0]):
        await (await partition.send(Output(*STATE, value, key)))
    async with LogReader(worker.settings) as reader:
        found = [one async for one in partition.worker("b").states.candidates(0, reader, [])]
    assert [one.head.sequence for one in found] == [6, 5, 4]


async def test_a_sleeper_that_goes_on_with_its_publication_damages_one_slot_alone(partition):
    """It wakes when its successor has published into the slot that it was writing; then the log is compacted."""
    sleeper = await partition.worker("a").take_up()
    await sleeper.work(VALUES)
    await sleeper.publish()
    await sleeper.work(VALUES)
    before = len(await partition.records(STATE))
    await sleeper.publish()
    written = await partition.records(STATE)
    late = written[before:]
    await partition.delete(STATE[0])
    await _again(partition, written[: before + 1])
    kept = sleeper.states._last[0].slots
    owner = partition.worker("b")
    owner.recovered, owner.states._last = sleeper.recovered, {0: state_topic._Last(0, 1, None, -1e9, kept)}
    for _ in range(2):
        await owner.work(VALUES)
        await owner.publish()
    await _again(partition, late[1:])
    compacted = {key: value for _, key, value in await partition.records(STATE)}
    await partition.delete(STATE[0])
    for key, value in compacted.items():
        await (await partition.send(Output(*STATE, value, key)))
    assert slot_key(1, HEAD) in compacted
    heir = await partition.worker("c").take_up()
    assert (heir.recovered.sequence, heir.recovered.replayed) == (4, 0), "the newest state is in another slot"


async def test_due_is_a_rate_and_a_day(partition, base):
    now = [base]
    worker = await partition.worker("a").take_up()
    states, rate = worker.states, 1 << 30
    states.clock = lambda: now[0]
    assert not states.due(0, (0, 0)), "nothing was folded yet"
    assert states.due(0, (0, 3)), "nothing was published yet"
    states._last[0] = state_topic._Last(0, 100 * rate, (1, 3), now[0])
    now[0] += 99
    assert not states.due(0, (2, 4)), "a large state is published at the stated rate"
    now[0] += 2
    assert states.due(0, (2, 4))
    assert not states.due(0, (1, 3)), "nothing has changed"
    now[0] += state_topic.REFRESH_SECONDS
    assert states.due(0, (1, 3)), "what an erasure has left in older slots is replaced"


async def test_the_size_of_a_state_tells_little_of_what_it_holds():
    assert [padded(size) for size in (1, 4096, 4097, 70_000, 26_000_000)] == [4096, 4096, 8192, 73_728, 27_262_976]
    assert all(size <= padded(size) <= max(size + 4096, size * 9 / 8) for size in range(1, 1 << 20, 977))


async def test_users_at_rest_go_with_a_state(partition, monkeypatch):
    worker, other = partition.worker("a"), partition.worker("b")
    users = worker.snapshots.users(0)
    put = [StoredUser(b"%016d" % number, 1000 + number, b"state of %d" % number * 20) for number in range(500)]
    users.put(put)
    users.cut()
    snapshot = Snapshot(3, 5, b"genesis", b"what is small", 77, bytes(16))
    worker.snapshots.save(0, snapshot)
    users.put([StoredUser(put[0].key, 9, b"later")])
    pieces = worker.snapshots.pieces(0, snapshot, 1000)
    first = next(pieces)
    users.cut()
    worker.snapshots.save(0, replace(snapshot, sequence=4))
    other.snapshots.users(0).put([StoredUser(b"x" * 16, 1, b"of another state")])
    with other.snapshots.incoming() as file:
        file.write(first + b"".join(pieces))
        other.snapshots.install(0, file)
    assert other.snapshots.load(0) == snapshot
    assert sorted(other.snapshots.users(0).unseen_since(1 << 60)) == sorted(put), "as they were at that snapshot"
    with pytest.raises(UsersLost):
        next(worker.snapshots.pieces(0, snapshot, 1000))


async def test_a_partition_moves_after_retention_between_real_workers(bench, harness, machines):
    made = harness.Deployment(
        bench, "moving", f"{machines.__file__}:counting", {"targets": 2}, machines.counting(targets=2),
        {("events", p): EVENTS for p in range(2)}, 2,
    )  # fmt: skip
    async with made as run:
        first = await run.start(datadir=str(bench.directory / "moving-a"))
        await run.folded_all()
        await _published(run, 60)
        first.kill()
        assert await first.exit_code() == -signal.SIGKILL
        await run.delete_inputs()
        second = await run.start(datadir=str(bench.directory / "moving-b"))
        await run.taken_up(second)
        assert second.log.read_text(encoding="utf-8").count("(0 replayed") == 2
        await run.append({("events", p): [(2_000_000, b"k1")] * 16 for p in range(2)})
        await _published(run, 76)
        second.kill(signal.SIGTERM)
        assert await second.exit_code() == 0


async def test_a_worker_that_is_ended_leaves_its_last_state_to_others(bench, harness, machines):
    made = harness.Deployment(
        bench, "ended", f"{machines.__file__}:counting", {"targets": 2}, machines.counting(targets=2),
        {("events", p): EVENTS for p in range(2)}, 2,
    )  # fmt: skip
    async with made as run:
        # No state is due within the hour.
        first = await run.start(
            datadir=str(bench.directory / "ended-a"), snapshot_interval_seconds=3600.0, session_timeout_seconds=60.0
        )
        await run.folded_all()
        first.kill(signal.SIGTERM)
        assert await first.exit_code() == 0
        assert "ended before its newest state" not in first.log.read_text(encoding="utf-8")
        await run.delete_inputs()
        second = await run.start(datadir=str(bench.directory / "ended-b"))
        await run.taken_up(second)
        assert second.log.read_text(encoding="utf-8").count("(0 replayed") == 2
        second.kill(signal.SIGTERM)
        assert await second.exit_code() == 0


async def _published(run: Any, folded: int) -> None:
    """Wait until both partitions' newest states hold so many input records."""
    ends = OutputEnds(run.settings, run.topics)
    snapshots = SnapshotStore(run.settings, run.make_machine)
    states = PublishedStates(run.settings, "state-counting", run.make_machine, None, snapshots, ends)
    async with LogReader(run.settings) as reader, asyncio.timeout(60):
        for partition in range(2):
            while True:
                found = [one async for one in states.candidates(partition, reader, [])]
                if found and found[0].head.folded == folded:
                    break
                await asyncio.sleep(0.1)


async def test_the_machine_of_a_journal_is_the_one_that_keeps_its_users_on_disk(partition):
    """Its key is known only when the journal is: whoever was made before has nothing to say any more."""
    worker = partition.worker("a")

    class Keeping(type(worker.zone(0))):  # type: ignore[misc]
        spills_users = True

        def keep_users(self, store: Any, resident: int) -> None:
            self.kept = store

    worker.zone._make = lambda number: Keeping(number, "test", 1)
    worker.zone.of_journal = lambda number, genesis, resumed=False: Keeping(number, "test", 1)
    recovered = (await worker.take_up()).recovered
    assert recovered.machine.kept is worker.snapshots.users(0)


async def test_users_whom_another_owner_saves_while_one_begins_are_not_met(partition, monkeypatch):
    """They belong to a later snapshot than the one that was loaded, so records that they hold would count twice."""
    worker = partition.worker("a")

    class Keeping(type(worker.zone(0))):  # type: ignore[misc]
        spills_users = True

        def keep_users(self, store: Any, resident: int) -> None:
            self.kept = store

    user, bring = StoredUser(bytes(16), 5, b"later"), Beginning._cache_newest

    async def meanwhile(self: Beginning, *begun: Any) -> Any:
        with closing(UserDatabase(worker.snapshots.path(0).with_suffix(".users"), worker.snapshots._seal(0))) as other:
            other.put([user])
            other.cut()
            other.save(b"a later snapshot")
        return await bring(self, *begun)

    worker.zone._make = lambda number: Keeping(number, "test", 1)
    worker.zone.of_journal = lambda number, genesis, resumed=False: Keeping(number, "test", 1)
    monkeypatch.setattr(Beginning, "_cache_newest", meanwhile)
    recovered = (await worker.take_up()).recovered
    with pytest.raises(UsersLost, match="another owner"):
        recovered.machine.kept.get(user.key)
