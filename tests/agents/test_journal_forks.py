"""Topics that were put back from an older copy, taken up by workers of which some know the branch that was lost.

A cluster is the topics under one prefix of an embedded broker; an older copy of it is another prefix that holds the
beginning of the same logs. Machines, recovery, marks and snapshots are the product's; a test folds in the place of the
driver, in the driver's order: journal record, mark, outputs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from hushstream.agents.kafka.administration import journal_label, pack_mark
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery import recovery as recovering
from hushstream.agents.recovery.marks import NOTHING_MORE, HighWater, OlderThanReleased, ReleaseMarks
from hushstream.agents.recovery.recovery import Recovery
from hushstream.agents.recovery.snapshots import RecoveredMachine, Snapshot, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.broker import EmbeddedBroker
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRecord, Output
from hushstream.privacy.key_files import KeyRing, next_key
from hushstream.schemas import codec
from hushstream.systems.p2b.slots import Report
from hushstream.systems.p2b.topics import TOPICS

pytestmark = pytest.mark.asyncio(loop_scope="module")

DECLARED = {topic.name: topic for topic in TOPICS}
WINDOW = {"window_slots": 4, "epsilon": 0.05}
RUNNING = {**WINDOW, "sums": "counter", "windows": 64}
LIFT = {"own": 0.5, "epsilon": 0.05, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 64}
ROOM = BudgetConfig(16.0, 1e-6, lift=0.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def producer() -> AsyncIterator[AIOKafkaProducer]:
    async with EmbeddedBroker() as broker:
        made = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        await made.start()
        made.bootstrap = broker.bootstrap
        yield made
        await made.stop()


class Role:
    """What a cluster holds of one role, and how its machine is made."""

    def __init__(self, rigs: Any, name: str, system: Any) -> None:
        self.rigs, self.name, self.system = rigs, name, system
        self.key = rigs.Key(b"\x07" * 31 + b"\x01")
        self.ring = KeyRing(0, 0, (), self.key)
        learner = name == "learner"
        self.zone = "edge" if learner else "shuffler"
        self.inputs = ("contexts", "clicks") if learner else ("reports",)
        self.journal = "decisions" if learner else "journal-shuffler"
        self.outputs = ("reports", "lift", "ledger-edge") if learner else ("window-sums", "ledger")
        self.marks = f"marks-{self.zone}"
        self.tracks = 2 if learner else 1
        self.spending_terms = system.ledgers[self.outputs[-1]]
        self.irreplaceable = ""

    def __call__(self, partition: int) -> Any:
        if self.name == "learner":
            return self.rigs.LearnerMachine(self.system, partition, self.key)
        return self.rigs.ShufflerMachine(self.system, partition, self.key, ring=self.ring)

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Any:
        return self(partition)

    def mark_keys(self) -> KeyRing:
        return self.ring

    def state_keys(self) -> KeyRing:
        return self.ring


class Cluster:
    """The topics of one role under a prefix."""

    _numbers = count()

    def __init__(self, role: Role, producer: AIOKafkaProducer, folder: Path) -> None:
        self.role, self._producer, self._folder = role, producer, folder
        self.prefix = f"c{next(self._numbers)}."
        self._disks = count()
        self.logs: dict[str, list[InputRecord]] = {}
        """What was appended: all of it comes from here."""

    async def create(self) -> Cluster:
        topics = (*self.role.inputs, self.role.journal, *self.role.outputs, self.role.marks, "models")
        admin = AIOKafkaAdminClient(bootstrap_servers=self._producer.bootstrap)
        await admin.start()
        try:
            # As many partitions as a learner has tracks of models.
            await admin.create_topics([NewTopic(self.prefix + t, self.role.tracks, 1) for t in dict.fromkeys(topics)])
        finally:
            await admin.close()
        return self

    async def append(self, topic: str, record: InputRecord, key: bytes | None = None, partition: int = 0) -> None:
        await self._producer.send_and_wait(
            self.prefix + topic, record.value, key, partition, timestamp_ms=record.timestamp_ms
        )
        self._note(topic, record)

    async def send(self, output: Output) -> Awaitable[Any]:
        self._note(output.topic, InputRecord(0, 0, output.value))
        future: Awaitable[Any] = await self._producer.send(
            self.prefix + output.topic, output.value, output.key, output.partition
        )
        return future

    def _note(self, topic: str, record: InputRecord) -> None:
        log = self.logs.setdefault(topic, [])
        log.append(record._replace(offset=len(log)))

    def records(self, topic: str) -> list[InputRecord]:
        return list(self.logs.get(topic, ()))

    def settings(self, disk: str, accept: tuple[str, ...] = ()) -> WorkerSettings:
        return WorkerSettings(
            bootstrap=self._producer.bootstrap, role=self.role.name, group="g", topic_prefix=self.prefix,
            deployment="small", datadir=self._folder / disk, accept_loss=accept, fetch_wait_milliseconds=20,
        )  # fmt: skip

    async def older(self, ends: Mapping[str, int], marks: bool = True) -> Cluster:
        """What was put back: the logs up to some ends, the newest marks unless those were put back, too."""
        other = await Cluster(self.role, self._producer, self._folder).create()
        for topic in (*self.role.inputs, self.role.journal):
            for record in self.records(topic)[: ends[topic]]:
                await other.append(topic, record)
        kept = self.records(self.role.marks) if marks else []
        for number, record in enumerate(kept):
            await other.append(self.role.marks, record, str(number).encode())
        return other

    def ends(self) -> dict[str, int]:
        return {topic: len(self.records(topic)) for topic in (*self.role.inputs, self.role.journal)}


class Worker:
    """One worker of a cluster; ``disk`` names its state folder, which it may share with its former self."""

    def __init__(self, cluster: Cluster, disk: str = "", accept: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.settings = cluster.settings(disk or f"{cluster.prefix}{next(cluster._disks)}", accept)
        role = cluster.role
        self.marks = ReleaseMarks(self.settings, role.marks, (), DECLARED, role, cluster, HighWater(self.settings))
        self.snapshots = SnapshotStore(self.settings, role)
        self.recovery = Recovery(self.settings, role, cluster, self.snapshots, lambda: True, self.marks)
        self.recovered: RecoveredMachine
        self.rig: Any

    async def take_up(self, *commits: str, cached: RecoveredMachine | None = None) -> Worker:
        self.recovered = await self.recovery.run(0, commits, cached)
        role = self.cluster.role
        kind = role.rigs.LearnerRig if role.name == "learner" else role.rigs.ShufflerRig
        rig = self.rig = kind.__new__(kind)
        rig.system, rig.key, rig.machine, rig.genesis = (
            role.system,
            role.key,
            self.recovered.machine,
            self.recovered.genesis,
        )
        rig.logs = {(topic, 0): list(self.cluster.records(topic)) for topic in role.inputs}
        times = [record.timestamp_ms for log in rig.logs.values() for record in log]
        rig.now_ms = max(times, default=role.rigs.START_MS)
        rig.journal, rig.folded, rig.seen = [], [], role.rigs.Seen()
        return self

    async def publish(self) -> None:
        """Bring what the rig has taken and folded to the broker, in the driver's order."""
        recovered, cluster = self.recovered, self.cluster
        for (topic, _), log in self.rig.logs.items():
            for record in log[len(cluster.records(topic)) :]:
                await cluster.append(topic, record)
        for step in self.rig.seen.steps:
            if step.journal is None:
                continue
            await cluster.append(cluster.role.journal, InputRecord(0, self.rig.now_ms, step.journal))
            recovered.sequence += 1
            recovered.journal_offset += 1
            if step.releases:
                await self.marks.raise_to(0, recovered.journal, recovered.generation, recovered.sequence, step.releases)
        self.rig.seen = cluster.role.rigs.Seen()

    def save(self) -> None:
        recovered = self.recovered
        snapshot = Snapshot(
            recovered.sequence, recovered.journal_offset, recovered.genesis, recovered.machine.snapshot()
        )
        self.snapshots.save(0, snapshot)

    async def window(self, first: int, reports: list[Report | None]) -> Any:
        """A window of the shuffler; gives its noised sums."""
        for number, report in enumerate(reports):
            self.rig.slot(first + number, report)
        windows = self.rig.sums_of(self.rig.fold())
        await self.publish()
        role = self.cluster.role
        shape = (role.rigs.CODES, role.rigs.ARMS)
        return [
            np.stack([np.frombuffer(window[n], "<i8").reshape(shape) for n in ("ones", "zeros")]) for window in windows
        ]


