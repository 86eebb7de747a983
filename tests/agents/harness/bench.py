"""A place to run workers in: a broker, frozen inputs, crashes on demand, and an audit of what came out.

Usable for any machine factory: "module:function" or "/path/file.py:function", giving (make_machine, topics).

    async with Deployment(bench, "disturbed", factory, arguments, logs, partitions=4) as run:
        await run.crash_sweep([("folded", 0, 3), ...])
        assert (await run.audit()) == (await undisturbed.audit())
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import RequestTimedOutError

from hushstream.agents.kafka.administration import journal_name
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.journal import sequence_of
from hushstream.agents.recovery.marks import ReadMarks, read_marks
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.marks import Mark, MarkSeal
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputRange, InputRecord, InputSlice, OffChain
from hushstream.replay.runners.stream import free_port
from hushstream.schemas.topics import MAX_MESSAGE_BYTES
from patience import Patience, patience

Place = tuple[str, int]
Log = Sequence[tuple[int, bytes]]
"""(timestamp in milliseconds, value) of each record of one partition."""

FAST = {
    "session_timeout_seconds": 1.5,
    "heartbeat_seconds": 0.3,
    "commit_interval_seconds": 0.05,
    "snapshot_interval_seconds": 0.1,
    "tick_interval_seconds": 0.3,
    "join_timeout_seconds": 20.0,
}
CALM = {"session_timeout_seconds": 60.0}
"""Where nobody may be thought dead, however slow the machine is."""
PATIENCE_SECONDS = 90.0
"""How long a worker may take for anything on such a machine while it is idle."""
NONCE = bytes(range(32))


class Bench:
    """One broker process and one zygote for many deployments."""

    def __init__(
        self, directory: Path, bootstrap: str | None = None, preload: Sequence[str] = (), data: Path | None = None
    ) -> None:
        """A broker of its own, unless another is named; one with a folder for its data can be started again."""
        self.directory = directory
        self._data = data
        self._given = bootstrap
        self.bootstrap = bootstrap or ""
        self._preload = preload
        self._broker: asyncio.subprocess.Process | None = None
        self._zygote: asyncio.subprocess.Process | None = None
        self._answers: dict[str, asyncio.Future[int]] = {}
        self._exits: dict[str, asyncio.Future[int]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._names = 0
        self.token = secrets.token_hex(4)  # a broker that was there before knows other runs

    async def __aenter__(self) -> Self:
        if self._given is None:
            self.bootstrap = f"127.0.0.1:{free_port()}"
            await self.start_broker()
        zygote = str(Path(__file__).with_name("zygote.py"))
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._zygote = await asyncio.create_subprocess_exec(
            sys.executable, zygote, *self._preload,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._zygote is not None and self._zygote.stdin is not None:
            self._zygote.stdin.close()
            await asyncio.wait_for(self._zygote.wait(), patience(PATIENCE_SECONDS))
        if self._listener is not None:
            await self._listener
        if self._broker is not None:
            self._broker.terminate()
            await asyncio.wait_for(self._broker.wait(), patience(PATIENCE_SECONDS))

    async def start_broker(self) -> None:
        """Start the broker, again on what it kept if it has ended."""
        port = self.bootstrap.rpartition(":")[2]
        command = [sys.executable, "-m", "hushstream.broker", "--port", port, "--group-min-session-timeout-ms", "500"]
        command += [] if self._data is None else ["--data", str(self._data)]
        with (self.directory / "broker.log").open("ab") as log:
            self._broker = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        await self._broker_answers(int(port))

    @property
    def broker_pid(self) -> int:
        """The process of the broker."""
        assert self._broker is not None
        return self._broker.pid

    async def broker_exited(self) -> int:
        """The exit code of a broker that was killed."""
        assert self._broker is not None
        return await asyncio.wait_for(self._broker.wait(), patience(PATIENCE_SECONDS))

    async def warm(self, factory: str, arguments: Mapping[str, Any]) -> None:
        """Let the zygote compute once what every worker with these machines needs."""
        await self._tell({"warm": factory, "arguments": dict(arguments)})

    async def start(self, order: Mapping[str, Any]) -> Worker:
        """Fork one worker."""
        self._names += 1
        name = str(self._names)
        loop = asyncio.get_running_loop()
        self._answers[name], self._exits[name] = loop.create_future(), loop.create_future()
        log = self.directory / f"worker-{name}.log"
        log.touch()
        await self._tell({"id": name, "log": str(log), **order})
        pid = await asyncio.wait_for(self._answers[name], patience(PATIENCE_SECONDS))
        return Worker(pid, self._exits[name], log)

    async def _tell(self, order: Mapping[str, Any]) -> None:
        assert self._zygote is not None
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(order).encode() + b"\n")
        await self._zygote.stdin.drain()

    async def _listen(self) -> None:
        assert self._zygote is not None
        assert self._zygote.stdout is not None
        async for line in self._zygote.stdout:
            answer = json.loads(line)
            if "pid" in answer:
                self._answers[answer["id"]].set_result(answer["pid"])
            else:
                self._exits[answer["id"]].set_result(answer["exit"])

    async def _broker_answers(self, port: int) -> None:
        waiting = Patience(PATIENCE_SECONDS)
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            except ConnectionError:
                assert not waiting.over, "the broker did not start"
                await asyncio.sleep(0.05)


@dataclasses.dataclass(frozen=True)
class Worker:
    """One worker process."""

    pid: int
    exited: asyncio.Future[int]
    log: Path

    async def exit_code(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        try:
            return await asyncio.wait_for(asyncio.shield(self.exited), patience(timeout_seconds))
        except TimeoutError:
            raise AssertionError(
                f"worker still runs; its log:\n{self.log.read_text(encoding='utf-8')[-3000:]}"
            ) from None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def logged(self, text: str, timeout_seconds: float = PATIENCE_SECONDS, *others: str) -> None:
        """Wait until the worker's log holds ``text``, or one of the others."""
        texts = (text, *others)
        waiting = Patience(timeout_seconds)
        while not self.has_logged(*texts):
            assert not self.exited.done(), (
                f"worker ended before {texts}:\n{self.log.read_text(encoding='utf-8')[-3000:]}"
            )
            assert not waiting.over, f"no {texts} in:\n{self.log.read_text(encoding='utf-8')[-3000:]}"
            await asyncio.sleep(0.03)

    def has_logged(self, *texts: str) -> bool:
        """Whether the worker's log holds one of the texts by now."""
        log = self.log.read_text(encoding="utf-8")
        return any(text in log for text in texts)


