"""Runs schedules of faults: every role of both systems over frozen inputs, many deployments on one broker."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frozen_logs import KEY_SEED
from tests.agents.harness.bench import Audit, Bench, Deployment
from tests.chaos.harness.faults import PATIENCE_SECONDS, Disturbed, Subject, shrink
from tests.chaos.harness.frozen import configuration
from tests.chaos.harness.frozen import freeze as freeze_p2b
from tests.chaos.harness.promises import check as check_p2b
from tests.chaos.harness.related import freeze as freeze_related
from tests.chaos.harness.related_promises import check as check_related
from tests.chaos.harness.roles import role
from tests.chaos.harness.schedule import FOREIGN, Fault, Lane

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.ops.check.verify import verified_topics

HERE = Path(__file__).parent
LOCAL_KAFKA = HERE.parents[2] / "deploy" / "kafka" / "local.py"
RUN_SECONDS = 12.0
"""How long a run takes at its pace: long enough for a lane of faults, most of which is spent starting workers."""

BUSY = {
    "session_timeout_seconds": 3.0,
    "heartbeat_seconds": 0.5,
    "join_timeout_seconds": PATIENCE_SECONDS,
    "fetch_wait_milliseconds": 100,
}
"""On a machine with more workers than processors: none is thought dead that only waits its turn."""

TWO_LIVES = BudgetConfig(epsilon=9.0, delta=1e-9)
"""A shuffler can go on after its marks were lost: the other system's counter can pay for three epochs."""

TOGETHER = 8
"""Deployments that are disturbed at the same time; each has a worker or two at work."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A role of a system: home partitions, and records (a learner's: contexts) in a batch of the fixed schedule."""

    system: str
    role: str
    homes: int
    unit: int


KINDS = {
    "learner": Kind("p2b", "learner", 3, 6),
    "shuffler": Kind("p2b", "shuffler", 2, 6),
    "aggregator": Kind("p2b", "aggregator", 1, 2),
    "related learner": Kind("colin", "learner", 3, 6),
    "counter": Kind("colin", "counter", 1, 3),
    "related aggregator": Kind("colin", "aggregator", 1, 1),
}


def freeze(folder: Path) -> Mapping[str, Any]:
    """Frozen inputs of each system, by its name; not to be called from an event loop."""
    p2b = replace(configuration(), budget=TWO_LIVES)
    return {"p2b": freeze_p2b(folder / "p2b", config=p2b), "colin": freeze_related(folder / "related", "server")}