async def word_of(cluster: Cluster, *commits: str) -> str:
    """What an operator would have to name to go on with a cluster, as its refusal says."""
    with pytest.raises(OlderThanReleased) as refusal:
        await Worker(cluster).take_up(*commits)
    return str(refusal.value).split("--accept-loss ")[1].split(" ")[0]


LOST: list[Report | None] = [Report(1, 2, 1), Report(0, 0, 1), None, None]
FOUND: list[Report | None] = [Report(1, 2, 0), Report(0, 0, 1), None, None]


def difference(rigs: Any) -> Any:
    """By what the sums of LOST and FOUND differ."""
    exact = np.zeros((2, rigs.CODES, rigs.ARMS), dtype=np.int64)
    exact[0, 1, 2], exact[1, 1, 2] = 1, -1
    return exact


@pytest_asyncio.fixture(loop_scope="module", params=["fresh", "counter"])
async def shuffler(request: Any, rigs: Any, producer: Any, tmp_path: Path) -> Cluster:
    release = {"fresh": WINDOW, "counter": RUNNING}[request.param]
    system = rigs.make_system(release=release, budget=ROOM)
    return await Cluster(Role(rigs, "shuffler", system), producer, tmp_path).create()


async def lost_windows(cluster: Cluster) -> tuple[Worker, Cluster, list[Any]]:
    """A worker with three windows behind it, of which the topics that were put back hold one; what it released."""
    first = await Worker(cluster, "first").take_up()
    await first.window(0, LOST)
    ends = cluster.ends()
    released = [*await first.window(100, LOST), *await first.window(150, LOST)]
    return first, await cluster.older(ends), released


