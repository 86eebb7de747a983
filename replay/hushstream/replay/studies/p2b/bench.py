"""The benchmarks of P2B: stages alone, and devices through a gateway.

Measures the speed of P2B's parts in one thread, for ``make bench``.

Every figure is a median over rounds, and a ratio is taken within a round, because speeds of machines vary. All rates
and times are of the thread's CPU time, which other programs on the machine disturb least. BLAS may use only this
thread.

Measures devices that use a gateway, and compares them with the same users hosted: ``make bench-edge``.

Users of the shop visit it on simulated devices and send their slots over HTTP. A gateway, a shuffler and an aggregator,
each as it is deployed, make a model from them, and devices of further users start from it. The same users also play
against a hosted deployment with the same settings. They have the same keys in both, so the same visits are reported,
and only the noise differs. Keys from a seed are allowed for simulated users only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.agents.process import no_full_collections
from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.edge import Answer, Transport
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.gateway.devices.gateway import DeviceGateway, device_log
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.learners.exploration import only_best
from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.learners.sparse import SparseContext, SparseModel, SparseUCB
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys, seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale
from hushstream.replay.bench.processes import started
from hushstream.replay.catalogue import make_world
from hushstream.replay.experiments.rows import BenchFailed, BenchRow, Progress, at_least, at_most, figure
from hushstream.replay.runners.playing import DirectSession
from hushstream.replay.studies.p2b.play import fitted_system, run_population
from hushstream.replay.studies.p2b.run import ClosedLoop, Plan
from hushstream.replay.worlds.mixed_table import MixedTable
from hushstream.replay.worlds.shop import ShopWorld, shop
from hushstream.schemas import codec
from hushstream.systems.p2b.codebook import grid_points
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.device import Agreement, Device
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.server.estimate import cold_start
from hushstream.systems.p2b.shuffler import linear_sums, noised_sums
from hushstream.systems.p2b.slots import FeatureLayout, layout_of, pack_reports, unpack_reports

DIMENSION = ARMS = 25
BATCH = 256
WINDOW = 50_000
TEXTBOOK_EVENTS = 10_000
USERS = 100_000
FOLDED = 2_048

Rows = Callable[[int], list[BenchRow]]
"""A function that measures one subject in a number of rounds, and makes its rows."""


def compute_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure every subject.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    rows: list[BenchRow] = []
    with threadpool_limits(limits=1):
        for name, measure in SUBJECTS.items():
            progress(name)
            rows += measure(rounds)
    return rows


def learner_rows(rounds: int) -> list[BenchRow]:
    """Measure LinUCB at d=25, K=25: one event at a time, and in the textbook's form."""
    single, textbook = [], []
    equal = 0
    for number in range(rounds):
        contexts, rewards = _events(20_000, number)
        single.append(_per_event(contexts, rewards))
        seconds, equal = _textbook(contexts[:TEXTBOOK_EVENTS], rewards[:TEXTBOOK_EVENTS])
        textbook.append(TEXTBOOK_EVENTS / seconds)
    shape = f"d={DIMENSION}, K={ARMS}"
    ratios = [fast / slow for fast, slow in zip(single, textbook, strict=True)]
    return [
        at_least(f"LinUCB, choose and learn one event at a time, {shape}", single, "events/CPU s", 100_000),
        figure("LinUCB one at a time over the textbook form (numpy, an inverse a step)", ratios, "x"),
        at_least(
            f"LinUCB, actions equal to the textbook form of {TEXTBOOK_EVENTS:,} events",
            [float(equal)],
            "actions",
            TEXTBOOK_EVENTS,
        ),
    ]


def agent_rows(rounds: int) -> list[BenchRow]:
    """Measure one choice and learning step of `EdgeAgent` at d=25, K=25, for new and old agents."""
    config = P2BConfig(
        "bench", ARMS, ContextConfig(DIMENSION), 1_000, encoder=EncoderConfig(codes=8), slot=SlotConfig(100, 1)
    )
    terms = fitted_system(config).edge_terms()
    key = seeded_key(0, "edge")
    quantiles: list[tuple[float, float]] = []
    for number in range(rounds):
        contexts, rewards = _events(5_000, number)
        agents = [EdgeAgent(terms, key.derive("user", f"user-{index}"), "cold") for index in range(100)]
        taken = np.empty(len(contexts))
        for event, context in enumerate(contexts):
            agent, name = agents[event % len(agents)], f"event-{event}"
            begin = time.thread_time()
            arm = agent.decide(name, context, 0).arm
            agent.rewarded(name, arm, float(rewards[event, arm]))
            taken[event] = time.thread_time() - begin
        median, high = np.quantile(taken, (0.5, 0.99)) * 1000.0
        quantiles.append((float(median), float(high)))
    name = f"EdgeAgent, choose and learn, d={DIMENSION}, K={ARMS}"
    return [
        figure(f"{name}: p50", [median for median, _ in quantiles], "CPU ms"),
        at_most(f"{name}: p99", [high for _, high in quantiles], "CPU ms", 1.0),
    ]