class Sweep:
    """The deployments, and what each role leaves when nothing happens to it."""

    def __init__(self, bench: Bench, frozen: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Over the inputs of each system (`freeze`); ``say`` is told what happens."""
        self._bench = bench
        self._say = say
        self._lanes = 0
        self._undisturbed: dict[str, Audit] = {}
        self.met: Counter[tuple[str, str]] = Counter()
        systems = {"p2b": (frozen["p2b"], check_p2b), "colin": (frozen["colin"], check_related)}
        self._subjects = {name: self._subject(name, kind, *systems[kind.system]) for name, kind in KINDS.items()}

    def _subject(self, name: str, kind: Kind, frozen: Any, promises: Any) -> Subject:
        logs = frozen.of(kind.role)
        topics = {topic: frozen.system.partitions[topic] for topic in verified_topics(frozen.system, [kind.role])}
        arguments = {"name": kind.role, "folder": str(frozen.folder), "seed": KEY_SEED}
        # The operators' commands seal what they write for a deployment and a role by these names.
        names = {"deployment": frozen.system.config.deployment, "role": kind.role}

        def make(lane: str, logs: Any = logs, **settings: Any) -> Any:
            return Deployment(
                self._bench, lane, f"{HERE}/roles.py:role", arguments, role(kind.role, frozen.folder, KEY_SEED), logs,
                kind.homes, {"fixed_records": kind.unit, **names, **BUSY, **settings}, topics,
            )  # fmt: skip

        leading = (log for (topic, _), log in logs.items() if kind.role != "learner" or topic == "contexts")
        batches = sum(map(len, leading)) / kind.unit
        return Subject(name, kind.role, frozen, make, promises, RUN_SECONDS / batches)

    async def calm(self) -> None:
        """Run every role once without a fault."""

        async def left(name: str, subject: Subject) -> None:
            run = subject.make(f"calm-{name.replace(' ', '-')}", session_timeout_seconds=PATIENCE_SECONDS)
            async with run:
                worker = await run.start()
                await run.folded_all(PATIENCE_SECONDS)
                for topic, partition, offset in _foreign_in(subject.frozen.of(subject.role)):
                    skipped = f"{topic}/{partition} offset {offset}: skipped a record of"
                    await worker.logged(skipped, PATIENCE_SECONDS)
                worker.kill(signal.SIGTERM)
                assert await worker.exit_code(PATIENCE_SECONDS) == 0, worker.log.read_text(encoding="utf-8")[-3000:]
                audit = await run.audit()
                assert audit.repeats == audit.off_chain == 0, name
                await subject.promises(subject.role, run, audit, subject.frozen)
            await run.delete_topics()
            self._undisturbed[name] = audit

        for kind, subject in self._subjects.items():
            system = {"folder": str(subject.frozen.folder), "seed": KEY_SEED}
            await self._bench.warm(f"{HERE}/roles.py:role", {"name": KINDS[kind].role, **system})
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

    async def run_all(self, lanes: Sequence[Lane], until: float = math.inf) -> list[tuple[Lane, BaseException]]:
        """Run lanes, a few at a time, and count the faults they meet; gives those in which a promise was broken.

        None is begun after ``until`` (of the monotonic clock).
        """
        places = asyncio.Semaphore(TOGETHER)
        failures: list[tuple[Lane, BaseException]] = []

        async def one(lane: Lane) -> None:
            async with places:
                begun = time.monotonic()
                if begun > until:
                    return
                try:
                    found = await self.run(lane)
                except Exception as error:  # noqa: BLE001 - told by the caller, with the line that repeats it
                    failures.append((lane, error))
                    self._say(f"BROKEN {lane}\n{type(error).__name__}: {error}")
                else:
                    self.met.update((lane.kind, fault.operation) for fault in found)
                    self._say(f"held   {lane} ({time.monotonic() - begun:.0f} s)")

        # The longest first, so that none is waited for alone; but as they were drawn if not all may be begun.
        ordered = sorted(lanes, key=lambda lane: -KINDS[lane.kind].homes) if until == math.inf else lanes
        await asyncio.gather(*map(one, ordered))
        return failures

    def summary(self) -> str:
        """How many faults were met, by operation and kind of role."""
        width = max(map(len, KINDS)) + 2
        operations = sorted({operation for _, operation in self.met})
        rows = [(name, [self.met[kind, name] for kind in KINDS]) for name in operations]
        rows.append(("all", [sum(self.met[kind, name] for name in operations) for kind in KINDS]))
        lines = ["".join(text.rjust(width) for text in ("faults met", *KINDS, "all"))]
        lines += ["".join(str(text).rjust(width) for text in (name, *row, sum(row))) for name, row in rows]
        return "\n".join(lines)

    async def shrunk(self, lane: Lane) -> Lane:
        """The least part of a lane that still breaks a promise."""

        async def fails(part: Lane) -> bool:
            return bool(await self.run_all([part]))

        return await shrink(lane, fails)

    def disturbed(self, name: str) -> Disturbed:
        """A deployment of a kind, for what is done to it from outside."""
        self._lanes += 1
        lane = f"cut{self._lanes}-{name.replace(' ', '-')}"
        return Disturbed(self._subjects[name], lane, self._undisturbed[name], self._say)

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
            for run in runs.values():
                run.hurry()
            await asyncio.gather(*(self._outlived(name, run, workers[name]) for name, run in runs.items()))
            fallen_name = "broker-kill" if len(fallen) == 1 else "all-brokers-kill"
            self.met.update((name, fallen_name) for name in runs)
        finally:
            for run in runs.values():
                await run.__aexit__()
        for run in runs.values():
            await run.delete_topics()

    async def _at_work(self, name: str, run: Any) -> Any:
        await run.__aenter__()
        run.pace_seconds = 8 * self._subjects[name].pace_seconds
        worker = await run.start()
        await worker.logged("at journal record", PATIENCE_SECONDS)
        return worker

    async def _outlived(self, name: str, run: Any, worker: Any) -> None:
        subject = self._subjects[name]
        await run.folded_all(PATIENCE_SECONDS)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code(PATIENCE_SECONDS) == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
        assert audit == self._undisturbed[name], f"{name}: other bytes than with brokers that stay"
        await subject.promises(subject.role, run, audit, subject.frozen)


def _foreign_in(logs: Mapping[tuple[str, int], Sequence[tuple[int, bytes]]]) -> list[tuple[str, int, int]]:
    """Where frozen logs hold records of nobody."""
    return [
        (*place, offset) for place, log in logs.items() for offset, (_, value) in enumerate(log) if value in FOREIGN
    ]


async def _kafka(folder: Path, command: str, number: int) -> None:
    arguments = [str(LOCAL_KAFKA), command, str(number), "--folder", str(folder)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