# A state of the lost branch.


@pytest.mark.parametrize("kept", ["snapshot", "memory"])
async def test_a_state_of_the_lost_branch_is_never_gone_on_with(shuffler, rigs, kept):
    """As many records as the branch that goes on: numbers, offsets, genesis and marks are all in order."""
    before = await Worker(shuffler, "first").take_up()
    await before.window(0, LOST)
    ends = shuffler.ends()
    await before.window(100, LOST)
    before.save()
    cached = await Worker(shuffler, "first").take_up()
    (third,) = await before.window(150, LOST)
    older = await shuffler.older(ends)
    heir = await Worker(older, accept=(await word_of(older),)).take_up()
    await heir.window(200, FOUND)
    assert heir.recovered.sequence == cached.recovered.sequence == 2
    assert heir.recovered.machine.spending.redraws == 2
    again = Worker(older, "first") if kept == "snapshot" else Worker(older)
    await again.take_up(cached=cached.recovered if kept == "memory" else None)
    assert again.recovered.machine.snapshot() == (await Worker(older).take_up()).recovered.machine.snapshot()
    assert again.recovered.machine.spending.redraws == 2, "what the fork cost is known"
    (found,) = await again.window(300, FOUND)
    # 40 sums, each of which agrees by chance about once in 80 times.
    assert float(np.mean(third - found == difference(rigs))) < 0.25
    aside = [path.name for path in again.settings.datadir.rglob("*.other-version")]
    assert aside == (["0.other-version"] if kept == "snapshot" else [])


async def test_users_that_lie_with_a_state_of_the_lost_branch_go_with_it(lift):
    """A learner's users are in one file with its snapshot: those of the lost branch would answer by lost rewards."""
    first = await Worker(lift, "first").take_up()
    await round_of(first, "before", 1.0)
    ends = lift.ends()
    for number in range(3):
        await slots_alone(first, f"lost-{number}")
    first.save()
    await round_of(first, "lost", 1.0)
    older = await lift.older(ends)
    heir = await Worker(older, accept=(await word_of(older),)).take_up()
    while heir.recovered.sequence <= first.recovered.sequence:
        await round_of(heir, f"found-{heir.recovered.sequence}", 0.0)
    again = await Worker(older, "first").take_up()
    whole = await Worker(older).take_up()
    assert again.recovered.sequence == whole.recovered.sequence == again.recovered.replayed
    assert again.recovered.machine.snapshot() == whole.recovered.machine.snapshot()
    assert [path.name for path in again.settings.datadir.rglob("*.other-version")] == ["0.other-version"]


