"""A running deployment is upgraded from an earlier release by a rolling restart, with the state that it wrote.

    python tests/drills/upgrade.py                   # from the last two tags, or from earlier commits where none are
    python tests/drills/upgrade.py v0.1.0 HEAD~30    # from these

For each of them: its code is checked out into a scratch folder, and prepares a deployment, makes keys and topics, and
runs all roles on an embedded broker while visitors come. Then one role after the other, in the order of the runbook, is
ended by SIGTERM and started again on its state folder, as this release is. Visitors come all the while; who gets the
baseline is counted. In the end `verify` of this release recomputes everything that both have published: nothing may
differ.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource, load
from hushstream.client import connect
from hushstream.ops.check.findings import Verified
from hushstream.ops.check.verify import verify_live
from hushstream.ops.connection import Connection
from hushstream.replay.quickstart.traffic import Traffic
from hushstream.replay.runners.ports import free_port

TOP = Path(__file__).resolve().parents[2]
ROOTS = ("schemas", "pipeline", "agents", "replay")
ORDER = ("aggregator", "shuffler", "learner")
"""Readers of a topic before its writers."""
COMMITS_BACK = (25, 120)
"""Where fewer releases have a tag: one of the last day, and one of some days before."""
VISITORS, VISITS_BETWEEN = 20, 200
START_SECONDS, STOP_SECONDS = 180.0, 60.0


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What came of one upgrade.

    Attributes:
        release: from which.
        answered: visits that a learner answered, before, meanwhile and after.
        unanswered: visits that no learner answered in time, which got their baseline.
        slowest: seconds of the longest wait for an answer.
        verified: of everything that both releases have published.
    """

    release: str
    answered: int
    unanswered: int
    slowest: float
    verified: Verified

    @property
    def held(self) -> bool:
        """Whether everything follows from the logs, and there is something."""
        return self.verified.exit_code == 0 and self.answered >= VISITS_BETWEEN * (len(ORDER) + 1)

    def __str__(self) -> str:
        said = self.verified.as_text().splitlines()[0]
        held = "held" if self.held else "FAILED"
        return f"| {self.release} | {self.answered} | {self.unanswered} | {self.slowest:.1f} s | {said} | {held} |"


