"""Keys that turned: a journal begins under one key, names the next, and is followed through while both are kept."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines, role_work
from hushstream.broker import EmbeddedBroker
from hushstream.client.client import Client
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.logs.inputs import plan
from hushstream.privacy.errors import RetiredKey
from hushstream.privacy.key_files import load_ring, retire, rotate
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.slots import Report, pack
from hushstream.systems.p2b.system import declare


@pytest.fixture
def played(rigs, tmp_path):
    """A deployment under key files that released one window, and its logs."""
    generate_keys(tmp_path, ("edge", "shuffler"))
    system, keys, log = declare(rigs.make_system()), KeySource(folder=tmp_path), MemoryLog()
    driver = DirectDriver(log, all_machines(system, keys), bytes(range(32)))

    async def play():
        async with Client(DirectEventLog(log, driver, 1)) as client:
            for number in range(24):
                event, user = f"e{number}", f"u{number % 8}"
                decision = await client.decide(event, user, rigs.point(number))
                await client.reward(event, user, decision.arm, 1.0)
            await client.end_phase(0)

    asyncio.run(play())
    assert any(part.records for _, part in LogCopy.of(log).of_topic("window-sums"))
    return system, keys, log, tmp_path


def turn(folder, *zones):
    for zone in zones:
        rotate(key_path(folder, zone))


def test_what_was_released_before_a_turn_stays_verifiable(played):
    system, keys, log, folder = played
    before = verify(LogCopy.of(log), system, keys)
    turn(folder, "edge", "shuffler", "shuffler")
    after = verify(LogCopy.of(log), system, keys)
    assert before.ok
    assert after.totals == before.totals
    assert keys.key("shuffler") != load_ring(key_path(folder, "shuffler")).of(0)


class Worker:
    """A shuffler that reads, journals and releases into a log in memory, and is restarted."""

    def __init__(self, rigs, folder):
        self.system, self.keys = declare(rigs.make_system()), KeySource(folder=folder)
        self.log, self.rigs = MemoryLog(), rigs
        self.maker = role_work("shuffler", self.system, self.keys).make_machine
        self.machine = self.maker(0)
        self.genesis = self.machine.genesis(bytes(range(32)))
        self.log.append("journal-shuffler", 0, self.genesis)
        self.machine.start(self.genesis)

    def restart(self):
        snapshot = self.machine.snapshot()
        self.machine = self.maker.of_journal(0, self.genesis, resumed=True)
        self.machine.start(self.genesis)
        self.machine.restore(snapshot)

    def window(self, number):
        for slot in range(4 * number, 4 * number + 4):
            fields = {
                "report_id": slot.to_bytes(16, "big"),
                "period": bytes(8),
                "config_digest": self.system.digest,
                "content": pack(Report(slot % self.rigs.CODES, slot % self.rigs.ARMS, slot % 2)),
            }
            self.log.append("reports", 0, codec.encode("SlotReport", fields))
        arrived = self.log.slice("reports", 0, self.machine.position)
        for step in self.machine.fold([arrived]):
            self.log.append("journal-shuffler", 0, step.journal)
            for output in (*step.releases, *step.dead_letters):
                self.log.append(output.topic, output.partition, output.value)

    def verified(self):
        return verify(LogCopy.of(self.log), self.system, self.keys, ["shuffler"])


@pytest.fixture
def turned(rigs, tmp_path):
    """Two windows under the first key, one that names the second, and two under the second."""
    generate_keys(tmp_path, ("shuffler",))
    worker = Worker(rigs, tmp_path)
    for number in range(2):
        worker.window(number)
    turn(tmp_path, "shuffler")
    worker.restart()
    for number in range(2, 5):
        worker.window(number)
    return worker, tmp_path


def test_a_journal_that_turned_is_equal_from_its_first_record_to_its_last(turned):
    worker, _ = turned
    found = worker.verified()
    assert found.ok
    assert found.of("journal-shuffler")[Status.EQUAL] == 6
    assert found.of("window-sums")[Status.EQUAL] == 5
    journal = worker.log.slice("journal-shuffler", 0, 1).records
    heads = [codec.decode(record.value)[1]["head"]["epoch"] for record in journal]
    assert heads == [0, 0, 0, 1, 1]
    ring = worker.keys.ring("shuffler")
    (tally,) = [one for one in found.tallies if one.source[0] == "journal-shuffler"]
    assert tally.key_ids == [key.key_id.hex() for key in ring.kept()]
    assert f"key {ring.of(0).key_id.hex()} then {ring.of(1).key_id.hex()}" in found.as_text()


def test_a_release_after_the_turn_that_is_changed_is_found(turned):
    worker, _ = turned
    windows = worker.log.slice("window-sums", 0, 0).records
    name, fields = codec.decode(windows[4].value)
    put = [*windows[:4], windows[4]._replace(value=codec.encode(name, {**fields, "slots": 5}))]
    worker.log.load("window-sums", 0, put)
    assert not worker.verified().ok


def test_when_the_first_key_is_destroyed_the_worker_goes_on_and_its_past_is_uncheckable(turned):
    worker, folder = turned
    retire(key_path(folder, "shuffler"), 0)
    worker.restart()
    worker.window(5)
    found = worker.verified()
    assert found.ok
    assert found.of("journal-shuffler")[Status.UNCHECKABLE] == 7
    with pytest.raises(RetiredKey, match="retired"):
        worker.maker.of_journal(0, worker.genesis)


def test_a_worker_goes_on_with_a_journal_under_the_key_it_was_begun_with(played):
    system, keys, log, folder = played
    turn(folder, "shuffler")
    genesis = log.slice("journal-shuffler", 0, 0).records[0].value
    machine = role_work("shuffler", system, keys).make_machine.of_journal(0, genesis)
    machine.start(genesis)
    assert machine.genesis(bytes(32)) != genesis


def test_a_new_journal_is_begun_under_the_turned_key(played):
    system, keys, _, folder = played
    before = role_work("shuffler", system, keys).make_machine(0).genesis(bytes(32))
    turn(folder, "shuffler")
    after = role_work("shuffler", system, keys).make_machine(0).genesis(bytes(32))
    assert before != after


def test_after_a_retired_key_nothing_can_be_derived_and_nothing_is_called_changed(played):
    system, keys, log, folder = played
    turn(folder, "shuffler")
    retire(key_path(folder, "shuffler"), 0)
    found = verify(LogCopy.of(log), system, keys)
    assert found.ok
    assert found.of("journal-shuffler")[Status.UNCHECKABLE] == len(log.slice("journal-shuffler", 0, 0).records)
    genesis = log.slice("journal-shuffler", 0, 0).records[0].value
    with pytest.raises(RetiredKey, match="retired"):
        role_work("shuffler", system, keys).make_machine.of_journal(0, genesis)


def test_a_journal_of_a_key_that_the_file_never_held_is_called_changed(played, tmp_path):
    system, _, log, _ = played
    other = tmp_path / "other"
    generate_keys(other, ("edge", "shuffler"))
    assert not verify(LogCopy.of(log), system, KeySource(folder=other)).ok


async def on_a_broker(worker, broker):
    """Its logs as topics, with their log times."""
    connection = Connection(broker.bootstrap, "turned.")
    async with connection.admin("create topics") as admin:
        settings = {"message.timestamp.type": "CreateTime"}
        counts = worker.system.partitions.items()
        await admin.create_topics([NewTopic(f"turned.{name}", n, 1, topic_configs=settings) for name, n in counts])
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for (topic, number), records in worker.log.partitions():
            for record in records:
                at = {"partition": number, "timestamp_ms": record.timestamp_ms}
                await producer.send_and_wait(f"turned.{topic}", record.value, **at)
    return connection


async def test_an_input_is_the_one_that_was_folded_whatever_key_its_newest_journal_record_is_under(turned):
    """The second of three keys: neither that of the genesis nor the current one. A mistyped offset was carried out."""
    worker, folder = turned
    turn(folder, "shuffler")
    async with EmbeddedBroker() as broker:
        connection = await on_a_broker(worker, broker)
        planned = plan(connection, worker.system, worker.keys, ("reports", 0), 1200)
        with pytest.raises(HushstreamError, match="got the log that was folded"):
            await planned