async def test_a_state_that_the_journal_has_not_reached_is_rebuilt_from_it(shuffler):
    """The snapshot holds a window that no record of the journal closes; nobody's word lets it count."""
    first, older, _ = await lost_windows(shuffler)
    first.save()
    word = await word_of(older)
    heir = await Worker(older, "first", accept=(word,)).take_up()
    assert (heir.recovered.sequence, heir.recovered.replayed) == (1, 1)
    assert heir.recovered.machine.epoch.due


async def test_topics_that_marks_refuse_leave_the_state_folder_as_it_was(shuffler):
    """The newer topics may come back, and with them this snapshot is good."""
    first, older, _ = await lost_windows(shuffler)
    first.save()
    with pytest.raises(OlderThanReleased, match="ends at record 1, but a release was sent with record 3"):
        await Worker(older, "first").take_up()
    again = await Worker(shuffler, "first").take_up()
    assert (again.recovered.sequence, again.recovered.replayed) == (3, 0)


async def test_a_snapshot_behind_which_others_wrote_what_does_not_count_is_found(shuffler):
    first = await Worker(shuffler, "first").take_up()
    await first.window(0, LOST)
    for _ in range(5):
        await shuffler.append(shuffler.role.journal, InputRecord(0, first.rig.now_ms, b"no record"))
    again = await Worker(shuffler, "first").take_up()
    assert again.recovered.journal_offset == 7
    again.save()
    assert (await Worker(shuffler, "first").take_up()).recovered.replayed == 0
    assert (await Worker(shuffler).take_up(cached=again.recovered)).recovered.replayed == 0


# Commits that are ahead.


async def test_commits_that_are_ahead_of_the_journal_count_as_marks_do(shuffler):
    """Journal and marks were put back to one moment; the group's commits were not."""
    first = await Worker(shuffler, "first").take_up()
    await first.window(0, LOST)
    ends, marks = shuffler.ends(), shuffler.records(shuffler.role.marks)
    await first.window(100, LOST)
    older = await shuffler.older(ends, marks=False)
    for number, mark in enumerate(marks):
        await older.append(older.role.marks, mark, str(number).encode())
    commit = pack_mark(journal_label(first.recovered.journal, 0), 2)
    with pytest.raises(OlderThanReleased, match="ends at record 1, but the group has committed all up to record 2"):
        await Worker(older).take_up(commit)
    assert (await Worker(older).take_up(pack_mark(first.recovered.journal, 1))).recovered.sequence == 1
    heir = await Worker(older, accept=(await word_of(older, commit),)).take_up(commit)
    assert heir.recovered.machine.epoch.due
    await heir.window(200, FOUND)
    assert (await Worker(older).take_up(commit)).recovered.sequence == 2, "commits of the lost history count no more"
    later = pack_mark(journal_label(first.recovered.journal, 5), 2)
    with pytest.raises(OlderThanReleased, match="committed work of a generation that the topic of marks lacks"):
        await Worker(older).take_up(later)


# What is sent before all was read.


async def test_a_journal_behind_its_mark_sends_no_portion_before_it_is_refused(shuffler, monkeypatch):
    first = await Worker(shuffler, "first").take_up()
    for number in range(4):
        await first.window(100 * number, LOST)
    ends = shuffler.ends()
    await first.window(400, LOST)
    monkeypatch.setattr(recovering, "PORTION_OUTPUTS", 1)
    older = await shuffler.older(ends)
    with pytest.raises(OlderThanReleased, match="ends at record 4"):
        await Worker(older).take_up()
    assert [older.records(topic) for topic in older.role.outputs] == [[], []]
    whole = await Worker(shuffler).take_up()
    assert whole.recovered.resent == 10
    assert len(shuffler.records("window-sums")) == 5


# The suspected rollback behind an operator's word.


@pytest_asyncio.fixture(loop_scope="module")
async def lift(rigs: Any, producer: Any, tmp_path: Path) -> Cluster:
    budget = BudgetConfig(16.0, 1e-6, lift=0.25)
    slot = {"after_interactions": 2, "lifetime_slots": 50}
    system = rigs.make_system(measurement=LIFT, slot=slot, budget=budget)
    return await Cluster(Role(rigs, "learner", system), producer, tmp_path).create()


