"""A real Prometheus on the real rules, faults done to live workers: which alerts fire?

    python tests/drills/alerts.py           # or `make drill-alerts`; 20 minutes; Java, Maven and prometheus
    python tests/drills/alerts.py broker    # the faults that are called something with this word

Two learners and a shuffler on an Apache Kafka of their own. Both Prometheus run as shipped, with the intervals and the
rules of ``deploy/prometheus``. Each cause must be told within `PATIENCE_SECONDS`: of its fault, or of when the workers
that show it are up. Alerts that no fault on one machine can fire are named with the reason: their ``promtool`` cases
are all that holds them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy" / "kafka"), str(Path(__file__).parent)]

import faults  # noqa: E402
import local  # noqa: E402
from scene import (  # noqa: E402
    DIMENSION,
    NAME,
    PARTITIONS,
    CrampedLearner,
    Learner,
    Scene,
    contexts_of_many,
    scene_in,
    users_of,
)

from hushstream.replay.runners.stream import free_port  # noqa: E402
from hushstream.schemas import codec  # noqa: E402
from hushstream.schemas.batches import encode_feedback_batch  # noqa: E402

HOME = ROOT / "deploy" / "prometheus"
_KINDS: Mapping[str, str] = {"public": "prometheus", "zone": "zone"}
_WORKERS = ("first learner", "second learner", "shuffler", "aggregator")
PATIENCE_SECONDS = 120.0
TO_FOLD = 100
"""Records of 100 contexts that a learner has not folded when the broker stops, so that its journal waits for it."""
STOPPED_SECONDS = 90.0
WAITING_SECONDS = 12.0
"""A fold of all of them, the first five seconds that the gauge shows, and what is between two looks."""
TRIES = 5
"""A broker that stops before a learner has fetched anything leaves nothing to wait for."""
BACKLOG = 120_000
"""Contexts, and as many clicks, of each partition: more than starved learners fold in three minutes."""
STARVED_SECONDS = 0.06
"""Processor time that is left to a starved learner of each second: it still serves metrics and stays in its group."""
AT_ONCE = 4000

_NO_GATEWAY = "the drill's deployment is asked by clients, not over HTTP"
OF_THIS_TOPIC = 1
"""Kafka's number for a setting that was given to the topic itself."""
NOT_LIVE: Mapping[str, str] = {
    "LagHigh": "has the rule of LearnerLagHigh, for roles that no drill starves",
    "JournalReloads": "needs an owner that is forestalled again and again; what is nobody's is stepped over",
    "BudgetAt80Percent": "needs a deployment that has spent a lifetime's budget",
    "BudgetSpent": "needs a deployment that has spent a lifetime's budget",
    "BudgetOverspent": "no worker overspends: it is what a fault of the product itself would look like",
    "WindowsStarving": "looks at two days",
    "WindowsThin": "looks at a day",
    "WorkerHung": "an event loop that hangs while its metrics are served cannot be had from outside of the process",
    "WorkerCutOff": "needs two networks: on one machine either all reach the broker or none",
    "SnapshotOld": "needs a disk that refuses files for more than five minutes",
    "LearnerDark": "as PartitionDark",
    "PartitionDark": "what keeps a partition from folding here keeps it from fetching too, or stops it",
    "GatewayOnBaseline": _NO_GATEWAY,
    "GatewayFailing": _NO_GATEWAY,
    "GatewayOverloaded": _NO_GATEWAY,
    "GatewaySlow": _NO_GATEWAY,
    "AuditorBehind": "no auditor runs here",
    "PublishedBytesDiffer": "no auditor runs here, and it takes a record of whoever holds the zone's key",
    "DecisionsSlow": "needs a minute's load that one machine does not bear",
    "ModelStale": "looks at a day",
    "ModelNotAdopted": "needs a learner that folds and hears no model: both come over one connection",
}


