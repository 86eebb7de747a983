"""The marks that workers share: nothing leaves before its mark is there, and no compaction or sleeper lowers one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as BrokerPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from hushstream.agents.errors import JournalLost
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.partition.driver import PartitionDriver, Tools
from hushstream.agents.recovery.marks import HighWater, OlderThanReleased, ReleaseMarks, mark_key
from hushstream.agents.recovery.recovery import Recovery
from hushstream.agents.recovery.snapshots import RecoveredMachine, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.broker import EmbeddedBroker
from hushstream.engine.journal.marks import Mark, MarkSeal, ReleaseEvidence
from hushstream.engine.records import InputRecord, Output
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from hushstream.systems.p2b.topics import TOPICS
from patience import Patience

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPIC = "marks-counting"
PATIENCE_SECONDS = 60.0


def a_release(topic: str = "counts") -> list[Output]:
    return [Output(topic, 0, b"x")]


# Around the driver: what is sent, and when.


class Brokers:
    """Takes records; acknowledges at once those of topics that are not held."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.held: set[str] = set()
        self.refuse: BaseException | None = None
        self._waiting: list[tuple[str, asyncio.Future[Any], Any]] = []

    async def send(self, output: Output) -> asyncio.Future[Any]:
        self.sent.append((output.topic, output.value))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        before = sum(topic == output.topic for topic, _ in self.sent[:-1])
        place = SimpleNamespace(offset=before + output.topic.startswith("journal"))
        if output.topic == TOPIC and self.refuse is not None:
            future.set_exception(self.refuse)
        elif output.topic in self.held:
            self._waiting.append((output.topic, future, place))
        else:
            future.set_result(place)
        return future

    def acknowledge(self, topic: str) -> None:
        self.held.discard(topic)
        for found, future, place in self._waiting:
            if found == topic:
                future.set_result(place)

    def topics(self) -> list[str]:
        return [topic for topic, _ in self.sent]


class Run:
    """A driver of the counting machine in this process; its marks go to the same brokers."""

    def __init__(self, machines: Any, folder: Path) -> None:
        settings = WorkerSettings(bootstrap="127.0.0.1:1", role="counting", group="g", datadir=folder)
        self.maker, topics = machines.counting(targets=1)
        self.brokers, self.lost = Brokers(), []  # type: ignore[var-annotated]
        self.marks = ReleaseMarks(settings, TOPIC, (), topics.declared, self.maker, self.brokers, HighWater(settings))
        self.marks.seal(0)
        machine = self.maker(0)
        self.genesis = machine.genesis(bytes(4))
        machine.start(self.genesis)
        self.recovered = RecoveredMachine(machine, self.genesis, 0, 1)

        async def nothing(*_: Any) -> Any:
            return {}

        tools = Tools(
            settings=settings, sender=self.brokers, snapshots=SnapshotStore(settings, self.maker), marks=self.marks,
            states=None, metrics=Metrics(Labels("counting", partitions=1)), observe=lambda *_: None,
            end_offsets=nothing, fetched_end=lambda _: self.end, read_journal=nothing, notify_capacity=lambda: None,
            lost=lambda _, reason: self.lost.append(reason),
        )  # fmt: skip
        self.end = 0
        self.driver = PartitionDriver(0, self.recovered, tools)
        (self.buffer,) = self.driver.inputs
        self.buffer.sought()

    async def arrive(self) -> None:
        """One record, folded by itself."""
        self.end += 1
        self.buffer.offer([InputRecord(self.end - 1, 1_000_000 + self.end, b"k1")])
        await until(lambda: self.buffer.low == self.end)

    def raised(self) -> list[int]:
        found = [self.marks.seal(0).unpack(value) for topic, value in self.brokers.sent if topic == TOPIC]
        return [mark.sequence for mark in found if mark is not None]