async def round_of(worker: Worker, prefix: str, reward: float) -> Any:
    """Decisions of eight users, and the lift that a phase end releases; its noised sums less the exact ones."""
    rig, rigs = worker.rig, worker.cluster.role.rigs
    for number in range(8):
        user = f"user-{number}"
        arm = rig.decide(f"{prefix}:{user}", user, rigs.point(number), baseline=2)
        rig.reward(f"{prefix}:{user}", arm, reward if not number else 1.0, user)
        rig.fold()
    rig.wait(6)
    rig.decide(f"{prefix}:tick", "tick", rigs.point(0), baseline=2)
    rig.end_phase()
    record = rig.fold().records("lift", "Lift")[-1]
    await worker.publish()
    return np.frombuffer(record["sums"], "<i8") - rig.machine.lift._counter.exact


async def slots_alone(worker: Worker, prefix: str = "mid") -> None:
    """Slots leave, and raise the mark; nothing is debited."""
    rig, rigs = worker.rig, worker.cluster.role.rigs
    for number in range(2):
        rig.decide(f"{prefix}-{number}", f"zoe-{prefix}", rigs.point(number), baseline=2)
    rig.wait(25)
    rig.decide(f"{prefix}-x", "yan", rigs.point(0), baseline=2)
    topics = {output.topic for step in rig.seen.steps for output in step.releases}
    assert topics == {"reports"}
    await worker.publish()


@pytest.mark.parametrize("between", ["crash", "slots", "slots and a snapshot", "slots, taken up twice", "memory"])
async def test_a_suspected_rollback_is_open_until_its_epoch_is_in_the_journal(lift, between):
    first = await Worker(lift, "first").take_up()
    await round_of(first, "before", 1.0)
    ends = lift.ends()
    noise_lost = await round_of(first, "lost", 1.0)
    older = await lift.older(ends)
    one = await Worker(older, "one", accept=(await word_of(older),)).take_up()
    asked = one.recovered.machine.epoch.pending
    assert asked
    if between != "crash":
        await slots_alone(one)
    if "snapshot" in between:
        one.save()
    if "twice" in between:
        await Worker(older).take_up()
    heir = Worker(older, "one" if "snapshot" in between else "")
    await heir.take_up(cached=one.recovered if between == "memory" else None)
    epoch = heir.recovered.machine.epoch
    assert epoch.due
    assert epoch.pending not in (b"", asked), "a name that a kept state holds may be another branch's"
    noise_found = await round_of(heir, "found", 0.0)
    # Four sums with noise of scale above 200: all of them agree by chance with a probability below 1e-7.
    assert (noise_lost != noise_found).any()
    assert heir.recovered.machine.spending.redraws == 2
    last = await Worker(older).take_up()
    assert not last.recovered.machine.epoch.due, "the journal says that the suspected rollback has had its epoch"
    assert last.recovered.machine.spending.redraws == 2


async def test_the_price_of_a_fork_is_asked_again_by_every_take_up_until_a_window_paid_it(shuffler):
    """Where content names the noise nothing else tells of the fork."""
    _, older, _ = await lost_windows(shuffler)
    word = await word_of(older)
    one = await Worker(older, "one", accept=(word,)).take_up()
    one.rig.slot(200, None)
    one.rig.fold()
    await one.publish()
    one.save()
    heir = await Worker(older, "one", accept=(word,)).take_up()
    assert heir.recovered.machine.epoch.due
    assert heir.recovered.generation == 1, "the word fits no refusal any more"
    await heir.window(300, FOUND)
    assert heir.recovered.machine.spending.redraws == 2
    assert not (await Worker(older, accept=(word,)).take_up()).recovered.machine.epoch.due


async def test_a_second_loss_opens_a_second_epoch_though_the_journal_holds_the_first(shuffler):
    _, older, _ = await lost_windows(shuffler)
    one = await Worker(older, accept=(await word_of(older),)).take_up()
    await one.window(200, FOUND)
    ends = older.ends()
    await one.window(300, FOUND)
    oldest = await older.older(ends)
    word = await word_of(oldest)
    assert word.endswith(":2")
    two = await Worker(oldest, accept=(word,)).take_up()
    assert two.recovered.machine.epoch.due
    await two.window(400, LOST)
    assert two.recovered.machine.spending.redraws == 3
    assert two.recovered.machine.epoch.number == 2


