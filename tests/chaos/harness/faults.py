"""The operations of the fault sweep, and what must hold of a deployment that met them.

Every operation leaves no worker behind; the next one begins with a fresh process on what is there.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frozen_logs import KEY_SEED
from tests.chaos.harness.losses import without
from tests.chaos.harness.schedule import FOREIGN, LAST, MARKS, MOST_LOST, Fault, Lane

from hushstream.agents.recovery.snapshots import SnapshotStore
from hushstream.agents.worker.deployment import KeySource, load
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify_live
from hushstream.ops.connection import Connection
from hushstream.ops.logs import foreign, remake
from hushstream.schemas.errors import HushstreamError
from patience import Patience

SURROUNDINGS = str(Path(__file__).with_name("surroundings.py"))
DISK_KIBIBYTES = 2048
"""Room for the probe of a megabyte that a worker makes when it starts, and for little more."""

PATIENCE_SECONDS = 180.0
"""How long anything may take on a machine that many deployments share."""

SETTLED_SECONDS = 3.0
"""Brokers on such a machine are done with what a dead client had sent when nothing has come for so long."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of role over frozen inputs.

    Attributes:
        kind, role: its name in schedules, and the role.
        frozen: the inputs, and what is true of them.
        make: makes a `Deployment` of it, by name.
        promises: checks what must hold of a run after any fault.
        pace_seconds: a fold takes at least so long, so that a run can be disturbed.
    """

    kind: str
    role: str
    frozen: Any
    make: Callable[..., Any]
    promises: Callable[..., Any]
    pace_seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Input that was deleted before it was folded.

    Attributes:
        source: the input.
        low, first: ``low <= offset < first``.
    """

    source: tuple[str, int]
    low: int
    first: int

    @property
    def records(self) -> tuple[tuple[str, int], int, int]:
        """Which records are lost."""
        return self.source, self.low, self.first

    @property
    def word(self) -> str:
        """The word with which an operator accepts the loss."""
        topic, home = self.source
        return f"{home}:{topic}/{home}:{self.low}-{self.first}"


class TooFewLeft(Exception):
    """A deployment is too near the end of its inputs for a fault."""