@asynccontextmanager
async def running(machines: Any, folder: Path) -> AsyncIterator[Run]:
    run = Run(machines, folder)
    await run.marks.begin(0, ReleaseEvidence(), run.recovered.journal, 0, False)
    run.driver.start()
    try:
        yield run
    finally:
        await run.driver.close(0.1)


async def until(reached: Callable[[], bool]) -> None:
    waiting = Patience(PATIENCE_SECONDS)
    while not reached():
        assert not waiting.over
        await asyncio.sleep(0.005)


async def settled(run: Run) -> None:
    """Nothing more is on its way that nobody holds up."""
    before = -1
    while before != len(run.brokers.sent):
        before = len(run.brokers.sent)
        await asyncio.sleep(0.1)


async def test_nothing_is_sent_before_its_mark_is_there(machines, tmp_path):
    async with running(machines, tmp_path) as run:
        run.brokers.held.add(TOPIC)
        await run.arrive()
        await until(lambda: run.raised() == [0, 1])
        await settled(run)
        assert "counts" not in run.brokers.topics()
        run.brokers.acknowledge(TOPIC)
        await until(lambda: "counts" in run.brokers.topics())
        assert run.brokers.topics() == [TOPIC, "journal-counting", TOPIC, "counts"]


async def test_no_mark_names_a_record_that_the_journal_may_not_hold(machines, tmp_path):
    async with running(machines, tmp_path) as run:
        run.brokers.held.add("journal-counting")
        await run.arrive()
        await until(lambda: "journal-counting" in run.brokers.topics())
        await settled(run)
        assert run.raised() == [0]
        run.brokers.acknowledge("journal-counting")
        await until(lambda: run.raised() == [0, 1])


async def test_one_mark_covers_all_that_waits(machines, tmp_path):
    async with running(machines, tmp_path) as run:
        run.brokers.held.add(TOPIC)
        for _ in range(4):
            await run.arrive()
        await until(lambda: run.brokers.topics().count("journal-counting") == 4)
        await settled(run)
        run.brokers.acknowledge(TOPIC)
        await until(lambda: run.brokers.topics().count("counts") == 4)
        first, *others = run.raised()
        assert first == 0
        assert others[-1] == 4
        assert len(others) <= 2, "one for what came alone, one for all that waited meanwhile"


async def test_a_mark_that_the_broker_refuses_lets_nothing_out(machines, tmp_path):
    async with running(machines, tmp_path) as run:
        run.brokers.refuse = TimeoutError()
        await run.arrive()
        await until(lambda: bool(run.lost))
        assert isinstance(run.lost[0], JournalLost)
        assert "counts" not in run.brokers.topics()


async def test_every_portion_of_a_recovery_is_noted_before_it_is_sent(machines, tmp_path):
    run, unused = Run(machines, tmp_path), Any
    await run.marks.begin(0, ReleaseEvidence(), run.recovered.journal, 0, False)
    recovery = Recovery(run.marks.settings, run.maker, run.brokers, unused, lambda: True, run.marks)  # type: ignore[arg-type]
    for sequence in (3, 5):
        run.recovered.sequence = sequence
        await recovery._send(run.recovered, a_release())
    assert run.brokers.topics() == [TOPIC, TOPIC, "counts", TOPIC, "counts"]
    assert run.raised() == [0, 3, 5]


async def test_a_record_that_rotates_the_key_is_marked_though_nothing_is_released_with_it(machines, tmp_path):
    """Else, once the key before it is destroyed, no mark is left that can be read, and a whole journal is refused."""
    async with running(machines, tmp_path) as run:
        fold = run.recovered.machine.fold
        for key_rotated in (False, True):
            run.recovered.machine.fold = lambda slices, key_rotated=key_rotated: [  # type: ignore[method-assign]
                replace(step, releases=(), key_rotated=key_rotated) for step in fold(slices)
            ]
            await run.arrive()
            await settled(run)
            assert run.raised() == ([0, 2] if key_rotated else [0])


# On a broker: what the next owner reads.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as made:
        yield made