@dataclasses.dataclass(frozen=True)
class Audit:
    """What stands on the chain of each journal, and what was released.

    Attributes:
        journals: the records that count, by home partition.
        releases: the distinct values of each output partition; sorted, as partitions interleave.
        positions: how far each machine has folded.
        repeats: outputs that stand in a log more than once (with the same bytes).
        off_chain: journal records that do not count.
        releasing: the last record of each journal behind which something was released: no mark follows a later one.
    """

    journals: Mapping[int, tuple[bytes, ...]]
    releases: Mapping[Place, tuple[bytes, ...]]
    positions: Mapping[int, Mapping[Place, int]]
    repeats: int = dataclasses.field(compare=False)
    off_chain: int = dataclasses.field(compare=False)
    releasing: Mapping[int, int] = dataclasses.field(compare=False)


class Deployment:
    """One set of topics with frozen inputs, and the workers that run on it."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        factory: str,
        arguments: Mapping[str, Any],
        making: tuple[Callable[[int], Machine], Any],
        logs: Mapping[Place, Log],
        partitions: int,
        settings: Mapping[str, Any] | None = None,
        other_topics: Mapping[str, int] | None = None,
    ) -> None:
        self.bench = bench
        self.name = name
        self._factory = factory
        self._arguments = dict(arguments)
        self.make_machine, self.topics = making
        self._logs = logs
        self._partitions = partitions
        self._other = dict(other_topics or {})
        self._workers: list[Worker] = []
        self.with_genesis = True
        self.with_marks = True
        self.pace_seconds = 0.0
        self.ahead_seconds = 0.0
        self.copied_journals: Mapping[int, Sequence[bytes]] = {}
        self._lost: dict[Place, tuple[int, int]] = {}
        values = {
            "bootstrap": bench.bootstrap,
            "role": name,
            "group": f"{bench.token}-{name}",
            "deployment": name,
            "topic_prefix": f"{bench.token}.{name}.",
            "datadir": str(bench.directory / name),
            "schedule": "fixed",
            "fixed_records": 16,
            **FAST,
        }
        self.values = {**values, **(settings or {})}
        self.settings = WorkerSettings(**self.values)
        self._hurry = bench.directory / f"{name}.hurry"
        self._polled = contextlib.AsyncExitStack()
        self._ends: LogReader

    async def __aenter__(self) -> Self:
        await self._create_topics()
        await self._freeze()
        self._ends = await self._polled.enter_async_context(LogReader(self.settings))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._polled.aclose()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            await worker.exit_code()

    async def start(
        self, crash: tuple[str, int, int] | None = None, number: int = signal.SIGKILL, **other: Any
    ) -> Worker:
        """Start a worker; at ``crash`` = (stage, partition, least sequence) it gets signal ``number``."""
        armed = []
        if crash is not None:
            stage, partition, sequence = crash
            armed = [{"stage": stage, "partition": partition, "sequence": sequence, "signal": number}]
        return await self.start_armed(armed, **other)

    async def start_armed(
        self, crashes: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None = None, **other: Any
    ) -> Worker:
        """Start a worker with crashes and calls as the zygote describes them."""
        order: dict[str, Any] = {
            "factory": self._factory,
            "arguments": self._arguments,
            "settings": {**self.values, **other},
            "pace": self.pace_seconds,
            "ahead": self.ahead_seconds,
            "hurry": str(self._hurry),
            "crash": list(crashes),
        }
        if before is not None:
            order["before"] = before
        worker = await self.bench.start(order)
        self._workers.append(worker)
        return worker

    def hurry(self) -> None:
        """Let all workers from now on fold as fast as they can, also those that run."""
        self._hurry.touch()

    async def crash_sweep(self, crashes: Iterable[tuple[str, int, int]]) -> None:
        """Start a worker, let it be killed at a step, and again; then let one finish and end it cleanly."""
        self.pace_seconds = 0.03  # otherwise all is done before the first commit: no snapshot holds up the folds
        self.ahead_seconds = 0.25
        for crash in crashes:
            worker = await self.start(crash)
            code = await worker.exit_code()
            assert code == -signal.SIGKILL, f"{crash}: exit {code}\n{worker.log.read_text(encoding='utf-8')[-3000:]}"
        await self.finish()

    async def finish(self) -> None:
        """Let one worker fold everything, then end it with SIGTERM."""
        worker = await self.start()
        await self.taken_up(worker)
        await self.folded_all()
        worker.kill(signal.SIGTERM)
        code = await worker.exit_code()
        assert code == 0, worker.log.read_text(encoding="utf-8")[-3000:]

    async def taken_up(self, worker: Worker, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until one worker has every partition: what was journaled before may not have been released yet."""
        for partition in range(self._partitions):
            await worker.logged(f"partition {partition}: at journal record", timeout_seconds)

    async def outlived(self, stopped_at: tuple[str, int, int], batches: tuple[int, int]) -> None:
        """Stop an owner at a step, let an heir go on where it was, and wake it: both end well once all is folded.

        They cut batches of other sizes: what the sleeper had folded would be told by its values.
        """
        sleeper = await self.start(stopped_at, signal.SIGSTOP, batch_records=batches[0])
        await sleeper.logged("observer: signal")
        heir = await self.start(batch_records=batches[1])
        await self.folded_all()
        assert "at journal record" in heir.log.read_text(encoding="utf-8"), "the heir took the partitions over"
        sleeper.kill(signal.SIGCONT)
        await asyncio.sleep(1.0)
        await self.folded_all()
        for worker in (heir, sleeper):
            worker.kill(signal.SIGTERM)
            assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]

    async def folded_all(self, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until every frozen input record was folded and released (by the committed marks and logs)."""
        waiting = Patience(timeout_seconds)
        before: object = None
        while True:
            ends = await self.output_ends()
            if ends == before and await self._all_released():
                return
            before = ends
            assert not all(worker.exited.done() for worker in self._workers), self._complaint()
            assert not waiting.over, self._complaint()
            await asyncio.sleep(0.3)

    async def ends_at_least(self, ends: Mapping[Place, int], timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until outputs are at least so long."""
        waiting = Patience(timeout_seconds)
        while any(found < end for found, end in zip(await self._ends_of(ends), ends.values(), strict=True)):
            assert not waiting.over, self._complaint()
            await asyncio.sleep(0.1)

    async def _ends_of(self, places: Iterable[Place]) -> list[int]:
        ends = await self.output_ends()
        return [ends[place] for place in places]

    def _complaint(self) -> str:
        return "not folded in time:\n" + "\n".join(
            w.log.read_text(encoding="utf-8")[-2500:] for w in self._workers[-2:]
        )

    async def output_ends(self) -> dict[Place, int]:
        """Where all logs end that the role writes."""
        return await self._ends.end_offsets(self._written())

    async def values_of(self, place: Place) -> list[bytes]:
        """All values of one partition."""
        return [record.value for record in await self.records_of(place)]

    async def records_of(self, place: Place) -> list[InputRecord]:
        """All records of one partition; what a worker wrote carries the broker's time."""
        return (await self.all_records([place]))[place]

    async def all_records(self, places: Sequence[Place]) -> dict[Place, list[InputRecord]]:
        """All records of some partitions."""
        async with LogReader(self.settings) as reader:
            ends = await reader.end_offsets(places)
            reader.open(dict.fromkeys(places, 0))
            return {place: await reader.read(place, 0, ends[place]) for place in places}

    async def audit(self) -> Audit:
        """Recompute everything from the logs, as a reader would, and compare with what was released."""
        journals: dict[int, tuple[bytes, ...]] = {}
        expected: dict[Place, dict[int, list[bytes]]] = {}
        positions: dict[int, Mapping[Place, int]] = {}
        releasing, off_chain = {}, 0
        written = await self.all_records(self._written())
        async with LogReader(self.settings) as reader:
            for partition in range(self._partitions):
                machine, accepted, skipped, releasing[partition] = await self._replay(reader, partition, expected)
                journals[partition] = accepted
                positions[partition] = machine.positions()
                off_chain += skipped
        releases: dict[Place, tuple[bytes, ...]] = {}
        repeats = 0
        for place, records in written.items():
            if place[0].startswith("journal-") or place[0] == self.make_machine(0).journal[0]:
                continue
            found = [record.value for record in records]
            distinct = sorted(set(found))
            repeats += len(found) - len(distinct)
            sources = expected.get(place, {})
            wanted = set().union(*sources.values())
            assert wanted <= set(distinct), f"{place}: a release is missing"
            extra = set(distinct) - wanted
            assert not extra or place[0].startswith("dead"), f"{place}: released off the chain: {extra}"
            for values in sources.values():
                _assert_in_order(found, values, place)
            releases[place] = tuple(distinct)
        return Audit(journals, releases, positions, repeats, off_chain, releasing)

    async def _replay(
        self, reader: LogReader, partition: int, expected: dict[Place, dict[int, list[bytes]]]
    ) -> tuple[Machine, tuple[bytes, ...], int, int]:
        machine = self.make_machine(partition)
        places = [*machine.inputs, *machine.broadcasts, machine.journal]
        reader.open({place: 0 for place in places if place not in self._lost})
        end = (await reader.end_offsets([machine.journal]))[machine.journal]
        values = [record.value for record in await reader.read(machine.journal, 0, end)]
        machine.start(values[0])
        accepted, skipped, sequence, releasing = [values[0]], 0, 0, 0
        for value in values[1:]:
            try:
                if sequence_of(machine, value) != sequence + 1:
                    raise OffChain("sequence")
                parts = [await self._slice(reader, part) for part in machine.recovery_ranges(value)]
                step = machine.replay(value, parts)
            except OffChain:
                skipped += 1
                continue
            sequence += 1
            accepted.append(value)
            releasing = sequence if step.releases else releasing
            for output in (*step.releases, *step.dead_letters):
                made = expected.setdefault((output.topic, output.partition), {})
                made.setdefault(partition, []).append(output.value)
        return machine, tuple(accepted), skipped, releasing

    async def _all_released(self) -> bool:
        """Whether each machine, replayed and then fed the rest of its input, has no more to journal or release."""
        async with LogReader(self.settings) as reader:
            journals = [self.make_machine(partition).journal for partition in range(self._partitions)]
            if not all((await reader.end_offsets(journals)).values()):
                return False
            made: dict[Place, dict[int, list[bytes]]] = {}
            for partition in range(self._partitions):
                machine, *_ = await self._replay(reader, partition, made)
                places = [*machine.broadcasts, *machine.inputs]
                ends = await reader.end_offsets(places)
                rest = [
                    InputRange(*place, machine.positions().get(place, 0), ends[place])
                    for place in places
                    if machine.positions().get(place, 0) < ends[place]
                ]
                ready = machine.ready([await self._slice(reader, part) for part in rest]) if rest else ()
                if ready and any(step.journal is not None for step in machine.fold(ready)):
                    return False
        # A journal may be a whole send ahead of what it releases, however long a loaded machine takes for that.
        written = await self.all_records(list(made)) if made else {}
        return all(
            {record.value for record in written[place]} >= {value for values in sources.values() for value in values}
            for place, sources in made.items()
        )

    def _written(self) -> list[Place]:
        counts = self._topic_counts()
        journal = self.make_machine(0).journal[0]
        return [(name, p) for name in (journal, *self.topics.writes) for p in range(counts[name])]

    def _topic_counts(self) -> dict[str, int]:
        sample = self.make_machine(0)
        own = (sample.journal[0], *filter(None, (self.topics.marks, self.topics.state)))
        counts = dict.fromkeys((*self.topics.inputs, *own, *self.topics.writes), self._partitions)
        counts.update({name: 1 for name, _ in sample.broadcasts})
        return {**counts, **self._other}

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bench.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    async def _create_topics(self) -> None:
        frozen = {name for name, _ in self._logs} | set(self.topics.inputs)
        async with self._admin() as admin:
            topics = [self._new_topic(name, name in frozen) for name in self._topic_counts()]
            answered = await admin.create_topics(topics)
            refused = [topic for topic, code, *_ in answered.topic_errors if code]
            assert not refused, f"{self.name}: expected topics of its own, got refusals (its name is taken): {refused}"

    def _new_topic(self, name: str, frozen: bool) -> NewTopic:
        config = {"message.timestamp.type": "CreateTime" if frozen else "LogAppendTime", "retention.ms": "-1"}
        config["max.message.bytes"] = str(MAX_MESSAGE_BYTES)
        config["cleanup.policy"] = "compact" if name in (self.topics.marks, self.topics.state) else "delete"
        copies = len(self.bench.bootstrap.split(","))
        return NewTopic(self.settings.physical(name), self._topic_counts()[name], copies, topic_configs=config)

    async def make_marks_again(self) -> None:
        """Delete the topic of marks, and make it again, empty."""
        made = self._new_topic(self._marks, frozen=False)
        async with self._admin() as admin:
            await admin.delete_topics([made.name])
            waiting = Patience(PATIENCE_SECONDS)
            # A broker answers before the topic is gone everywhere.
            while [code for _, code, *_ in (await admin.create_topics([made])).topic_errors if code]:
                assert not waiting.over, f"{self.name}: the topic of marks cannot be made again"
                await asyncio.sleep(0.2)

    async def replace_marks(self, value: bytes) -> None:
        """Append a record under the key of every mark, as compaction would leave it."""
        places = [(self._marks, partition) for partition in range(self._partitions)]
        async with LogReader(self.settings) as reader:
            ends = await reader.end_offsets(places)
            reader.open(dict.fromkeys(places, 0))
            keys = {place: {one.key for one in await reader.fetched(place, 0, ends[place])} for place in places}
        async with AIOKafkaProducer(bootstrap_servers=self.bench.bootstrap) as producer:
            for (topic, partition), known in keys.items():
                for key in sorted(known):
                    await producer.send_and_wait(self.settings.physical(topic), value, key, partition)

    async def delete_inputs(self) -> None:
        """Delete all input records that there are, as retention does."""
        places = [(name, partition) for name in self.topics.inputs for partition in range(self._partitions)]
        await self._delete_records(dict.fromkeys(places, -1))

    async def lose(self, place: Place, low: int, first: int) -> None:
        """Delete an input's records below ``first``; those from ``low`` on were not folded, and are lost."""
        await self._delete_records({place: first})
        self._lost[place] = (low, first)

    async def _delete_records(self, before: Mapping[Place, int]) -> None:
        """Delete records below offsets; again while brokers answer that their replicas have not followed in time."""
        deleted = {
            TopicPartition(self.settings.physical(topic), partition): RecordsToDelete(before_offset=first)
            for (topic, partition), first in before.items()
        }
        async with self._admin() as admin:
            waiting = Patience(PATIENCE_SECONDS)
            while True:
                try:
                    await admin.delete_records(deleted)
                    return
                except RequestTimedOutError:
                    assert not waiting.over, f"{self.name}: records are not deleted on every replica"

    async def _slice(self, reader: LogReader, part: InputRange) -> InputSlice:
        """What is or was folded of a range: what was deleted since is known here, what is lost is left out."""
        place = (part.topic, part.partition)
        if place not in self._lost:
            return InputSlice(*part, records=tuple(await reader.read(place, part.low, part.high)))
        low, first = self._lost[place]
        kept = [offset for offset in range(part.low, part.high) if not low <= offset < first]
        return InputSlice(*part, records=tuple(InputRecord(offset, *self._logs[place][offset]) for offset in kept))

    async def delete_topics(self) -> None:
        """Take the topics away: every client that starts is told all that there are."""
        async with self._admin() as admin:
            await admin.delete_topics([self.settings.physical(name) for name in self._topic_counts()])

    async def _freeze(self) -> None:
        """Write the inputs with their log times, and the same genesis record (or journal) for every run."""
        logs = dict(self._logs)
        for partition in range(self._partitions):
            machine = self.make_machine(partition)
            values = self.copied_journals.get(partition, [machine.genesis(NONCE)] if self.with_genesis else [])
            logs[machine.journal] = [(1, value) for value in values]
            if partition in self.copied_journals and self.with_marks:
                await self.note(partition, values[0], len(values) - 1)
        await self.append(logs)

    async def note_chains(self) -> None:
        """Note every journal as far as its chain goes: nothing followed from records beside it."""
        async with LogReader(self.settings) as reader:
            for partition in range(self._partitions):
                _, accepted, *_ = await self._replay(reader, partition, {})
                await self.note(partition, accepted[0], len(accepted) - 1)

    async def note(self, partition: int, genesis: bytes, sequence: int, **other: Any) -> None:
        """Append a mark: what followed from a journal's records so far may have been sent."""
        if self.topics.marks is not None:
            mark = Mark(journal_name(genesis), sequence, **other)
            await self.append({(self.topics.marks, partition): [(1, self._mark_seal(partition).pack(mark))]})

    async def marks_of(self, partition: int) -> list[Mark]:
        """All marks of a home partition, in the order of the topic."""
        found = [self._mark_seal(partition).unpack(value) for value in await self.values_of((self._marks, partition))]
        return [mark for mark in found if mark is not None]

    async def read_marks(self, partition: int) -> ReadMarks:
        """The marks of a home partition as a worker takes them, whatever else lies there."""
        async with LogReader(self.settings) as reader:
            seal = self._mark_seal(partition)
            return await read_marks((self._marks, partition), reader, seal, self.settings.role)

    @property
    def _marks(self) -> str:
        assert self.topics.marks is not None
        return str(self.topics.marks)

    def _mark_seal(self, partition: int) -> MarkSeal:
        place = (self.settings.deployment, self.settings.role, partition)
        return MarkSeal(*place, self.make_machine.mark_keys())  # type: ignore[attr-defined]

    async def append(self, logs: Mapping[Place, Log]) -> None:
        """Write records with their log times; marks have a key, as a compacted topic asks for."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bench.bootstrap, acks="all", enable_idempotence=True)
        await producer.start()
        try:
            sent = []
            for (topic, partition), log in logs.items():
                await _known(producer, self.settings.physical(topic), partition)
                key = b"bench" if topic == self.topics.marks else None
                for timestamp, value in log:
                    sent.append(await producer.send(self.settings.physical(topic), value, key, partition, timestamp))
            await asyncio.gather(*sent)
        finally:
            await producer.stop()


def _assert_in_order(found: Sequence[bytes], expected: Sequence[bytes], place: Place) -> None:
    """The first occurrences of one machine's outputs stand in the order of its journal."""
    first: dict[bytes, int] = {}
    for index, value in enumerate(found):
        first.setdefault(value, index)
    places = [first[value] for value in dict.fromkeys(expected)]
    assert places == sorted(places), f"{place}: out of order"


class Tunnel:
    """A TCP relay in front of a broker whose connections can be cut, to see what a worker does then.

    Wherever the broker names its own port, the relay's is put (four bytes each): clients stay with it.
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self.port = 0
        self.open = True
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Close every connection."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, far_writer}
        own, far = (b"127.0.0.1" + port.to_bytes(4, "big") for port in (self.port, self._target))
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer, far, own))
        self._writers -= {writer, far_writer}


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = b"", put: bytes = b""
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data.replace(said, put) if said else data)
            await writer.drain()
    writer.close()


async def _known(producer: AIOKafkaProducer, topic: str, partition: int) -> None:
    """Wait until the client knows the partition of a topic that was just created."""
    async with asyncio.timeout(patience(PATIENCE_SECONDS)):
        while partition not in (await producer.partitions_for(topic) or ()):
            await producer.client.force_metadata_update()
            await asyncio.sleep(0.02)