class Disturbed:
    """One lane while it runs."""

    def __init__(self, subject: Subject, name: str, undisturbed: Any, say: Callable[[str], None]) -> None:
        self._subject = subject
        self._name = name
        self._undisturbed = undisturbed
        self._say = say
        self._run: Any = None
        self._copies: list[Any] = []
        self._beside: Mapping[int, int] = {}
        """How many records lay beside the chain of each journal when the fault began."""
        self._lost: Lost | None = None
        self._same_until: Mapping[int, int] = {}
        """Behind which journal record of a home partition other bytes follow than without faults."""
        self._epochs = 1
        """How many epochs of noise the role has had, if it is one that releases."""
        self.met: list[Fault] = []

    async def meet(self, lane: Lane) -> None:
        """Do all of a lane, let one worker finish, and hold what is left to the promises."""
        assert not [fault for fault in lane.faults[:-1] if fault.operation in LAST], f"{lane}: not the last"
        try:
            await self.begin()
            for fault in lane.faults:
                await self._meet(fault)
            await self.finish()
        finally:
            await self.end()
        for run in (self._run, *self._copies):
            await run.delete_topics()

    async def begin(self) -> None:
        """Make the deployment's topics."""
        self._run = self._subject.make(self._name)
        await self._run.__aenter__()

    async def end(self) -> None:
        """Leave no worker behind."""
        for run in (self._run, *self._copies):
            await run.__aexit__()

    async def cut(self, fault: Fault, pids: Sequence[int]) -> Any:
        """A worker that kills other processes and itself at a step.

        Raises:
            TooFewLeft: the deployment is at the end of its inputs.
        """
        self._run.pace_seconds = self._subject.pace_seconds
        home, sequence = await self._place(fault)
        return await self._run.start_armed([_call("cut_power", {"pids": pids}, fault.step, home, sequence)])

    async def bystander(self) -> Any:
        """A worker that is at work when the power is cut."""
        self._run.pace_seconds = self._subject.pace_seconds
        return await self._run.start()

    async def _meet(self, fault: Fault) -> None:
        self._run.pace_seconds = self._subject.pace_seconds
        try:
            home, sequence = await self._place(fault)
            await OPERATIONS[fault.operation](self, fault, home, sequence)
        except TooFewLeft:
            self._say(f"{self._name}: {fault} not met: too few records are left")
        else:
            self.met.append(fault)

    async def _place(self, fault: Fault) -> tuple[int, int]:
        """A home partition with enough records to come, and the sequence number to wait for.

        Raises:
            TooFewLeft: there is none.
        """
        found = await self._reached()
        last = self._undisturbed.releasing
        if fault.step not in MARKS:
            last = {home: len(chain) - 1 for home, chain in self._undisturbed.journals.items()}
        if not (homes := [home for home, end in sorted(last.items()) if end - found[home] >= fault.ahead + 4]):
            raise TooFewLeft
        home = homes[fault.home % len(homes)]
        return home, found[home] + fault.ahead

    async def _reached(self) -> Mapping[int, int]:
        """The last record of each journal; until then it is what it is without faults. Counts what lies beside it."""
        chains = {home: set(values) for home, values in self._undisturbed.journals.items()}
        found = await self._run.all_records([(self._journal, home) for home in chains])
        journals = {home: [record.value for record in records] for (_, home), records in found.items()}
        last = {home: len(chains[home].intersection(values)) - 1 for home, values in journals.items()}
        self._beside = {home: len(values) - 1 - last[home] for home, values in journals.items()}
        return last

    def _end_of(self, home: int) -> int:
        """Where a journal ends at least, once all is folded."""
        return len(self._undisturbed.journals[home]) + self._beside[home]

    @property
    def _journal(self) -> str:
        return str(self._run.make_machine(0).journal[0])

    # The operations.

    async def kill(self, fault: Fault, home: int, sequence: int) -> None:
        """SIGKILL at a step."""
        await self._killed(await self._run.start_armed([_signal(fault.step, home, sequence, signal.SIGKILL)]))

    async def stop(self, fault: Fault, home: int, sequence: int) -> None:
        """SIGSTOP at a step, past the session's end; another owner goes on; SIGCONT: two owners; both are killed."""
        # The learner alone journals how its inputs were cut; all others must not depend on it.
        unit = self._run.values["fixed_records"] + (0 if self._subject.role == "learner" else 1)
        armed = [_signal(fault.step, home, sequence, signal.SIGSTOP)]
        sleeper = await self._run.start_armed(armed, fixed_records=unit)
        await sleeper.logged("observer: signal", PATIENCE_SECONDS)
        before = await self._run.output_ends()
        heir = await self._run.start()
        await heir.logged(f"partition {home}: at journal record", PATIENCE_SECONDS)
        # Unless the sleeper had been through all of it: a step that comes at intervals may come that late.
        goal = min(before[self._journal, home] + 1, self._end_of(home))
        await self._until(lambda ends: ends[self._journal, home] >= goal, heir)
        sleeper.kill(signal.SIGCONT)
        await asyncio.sleep(0.5)
        for worker in (heir, sleeper):
            worker.kill()
            await worker.exit_code(PATIENCE_SECONDS)

    async def clock(self, fault: Fault, home: int, sequence: int) -> None:
        """The wall clock jumps at a step; the worker goes on, and is killed two records later, or at the end."""
        moved = _call("move_clock", {"seconds": fault.amount}, fault.step, home, sequence)
        worker = await self._run.start_armed([moved])
        await worker.logged(f"move_clock at {fault.step} {home}/", PATIENCE_SECONDS)
        # A snapshot may come much later than it was asked for, even with the last record.
        goal = min((await self._run.output_ends())[self._journal, home] + 2, self._end_of(home))
        await self._until(lambda ends: ends[self._journal, home] >= goal, worker)
        worker.kill()
        await self._killed(worker)

    async def full_disk(self, fault: Fault, home: int, sequence: int) -> None:
        """The data directory's disk fills up at a step; the worker goes on without snapshots, and is killed.

        A role that must note there what was paid for may find that it can release nothing more, which it says. Where
        the disk filled up so late that the journals are complete, nothing is left that could fail. What a snapshot
        gives back that was being written meanwhile is filled too: it would be room for all that follow.
        """
        folder = self._run.values["datadir"]
        disk = {"folder": folder, "kibibytes": DISK_KIBIBYTES}
        filled = _call("keep_full", {"folder": folder}, fault.step, home, sequence)
        worker = await self._run.start_armed([filled], before=_before("small_disk", disk))
        await worker.logged(f"keep_full at {fault.step} {home}/", PATIENCE_SECONDS)
        says = ["snapshot not written", *(["not released"] if self._run.topics.marks else [])]
        complete = {(self._journal, home): self._end_of(home) for home in self._undisturbed.journals}
        await self._until(
            lambda ends: worker.has_logged(*says) or all(ends[place] >= end for place, end in complete.items()), worker
        )
        worker.kill()
        await worker.exit_code(PATIENCE_SECONDS)

    async def no_room(self, fault: Fault, home: int, sequence: int) -> None:
        """The disk is full before a worker starts: it must refuse, and say why."""
        disk = {"folder": self._run.values["datadir"], "kibibytes": DISK_KIBIBYTES, "full": True}
        before = await self._settled_ends()
        await self._refused(self._run, "free some space", before=_before("small_disk", disk))
        assert await self._run.output_ends() == before, "a worker that refuses writes nothing"

    async def rebalance(self, fault: Fault, home: int, sequence: int) -> None:
        """One worker, three, one: one of two ends cleanly, one is killed, and the third takes over what they held."""
        first = await self._run.start()
        await first.logged("at journal record", PATIENCE_SECONDS)
        second, third = await self._run.start(), await self._run.start()
        await asyncio.sleep(1.0)
        first.kill(signal.SIGTERM)
        code = await first.exit_code(PATIENCE_SECONDS)
        assert code == 0, first.log.read_text(encoding="utf-8")[-3000:]
        second.kill()
        await second.exit_code(PATIENCE_SECONDS)
        await third.logged("at journal record", PATIENCE_SECONDS)
        third.kill()
        await third.exit_code(PATIENCE_SECONDS)

    async def wiped(self, fault: Fault, home: int, sequence: int) -> None:
        """All topics are empty, the snapshots are there: the worker must refuse. Then the topics are back."""
        await self._run_until_snapshots()
        empty = self._other_topics("wiped", logs={})
        empty.with_genesis = False
        self._copies.append(await empty.__aenter__())
        before = await empty.output_ends()
        await self._refused(empty, "the topics were wiped or replaced")
        assert await empty.output_ends() == before, "a worker that refuses writes nothing"

    async def older_copy(self, fault: Fault, home: int, sequence: int) -> None:
        """The topics come back as they were long before the snapshots: the worker must refuse.

        All topics are of one moment, that of the marks too: nothing but what lies elsewhere can tell. So without the
        snapshots, as it is told, it goes on from the copy.
        """
        await self._run_until_snapshots()
        datadir = Path(self._run.values["datadir"])
        kept = self._snapshots()
        older = self._other_topics("older")
        ends = await self._run.output_ends()
        records = await self._run.all_records(list(ends))
        journals = {home: records[self._journal, home] for home in kept}
        # One moment for all topics, after all were begun, at which no journal had more than half of its snapshot.
        moment = min(journals[home][number // 2].timestamp_ms for home, number in kept.items())
        moment = max(moment, *(journal[0].timestamp_ms for journal in journals.values()))
        outputs: dict[Any, list[tuple[int, bytes]]] = {}
        for place, found in records.items():
            values = [record.value for record in found if record.timestamp_ms <= moment]
            if place[0] == self._journal:
                older.copied_journals = {**older.copied_journals, place[1]: values[: max(1, kept[place[1]] // 2 + 1)]}
            else:
                outputs[place] = [(1, value) for value in values]
        self._copies.append(self._run)
        older.with_marks = False  # a journal in which two owners wrote holds more records than its chain
        self._run = await older.__aenter__()
        await self._run.note_chains()
        await self._run.append(outputs)
        before = await self._run.output_ends()
        await self._refused(self._run, "older copy")
        assert await self._run.output_ends() == before, "a worker that refuses writes nothing"
        self._run.values["datadir"] = f"{datadir}-older"
        await self._note_foreign()  # notes that are newer than the copy are gone

    async def foreign(self, fault: Fault, home: int, sequence: int) -> None:
        """A record of nobody is appended at a step to all that the role alone writes and reads again.

        The worker goes on behind it, and says so of its journal, which it reads again at once. It is killed, and an
        operator notes what is foreign. Of what the role reads the frozen logs hold such records: they are part of what
        it folds, so none can come later without a change of bytes.
        """
        places = [(self._run.settings.physical(topic), topic, home) for topic in self._run.topics.own]
        record = {"bootstrap": self._run.settings.bootstrap, "value": FOREIGN[fault.amount].hex(), "places": places}
        worker = await self._run.start_armed([_call("put_foreign", record, fault.step, home, sequence)])
        for _, topic, _ in places:
            await worker.logged(f"put_foreign: {topic}/{home} offset", PATIENCE_SECONDS)
        log = worker.log.read_text(encoding="utf-8")
        put = {(topic, home, int(offset)) for topic, offset in re.findall(r"put_foreign: (\S+)/\d+ offset (\d+)", log)}
        for topic, partition, offset in put:
            if topic == self._journal:
                await worker.logged(f"{topic}/{partition} offset {offset}: skipped a record of", PATIENCE_SECONDS)
        worker.kill()
        await self._killed(worker)
        assert put <= await self._note_foreign(), f"{self._name}: `logs check` does not list all that is foreign"

    async def lost_inputs(self, fault: Fault, home: int, sequence: int) -> None:
        """Records that a role has not folded are deleted: it refuses, and goes on by the word that it names.

        It is killed as soon as it has noted that an operator accepts the loss. Whoever goes on needs no word.
        """
        ended = [_signal(fault.step, home, sequence, signal.SIGTERM)]
        # Whoever goes on needs a state that holds all that was folded: this one may be long about it.
        worker = await self._run.start_armed(ended, session_timeout_seconds=PATIENCE_SECONDS)
        assert await worker.exit_code(PATIENCE_SECONDS) == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        journaled, folded = self._folded(home)
        left = {source: len(self._subject.frozen.logs[source]) - offset for source, offset in folded.items()}
        sources = [source for source, number in sorted(left.items()) if number > MOST_LOST]
        if not sources:
            raise TooFewLeft  # a snapshot may come much later than it was asked for
        source = sources[fault.ahead % len(sources)]
        low, first = folded[source], folded[source] + fault.amount
        await self._run.lose(source, low, first)
        self._lost, self._same_until = Lost(source, low, first), {home: journaled}
        before = (await self._run.output_ends())[self._journal, home]
        refused = await self._run.start()
        await refused.logged(f"--accept-loss {self._lost.word} (nothing will follow from", PATIENCE_SECONDS)
        if len(self._undisturbed.journals) > 1:  # the others go on
            refused.kill(signal.SIGTERM)
        code, log = await refused.exit_code(PATIENCE_SECONDS), refused.log.read_text(encoding="utf-8")
        assert code in (0, 1), f"{self._name}: exit {code}\n{log[-3000:]}"
        assert "Traceback" not in log, log[-3000:]
        after = (await self._run.output_ends())[self._journal, home]
        assert after == before, f"{self._name}: a partition that is refused writes nothing"
        worker = await self._run.start(accept_loss=[self._lost.word])
        await worker.logged("by the operator's word", PATIENCE_SECONDS)
        worker.kill()
        await self._killed(worker)

    async def lost_marks(self, fault: Fault, home: int, sequence: int) -> None:
        """All marks are gone after a kill at a step: the role refuses, and goes on by what its refusal names.

        Where records of nobody lie under their keys, as compaction would leave them, that is `logs repair marks`; where
        the topic was made again, a word for each partition. The next release of a role that adds noise, if there is
        one, pays for an epoch.
        """
        if not all((await self._reached()).values()):
            await self._run_until_snapshots()  # a journal without a record has released nothing, and needs no mark
            home, sequence = await self._place(fault)
        await self._killed(await self._run.start_armed([_signal(fault.step, home, sequence, signal.SIGKILL)]))
        await self._settled_ends()
        found = await self._reached()
        if fault.amount:
            await self._run.make_marks_again()
            log = await self._refused(self._run, "--accept-loss")
            words = dict(re.findall(r"--accept-loss ((\d+):\w+:1) ", log))
            assert sorted(words.values()) == sorted(map(str, found)), f"{self._name}: {words}\n{log[-3000:]}"
            worker = await self._run.start(accept_loss=list(words))
            for partition in found:
                said = f"partition {partition}: went on with a refused journal by the operator's word"
                await worker.logged(said, PATIENCE_SECONDS)
            worker.kill()
            await self._killed(worker)
        else:
            await self._run.replace_marks(FOREIGN[0])
            await self._refused(self._run, f"logs repair marks --role {self._subject.role}")
            await self._rebuild_marks(found)
        for partition in found:
            read = await self._run.read_marks(partition)
            accepted = [mark.generation for mark in read.marks if mark.accepted]
            assert (accepted, read.missing) == ([1], ""), f"{self._name}: {read}"
        if self._subject.role != "learner":  # of those here none adds noise
            self._same_until, journals = found, self._undisturbed.journals
            # On a loaded machine a step may come when all has been released: nothing is left that could open an epoch.
            self._epochs += any(found[home] + 1 < len(values) for home, values in journals.items())

    async def _rebuild_marks(self, journaled: Mapping[int, int]) -> None:
        """As an operator does with `hushstream logs repair marks`, once no worker is in the group."""
        deployed, waiting = self._deployed(), Patience(PATIENCE_SECONDS)
        while True:
            try:
                made = await remake.plan_marks(*deployed, self._subject.role, self._run.settings.group)
                break
            except HushstreamError as error:
                if waiting.over or "expected no worker of group" not in str(error):
                    raise
                await asyncio.sleep(0.3)
        assert {one.partition: one.mark.sequence for one in made.rows} == journaled, f"{self._name}: {made}"
        await made.act()

    # The end.

    async def finish(self) -> None:
        """Let one worker fold the rest; then nothing may tell the run from one without faults, unless input is lost."""
        run = self._run
        run.pace_seconds = 0.0
        worker = await run.start()
        await run.taken_up(worker, PATIENCE_SECONDS)
        await run.folded_all(PATIENCE_SECONDS)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code(PATIENCE_SECONDS) == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
        if self._same_until:
            self._require_same_before(audit)
        else:
            assert audit == self._undisturbed, f"{self._name}: other bytes than without faults"
        frozen, start = self._subject.frozen, From.GENESIS
        if self._lost is not None:
            frozen, start = without(frozen, *self._lost.records), From.CHECKPOINT
        await self._subject.promises(self._subject.role, run, audit, frozen, self._epochs)
        await self._verify(start)

    def _require_same_before(self, audit: Any) -> None:
        """Until a loss, and in all other home partitions, nothing may tell the run from one without faults."""
        for home, values in self._undisturbed.journals.items():
            found = audit.journals[home]
            until = self._same_until.get(home, len(values)) + 1
            assert found[:until] == values[:until], f"{self._name}: other bytes than without faults"
            if until < len(values):
                # A batch may take none of the input that lacks records: a later one then differs first.
                assert found[until:] != values[until:], f"{self._name}: what was lost changed nothing"

    async def _verify(self, start: From) -> None:
        found = await asyncio.to_thread(verify_live, *self._deployed(), [self._subject.role], start)
        # What an owner that was stopped appends late may continue a record before the checkpoint: nobody follows it.
        passed = {Status.UNCHECKABLE} if start is From.CHECKPOINT else set()
        findings = [finding for tally in found.tallies for finding in tally.findings if finding.status not in passed]
        assert not findings, f"{self._name}: {findings}\n{found}"
        noted = {(note.source, note.low, note.high) for tally in found.tallies for note in tally.lost}
        assert noted == ({self._lost.records} if self._lost else set()), f"{self._name}: {found}"

    # Parts of operations.

    async def _killed(self, worker: Any) -> None:
        code = await worker.exit_code(PATIENCE_SECONDS)
        assert code == -signal.SIGKILL, f"{self._name}: exit {code}\n{worker.log.read_text(encoding='utf-8')[-3000:]}"

    async def _refused(self, run: Any, says: str, **started: Any) -> str:
        worker = await run.start_armed([], **started)
        code = await worker.exit_code(PATIENCE_SECONDS)
        log: str = worker.log.read_text(encoding="utf-8")
        assert (code, says in log, "Traceback" in log) == (1, True, False), f"{self._name}: exit {code}\n{log[-3000:]}"
        return log

    async def _note_foreign(self) -> set[tuple[str, int, int]]:
        """As an operator does with `hushstream logs repair foreign`; gives where all that is foreign lies.

        What nothing is foreign in is left as it is.
        """
        deployed = self._deployed()
        found = await foreign.check(*deployed, [self._subject.role])
        assert not [one for one in found.records if one.stops], f"{self._name}: {found}"
        await (await foreign.plan(*deployed, [self._subject.role])).act()
        return {(one.topic, one.partition, one.offset) for one in found.records}

    def _deployed(self) -> tuple[Connection, System, KeySource]:
        """What operators' commands work on; a system for each thread: encoders and kernels hold scratch memory."""
        connection = Connection(self._run.settings.bootstrap, self._run.settings.topic_prefix, timeout_seconds=60)
        return connection, load(self._subject.frozen.folder), KeySource(seed=KEY_SEED)

    async def _run_until_snapshots(self) -> None:
        """A partition without a snapshot cannot know that its topics are others: each gets one."""
        for home in self._undisturbed.journals:
            if not self._snapshots().get(home):
                await self._killed(await self._run.start_armed([_signal("snapshot", home, 1, signal.SIGKILL)]))

    def _other_topics(self, name: str, **logs: Any) -> Any:
        """The same deployment on topics that are new, with the same data directory."""
        datadir = self._run.values["datadir"]
        return self._subject.make(f"{self._name}-{name}{len(self._copies)}", **logs, datadir=datadir)

    def _snapshots(self) -> dict[int, int]:
        """The sequence numbers of the snapshots that are there, by home partition."""
        settings = self._run.settings.model_copy(update={"datadir": Path(self._run.values["datadir"])})
        store = SnapshotStore(settings, self._run.make_machine)
        found = {}
        for home in self._undisturbed.journals:
            spills = self._run.make_machine(home).spills_users
            if spills and not store.path(home).with_suffix(".users").exists():
                continue
            with closing(store.users(home)) if spills else nullcontext():
                if (snapshot := store.load(home)) is not None:
                    found[home] = snapshot.sequence
        return found

    def _folded(self, home: int) -> tuple[int, Mapping[tuple[str, int], int]]:
        """The last journal record in the state on disk of one home partition, and how far it has folded each input."""
        settings = self._run.settings.model_copy(update={"datadir": Path(self._run.values["datadir"])})
        store, machine = SnapshotStore(settings, self._run.make_machine), self._run.make_machine(home)
        with closing(store.users(home)) if machine.spills_users else nullcontext() as users:
            if users is not None:
                machine.keep_users(users, settings.resident_users)
            snapshot = store.load(home)
            assert snapshot is not None, f"{self._name}: a worker that ends saves its state"
            machine.start(snapshot.genesis)
            machine.restore(snapshot.state)
            return snapshot.sequence, {source: machine.positions()[source] for source in machine.inputs}

    async def _settled_ends(self) -> Mapping[Any, int]:
        """Where the outputs end once the brokers have appended, and copied, all that a killed worker had sent."""
        waiting = Patience(PATIENCE_SECONDS)
        ends: Mapping[Any, int] = await self._run.output_ends()
        since = time.monotonic()
        while time.monotonic() < since + SETTLED_SECONDS:
            assert not waiting.over, f"{self._name}: its outputs still grow, though nobody writes"
            await asyncio.sleep(0.2)
            now = await self._run.output_ends()
            if now != ends:
                ends, since = now, time.monotonic()
        return ends

    async def _until(self, reached: Callable[[Mapping[Any, int]], bool], worker: Any) -> None:
        waiting = Patience(PATIENCE_SECONDS)
        while not reached(await self._run.output_ends()):
            assert not waiting.over, worker.log.read_text(encoding="utf-8")[-3000:]
            await asyncio.sleep(0.2)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "kill": Disturbed.kill,
    "stop": Disturbed.stop,
    "clock": Disturbed.clock,
    "full-disk": Disturbed.full_disk,
    "no-room": Disturbed.no_room,
    "rebalance": Disturbed.rebalance,
    "wiped": Disturbed.wiped,
    "older-copy": Disturbed.older_copy,
    "foreign": Disturbed.foreign,
    "lost-inputs": Disturbed.lost_inputs,
    "lost-marks": Disturbed.lost_marks,
}


def _signal(step: str, home: int, sequence: int, number: int) -> dict[str, Any]:
    return {"stage": step, "partition": home, "sequence": sequence, "signal": number}


def _before(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"call": f"{SURROUNDINGS}:{function}", "arguments": dict(arguments)}


def _call(function: str, arguments: Mapping[str, Any], step: str, home: int, sequence: int) -> dict[str, Any]:
    return {"stage": step, "partition": home, "sequence": sequence, **_before(function, arguments)}


async def shrink(lane: Lane, fails: Callable[[Lane], Any]) -> Lane:
    """Leave out what a failure does not need, one fault after the other."""
    kept: Sequence[Fault] = lane.faults
    for fault in lane.faults:
        without = Lane(lane.kind, tuple(other for other in kept if other is not fault))
        if without.faults and await fails(without):
            kept = without.faults
    return Lane(lane.kind, tuple(kept))
