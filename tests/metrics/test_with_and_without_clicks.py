"""No public metric of any role or gateway is moved by what users clicked, rated or labelled.

Every recorded deployment is played twice with the same requests: as recorded, and without feedback (what is no feedback
by itself, as a vote, has another content). Log time goes on with requests alone, also with those that are left out.
A worker that can fold only so many records at a time is behind with all that came before. So whatever counts, measures
or waits for feedback differs; what differs must not be in the registry that everybody may read, whoever adds it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client import generate_latest

import recordings
from hushstream.agents.observe.metrics import METRICS, Labels, Metrics
from hushstream.agents.worker.roles import all_machines, role_work
from hushstream.gateway.listening import Endpoints
from hushstream.gateway.openapi import SERVED
from hushstream.gateway.personalizer.protocol import PersonalizerCalls
from hushstream.gateway.server import Gateway
from hushstream.gateway.settings import GatewaySettings
from hushstream.replay.runners.direct import MemoryLog
from hushstream.replay.runners.stream import free_port
from hushstream.schemas import codec
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.p2b.edge.device import Device
from recordings import KEYS, START_MS, STEP_MS, VARIANTS, Variant

pytestmark = pytest.mark.slow

LEFT_OUT = {"Feedback", "Label"}
"""Records that are not there where nobody clicks or labels."""
ALTERED: Mapping[str, Callable[[Any], Any]] = {
    "Ratings": lambda fields: {"values": np.full(len(fields["items"]) // 4, 0.5, "<f8").tobytes()},
    "Vote": lambda fields: {"option": (fields["option"] + 1) % 3 if fields["option"] < 3 else fields["option"]},
    "ArmClick": lambda fields: {"reward": 0},
    "RrClick": lambda fields: {"reward": 0},
}
"""Records that the guarantee calls public, with another content: each makes a slot, whatever it says."""
OF_THE_WORKER = {
    "hushstream_exit_reason", "hushstream_partition_stopped",
    "hushstream_group_member", "hushstream_fetch_age_seconds", "hushstream_group_commit_age_seconds",
    "hushstream_topic_drift",
}  # fmt: skip
"""What a worker says of itself, its disk, its brokers and topics, no record: a state, or an age in steps of 5 s."""
RELEASED = "releases"
"""Both sides read the same releases: what follows from them, as where a vendor forwards its customers, may differ."""
SHOW_ALL = ("p2b-windows", "p2b-counter", "colin-counter", "pdol-released", "bgt-gaussian")
"""Deployments whose roles show all public metrics between them."""
BY_THE_CLOCK = ("_heartbeat_age_seconds", "_model_age_seconds")
"""Ages by the clock of the machine that runs this, of what no click brings about."""
LOOKS_EVERY = 4
"""Requests between two looks at all that is public."""
FOLDED_AT_ONCE = 1
"""Records that a worker which falls behind folds between two requests."""


class Sides:
    """The public and the private series of every worker of a deployment while it is played."""

    def __init__(self, other: Sides | None) -> None:
        self.clicks, self.other = other is None, other
        self.released: list[bytes] = []
        self.now = START_MS
        self.public: list[set[Any]] = []
        self.driven: set[str] = set()
        self._workers: list[Worker] = []
        self._written: set[str] = set()
        self._requests = self.left_out = 0

    def log(self, clock_ms: Callable[[], int]) -> MemoryLog:
        return SidedLog(self)

    def machines(self, system: Any, keys: Any) -> list[Any]:
        made = all_machines(system, keys)
        roles = {role.journal: role for role in system.roles}
        workers = {name: Worker(system, role) for name, role in roles.items()}
        for machine in made:
            workers[machine.journal[0]].watch(machine, self)
        self._written = {name for role in system.roles for name in (*role.writes, role.journal, role.marks) if name}
        self._workers = list(workers.values())
        return made

    def passes(self, topic: str, value: bytes) -> bytes | None:
        """What is appended in place of a value; None: nothing."""
        if topic == RELEASED and topic in self._written:
            self.released.append(value)
            return value if self.other is None else self.other.released[len(self.released) - 1]
        if topic in self._written:
            return value
        self.now += 3 * STEP_MS
        for worker in self._workers:
            worker.work()
        self._requests += 1
        if self._requests % LOOKS_EVERY == 0:
            self.look()
        if self.clicks:
            return value
        try:
            schema, fields = codec.decode(value)
        except codec.CodecError:
            return value
        if schema in ALTERED:
            return codec.encode(schema, {**fields, **ALTERED[schema](fields)})
        if schema in LEFT_OUT and fields.get("kind") != "shown":
            self.left_out += 1
            return None
        return value

    def look(self) -> None:
        """Note what everybody may read now."""
        families = [(one.role, family) for one in self._workers for family in one.metrics.public.collect()]
        self.driven |= {family.name for _, family in families if family.samples}
        self.public.append(
            {
                (role, sample.name, tuple(sorted(sample.labels.items())), sample.value)
                for role, family in families
                for sample in family.samples
                if not sample.name.endswith(("_created", *BY_THE_CLOCK))
            }
        )

    def zone(self) -> list[bytes]:
        """What the zones' operators may read now."""
        return [generate_latest(worker.metrics.zone) for worker in self._workers]