class Release:
    """The code of one release, as commands that are run in processes of their own."""

    def __init__(self, top: Path) -> None:
        """Run what lies below a folder."""
        path = os.pathsep.join(str(top / root) for root in ROOTS)
        self._environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}

    def run(self, *arguments: object) -> None:
        """Run a command to its end.

        Raises:
            subprocess.CalledProcessError: it failed; its output is on standard error.
        """
        done = subprocess.run(
            self._command(arguments), env=self._environment, capture_output=True, text=True, encoding="utf-8",
            check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
            done.check_returncode()

    def spawn(self, log: Path, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a command that stays."""
        with log.open("ab") as out:
            return subprocess.Popen(self._command(arguments), env=self._environment, stdout=out, stderr=out)

    @staticmethod
    def _command(arguments: Sequence[object]) -> list[str]:
        return [sys.executable, "-m", "hushstream.cli", *map(str, arguments)]


class Deployment:
    """One deployment on an embedded broker, whose workers are of one release or of another."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        """Nothing runs yet."""
        self.place, self.bootstrap = folder / "deployment", bootstrap
        self._folder = folder
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self, release: Release, configuration: Path) -> None:
        """Have a release make everything that lies in the folder and on the broker."""
        release.run("prepare", configuration, self.place)
        release.run("keys", "generate", self.place / "keys")
        release.run("topics", "apply", "--no-acls", *self._where())

    async def start(self, release: Release, role: str) -> None:
        """Start a worker on its state folder, and wait until it runs all partitions."""
        port = free_port()
        log = self._folder / f"{role}.log"
        worker = release.spawn(log, "worker", role, *self._where(), "--metrics-port", port)
        self._workers[role] = worker
        deadline = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(_runs, port):
            if worker.poll() is not None or time.monotonic() > deadline:
                print(log.read_text(encoding="utf-8", errors="replace")[-2000:], file=sys.stderr)
                raise SystemExit(f"upgrade: {role} did not start")
            await asyncio.sleep(0.2)

    async def end(self, role: str) -> None:
        """End a worker as a rolling restart does."""
        worker = self._workers.pop(role)
        worker.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(worker.wait, STOP_SECONDS)
        if code:
            raise SystemExit(f"upgrade: expected {role} to end with 0, got {code}")

    def kill(self) -> None:
        """End what still runs."""
        for worker in self._workers.values():
            worker.kill()
            worker.wait()

    def _where(self) -> tuple[object, ...]:
        return "--deployment", self.place, "--bootstrap", self.bootstrap


def _runs(port: int) -> bool:
    """Whether the worker whose metrics are on a port runs all home partitions of its role."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return False
    values = {line.split("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    declared = values.get("hushstream_partitions_declared", 0)
    return declared > 0 and values.get("hushstream_partitions_held", 0) == declared


async def upgrade(name: str, folder: Path) -> Upgraded:
    """Upgrade a deployment of an earlier release to this one.

    Raises:
        SystemExit: a worker did not start or end as it must.
        subprocess.CalledProcessError: there is no such release, or a command of it failed.
    """
    before, now = Release(_checked_out(name, folder / "code")), Release(TOP)
    ready = folder / "broker.ready"
    broker = now.spawn(folder / "broker.log", "broker", "--port", 0, "--ready-file", ready)
    try:
        while not ready.exists() or not ready.read_text(encoding="utf-8").strip():
            if broker.poll() is not None:
                raise SystemExit("upgrade: the broker did not start")
            await asyncio.sleep(0.1)
        deployment = Deployment(folder, ready.read_text(encoding="utf-8").strip())
        deployment.prepare(before, folder / "code" / "deploy" / "examples" / "fast.yaml")
        try:
            return await _roll(name, deployment, before, now)
        finally:
            deployment.kill()
    finally:
        broker.terminate()
        broker.wait()


async def _roll(name: str, deployment: Deployment, before: Release, now: Release) -> Upgraded:
    for role in ORDER:
        await deployment.start(before, role)
    system = load(deployment.place)
    if system.core.config.context.declared is None:
        raise SystemExit(f"upgrade: expected a release whose deploy/examples/fast.yaml declares features, got {name}")
    async with connect(deployment.bootstrap, deployment.place) as client:
        traffic = Traffic(client, system.core.config, VISITORS, seed=1)
        await traffic.first()
        visiting = asyncio.create_task(traffic.run())
        try:
            await _answered(traffic, visiting)
            for role in ORDER:
                await deployment.end(role)
                await deployment.start(now, role)
                await _answered(traffic, visiting)
            await traffic.pause()
        finally:
            visiting.cancel()
            await asyncio.wait({visiting})
    tally = traffic.tally
    unanswered = tally.answers["no_learner"]
    connection = Connection(deployment.bootstrap, f"{system.config.deployment}.")
    found = await asyncio.to_thread(verify_live, connection, system, KeySource(deployment.place / "keys"))
    return Upgraded(name, sum(tally.answers.values()) - unanswered, unanswered, tally.slowest, found)


async def _answered(traffic: Traffic, visiting: asyncio.Task[None]) -> None:
    """Wait until so many more visits were answered by a learner."""
    answers = traffic.tally.answers
    wanted = sum(answers.values()) - answers["no_learner"] + VISITS_BETWEEN
    while sum(answers.values()) - answers["no_learner"] < wanted:
        if visiting.done():
            visiting.result()
        await asyncio.sleep(0.1)


def _checked_out(name: str, folder: Path) -> Path:
    folder.mkdir()
    archive = subprocess.run(["git", "-C", str(TOP), "archive", name], capture_output=True, check=True)
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive.stdout, check=True)
    return folder


def releases() -> list[str]:
    """The last two releases; before there are so many tags, earlier commits in place of those that are missing."""
    tags = subprocess.run(
        ["git", "-C", str(TOP), "tag", "--sort=-creatordate", "--list", "v*"],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    return [*tags.stdout.split(), *(f"HEAD~{back}" for back in COMMITS_BACK)][: len(COMMITS_BACK)]


async def main(names: Sequence[str]) -> int:
    """See the module; returns the exit code."""
    print("| from | visits answered | by no learner | slowest | verify | |\n|---|---|---|---|---|---|", flush=True)
    held = True
    for name in names or releases():
        with tempfile.TemporaryDirectory(prefix="hushstream-upgrade-") as folder:
            found = await upgrade(name, Path(folder))
        print(found, flush=True)
        held &= found.held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
