"""Runs schedules of faults: every role of both systems over frozen inputs, many deployments on one broker."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hushstream_test_bench as bench_module
import hushstream_test_frozen as frozen_module
import hushstream_test_promises as promises_module
import hushstream_test_related as related_module
import hushstream_test_related_promises as related_promises_module
import hushstream_test_roles as roles_module
from hushstream_test_faults import PATIENCE_SECONDS, Disturbed, Subject, shrink
from hushstream_test_schedule import Fault, Lane

from hushstream.ops.topics import partition_counts
from hushstream.ops.verify import verified_topics
from hushstream.systems.system import RoleName

HERE = Path(__file__).parent
LOCAL_KAFKA = HERE.parents[2] / "deploy" / "kafka" / "local.py"
RUN_SECONDS = 12.0
"""How long a run takes at its pace: long enough for a lane of faults, most of which is spent starting workers."""

TOGETHER = 8
"""Deployments that are disturbed at the same time; each has a worker or two at work."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A role of a system: home partitions, and records in a batch of the fixed schedule."""

    system: str
    role: RoleName
    homes: int
    unit: int


KINDS = {
    "learner": Kind("p2b", "learner", 3, 12),
    "shuffler": Kind("p2b", "shuffler", 2, 6),
    "aggregator": Kind("p2b", "aggregator", 2, 2),
    "related learner": Kind("colin", "learner", 3, 12),
    "counter": Kind("colin", "counter", 1, 3),
    "related aggregator": Kind("colin", "aggregator", 1, 1),
}


def freeze(folder: Path) -> Mapping[str, Any]:
    """Frozen inputs of each system, by its name; not to be called from an event loop."""
    return {"p2b": frozen_module.freeze(folder / "p2b"), "colin": related_module.freeze(folder / "related", "server")}


class Sweep:
    """The deployments, and what each role leaves when nothing happens to it."""

    def __init__(self, bench: Any, frozen: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Over the inputs of each system (`freeze`); ``say`` is told what happens."""
        self._bench = bench
        self._say = say
        self._lanes = 0
        self._undisturbed: dict[str, Any] = {}
        systems = {
            "p2b": (frozen["p2b"], frozen_module.KEY_SEED, promises_module.check),
            "colin": (frozen["colin"], related_module.KEY_SEED, related_promises_module.check),
        }
        self._subjects = {name: self._subject(name, kind, *systems[kind.system]) for name, kind in KINDS.items()}

    def _subject(self, name: str, kind: Kind, frozen: Any, key_seed: int, promises: Any) -> Subject:
        logs = frozen.of(kind.role)
        counts = partition_counts(frozen.system)
        topics = {topic: counts[topic] for topic in verified_topics(frozen.system, [kind.role])}
        arguments = {"name": kind.role, "folder": str(frozen.folder), "seed": key_seed}

        def make(lane: str, logs: Any = logs, **settings: Any) -> Any:
            return bench_module.Deployment(
                self._bench, lane, f"{HERE}/roles.py:role", arguments, roles_module.role(**arguments), logs,
                kind.homes, {"fixed_records": kind.unit, **settings}, topics,
            )  # fmt: skip

        batches = sum(map(len, logs.values())) / kind.unit
        return Subject(name, kind.role, frozen, key_seed, make, promises, RUN_SECONDS / batches)

    async def calm(self) -> None:
        """Run every role once without a fault."""

        async def left(name: str, subject: Subject) -> None:
            run = subject.make(f"calm-{name.replace(' ', '-')}")
            async with run:
                worker = await run.start()
                await run.folded_all(PATIENCE_SECONDS)
                worker.kill(signal.SIGTERM)
                assert await worker.exit_code(PATIENCE_SECONDS) == 0, worker.log.read_text()[-3000:]
                audit = await run.audit()
                assert audit.repeats == audit.off_chain == 0, name
                await subject.promises(subject.role, run, audit, subject.frozen)
            self._undisturbed[name] = audit

        async with asyncio.TaskGroup() as group:
            for name, subject in self._subjects.items():
                group.create_task(left(name, subject))

    async def run(self, lane: Lane) -> list[Fault]:
        """Run one lane on topics of its own; gives the faults that it met.

        Raises:
            AssertionError: a promise was broken.
        """
        self._lanes += 1
        subject = self._subjects[lane.kind]
        name = f"lane{self._lanes}-{lane.kind.replace(' ', '-')}"
        disturbed = Disturbed(subject, name, self._undisturbed[lane.kind], self._say)
        await disturbed.meet(lane)
        return disturbed.met

    async def run_all(self, lanes: Sequence[Lane]) -> tuple[int, list[tuple[Lane, BaseException]]]:
        """Run lanes, a few at a time; gives how many faults were met, and the lanes in which a promise was broken."""
        places = asyncio.Semaphore(TOGETHER)
        met, failures = 0, []

        async def one(lane: Lane) -> None:
            nonlocal met
            async with places:
                begun = time.monotonic()
                try:
                    found = await self.run(lane)
                except Exception as error:  # noqa: BLE001 - told by the caller, with the line that repeats it
                    failures.append((lane, error))
                    self._say(f"BROKEN {lane}\n{type(error).__name__}: {error}")
                else:
                    met += len(found)
                    self._say(f"held   {lane} ({time.monotonic() - begun:.0f} s)")

        await asyncio.gather(*map(one, lanes))
        return met, failures

    async def shrunk(self, lane: Lane) -> Lane:
        """The least part of a lane that still breaks a promise."""

        async def fails(part: Lane) -> bool:
            return bool((await self.run_all([part]))[1])

        return await shrink(lane, fails)

    async def without_brokers(self, folder: Path, fallen: Sequence[int]) -> None:
        """Kill brokers at once under a worker of every role, and start them again."""
        self._lanes += 1
        names = {name: f"brokers{self._lanes}-{name.replace(' ', '-')}" for name in KINDS}
        runs = {name: subject.make(names[name]) for name, subject in self._subjects.items()}
        try:
            workers = dict(zip(runs, await asyncio.gather(*map(self._at_work, runs, runs.values())), strict=True))
            for name, run in runs.items():
                ends = await run.output_ends()
                left = [len(v) - ends[run.make_machine(h).journal] for h, v in self._undisturbed[name].journals.items()]
                assert max(left) > 0, f"{name}: nothing was left to do when the brokers fell"
            self._say(f"broker-kill {','.join(map(str, fallen))}")
            for number in fallen:
                await _kafka(folder, "kill", number)
            await asyncio.gather(*(_kafka(folder, "start", number) for number in fallen))
            for name, run in runs.items():
                await self._outlived(name, run, workers[name])
        finally:
            for run in runs.values():
                await run.__aexit__()

    async def _at_work(self, name: str, run: Any) -> Any:
        await run.__aenter__()
        run.pace_seconds = 4 * self._subjects[name].pace_seconds
        worker = await run.start(join_timeout_seconds=120.0)
        await worker.logged("at journal record", PATIENCE_SECONDS)
        return worker

    async def _outlived(self, name: str, run: Any, worker: Any) -> None:
        subject = self._subjects[name]
        await run.folded_all(2 * PATIENCE_SECONDS)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code(PATIENCE_SECONDS) == 0, worker.log.read_text()[-3000:]
        audit = await run.audit()
        assert audit == self._undisturbed[name], f"{name}: other bytes than with brokers that stay"
        await subject.promises(subject.role, run, audit, subject.frozen)


async def _kafka(folder: Path, command: str, number: int) -> None:
    arguments = [str(LOCAL_KAFKA), command, str(number), "--folder", str(folder)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