class SidedLog(MemoryLog):
    """A log whose time goes on with requests, and which takes only those of its side."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(lambda: sides.now)
        self._sides = sides

    def append(self, topic: str, partition: int, value: bytes) -> int:
        taken = self._sides.passes(topic, value)
        return self.end(topic, partition) - 1 if taken is None else super().append(topic, partition, taken)


class Worker:
    """The metrics of one role, fed as its worker feeds them."""

    def __init__(self, system: Any, role: Any) -> None:
        self.role, work = role.name, role_work(role.name, system, KEYS)
        told = work.reporting
        topics = (*work.topics.inputs, *work.topics.writes)
        self.metrics = Metrics(
            Labels(
                role.name, told.outcomes, told.reasons, topics, system.homes(role), told.roles, told.private_work,
                told.private_lag, told.scope_classes,
            ),
            told.reason_of,
            told.figures_of,
        )  # fmt: skip
        self.metrics.partitions(system.homes(role), system.homes(role), 0)
        self.metrics.recovered(0.0)
        self._gauges, self._waiting = told.gauges, deque[tuple[str, int]]()
        self._lags: Counter[tuple[str, int]] = Counter()
        self._first, self._dark = work.topics.inputs[0], Counter[int]()
        self._turns = self._changed = 0

    def watch(self, machine: Any, sides: Sides) -> None:
        fold = machine.fold

        def observed(slices: Any) -> Any:
            for part in slices:
                self._waiting.extend([(part.topic, part.partition)] * len(part.records))
                self._lags[part.topic, part.partition] += len(part.records)
            steps = fold(slices)
            for step in steps:
                if step.journal is not None:
                    self.metrics.journaled()
                    self._changed = self._turns
                self.metrics.batch(step.counts, 0.01 * len(self._waiting))
                self.metrics.released(step.releases)
                self.metrics.dead_letters(step.dead_letters)
            self.metrics.role_gauges(machine.journal[1], self._gauges(machine))
            return steps

        machine.fold = observed

    def work(self) -> None:
        """Fold what one can fold between two requests, and show what is left."""
        folded = [self._waiting.popleft() for _ in range(min(FOLDED_AT_ONCE, len(self._waiting)))]
        self._lags.subtract(folded)
        for (topic, partition), waiting in self._lags.items():
            self.metrics.lag(topic, partition, waiting)
            if topic == self._first:
                dark = waiting and (topic, partition) not in folded
                self._dark[partition] = self._dark[partition] + 5 if dark else 0
                self.metrics.dark(partition, self._dark[partition])
        age = 5.0 * (self._turns - self._changed)
        self.metrics.health(
            append_wait_seconds=0.0 if age else 5.0, snapshot_age_seconds=age, published_state_age_seconds=age,
            state_disk_free_ratio=1 / (1 + self._changed),
        )  # fmt: skip
        self._turns += 1


def played(variant: Variant, other: Sides | None = None) -> Sides:
    sides = Sides(other)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(recordings, "MemoryLog", sides.log)
        patch.setattr(recordings, "all_machines", sides.machines)
        if other is not None:
            rate = RatingAgent.rate
            patch.setattr(Device, "reward", lambda *arguments: None)
            patch.setattr(RatingAgent, "rate", lambda agent, items, ratings: rate(agent, items, [0.5 for _ in ratings]))
        for _ in variant.record(Path(folder) / "deployment"):
            pass
    sides.look()
    return sides


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_what_everybody_may_read_is_the_same_with_and_without_clicks(variant):
    with variant.registered():
        clicked = played(variant)
        silent = played(variant, clicked)
    for number, (one, other) in enumerate(zip(clicked.public, silent.public, strict=True)):
        assert one == other, (number, sorted(one ^ other))
    if silent.left_out:
        assert clicked.zone() != silent.zone(), "the comparison sees a difference where there is one"


def test_no_public_metric_was_left_out():
    """Who adds one lets a deployment above move it, or says here why no record can."""
    driven = set().union(*(played(variant).driven for variant in VARIANTS if variant.name in SHOW_ALL))
    public = {spec.name for spec in METRICS if spec.metric_class != "zone-private"}
    assert {name.removesuffix("_total") for name in public - OF_THE_WORKER} <= driven


class HeldLog:
    """A log that acknowledges no feedback while it is held."""

    def __init__(self, log: Any) -> None:
        self._log, self.go_on = log, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        if topic == "clicks":
            await self.go_on.wait()
        offset: int = await self._log.append(topic, partition, value)
        return offset


FEEDBACK: Sequence[tuple[str, Any]] = (
    *(("/v1/reward", {"event_id": f"e{number}", "reward": 1.0}) for number in range(4)),
    ("/v1/shown", {"event_id": "e4"}),
    ("/v1/reward/batch", {"requests": [{"event_id": "e5", "reward": 1.0}, {"event_id": "e6", "reward": 0.0}]}),
    ("/v1/rewards", {"event_id": "e7", "reward": 1.0}),
    *(("/v1/harm", {"event_id": event, "harm": 1.0}) for event in ("e0", "never decided")),
    ("/v1/reward", {"event_id": "never decided", "reward": 1.0}),
    ("/v1/reward", {"event_id": "e7", "reward": "no number"}),
)
"""What a gateway is told, and mistold, while its log does not acknowledge: it takes all the room that it has."""


async def gateway_pages(clicks: bool) -> tuple[list[list[str]], bytes]:
    """What everybody may read of a gateway: before feedback, while it is under way, and after; and the zone's page."""
    variant = next(one for one in VARIANTS if one.name == "p2b-declared")
    with tempfile.TemporaryDirectory() as folder:
        loop = next(variant.record(Path(folder) / "deployment"))
        settings = GatewaySettings(port=0, in_flight=6, requests_per_second=20.0, burst=24, batch_requests=8)
        log, endpoints = HeldLog(loop.log_of()), Endpoints(port=free_port(), zone_port=free_port())
        async with (
            Gateway(system=loop.system, settings=settings, log=log, endpoints=endpoints) as gateway,
            aiohttp.ClientSession() as session,
        ):
            base, pages = f"http://127.0.0.1:{gateway.port}", []

            async def post(path: str, body: Any) -> None:
                async with session.post(base + path, json=body) as answer:
                    await answer.read()

            async def look() -> None:
                async with session.get(f"http://127.0.0.1:{endpoints.port}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                async with session.get(f"{base}/readyz") as ready:
                    lines.append(await ready.text())
                pages.append([line for line in lines if "_created" not in line])

            async def decide(*events: str) -> None:
                for event in events:
                    await post("/v1/decide", {"event_id": event, "user": event, "context": {"age": 20}, "baseline": 1})
                await look()

            await decide(*(f"e{number}" for number in range(8)))
            telling = [asyncio.create_task(post(*one)) for one in FEEDBACK if clicks]
            await asyncio.sleep(0.3)
            await decide("during", "again")
            log.go_on.set()
            await asyncio.gather(*telling)
            await decide("after")
            async with session.get(f"http://127.0.0.1:{endpoints.zone_port}/metrics") as answer:
                return pages, await answer.read()


def test_what_everybody_may_read_of_a_gateway_is_the_same_with_and_without_clicks(monkeypatch):
    monkeypatch.setattr("hushstream.gateway.listening.MEASURE_SECONDS", 0.02)
    monkeypatch.setattr("hushstream.gateway.listening.SILENT_SECONDS", 0.1)
    (clicked, told), (silent, untold) = (asyncio.run(gateway_pages(clicks)) for clicks in (True, False))
    assert clicked == silent
    assert any(line.endswith(" 11.0") for line in clicked[-1]), "eleven decisions were asked for"
    assert b"too-busy" in told
    assert b"too-busy" not in untold


def test_every_call_by_which_feedback_is_told_is_called_so_in_every_protocol():
    """Only other calls are counted where everybody may read it (the test above drives those of decisions)."""
    told = {served.name: {call.name for call in served.calls if call.is_feedback} for served in SERVED.values()}
    assert told == {"decisions": {"shown", "reward", "harm"}, "records": {"label"}, "ratings": {"rate"}}
    retired = PersonalizerCalls.__new__(PersonalizerCalls)
    for form in ("", "multislot/"):
        for call in ("rank", "events/e/reward", "events/e/activate"):
            route = retired.route(f"/personalizer/v1.1/{form}{call}")
            assert route is not None
            assert route.is_feedback == (call != "rank"), route.name
