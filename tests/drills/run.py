"""Faults on Apache Kafka, one after the other, unattended: for how long is no context of some partition answered?

    python tests/drills/run.py            # or `make drill`; 10 minutes
    python tests/drills/run.py broker     # the faults whose name holds this word

Two learners share four partitions; each partition is asked ten times a second, and every question is asked until it is
answered. The dark time of a fault is the longest that one of the questions waited which were asked from the moment of
the fault on. Most are done on one broker, as Kafka comes; some again on brokers with the settings that the drills' page
names. In the end the learner's journal is verified against its inputs. Nothing is assumed of a fault that
this release does not outlive: it is tried, and given up after `GIVEN_UP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "deploy" / "kafka"), str(Path(__file__).parent)]

import local  # noqa: E402
from faults import AS_A_DEPLOYMENT_HAS_IT, AS_KAFKA_COMES, AS_ONE_OF_A_DEPLOYMENT, AS_THREE_COME, LAST, Fault  # noqa: E402
from scene import COMMAND, GIVEN_UP_SECONDS, NAME, Scene, scene_in  # noqa: E402

SHORT_SESSION_MS = 3000
SHORT_BROKER_SESSION_MS = 4000
"""After which a silent broker loses what it led; 9 s as Kafka comes."""
ONLY_BROKER_SESSION_MS = 1000
"""Nobody could take over from it, and until that session's end it is not let in again itself."""


@dataclass(frozen=True)
class Row:
    """One fault: what was done, and for how long a partition was dark."""

    fault: str
    aim_seconds: float
    dark_seconds: float
    remark: str = ""

    def __str__(self) -> str:
        dark = (
            f"more than {self.dark_seconds:.0f} s"
            if self.dark_seconds >= GIVEN_UP_SECONDS
            else f"{self.dark_seconds:.1f} s"
        )
        held = "held" if self.dark_seconds <= self.aim_seconds else "MISSED"
        return f"| {self.fault} | {dark} | {self.aim_seconds:g} s | {held} | {self.remark} |"


async def drill(kafka: Path, bootstrap: str, faults: Sequence[Fault], last: Sequence[Fault]) -> bool:
    """Do all of it; whether what can be verified is as it should be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with scene_in(folder, kafka, bootstrap) as scene:
            for fault in faults:
                await one(scene, fault)
                await asyncio.gather(scene.first.revive(), scene.second.revive())
                await scene.questions.dark_since(time.monotonic())
            verified = await asyncio.to_thread(verify, folder, bootstrap)
            for fault in last:
                await one(scene, fault)
    said = verified.stdout.partition("\n")[0] or verified.stderr.strip()
    print(f"| verify of the learner after these: {said} (exit {verified.returncode}) | | | | |", flush=True)
    return verified.returncode == 0


async def one(scene: Scene, fault: Fault) -> None:
    """One fault: done, waited out, printed."""
    scene.moved = time.monotonic()
    remark = await fault.act(scene)
    dark = await scene.questions.dark_since(scene.moved)
    print(Row(fault.name, fault.aim_seconds, dark, remark), flush=True)
    while scene.further:
        print(Row(*scene.further.pop(0)), flush=True)


def verify(folder: Path, bootstrap: str) -> subprocess.CompletedProcess[str]:
    """Recompute the learner's journal from its inputs."""
    place = ["--deployment", str(folder / NAME), "--bootstrap", bootstrap]
    return subprocess.run(
        [str(COMMAND), "verify", "--role", "learner", *place],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def on_brokers(
    faults: Sequence[Fault],
    last: Sequence[Fault] = (),
    brokers: int = 1,
    least_ms: int = 6000,
    broker_session_ms: int = 9000,
) -> bool:
    """Some faults, on a Kafka of their own; none is started for none."""
    if not (faults or last):
        return True
    with tempfile.TemporaryDirectory() as name:
        kafka = Path(name)
        bootstrap = local.up(kafka, brokers, min_session_ms=least_ms, broker_session_ms=broker_session_ms)
        try:
            return asyncio.run(drill(kafka, bootstrap, faults, last))
        finally:
            local.down(kafka)


def main() -> int:
    """All faults, or those whose name holds one of the words."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers come and go here, as they should
    words = sys.argv[1:] or [""]

    def wanted(faults: Sequence[Fault]) -> Sequence[Fault]:
        return [fault for fault in faults if any(word in fault.name for word in words)]

    print("| fault | dark | aim | | |\n|---|---|---|---|---|", flush=True)
    held = on_brokers(wanted(AS_KAFKA_COMES), wanted(LAST))
    held &= on_brokers(
        wanted(AS_ONE_OF_A_DEPLOYMENT), least_ms=SHORT_SESSION_MS, broker_session_ms=ONLY_BROKER_SESSION_MS
    )
    held &= on_brokers(wanted(AS_THREE_COME), brokers=3)
    held &= on_brokers(
        wanted(AS_A_DEPLOYMENT_HAS_IT), brokers=3, least_ms=SHORT_SESSION_MS, broker_session_ms=SHORT_BROKER_SESSION_MS
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