class Scraper:
    """A Prometheus on one of the two configurations, and every alert that has fired in it."""

    def __init__(self, folder: Path, configuration: str, targets: Mapping[str, int]) -> None:
        """Prepare to scrape ports of loopback, by the name of whoever serves them ("first learner")."""
        self._home = folder / f"prometheus-{configuration}"
        shutil.copytree(HOME, self._home)
        served = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"deployment": NAME, "role": name.split()[-1]}}
            for name, port in targets.items()
        ]
        for file in (self._home / "targets").glob("*.yml"):
            file.write_text(yaml.safe_dump(served), encoding="utf-8")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it."""
        name = self._home.name.removeprefix("prometheus-")
        arguments = [f"--config.file={self._home / name}.yml", f"--storage.tsdb.path={self._home / 'data'}"]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{self._port}"], stdout=log, stderr=log
            )

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def firing(self) -> set[str]:
        """The alerts that fire now; none while it does not answer yet."""
        return {one["labels"]["alertname"] for one in self._found("alerts", "alerts") if one["state"] == "firing"}

    def has_begun(self) -> bool:
        """Whether all were scraped: of a counter that rose before it was first seen nobody knows that it did."""
        health = [one["health"] for one in self._found("targets", "activeTargets")]
        return bool(health) and set(health) == {"up"}

    def _found(self, what: str, key: str) -> Sequence[Mapping[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{what}", timeout=5) as answer:
                found: Sequence[Mapping[str, Any]] = json.load(answer)["data"][key]
                return found
        except OSError:
            return ()


@dataclass(frozen=True)
class Cause:
    """A fault, what it must make fire, and how it is mended."""

    fault: str
    alerts: Sequence[str]
    act: Callable[[Scene], Awaitable[None]]
    mend: Callable[[Scene], Awaitable[None]]


async def nothing(scene: Scene) -> None:
    """The fault mends itself."""


async def bad_records(scene: Scene) -> None:
    await faults.garbage(scene)
    await faults.impossible(scene)


async def foreign_journal(scene: Scene) -> None:
    """Another writer on the journal, so often that each time it is read again."""
    for _ in range(8):
        await scene.log.append("decisions", 0, b"of nobody")
        await asyncio.sleep(3)


def contexts_of(user: str, count: int) -> Sequence[bytes]:
    row = {"line": "private", "eligible": b"", "baseline": -1, "after_click": -1, "context": bytes(4 * DIMENSION)}
    return [codec.encode("Context", {"event_id": f"{user}-{n}", "user": user, **row}) for n in range(count)]


async def backlog(scene: Scene) -> None:
    """Contexts and clicks come while no learner runs, and go on coming while learners hardly run."""
    await asyncio.gather(scene.first.end(), scene.second.end())
    await _written(scene, "absent")
    await asyncio.gather(scene.first.start(), scene.second.start())
    scene.moved = time.monotonic()
    portions = 2 * PARTITIONS * (BACKLOG // AT_ONCE)
    await asyncio.gather(
        _starved(scene.first), _starved(scene.second), _written(scene, "late", PATIENCE_SECONDS / portions)
    )
    await scene.questions.dark_since(time.monotonic())


async def _written(scene: Scene, name: str, pause_seconds: float = 0.0) -> None:
    """Contexts, and as many clicks, of a user in each partition."""
    for partition in range(PARTITIONS):
        (user,) = users_of(partition, name, 1)
        clicks = [encode_feedback_batch([1], [f"unknown-{n}"], [user], [0], [1.0]) for n in range(BACKLOG)]
        for topic, values in (("contexts", contexts_of(user, BACKLOG)), ("clicks", clicks)):
            for low in range(0, BACKLOG, AT_ONCE):
                await asyncio.gather(*(scene.log.append(topic, partition, one) for one in values[low : low + AT_ONCE]))
                await asyncio.sleep(pause_seconds)


async def _starved(learner: Learner) -> None:
    """Little of the processor is left to it: otherwise it is done with the backlog between a few scrapes.

    What is left is processor time: on a busy machine a share of the clock would starve it more.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while (began := time.monotonic()) < until:
        spent = _processor_seconds(learner.pid)
        learner.signal(signal.SIGCONT)
        while _processor_seconds(learner.pid) < spent + STARVED_SECONDS and time.monotonic() < began + 1:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        learner.signal(signal.SIGSTOP)
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    learner.signal(signal.SIGCONT)


