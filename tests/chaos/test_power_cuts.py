"""All processes of a machine are killed at once, at drawn steps, on a broker that keeps its data.

    pytest tests/chaos/test_power_cuts.py                                   # four cuts; CI draws 20
    HUSHSTREAM_POWER_CUTS=500 pytest -s tests/chaos/test_power_cuts.py      # an hour or two

Workers of every role of p2b and colin are at work; the broker and all of them get SIGKILL when one of them reaches a
step of the protocol. In half of the cuts the end of the broker's file is left as a torn write leaves it. Then all start
again on what is there. A deployment that has folded all of its inputs is held to the promises: byte for byte what it
would be without a cut, nothing lost, no record that counts twice and no noise twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from patience import patience

CUTS = int(os.environ.get("HUSHSTREAM_POWER_CUTS", "4"))
SEED = int(os.environ.get("HUSHSTREAM_CHAOS_SEED", "1"))
SECONDS_A_CUT = 30
STEP_SECONDS = 20.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600 + SECONDS_A_CUT * CUTS),
    pytest.mark.asyncio(loop_scope="session"),
]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the broker's data."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def inputs(sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sweep.freeze(tmp_path_factory.mktemp("frozen"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sweeping(
    harness: Any, sweep: Any, inputs: Any, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Any]:
    """A sweep on a broker that keeps its data, after every role has run once without a cut."""
    folder = tmp_path_factory.mktemp("cuts")
    async with harness.Bench(folder, None, [f"{sweep.HERE}/roles.py:role"], data) as bench:
        made = sweep.Sweep(bench, inputs, say)
        await made.calm()
        yield made


class Machine:
    """A machine with a broker, and a deployment of each role; each that is at its end gives way to another."""

    def __init__(self, sweeping: Any, data: Path, faults: Any, schedule: Any) -> None:
        self._sweeping, self._data, self._faults, self._schedule = sweeping, data, faults, schedule
        self._draw = random.Random(SEED)
        self.deployments: dict[str, Any] = {}
        self.held = 0

    async def cut(self, kinds: list[str]) -> str:
        """Kill everything at a drawn step of a drawn role, and start the broker again; gives what was done."""
        bench, draw = self._sweeping._bench, self._draw
        for kind in kinds:
            if kind not in self.deployments:
                self.deployments[kind] = self._sweeping.disturbed(kind)
                await self.deployments[kind].begin()
        victim, torn = draw.choice(kinds), draw.random() < 0.5
        step = draw.choice(self._schedule.steps_of(victim))
        fault = self._schedule.Fault("cut", step, draw.randint(1, 2), draw.randrange(3))
        others = [await self.deployments[kind].bystander() for kind in kinds if kind != victim]
        # All at once: whoever outlived the broker for a moment would notice it, and end by itself.
        pids = [*(worker.pid for worker in others), bench.broker_pid]
        try:
            armed = await self.deployments[victim].cut(fault, pids)
        except self._faults.TooFewLeft:
            await self._end(others)
            await self.hold(victim)
            return ""
        met = await asyncio.wait((armed.exited,), timeout=patience(STEP_SECONDS))
        if not met[0]:
            # A step that comes at intervals may not come again before the inputs end: the power is cut all the same.
            step = "any step"
        elif armed.exited.result() != -signal.SIGKILL:
            step = "any step, after it gave up"
        await self._end([armed, *others], bench.broker_pid)
        assert await bench.broker_exited() == -signal.SIGKILL
        if torn:
            with (self._data / "broker.sqlite-wal").open("ab") as log:
                log.write(draw.randbytes(draw.randrange(1, 10_000)))
        await bench.start_broker()
        return f"{victim} at {step}{', torn' if torn else ''}"

    async def _end(self, workers: list[Any], *pids: int) -> None:
        """Kill workers and other processes, and see that no worker had ended but by a failure that it names.

        On a machine without time for it a worker may give up before the cut; whoever supervises it starts it again.
        """
        for worker in workers:
            worker.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for worker in workers:
            code = await worker.exit_code()
            assert code in (-signal.SIGKILL, 1), worker.log.read_text(encoding="utf-8")[-3000:]

    async def hold(self, kind: str) -> None:
        """Let a deployment fold the rest, and hold it to its promises."""
        deployment = self.deployments.pop(kind)
        try:
            await deployment.finish()
        finally:
            await deployment.end()
        self.held += 1


async def test_a_machine_that_loses_its_power_at_any_step_has_lost_nothing_and_has_nothing_twice(
    sweeping, sweep, faults, schedule, data
):
    """Catches an acknowledgement before the write, state that a restart forgets, and an offset that is given twice."""
    machine = Machine(sweeping, data, faults, schedule)
    cuts = 0
    while cuts < CUTS:
        begun = time.monotonic()
        done = await machine.cut(list(sweep.KINDS))
        cuts += bool(done)
        say(f"cut {cuts}: {done} ({time.monotonic() - begun:.1f} s)" if done else "a deployment is at its end: held")
    await asyncio.gather(*map(machine.hold, list(machine.deployments)))
    say(f"{cuts} cuts, {machine.held} deployments held: 0 lost, 0 twice")