class Direct:
    """Hands records to a producer; may be made to hold them back, as a stopped process does."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str) -> None:
        self._producer, self._prefix = producer, prefix
        self.stopped = asyncio.Event()
        self.stopped.set()

    async def send(self, output: Output) -> Awaitable[Any]:
        await self.stopped.wait()
        future: Awaitable[Any] = await self._producer.send(
            self._prefix + output.topic, output.value, output.key, output.partition
        )
        return future


class Zone:
    """Workers of one zone, each with a disk of its own, on topics of their own."""

    _numbers = count()

    def __init__(self, broker: EmbeddedBroker, machines: Any, folder: Path, producer: AIOKafkaProducer) -> None:
        self.prefix = f"zone{next(self._numbers)}."
        self._bootstrap, self._folder, self._producer = broker.bootstrap, folder, producer
        self._keys, topics = machines.counting()
        self._declared = {**topics.declared, **{topic.name: topic for topic in TOPICS}}
        self._disks = count()

    async def create(self, *topics: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            config = {"cleanup.policy": "compact", "retention.ms": "-1"}
            await admin.create_topics([NewTopic(self.prefix + t, 2, 1, topic_configs=config) for t in topics])
        finally:
            await admin.close()

    def worker(self, *evidence: str, accept: tuple[str, ...] = ()) -> ReleaseMarks:
        settings = WorkerSettings(
            bootstrap=self._bootstrap, role="counting", group="g", topic_prefix=self.prefix,
            datadir=self._folder / f"disk{next(self._disks)}", accept_loss=accept,
        )  # fmt: skip
        sender = Direct(self._producer, self.prefix)
        return ReleaseMarks(settings, TOPIC, evidence, self._declared, self._keys, sender, HighWater(settings))

    async def put(self, topic: str, value: bytes, partition: int = 0, key: bytes | None = None) -> None:
        await self._producer.send_and_wait(self.prefix + topic, value, key, partition)

    async def delete(self) -> None:
        """Delete all marks of the first partition."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            await admin.delete_records({BrokerPartition(self.prefix + TOPIC, 0): RecordsToDelete(-1)})
        finally:
            await admin.close()

    async def compacted(self) -> Zone:
        """The same topic of marks as compaction leaves it at its hardest: the last record of each key alone."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            place = BrokerPartition(self.prefix + TOPIC, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning()
            end = (await consumer.end_offsets([place]))[place]
            last = {}
            while await consumer.position(place) < end:
                for record in (await consumer.getmany(place, timeout_ms=500)).get(place, []):
                    last[record.key] = record.value
        finally:
            await consumer.stop()
        other = Zone.__new__(Zone)
        other.__dict__.update(self.__dict__, prefix=f"zone{next(self._numbers)}.")
        await other.create(TOPIC)
        for key, value in last.items():
            await other.put(TOPIC, value, key=key)
        return other


@pytest_asyncio.fixture(loop_scope="module")
async def zone(broker: EmbeddedBroker, machines: Any, tmp_path: Path) -> AsyncIterator[Zone]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
    await producer.start()
    made = Zone(broker, machines, tmp_path, producer)
    await made.create(TOPIC)
    yield made
    await producer.stop()


async def read(marks: ReleaseMarks, *commits: str) -> ReleaseEvidence:
    async with LogReader(marks.settings) as reader:
        return await marks.read(0, reader, commits)


async def taken_up(marks: ReleaseMarks, journal: str = "aa", sequence: int = 0) -> int:
    evidence = await read(marks)
    accepted = marks.require(evidence, 0, journal, sequence)
    return await marks.begin(0, evidence, journal, sequence, accepted)


async def test_a_worker_with_an_empty_disk_is_held_to_what_another_has_released(zone):
    first = zone.worker()
    await taken_up(first)
    await first.raise_to(0, "aa", 0, 7, a_release())
    other = zone.worker()
    with pytest.raises(OlderThanReleased, match=r"ends at record 6, but a release was sent with record 7"):
        await taken_up(other, sequence=6)
    assert await taken_up(other, sequence=7) == 0


async def test_a_new_journal_is_refused_on_every_worker_of_the_zone(zone):
    await taken_up(zone.worker())
    for journal, sequence in (("bb", 0), ("bb", 5)):
        with pytest.raises(OlderThanReleased, match=r"another journal has released here \(aa\)"):
            await taken_up(zone.worker(), journal, sequence)


async def test_an_owner_that_sleeps_before_its_append_lowers_no_mark_when_it_wakes_compacted_or_not(zone):
    sleeper, heir = zone.worker(), zone.worker()
    await taken_up(sleeper)
    sender: Any = sleeper.sender
    sender.stopped.clear()  # SIGSTOP between the acknowledged journal record 5 and its mark
    waking = asyncio.ensure_future(sleeper.raise_to(0, "aa", 0, 5, a_release()))
    await taken_up(heir, sequence=5)
    for sequence in (12, 31):
        await heir.raise_to(0, "aa", 0, sequence, a_release())
    sender.stopped.set()  # SIGCONT
    await waking
    for there in (zone, await zone.compacted()):
        assert (await read(there.worker())).highest("aa") == 31
        with pytest.raises(OlderThanReleased, match="record 31"):
            await taken_up(there.worker(), sequence=30)


async def test_a_process_that_takes_a_partition_up_again_does_not_lower_what_it_wrote_itself(zone):
    one = zone.worker()
    await taken_up(one)
    await one.raise_to(0, "aa", 0, 9, a_release())
    await one.raise_to(0, "aa", 0, 4, a_release())  # a portion of a recovery that began before record 9
    await taken_up(one, sequence=9)
    await one.raise_to(0, "aa", 0, 6, a_release("ledger"))
    assert (await read((await zone.compacted()).worker())).highest("aa") == 9


async def test_what_is_there_already_is_not_written_again(zone):
    one, other = zone.worker(), zone.worker()
    await taken_up(one)
    await one.raise_to(0, "aa", 0, 9, a_release())
    await taken_up(other, sequence=9)
    for sequence in (3, 9):
        await other.raise_to(0, "aa", 0, sequence, a_release())
    async with LogReader(one.settings) as reader:
        assert (await reader.end_offsets([(TOPIC, 0)]))[TOPIC, 0] == 2
    (noted,) = other.files.noted(0)
    assert noted.sequence == 9, "the other disk knows as well"


async def test_that_a_debit_was_sent_is_remembered_by_every_later_mark(zone):
    one, other = zone.worker(), zone.worker()
    await taken_up(one)
    await one.raise_to(0, "aa", 0, 2, a_release())
    assert not (await read(other)).paid("aa")
    await one.raise_to(0, "aa", 0, 2, a_release("ledger"))
    await one.raise_to(0, "aa", 0, 3, a_release())
    await taken_up(other, sequence=3)
    await other.raise_to(0, "aa", 0, 4, a_release())
    assert all(mark.paid for mark in (await read((await zone.compacted()).worker())).shared)


async def test_a_new_journal_is_refused_where_the_group_has_committed_work_or_its_outputs_are_not_empty(zone):
    marks = zone.worker()
    evidence = await read(marks, "hushstream/1 cafe 3", "")
    with pytest.raises(OlderThanReleased, match="the group g has committed work on journal cafe"):
        marks.require(evidence, 0, None, 0)
    await zone.create("window-sums", "ledger")
    assert not (await read(zone.worker("window-sums", "ledger"))).signs
    await zone.put("ledger", b"an entry of the other partition", partition=1)
    assert not (await read(zone.worker("window-sums", "ledger"))).signs
    await zone.put("window-sums", b"sums")
    (sign,) = (await read(zone.worker("window-sums", "ledger"))).signs
    assert sign.startswith(f"topic {zone.prefix}window-sums is not empty")
    await zone.put("ledger", b"an entry")
    marks = zone.worker("window-sums", "ledger")
    evidence = await read(marks)
    with pytest.raises(OlderThanReleased, match=r"ledger is not empty.*; topic .*window-sums is not empty"):
        marks.require(evidence, 0, None, 0)


async def test_what_another_partition_has_released_is_no_sign_against_this_one(zone):
    await zone.create("window-sums")
    marks = zone.worker("window-sums")
    marks.seal(1)
    await marks.begin(1, ReleaseEvidence(), "bb", 0, False)
    await zone.put("window-sums", b"sums of partition 1")
    assert not (await read(zone.worker("window-sums"))).signs


async def test_the_operators_word_names_one_refusal_and_holds_for_no_other(zone):
    first = zone.worker()
    await taken_up(first)
    await first.raise_to(0, "aa", 0, 7, a_release())
    with pytest.raises(OlderThanReleased, match=r"--accept-loss 0:aa:1 \(releases made"):
        await taken_up(zone.worker(), sequence=4)
    word = ("0:aa:1",)
    assert await taken_up(zone.worker(accept=word), sequence=4) == 1
    heir = zone.worker(accept=word)
    assert (await read(heir)).accepted_at("aa") == 4
    assert await taken_up(heir, sequence=4) == 1
    await heir.raise_to(0, "aa", 1, 6, a_release())
    await first.raise_to(0, "aa", 0, 9, a_release())  # a sleeper of the lost history
    assert await taken_up(zone.worker(), sequence=6) == 1
    with pytest.raises(OlderThanReleased, match="--accept-loss 0:aa:2 "):
        await taken_up(zone.worker(accept=word), sequence=5)


async def test_a_new_journal_is_begun_by_the_operators_word(zone):
    await taken_up(zone.worker())
    marks = zone.worker(accept=("0:new:1",))
    evidence = await read(marks)
    assert marks.require(evidence, 0, None, 0)
    assert await taken_up(marks, "bb") == 1
    assert await taken_up(zone.worker(), "bb", 3) == 1
    with pytest.raises(OlderThanReleased, match="another journal"):
        await taken_up(zone.worker(), "aa", 30)


async def test_no_word_goes_on_without_a_journal_that_may_not_be_decided_anew(zone):
    first = zone.worker()
    await taken_up(first)
    await first.raise_to(0, "aa", 0, 7, a_release())
    zone._keys.irreplaceable = "visits would be decided anew"
    refused = r"another name.*No --accept-loss .*: visits would be decided anew$"
    for journal, sequence in ((None, 0), ("bb", 3), ("aa", 6)):
        marks = zone.worker(accept=("0:new:1", "0:bb:1", "0:aa:1"))
        with pytest.raises(OlderThanReleased, match=refused):
            marks.require(await read(marks), 0, journal, sequence)
    assert await taken_up(zone.worker(), "aa", 7) == 0


async def test_lost_marks_are_not_written_anew_for_a_journal_that_may_not_be_decided_anew(zone):
    owner = zone.worker()
    await taken_up(owner)
    await owner.raise_to(0, "aa", 0, 7, a_release())
    await zone.delete()
    zone._keys.irreplaceable = "visits would be decided anew"
    with pytest.raises(OlderThanReleased, match=r"marks were deleted\. Bring the topic back; .*: if it is not, visits"):
        await taken_up(zone.worker(), sequence=7)


async def test_a_disk_that_knows_of_releases_refuses_a_zone_that_has_lost_its_marks(zone):
    first = zone.worker()
    await taken_up(first)
    await first.raise_to(0, "aa", 0, 7, a_release())
    emptied = Zone.__new__(Zone)
    emptied.__dict__.update(zone.__dict__, prefix=f"{zone.prefix}emptied.")
    await emptied.create(TOPIC)
    again = emptied.worker()
    again.files = first.files
    evidence = await read(again)
    with pytest.raises(OlderThanReleased, match="marks that the topic lacks"):
        again.require(evidence, 0, None, 0)


async def test_an_old_state_folder_is_not_believed_where_the_topic_says_nothing_of_its_journal(zone):
    with pytest.raises(OlderThanReleased, match="the topic of marks holds none of it"):
        await taken_up(zone.worker(), sequence=12)


# Foreign records: skipped where they took no mark's place, and refused where they may have.


def foreign_values() -> dict[str, bytes]:
    elsewhere = MarkSeal("default", "counting", 1, KeyRing(0, 0, (), seeded_key(1, "small machines")))
    stranger = MarkSeal("default", "counting", 0, KeyRing(0, 0, (), seeded_key(2, "somebody else")))
    mark = Mark("aa", 900)
    return {
        "bytes": b"noise",
        "unknown schema": bytes.fromhex("c301") + bytes(range(58)),
        "mark of another place": elsewhere.pack(mark),
        "mark under another key": stranger.pack(mark),
        "truncated mark": stranger.pack(mark)[:-3],
        "empty": b"",
        "large": bytes(900_000),
    }


@pytest.mark.parametrize("kind", foreign_values())
@pytest.mark.parametrize("key", [None, b"anything", b"counting/1/aa/0/ff"])
async def test_a_foreign_record_under_no_marks_key_is_skipped_and_counted_and_lowers_nothing(zone, kind, key):
    owner = zone.worker()
    await taken_up(owner)
    await owner.raise_to(0, "aa", 0, 7, a_release())
    await zone.put(TOPIC, foreign_values()[kind], key=key)
    other = (await zone.compacted()).worker()
    counted: list[str] = []
    other.foreign.count = counted.append
    assert (await read(other)).highest("aa") == 7
    assert (await read(other)).highest("aa") == 7
    assert counted == [TOPIC]
    with pytest.raises(OlderThanReleased, match="a release was sent with record 7"):
        await taken_up(other, sequence=6)


@pytest.mark.parametrize("kind", foreign_values())
async def test_a_foreign_record_that_may_have_taken_a_marks_place_stops_the_partition_until_the_same_writer_goes_on(
    zone, kind
):
    owner = zone.worker()
    await taken_up(owner)
    await owner.raise_to(0, "aa", 0, 7, a_release())
    key = mark_key("counting", 0, Mark("aa", 7), owner._writer)
    await zone.put(TOPIC, foreign_values()[kind], key=key)
    compacted = await zone.compacted()
    with pytest.raises(OlderThanReleased, match=r"offset \d+: expected .*under the key of a mark.*logs repair marks"):
        await taken_up(compacted.worker(), sequence=6)
    await owner.raise_to(0, "aa", 0, 8, a_release())
    later = await zone.compacted()
    assert (await read(later.worker())).highest("aa") == 8
    with pytest.raises(OlderThanReleased, match="a release was sent with record 8"):
        await taken_up(later.worker(), sequence=7)


@pytest.mark.parametrize("left", ["nothing", "a later mark of the generation before"])
async def test_deleted_marks_are_refused_until_a_mark_of_a_new_generation_stands_behind_the_loss(zone, left):
    owner = zone.worker()
    await taken_up(owner)
    await owner.raise_to(0, "aa", 0, 7, a_release())
    await zone.delete()
    if left != "nothing":
        await owner.raise_to(0, "aa", 0, 8, a_release())
    with pytest.raises(OlderThanReleased, match=r"marks were deleted.*repair marks --role counting.*pays for an epoch"):
        await taken_up(zone.worker(), sequence=8)
    rebuilt = Mark("aa", 8, generation=1, accepted=True)
    await zone.put(TOPIC, owner.seal(0).pack(rebuilt), key=mark_key("counting", 0, rebuilt, "rebuilt"))
    evidence = await read(zone.worker())
    assert (evidence.generation, evidence.accepted_at("aa")) == (1, 8), (
        "with it the suspected rollback that opens an epoch"
    )
    assert await taken_up(zone.worker(), sequence=8) == 1
    with pytest.raises(OlderThanReleased, match="ends at record 7, but a release was sent with record 8"):
        await taken_up(zone.worker(), sequence=7)