def population_rows(rounds: int) -> list[BenchRow]:
    """Measure a run with Figure 4's largest population (cold, non-private, private), without the encoder's fit."""
    contributors = USERS * 7 // 10
    config = P2BConfig(
        "bench",
        10,
        ContextConfig(10),
        contributors,
        encoder=EncoderConfig(codes=1024),
        slot=SlotConfig(10, 1),
        release=ReleaseConfig(mode="paper", sampling=0.5, window_slots=contributors),
    )
    system = fitted_system(config)
    seconds = []
    for number in range(rounds):
        world = make_world("synthetic", users=USERS, reward_scale=0.1, seed=number)
        seconds.append(_seconds(run_population, system, world, contributors, USERS - contributors, number))
    return [at_most(f"population run, U={USERS:,}, T=10, d=10, K=10, k=1024, three arms", seconds, "CPU s", 60.0)]


def encoder_rows(rounds: int) -> list[BenchRow]:
    """Measure the encoder, from grid units and from plain contexts."""
    units = grid_points(10, 1)[:50_000]
    contexts = (units / 10.0).astype(np.float32)
    rows = []
    for codes in (32, 1024):
        config = P2BConfig("bench", 10, ContextConfig(10), 1_000, encoder=EncoderConfig(codes=codes))
        encoder = fitted_system(config).encoder
        rates = [len(units) / _seconds(encoder.encode_units, units) for _ in range(rounds)]
        rows.append(figure(f"encoder, d=10, k={codes}, from grid units", rates, "contexts/CPU s"))
        rates = [len(units) / _seconds(encoder.encode, contexts) for _ in range(rounds)]
        rows.append(figure(f"encoder, d=10, k={codes}, from float32 contexts", rates, "contexts/CPU s"))
    return rows


def noise_rows(rounds: int) -> list[BenchRow]:
    """Measure keyed discrete Laplace integers at epsilon 1."""
    count = 200_000
    key = seeded_key(0, "shuffler")
    address = NoiseAddress("release-noise", "bench", bytes(32), "p2b", "slot-sums", {}, bytes(16), 0)
    scale = laplace_scale(1, 1)
    rates = []
    for _ in range(rounds):
        stream = KeyedStream(key, address)
        rates.append(count / _seconds(discrete_laplace, stream, *scale, count))
    return [figure("keyed discrete Laplace noise, epsilon 1", rates, "integers/CPU s")]


def codec_rows(rounds: int) -> list[BenchRow]:
    """Measure the codec with contexts at d=25, as events and as columnar batches."""
    contexts, _ = _events(BATCH, 0)
    one = {
        "event_id": "event-0",
        "user": "user-0",
        "line": "private",
        "context": contexts[0].tobytes(),
        "eligible": b"",
        "baseline": -1,
        "after_click": -1,
    }
    many = {
        "event_ids": [f"event-{row}" for row in range(BATCH)],
        "users": [f"user-{row}" for row in range(BATCH)],
        "line": "private",
        "dimension": DIMENSION,
        "contexts": contexts.tobytes(),
        "eligible": b"",
        "baselines": b"",
        "after_clicks": b"",
    }
    events, batches = 5_000, 200
    single = [events / _seconds(_there_and_back, "Context", one, events) for _ in range(rounds)]
    columnar = [batches * BATCH / _seconds(_there_and_back, "ContextBatch", many, batches) for _ in range(rounds)]
    return [
        figure(f"codec, encode and decode, one event a record, d={DIMENSION}", single, "events/CPU s"),
        figure(f"codec, encode and decode, columnar records of {BATCH}, d={DIMENSION}", columnar, "events/CPU s"),
    ]