# What was paid on what is lost.


@pytest.mark.parametrize("left", ["nothing", "the first record", "one window"])
async def test_the_price_of_a_lost_incarnation_is_charged_however_little_is_left(shuffler, left):
    """One life was paid in the lost branch, and one is paid after it: two, whatever the journal still knows."""
    first = await Worker(shuffler, "first").take_up()
    if left == "one window":
        await first.window(0, LOST)
    ends = shuffler.ends()
    await first.window(100, LOST)
    older = await shuffler.older({**ends, shuffler.role.journal: 0} if left == "nothing" else ends)
    heir = await Worker(older, accept=(await word_of(older),)).take_up()
    assert (heir.recovered.journal == first.recovered.journal) == (left != "nothing")
    await heir.window(200, FOUND)
    spending = heir.recovered.machine.spending
    life = spending.terms.life.cost
    assert spending.redraws == 2
    assert (spending.spent.epsilon_micro, spending.spent.delta_units) == (2 * life.epsilon_micro, 2 * life.delta_units)
    again = await Worker(older).take_up()
    assert again.recovered.machine.spending.dump() == spending.dump(), "and any replay charges the same"


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("kept", ["nothing", "a window"])
async def test_a_refusal_says_beforehand_whether_the_budget_pays_for_anything_behind_it(
    rigs, producer, tmp_path, lives, kept
):
    """Each loss of a journal costs a life; behind the last one nothing is released, and the operator was told so."""
    system = rigs.make_system(release={"window_slots": 4, "epsilon": 1.0}, budget=BudgetConfig(lives, 1e-6))
    cluster = await Cluster(Role(rigs, "shuffler", system), producer, tmp_path).create()
    worker = await Worker(cluster).take_up()
    for loss in range(lives):
        ends = {"reports": 0, "journal-shuffler": 0} if kept == "nothing" else None
        assert await worker.window(1000 * loss, LOST)
        ends = ends or cluster.ends()
        assert await worker.window(1000 * loss + 100, LOST)
        cluster = await cluster.older(ends)
        with pytest.raises(OlderThanReleased) as refusal:
            await Worker(cluster).take_up()
        last = loss == lives - 1
        assert (NOTHING_MORE in str(refusal.value)) == last
        assert ("the next release pays for an epoch of its own" in str(refusal.value)) != last
        worker = await Worker(cluster, accept=(await word_of(cluster),)).take_up()
        assert (worker.recovered.machine.refused is not None) == last
    assert not await worker.window(9000, FOUND)
    assert (await Worker(cluster).take_up()).recovered.machine.refused is not None


# Keys that turn where nothing is released.


async def test_a_key_that_turned_with_a_window_that_the_budget_refused_is_marked_at_the_next_take_up(
    rigs, producer, tmp_path
):
    """Otherwise no mark is left that can be read when the key before it is destroyed."""
    system = rigs.make_system(release={**RUNNING, "windows": 1}, budget=BudgetConfig(1.0, 1e-6))
    role = Role(rigs, "shuffler", system)
    cluster = await Cluster(role, producer, tmp_path).create()
    first = await Worker(cluster).take_up()
    assert await first.window(0, LOST)
    role.ring = KeyRing(0, 1, (), role.key)
    commit = pack_mark(first.recovered.journal, 1)
    second = await Worker(cluster).take_up(commit)
    assert not await second.window(100, LOST)
    record = cluster.records(role.journal)[-1]
    assert codec.decode(record.value)[1]["turned_to"]
    third = await Worker(cluster).take_up(commit)
    assert third.recovered.resent == 0
    role.ring = KeyRing(1, 1, ((0, role.key.key_id),), next_key(role.key, 1))
    async with LogReader(third.settings) as reader:
        evidence = await third.marks.read(0, reader, ())
    assert evidence.highest(third.recovered.journal) == 2
    assert not evidence.suspicion(third.recovered.journal, 2)