def _processor_seconds(pid: int) -> float:
    """Processor time of a process so far, user's and system's."""
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def broker_stopped(ports: Sequence[int], scene: Scene) -> None:
    """A broker that keeps its connections and answers nothing, while a learner folds what it has just fetched."""
    pid = int((scene.kafka / "broker-1" / "pid").read_text(encoding="utf-8"))
    try:
        for number in range(TRIES):
            os.kill(pid, signal.SIGCONT)
            await scene.questions.dark_since(time.monotonic())
            values = contexts_of_many(f"late-{number}", 0, TO_FOLD)
            await asyncio.gather(*(scene.log.append("contexts", 0, one) for one in values))
            os.kill(pid, signal.SIGSTOP)
            scene.moved = time.monotonic()
            await asyncio.sleep(WAITING_SECONDS)
            if any([await asyncio.to_thread(_waits, port) for port in ports]):
                break
        await asyncio.sleep(STOPPED_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    await scene.questions.dark_since(time.monotonic())


def _waits(port: int) -> bool:
    """Whether the learner whose metrics are on a port waits for a journal record that it has sent."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return any(line.startswith("hushstream_edge_append_wait_seconds") and float(line.split()[-1]) > 0 for line in lines)


async def inputs_lost(scene: Scene) -> None:
    """Contexts of a partition that nobody has folded are deleted while no learner runs."""
    for learner in (scene.first, scene.second):
        await learner.end()
    await faults.garbage(scene)
    # Of one partition: a worker that has none left to run ends, and shows nothing.
    await faults.inputs_deleted(scene, [0])
    await asyncio.gather(scene.first.start(PATIENCE_SECONDS / 3), scene.second.start(PATIENCE_SECONDS / 3))
    scene.moved = time.monotonic()


async def journal_compacted(scene: Scene) -> None:
    """A tool of the cluster sets compaction on a journal, whose records have no keys that are alike."""
    await _configured(scene, "decisions", "cleanup.policy", "compact")


async def journal_mended(scene: Scene) -> None:
    await _configured(scene, "decisions", "cleanup.policy", "delete")


async def _configured(scene: Scene, topic: str, setting: str, value: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        name = scene.topic(topic)
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        ((*_, entries),) = answer.resources
        kept = {entry[0]: entry[1] for entry in entries if entry[3] == OF_THIS_TOPIC}
        # This request of Kafka resets every setting that it does not name.
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {**kept, setting: value})])
    finally:
        await admin.close()


async def topic_deleted(scene: Scene) -> None:
    """While learners run; it is the last fault, as nothing brings it back."""
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        answer = await admin.delete_topics([scene.topic("clicks")])
    finally:
        await admin.close()
    if any(code for _, code, *_ in answer.topic_error_codes):
        raise RuntimeError(f"expected the broker to delete a topic, got {answer}")


async def drill(kafka: Path, bootstrap: str, folder: Path, words: Sequence[str]) -> set[str]:
    """Do all of it; the alerts that were to fire and did not."""
    ports = {f"{who} {kind}": free_port() for who in _WORKERS for kind in _KINDS}

    def options(who: str) -> list[str]:
        return [
            "--metrics-port", str(ports[f"{who} public"]), "--zone-metrics-port", str(ports[f"{who} zone"]),
        ]  # fmt: skip

    shuffler, aggregator = (
        Learner(folder, bootstrap, role, role=role, options=options(role)) for role in ("shuffler", "aggregator")
    )
    scrapers = [
        Scraper(folder, name, {who.removesuffix(f" {kind}"): port for who, port in ports.items() if who.endswith(kind)})
        for kind, name in _KINDS.items()
    ]
    each = [options("first learner"), options("second learner")]
    small = CrampedLearner(folder, bootstrap, "small", options=each[1])
    async with scene_in(folder, kafka, bootstrap, options=each) as scene:

        async def shuffler_killed(_: Scene) -> None:
            await shuffler.end(signal.SIGKILL)

        async def shuffler_back(_: Scene) -> None:
            await shuffler.start()

        async def cramped(_: Scene) -> None:
            await scene.second.end()
            await small.start(PATIENCE_SECONDS / 3)

        async def second_back(_: Scene) -> None:
            await small.end()
            await scene.second.start()

        shown = [port for name, port in ports.items() if name.endswith("learner zone")]
        causes = (
            Cause("garbage, and clicks that never come", ["DeadLettersRising", "WaitsInVain"], bad_records, nothing),
            Cause("a foreign writer on a journal", ["ForeignRecords"], foreign_journal, nothing),
            Cause("the only shuffler killed", ["WorkerDown", "RoleAbsent"], shuffler_killed, shuffler_back),
            Cause("a state disk that is nearly full", ["StateDiskFull"], cramped, second_back),
            Cause("a backlog of minutes", ["LearnerLagHigh"], backlog, nothing),
            Cause(
                "a broker that hangs", ["AppendsStuck", "BrokerUnreachable"], partial(broker_stopped, shown), nothing
            ),
            Cause("inputs deleted unread", ["PartitionStopped", "PartitionsNotRun"], inputs_lost, nothing),
            Cause("a journal is compacted", ["TopicDrift"], journal_compacted, journal_mended),
            Cause("a topic deleted", ["ExitReason"], topic_deleted, nothing),
        )
        try:
            await asyncio.gather(shuffler.start(), aggregator.start())
            for scraper in scrapers:
                scraper.start()
            await _begun(scrapers)
            wanted = [cause for cause in causes if any(word in cause.fault for word in words)]
            silent = {name for cause in wanted for name in await _tried(scene, scrapers, cause)}
        finally:
            for scraper in scrapers:
                scraper.stop()
            await asyncio.gather(*(one.end(signal.SIGKILL) for one in (shuffler, aggregator, small)))
    _say_the_rest({name for cause in causes for name in cause.alerts})
    return silent


async def _begun(scrapers: Sequence[Scraper]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all([await asyncio.to_thread(scraper.has_begun) for scraper in scrapers]):
        if time.monotonic() > deadline:
            raise SystemExit(f"alerts: expected every worker to be scraped within {PATIENCE_SECONDS:g} s")
        await asyncio.sleep(0.5)


async def _tried(scene: Scene, scrapers: Sequence[Scraper], cause: Cause) -> set[str]:
    """Do one fault, and wait for its alerts; those that did not come."""
    began = time.monotonic()
    missing = set(cause.alerts)
    early = missing & {name for scraper in scrapers for name in await asyncio.to_thread(scraper.firing)}
    if early:
        print(f"| {', '.join(sorted(early))} | FIRED BEFORE | {cause.fault} |", flush=True)
        return early
    acting = asyncio.create_task(cause.act(scene))
    while missing and (not acting.done() or _since(began, scene) < PATIENCE_SECONDS):
        await asyncio.sleep(0.5)
        for scraper in scrapers:
            for name in missing & await asyncio.to_thread(scraper.firing):
                missing.discard(name)
                print(f"| {name} | fired after {_since(began, scene):.0f} s | {cause.fault} |", flush=True)
    await acting
    await cause.mend(scene)
    for name in sorted(missing):
        print(f"| {name} | DID NOT FIRE | {cause.fault} |", flush=True)
    return missing


def _since(began: float, scene: Scene) -> float:
    """Seconds since a fault was there: one that first prepares begins when that is done."""
    return time.monotonic() - max(began, scene.moved)


def _say_the_rest(tried: set[str]) -> None:
    """Every alert of the rules is tried, or has its reason why it is not."""
    rules = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (HOME / "rules").glob("*.yml")]
    alerts = {rule["alert"] for one in rules for group in one["groups"] for rule in group["rules"] if "alert" in rule}
    assert alerts == tried | NOT_LIVE.keys(), f"neither tried nor excused: {alerts - tried - NOT_LIVE.keys()}"
    for name, reason in NOT_LIVE.items():
        print(f"| {name} | not made to fire | {reason} |")


def main() -> int:
    """On a Kafka of its own."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers come and go here, as they should
    print("| alert | | fault |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        kafka = Path(first)
        bootstrap = local.up(kafka)
        try:
            return 1 if asyncio.run(drill(kafka, bootstrap, Path(second), sys.argv[1:] or [""])) else 0
        finally:
            local.down(kafka)


if __name__ == "__main__":
    sys.exit(main())