def feature_rows(rounds: int) -> list[BenchRow]:
    """Measure declared features (83 cells of a mixed table): choices for new users, and the sums of a window."""
    found: list[BenchRow] = []
    for arms, single, batched, whole in ((10, 150_000, 400_000, 40_000), (100, 40_000, 100_000, 20_000)):
        world = MixedTable(0, arms)
        layout = layout_of(world.schema, arms, 1, 1.0, 50_000)
        start = cold_start(arms, layout.cells, len(world.schema.table))
        model, kernel = SparseModel.of(*start), SparseUCB(arms, layout.cells, layout.places)
        blocks = world.schema.blocks(world.visits(np.arange(BATCH), 0).rows)
        cells = np.concatenate([np.zeros((BATCH, 1), dtype=np.int64), blocks.cells + 1], axis=1)
        contexts = SparseContext.of(cells, np.concatenate([np.ones((BATCH, 1)), blocks.values], axis=1))
        shape = f"d={layout.cells}, K={arms}"
        each = [contexts.at(row) for row in range(BATCH)]
        rates = [20 * BATCH / _seconds(_choose_each, kernel, model, each, 20) for _ in range(rounds)]
        found.append(at_least(f"declared features, choose one at a time, {shape}", rates, "events/CPU s", single))
        rates = [20 * BATCH / _seconds(_choose_all, kernel, model, contexts, 20) for _ in range(rounds)]
        found.append(
            at_least(f"declared features, choose in batches of {BATCH}, {shape}", rates, "events/CPU s", batched)
        )
        for together, target in ((1, None), (BATCH, whole)):
            rates = [FOLDED / _folded(world, arms, together) for _ in range(rounds)]
            name = f"declared features, the learner's whole fold, events in folds of {together}, {shape}"
            unit = "events/CPU s"
            found.append(figure(name, rates, unit) if target is None else at_least(name, rates, unit, target))
    world = MixedTable(0, 10)
    layout = layout_of(world.schema, 10, 1, 1.0, WINDOW)
    numbers = np.arange(WINDOW, dtype=np.int64)
    units = layout.units_of(world.schema.blocks(world.visits(numbers, 0).rows))
    contents = pack_reports(layout, numbers % 10, numbers % 2, 0, units)
    rates = [WINDOW / _seconds(_sum_up, layout, contents) for _ in range(rounds)]
    cells_of_all = 2 * layout.arms * layout.cells
    name = f"shuffler, slots of declared features to {cells_of_all:,} sums"
    return [*found, at_least(name, rates, "slots/CPU s", 100_000)]


SUBJECTS: dict[str, Rows] = {
    "learner": learner_rows,
    "agent": agent_rows,
    "population": population_rows,
    "encoder": encoder_rows,
    "noise": noise_rows,
    "codec": codec_rows,
    "features": feature_rows,
}
"""The subjects that `compute_rows` measures; more may be added."""


def _events(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Contexts (n, d), and a click (1) or none (0) for every arm (n, K)."""
    generator = np.random.default_rng(seed)
    contexts = generator.dirichlet(np.ones(DIMENSION), count).astype(np.float32)
    chances = contexts @ generator.random((DIMENSION, ARMS))
    return contexts, (generator.random((count, ARMS)) < chances).astype(np.float64)


def _per_event(contexts: NDArray[np.float32], rewards: NDArray[np.float64]) -> float:
    kernel = LinUCB(ARMS, DIMENSION)
    state = LinUCBModel.cold(ARMS, DIMENSION).state()
    given = rewards.tolist()
    begin = time.thread_time()
    for context, row in zip(contexts, given, strict=True):
        arm, _ = kernel.choose(state, context)
        kernel.learn(state, context, arm, row[arm])
    return len(contexts) / (time.thread_time() - begin)


def _textbook(contexts: NDArray[np.float32], rewards: NDArray[np.float64]) -> tuple[float, int]:
    """Seconds of Li et al. 2010, Algorithm 1, in float64, and how many of our actions equal the textbook's.

    Both sides learn the textbook's action, so that each action is compared after the same history.
    """
    kernel, state = LinUCB(ARMS, DIMENSION), LinUCBModel.cold(ARMS, DIMENSION).state()
    gram = np.tile(np.eye(DIMENSION), (ARMS, 1, 1))
    inverse, moment, theta = gram.copy(), np.zeros((ARMS, DIMENSION)), np.zeros((ARMS, DIMENSION))
    equal, seconds = 0, 0.0
    for row, context in enumerate(contexts):
        begin = time.thread_time()
        point = context.astype(np.float64)
        arm = int((theta @ point + np.sqrt(np.matmul(inverse, point) @ point)).argmax())
        gram[arm] += np.outer(point, point)
        moment[arm] += rewards[row, arm] * point
        inverse[arm] = np.linalg.inv(gram[arm])
        theta[arm] = inverse[arm] @ moment[arm]
        seconds += time.thread_time() - begin
        equal += kernel.choose(state, context)[0] == arm
        kernel.learn(state, context, arm, rewards[row, arm])
    return seconds, equal


def _folded(world: MixedTable, arms: int, together: int) -> float:
    """Seconds in which a learner decodes, decides and journals contexts of new users, ``together`` records a fold.

    The learner has a model whose arms differ, as after any first window; without one, every choice would be a tie.
    """
    configuration = {
        "system": "p2b",
        "deployment": "bench",
        "items": {"capacity": arms},
        "features": world.schema.plain,
        "expected_slots": WINDOW,
        "release": {"form": "features"},
    }
    with tempfile.TemporaryDirectory() as folder:
        system = prepare(Path(folder) / "bench", parse_config(configuration))
    learner = LearnerMachine(system.core, 0, seeded_key(0, "edge"))
    learner.start(learner.genesis(bytes(32)))
    cells = layout_of(world.schema, arms, 1, 1.0, WINDOW).cells
    means, variances, reward_variance = cold_start(arms, cells, len(world.schema.table))
    means = means + np.random.default_rng(0).normal(0.0, 0.1, means.shape)
    learner.terms.policy.adopt("private", 1, means, variances, np.array([reward_variance]))
    rows = world.visits(np.arange(FOLDED), 0).rows
    plain = {"line": "private", "features_digest": world.schema.digest}
    values = [
        codec.encode("FeatureContext", {**plain, "event_id": f"e{number}", "user": f"u{number}", "row": row.tobytes()})
        for number, row in enumerate(rows)
    ]
    records = [InputRecord(number, number, value) for number, value in enumerate(values)]
    parts = [
        InputSlice("contexts", 0, low, low + together, records[low : low + together])
        for low in range(0, FOLDED, together)
    ]

    def fold() -> None:
        for part in parts:
            learner.fold(learner.ready([part]))

    with no_full_collections():
        return _seconds(fold)


def _choose_each(kernel: SparseUCB, model: SparseModel, contexts: Sequence[SparseContext], times: int) -> None:
    for _ in range(times):
        for context in contexts:
            kernel.choose(model, None, context)


def _choose_all(kernel: SparseUCB, model: SparseModel, contexts: SparseContext, times: int) -> None:
    new = [None] * len(contexts.cells)
    for _ in range(times):
        only_best(kernel.scores_of(model, new, contexts))


def _sum_up(layout: FeatureLayout, contents: Sequence[bytes]) -> None:
    """Read, check and add up the slots of a window, and draw its noise."""
    reports = unpack_reports(layout, contents)
    exact = linear_sums(layout, reports, np.ones(len(contents), dtype=np.bool_))
    address = NoiseAddress("release-noise", "bench", bytes(32), "p2b", "linear-sums", {}, bytes(16), 0)
    shape = (2, layout.arms, layout.cells)
    scale = laplace_scale(1, layout.sensitivity)
    noise = discrete_laplace(KeyedStream(seeded_key(0, "shuffler"), address), *scale, int(np.prod(shape)))
    noised_sums(exact, noise.reshape(shape))


def _there_and_back(name: str, record: dict[str, object], times: int) -> None:
    for _ in range(times):
        codec.decode(codec.encode(name, record))


def _seconds(work: Callable[..., object], *given: object) -> float:
    begin = time.thread_time()
    work(*given)
    return time.thread_time() - begin


VISITS = 5
SENDERS = 32
"""How many devices send at the same time."""

MODEL_SECONDS = 120.0
CHECKED = ("shuffler", "aggregator")
BETWEEN_MS = 10
HOURS_MS = 3 * 3_600_000
"""How long ago contributors visited: longer than the delay of the agreement, so that their slots may be sent."""

AS_GOOD = 0.005
"""The most reward that devices may lose compared with a hosted deployment."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of both deployments.

    Attributes:
        devices: how many devices sent a slot.
        hand_in_seconds: seconds in which all devices together sent their slots.
        verify: 0 where everything that was published follows from the logs.
        cold: mean chance of a click of the contributors; the same in both deployments.
        warm: mean chance of the users who started from the devices' model.
        hosted: mean chance of the same users when they started from the hosted model.
    """

    devices: int
    hand_in_seconds: float
    verify: int
    cold: float
    warm: float
    hosted: float

    @property
    def is_as_good(self) -> bool:
        """Whether devices lose at most `AS_GOOD` compared with a hosted deployment."""
        return self.verify == 0 and self.warm >= self.hosted - AS_GOOD

    def as_text(self) -> str:
        """The outcome as lines of text."""
        return "\n".join(
            (
                f"{self.devices:,} devices sent a slot each, in {self.hand_in_seconds:.1f} s",
                f"verify: {'equal' if self.verify == 0 else 'NOT EQUAL'}",
                f"chance of a click: {self.cold:.4f} cold; {self.warm:.4f} from the devices' model, {self.hosted:.4f} "
                f"from the hosted one ({self.warm - self.hosted:+.4f}; down to -{AS_GOOD:g} is as good)",
            )
        )


def measure(devices: int, evaluated: int, seed: int) -> Found:
    """Play both deployments.

    Args:
        devices: how many users contribute to the model.
        evaluated: how many users start from it.
        seed: seed of the users, and of the keys that they have in both deployments.

    Raises:
        BenchFailed: a slot was refused, no model came in time, or cold users chose other items on devices than hosted.
    """
    world = shop(users=devices + evaluated, rounds=VISITS, seed=seed)
    users, keys = Plan(devices, evaluated, ("warm_private",)), KeySource(seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        hosted = asyncio.run(_hosted(Path(folder) / "hosted", world, users, keys))
        return asyncio.run(_Edge(Path(folder) / "edge", world, users, keys).play(hosted))


def _settings(world: ShopWorld, devices: int) -> dict[str, Any]:
    return {
        "deployment": "devices",
        "items": {"capacity": world.arms},
        "features": world.schema.plain,
        "expected_slots": devices,
        "slot": {"after_interactions": VISITS},
        "feedback": {"click_rate": world.click_rate, "attribution_window_seconds": 1},
        "release": {"window_units": devices, "sums": "fresh"},
        "privacy": {"epsilon": 8.0},
    }


async def _hosted(folder: Path, world: ShopWorld, users: Plan, keys: KeySource) -> dict[str, NDArray[np.int32]]:
    """Play the hosted deployment; return the chosen items, (users, visits), by condition."""
    system = prepare(folder, parse_config(_settings(world, users.contributors)), keys=keys)
    async with DirectSession(system, keys) as session:
        played = await ClosedLoop(world, users, rules=system.requests).run(session.event_log())
    return played.chosen


class _Edge:
    """The deployment whose learners are on devices."""

    def __init__(self, folder: Path, world: ShopWorld, users: Plan, user_keys: KeySource) -> None:
        settings = _settings(world, users.contributors)
        config = parse_config({**settings, "kind": "edge", "slot": {**settings["slot"], "sealed": True}})
        folder.mkdir()
        generate_keys(folder / KEYS, ("shuffler", "sealing", "signing"))
        self._folder, self._world, self._users, self._keys = folder, world, users, KeySource(folder / KEYS)
        self._user_keys = user_keys.key("edge")
        self._system: System = prepare(folder, config, keys=self._keys)
        self._agreement = Agreement.read((folder / "agreement.json").read_bytes())

    async def play(self, hosted: dict[str, NDArray[np.int32]]) -> Found:
        """Play both phases on devices, and compare the outcome with the hosted deployment's choices."""
        count, now_ms = self._users.contributors, time.time_ns() // 10**6
        teachers = np.arange(count)
        taught = [self._lived("contributors", int(user), now_ms - HOURS_MS) for user in teachers]
        cold = np.array([items for _, items in taught])
        if not (cold == hosted["contributors"]).all():
            raise BenchFailed("devices: expected the choices of the hosted deployment of cold users, got others")
        bodies = [one.body for device, _ in taught for one in device.outgoing(now_ms)]
        async with EmbeddedBroker() as broker:
            model, seconds = await self._through(broker.bootstrap, bodies)
            connection = Connection(broker.bootstrap, "devices.")
            copy = await copy_async(connection, self._system.partitions)
        started_from = np.arange(count, count + self._users.evaluated)
        warm = np.array([self._lived("warm_private", int(user), now_ms, model)[1] for user in started_from])
        checked = verify(copy, self._system, self._keys, CHECKED)
        return Found(
            len(bodies),
            seconds,
            checked.exit_code,
            self._chance(teachers, cold),
            self._chance(started_from, warm),
            self._chance(started_from, hosted["warm_private"]),
        )

    async def _through(self, bootstrap: str, bodies: Sequence[bytes]) -> tuple[bytes, float]:
        """Send slots over HTTP; return the model made from them, and how many seconds sending took."""
        await apply_async(Connection(bootstrap, "devices."), self._system)
        async with contextlib.AsyncExitStack() as stack:
            for role in CHECKED:
                arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(self._folder)]
                arguments += ["--bootstrap", bootstrap, "--gather", "0"]
                await stack.enter_async_context(started(f"worker-{role}", arguments, self._folder))
            # All devices send from this machine's one address.
            devices = DevicesSettings(relay_seconds=0.1, slots_burst=len(bodies))
            settings = GatewaySettings(port=0, devices=devices)
            log = device_log(bootstrap, "devices.", Security(), self._system)
            gateway = await stack.enter_async_context(DeviceGateway(system=self._system, settings=settings, log=log))
            transport = Transport(f"http://127.0.0.1:{gateway.port}")
            threads, loop = stack.enter_context(ThreadPoolExecutor(SENDERS)), asyncio.get_running_loop()
            begun = time.perf_counter()
            answers = await asyncio.gather(
                *(loop.run_in_executor(threads, transport.send_slot, body) for body in bodies)
            )
            seconds = time.perf_counter() - begun
            if refused := {answer.status for answer in answers} - {204}:
                raise BenchFailed(f"slots: expected 204 for each, got {sorted(refused)} too")
            return (await self._model(lambda: loop.run_in_executor(threads, transport.fetch_model, None))).body, seconds

    async def _model(self, fetch: Callable[[], asyncio.Future[Answer]]) -> Answer:
        waited_from = time.perf_counter()
        while (found := await fetch()).status != 200:
            if time.perf_counter() - waited_from > MODEL_SECONDS:
                raise BenchFailed(f"model: expected one within {MODEL_SECONDS:.0f} s of the last slot, got none")
            await asyncio.sleep(0.2)
        return found

    def _lived(self, condition: str, user: int, now_ms: int, model: bytes | None = None) -> tuple[Device, list[int]]:
        """A user's device after all their visits, and the items that it chose."""
        # The key must equal the one that `hushstream.systems.p2b.edge.users.Users.user_key` derives.
        key = self._user_keys.prf("derive", "user", f"{condition}-{user}")
        device, chosen = Device(self._agreement, key, bytes), list[int]()
        if model is not None:
            device.take(model, now_ms)
        for visit in range(self._world.rounds):
            one = np.array([user])
            (values,) = self._world.contexts(one, visit)
            item = device.decide(str(visit), values, now_ms).arm
            device.reward(str(visit), item, float(self._world.rewards(one, visit, np.array([item]))[0]), now_ms)
            chosen.append(item)
            now_ms += BETWEEN_MS
        return device, chosen

    def _chance(self, users: NDArray[np.int64], chosen: NDArray[Any]) -> float:
        """The mean chance of a click of the chosen items."""
        return float(
            np.mean([self._world.expected(users, visit, chosen[:, visit]) for visit in range(self._world.rounds)])
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where devices are worse, or published records do not follow from the logs."""
    asked = argparse.ArgumentParser(description="Devices through a gateway, beside the same users hosted.")
    asked.add_argument("--devices", type=int, default=1000, help="users who contribute to the model")
    asked.add_argument("--evaluated", type=int, default=2000, help="users who start from the model")
    asked.add_argument("--seed", type=int, default=0, help="seed of the users and their keys")
    asked.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = asked.parse_args(arguments)
    found = measure(given.devices, given.evaluated, given.seed)
    print(json.dumps(asdict(found)) if given.json else found.as_text())
    return 0 if found.is_as_good else 1


if __name__ == "__main__":
    sys.exit(main())
