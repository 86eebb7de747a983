"""Plays one run: contexts come window by window, stages answer and learn, and at the end greedy choices are scored.

The stages are those of `hushstream.systems.pdap`; only the loop around them is a simulation. A run's form says which
vendors learn together, and through which mechanism.

Rows of the P-DAP experiments, and their privacy statements.

Plays a deployment of P-DAP in a closed loop, directly or through a broker, and reports the result.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from hushstream.agents.worker.deployment import parse_as, prepare
from hushstream.client.client import Client
from hushstream.client.logs import EventLog
from hushstream.engine.configuration import config_digest
from hushstream.engine.declare.declaration import System
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.catalogue import hint, seeded_world
from hushstream.replay.checks import NEVER_SECONDS, PlayOptions, merged_values, run_fields
from hushstream.replay.experiments.rows import Row, columns, privacy_columns
from hushstream.replay.logged.log import INTERNAL_MARK
from hushstream.replay.report.parts import paired, ratio
from hushstream.replay.report.payoff import Gap, Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.runners.playing import Recording, deployed, play_parties
from hushstream.replay.runners.to_end import await_version, run_to_end
from hushstream.replay.studies.pdap.own import DRAWN, OwnVendors
from hushstream.replay.studies.pdap.worlds import (
    Arrivals,
    FilmVendors,
    Float32,
    Float64,
    Int64,
    Vendors,
    VendorWorld,
    ml_vendors,
    names,
    vendors,
)
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.pdap.algorithm.aggregate import TICKETS, Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.blocks import Blocks, KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.serving import EXACT_EPSILON, Decisions, OwnRewards, Serving
from hushstream.systems.pdap.configuration import (
    TRIAL_SHARE,
    BlockConfig,
    CellConfig,
    EstimateConfig,
    PdapConfig,
    Schedule,
    VendorConfig,
)
from hushstream.systems.pdap.counter import Counter
from hushstream.systems.pdap.promise import RELATION, UNIT, release_guarantee

Form = Literal["blocks", "trial", "exact", "alone"]
"""The form of a run.

blocks: as in a deployment. exact: the same without noise. alone: each vendor with its own items and the exact clicks of
its own users, which is the best that it has without sharing.
trial: blocks, and each vendor begins on trial beside its own exact clicks.
"""

EXACT_FORMS = ("exact", "alone")
"""Forms without noise; they release exact figures, or nothing."""

TEST_CONTEXTS = 20_000
CHECKPOINTS = (5_000, 20_000, 50_000, 200_000)


@dataclass(frozen=True, slots=True)
class Task:
    """What is played in one run.

    Attributes:
        form: see `Form`.
        epsilon: epsilon of one event's reward; not used by exact forms.
        contexts: contexts of all vendors together.
        seed: seed of world, users, coins and keys.
        world: ``vendors`` or ``ml-vendors``.
        options: options of the world, as sorted pairs.
        release: settings of `BlockConfig`, as sorted pairs.
        cells: settings of `CellConfig`, as sorted pairs.
        estimate: settings of `EstimateConfig`, as sorted pairs.
        before: whether other visits are played, of the time before vendors join.
    """

    form: Form
    epsilon: float
    contexts: int
    seed: int
    world: str = "vendors"
    options: tuple[tuple[str, Any], ...] = ()
    release: tuple[tuple[str, Any], ...] = ()
    cells: tuple[tuple[str, Any], ...] = ()
    estimate: tuple[tuple[str, Any], ...] = ()
    before: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a run.

    Attributes:
        greedy: mean click probability of the greedy choices at the end, over fresh contexts.
        online: mean click probability of all answers up to each of `CHECKPOINTS` that was reached, and up to the end.
        cells: how many cells are open at the end.
        pool: how many arms could be shown at the end.
        rates: mean click probability of the answers to each vendor's users.
        shares: share of the vendors that share at the end.
    """

    greedy: float
    online: dict[int, float] = field(default_factory=dict)
    cells: int = 0
    pool: int = 0
    rates: tuple[float, ...] = ()
    shares: float = 0.0


@lru_cache(maxsize=8)
def make_world(name: str, options: tuple[tuple[str, Any], ...], seed: int) -> VendorWorld:
    """The world of a task."""
    return (vendors if name == "vendors" else ml_vendors)(seed=seed, **dict(options))


class Chain:
    """Counters, an aggregator and the serving, each with the output of the one before as input."""

    def __init__(self, config: PdapConfig, counters: Sequence[Any], aggregate: Aggregate, key: Key) -> None:
        """Start with the first model."""
        self.config = config
        self.counters = counters
        self.aggregate = aggregate
        self.serving = Serving(config.grid, key)
        self.serving.apply(aggregate.publish())
        self.taken = 0
        self._window = 0

    @property
    def capacity_left(self) -> int:
        """How many outcomes fit into the open window."""
        return self.config.release.schedule.closes_at(self._window) - self.taken

    def take(self, outcomes: Outcomes, homes: Int64) -> None:
        """Add outcomes of the open window to the counter of their home, or to the only counter."""
        for place, counter in enumerate(self.counters):
            here = homes == place if len(self.counters) > 1 else np.ones(len(homes), dtype=bool)
            counter.take(outcomes.take(np.flatnonzero(here)))
        self.taken += len(outcomes)
        if not self.capacity_left:
            self.close()

    def close(self) -> None:
        """Close the window and publish a model."""
        for place, counter in enumerate(self.counters):
            self.aggregate.fold(counter.close(self._window), place)
        self._window += 1
        self.serving.apply(self.aggregate.publish())

    def greedy(self, contexts: Float32) -> Int64:
        """The arm with the best estimate for each context."""
        rows = self.serving.rows(contexts)
        return np.asarray(self.aggregate.best()[rows])


@dataclass(slots=True)
class Mall:
    """Vendors of a run: what they share, and what each has alone.

    Attributes:
        chain: of clean visits; None where nothing is shared.
        apart: each vendor's own, for dark visits; none where all visits are clean.
        clean_share: the share of clean visits at vendors that are shut.
    """

    chain: Chain | None
    apart: Sequence[OwnRewards]
    clean_share: float = 0.0

    @property
    def capacity_left(self) -> float:
        """DrawnVisits that no release comes between."""
        return math.inf if self.chain is None else self.chain.capacity_left

    @property
    def shares(self) -> NDArray[np.bool_]:
        """Which vendors share, (vendors,)."""
        none = np.zeros(len(self.apart), dtype=np.bool_)
        return none if self.chain is None else self.chain.serving.shares

    def clean(self, homes: Int64, coins: Float64) -> NDArray[np.bool_]:
        """Which visits are clean, by a number from 0 to 1 each."""
        return np.asarray(self.shares[homes] | (coins < self.clean_share))

    def close(self) -> None:
        """End learning: what waits is released, and learned."""
        for own in self.apart:
            own.close()
        if self.chain is not None:
            self.chain.close()


@dataclass(frozen=True, slots=True, eq=False)
class DrawnVisits:
    """All visits of a run, (n,) each: they are the same whatever is played, so that forms are compared in pairs.

    Attributes:
        arrivals: the users, in order.
        numbers: of their tickets.
        coins: from 0 to 1; an answer whose click probability is above its coin is clicked.
        clean: from 0 to 1, decide which visits are clean.
    """

    arrivals: Arrivals
    numbers: NDArray[np.uint8]
    coins: Float64
    clean: Float64


def play(task: Task) -> Played:
    """Play one run; the result depends only on the task."""
    world = make_world(task.world, task.options, task.seed)
    mall, visits = _mall(task.form, configuration(task, world), task.seed), _visits(task, world)
    chances, done, online = np.zeros(task.contexts), 0, dict[int, float]()
    stops = [stop for stop in CHECKPOINTS if stop < task.contexts] + [task.contexts]
    while done < task.contexts:
        end = int(min(stops[len(online)], done + mall.capacity_left))
        _play_some(world, mall, visits, range(done, end), chances)
        done = end
        if done == stops[len(online)]:
            online[done] = float(chances[:done].mean())
    mall.close()
    test = world.arrivals(TEST_CONTEXTS, Draws(task.seed, "pdap-test").generator())
    aggregate = mall.apart[0].aggregate if mall.chain is None else mall.chain.aggregate
    homes = visits.arrivals.homes
    rates = tuple(float(chances[homes == vendor].mean()) for vendor in range(int(world.owners.max()) + 1))
    return Played(
        evaluate(world, mall, test),
        online,
        len(aggregate.partition),
        len(aggregate.pool),
        rates,
        float(mall.shares.mean()),
    )


def without_learning(task: Task) -> tuple[float, float]:
    """Mean click probability of the best single item, chosen with hindsight, and of items at random, at a run's visits.

    Of a world whose items do not change over a run.
    """
    world = make_world(task.world, task.options, task.seed)
    arrivals = _visits(task, world).arrivals
    rates = [world.means(arrivals, np.full(len(arrivals), arm), 0.0).mean() for arm in range(len(world.owners))]
    return float(max(rates)), float(np.mean(rates))


def _visits(task: Task, world: VendorWorld) -> DrawnVisits:
    generator, count = Draws(task.seed, "pdap-before" if task.before else "pdap-play").generator(), task.contexts
    arrivals = world.arrivals(count, generator)
    numbers = generator.integers(0, TICKETS, count).astype(np.uint8)
    return DrawnVisits(arrivals, numbers, generator.random(count), generator.random(count))


def evaluate(world: VendorWorld, mall: Mall, test: Arrivals) -> float:
    """Mean click probability of the greedy choices, in expectation over which visits are clean."""
    clean, dark, share = np.zeros(len(test)), np.zeros(len(test)), np.ones(len(test))
    if mall.chain is not None:
        clean = world.means(test, mall.chain.greedy(test.contexts), 1.0)
    for vendor, own in enumerate(mall.apart):
        here = np.flatnonzero(test.homes == vendor)
        best = own.aggregate.best()[own.serving.rows(test.contexts[here])]
        dark[here] = world.means(test.take(here), best, 1.0)
        share[here] = 1.0 if mall.shares[vendor] else mall.clean_share
    return float((share * clean + (1 - share) * dark).mean())


def _play_some(world: VendorWorld, mall: Mall, visits: DrawnVisits, events: range, chances: Float64) -> None:
    """Answer the visits of ``events``, between two releases; fills in their click probabilities."""
    here = np.arange(events.start, events.stop)
    arrivals, numbers, coins = visits.arrivals, visits.numbers, visits.coins
    clean, progress = mall.clean(arrivals.homes[here], visits.clean[here]), events.start / len(coins)
    shown = np.zeros(len(here), dtype=np.int64)

    def serve(serving: Serving, rows: Int64) -> Decisions:
        some = arrivals.take(here[rows])
        found = serving.answer(some.contexts, numbers[here[rows]])
        shown[rows], chances[here[rows]] = found.arms, world.means(some, found.arms, progress)
        return found

    def clicks(rows: Int64) -> Int64:
        return (coins[here[rows]] < chances[here[rows]]).astype(np.int64)

    rows = np.flatnonzero(clean)
    if mall.chain is not None and len(rows):
        found = serve(mall.chain.serving, rows)
        named = names(mall.chain.taken, len(rows))
        outcomes = Outcomes(found.cells, found.arrivals, found.arms, clicks(rows), named)
        mall.chain.take(outcomes, arrivals.homes[here[rows]])
    for vendor, own in enumerate(mall.apart):
        left = np.flatnonzero(arrivals.homes[here] == vendor)
        while len(left):
            rows, left = left[: own.capacity_left], left[own.capacity_left :]
            serve(own.serving, rows[~clean[rows]])
            learned = rows[world.owners[shown[rows]] == vendor]
            paths = own.aggregate.grid.paths(arrivals.contexts[here[learned]])
            own.take(paths, shown[learned], clicks(learned))


def configuration(task: Task, world: VendorWorld) -> PdapConfig:
    """The configuration of a task's deployment."""
    sizes = np.bincount(world.owners)
    trial = task.form == "trial"
    rates = declared_rates(replace(task, release=(), epsilon=1.0)) if trial else (None,) * len(sizes)
    return PdapConfig(
        "study",
        tuple(
            VendorConfig(f"vendor-{place}", int(size), declared_rate=rate)
            for place, (size, rate) in enumerate(zip(sizes, rates, strict=True))
        ),
        world.dimension,
        cells=CellConfig(**dict(task.cells)),
        release=BlockConfig(epsilon=EXACT_EPSILON if task.form in EXACT_FORMS else task.epsilon, **dict(task.release)),
        estimate=EstimateConfig(**dict(task.estimate)),
        clean_share=TRIAL_SHARE if trial else 1.0,
    )


def exact_noise(window: int, blocks: Blocks, history: bytes) -> Int64:
    """No noise: for comparisons on public data."""
    return np.zeros(len(blocks), dtype=np.int64)


def keyed_noise(config: PdapConfig, key: Key, partition: int) -> KeyedBlockNoise:
    """The noise of one counter in a study."""
    address = NoiseAddress(
        purpose="release-noise",
        deployment=config.deployment,
        genesis_nonce=bytes(32),
        system="pdap",
        mechanism="blocks",
        parameters={},
        config_digest=config_digest(config),
        epoch=0,
        partition=partition,
    )
    return KeyedBlockNoise(key, address, block_scales(config))


def _mall(form: Form, config: PdapConfig, seed: int) -> Mall:
    key = seeded_key(seed, "counter")
    apart = [OwnRewards(config, vendor, key) for vendor in range(len(config.vendors))]
    if form == "alone":
        return Mall(None, apart)
    exact = form == "exact"
    noises = [exact_noise] if exact else [keyed_noise(config, key, place) for place in range(config.counters)]
    chain = Chain(config, [Counter(config, noise) for noise in noises], Aggregate(config), key)
    return Mall(chain, apart if config.on_trial else (), config.trial_share)


def simulated(
    form: Form, config: PdapConfig, world: VendorWorld, arrivals: Arrivals, coins: Float64, seed: int
) -> Float64:
    """Click probabilities of all answers of a deployment in simulation, (n,).

    Args:
        form: see `Form`.
        config: of the deployment.
        world: with the click probabilities.
        arrivals: the users, in order.
        coins: (n,), decide which answers are clicked.
        seed: of tickets, noise and clean visits.
    """
    generator, count = Draws(seed, "pdap-simulated").generator(), len(arrivals)
    numbers = generator.integers(0, TICKETS, count).astype(np.uint8)
    mall, visits = _mall(form, config, seed), DrawnVisits(arrivals, numbers, coins, generator.random(count))
    chances, done = np.zeros(count), 0
    while done < count:
        end = int(min(count, done + mall.capacity_left))
        _play_some(world, mall, visits, range(done, end), chances)
        done = end
    return chances


@lru_cache(maxsize=64)
def declared_rates(task: Task) -> tuple[float, ...]:
    """What the vendors of a trial declare: each one's click rate alone, over as many other visits before it joins."""
    return play(replace(task, form="alone", before=True)).rates


SOURCE = (
    "Zhou et al., Differentially Private Online Learning for Cloud-Based Video Recommendation with Multimedia Big Data "
    "in Social Networks (arXiv:1509.00181)"
)

SETTINGS = (
    f"Unit: {UNIT} ({RELATION}); cells, arms, homes and timing are public. A person with c events has c times epsilon.",
    "Accuracy in %: mean click probability of the greedy choices after learning, over 20,000 fresh contexts; "
    "online: of all answers during learning.",
    "exact and alone have no noise; alone, a vendor shows its own items to its own users. trial: vendors declare what "
    "they reach alone in as many visits before.",
    "Worlds and keys are seeded: REPRODUCIBLE, NOT PRIVATE.",
)


def guarantee_of(task: Task) -> Guarantee | None:
    """The guarantee of a form for one reward; None for forms without noise."""
    if task.form in EXACT_FORMS:
        return None
    config = configuration(task, make_world(task.world, task.options, task.seed))
    return release_guarantee(config).under_key(True)


def row_of(task: Task, runs: Sequence[Played], **front: Any) -> Row:
    """The greedy and the online accuracy of a task over seeds, in %, and its guarantee."""
    last = max(runs[0].online)
    return {
        **front,
        "form": task.form,
        **({} if task.form in EXACT_FORMS else {"epsilon_asked": task.epsilon}),
        "contexts": task.contexts,
        **columns("accuracy", [100 * run.greedy for run in runs]),
        **columns("online", [100 * run.online[last] for run in runs]),
        **{
            f"online_{at}": float(np.mean([100 * run.online[at] for run in runs]))
            for at in runs[0].online
            if at != last
        },
        "cells": float(np.mean([run.cells for run in runs])),
        "pool": float(np.mean([run.pool for run in runs])),
        "seeds": len(runs),
        **_promised(task),
    }


def _promised(task: Task) -> Row:
    guarantee = guarantee_of(task)
    return {} if guarantee is None else privacy_columns(guarantee)


_ANSWER_SECONDS = 180.0
"""Longest wait for an answer; the first one waits until a worker of each vendor has started."""

_AT_ONCE = 256
_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class PdapPlan:
    """How a world is played: the number of contexts in all, in phases that end when windows of a schedule end."""

    contexts: int
    schedule: Schedule

    def __post_init__(self) -> None:
        """Refuse a plan without contexts.

        Raises:
            HushstreamError: fewer than 1 context; the message names the number.
        """
        if self.contexts < 1:
            raise HushstreamError(f"plan: expected contexts of at least 1, got {self.contexts}")

    def phases(self) -> Iterator[range]:
        """The events of each phase."""
        done, window = 0, 0
        while done < self.contexts:
            end = min(self.contexts, self.schedule.closes_at(window))
            yield range(done, end)
            done, window = end, window + 1


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The users who come, and the coins that decide their clicks, (n,) each.

    Attributes:
        arrivals: the users, in order.
        coins: numbers from 0 to 1; an answer with a mean above its coin is clicked.
    """

    arrivals: Arrivals
    coins: Float64

    @classmethod
    def of(cls, world: VendorWorld, contexts: int, seed: int, when: str = "pdap-visits") -> Visits:
        """Draw the visits of a run, or of a time with another name."""
        generator = Draws(seed, when).generator()
        return cls(world.arrivals(contexts, generator), generator.random(contexts))


@dataclass(slots=True)
class PdapPlayed:
    """The outcome of a run: (n,) arrays by event, and how long it took.

    Attributes:
        chosen: arms.
        chances: click probability of each arm at its context.
        clicks: 0 or 1.
        seconds: from the first context to the last model.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    chosen: Int64
    chances: Float64
    clicks: Int64
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class PdapLoop:
    """Plays a world of vendors against a deployment."""

    def __init__(
        self, config: PdapConfig, world: VendorWorld, visits: Visits, plan: PdapPlan, progress: Progress | None = None
    ) -> None:
        """Bind a world and its visits to a plan."""
        self._config = config
        self._world = world
        self._visits = visits
        self._plan = plan
        self._progress = progress
        self._lines = [vendor.name for vendor in config.vendors]
        self._feedback: list[asyncio.Future[None]] = []
        whole = np.zeros(plan.contexts, dtype=np.int64)
        self.played = PdapPlayed(whole, np.zeros(plan.contexts), whole.copy())

    async def run(self, log_of: Callable[[str], EventLog]) -> PdapPlayed:
        """Play all phases, each vendor's users over its own client's log.

        Raises:
            HushstreamError: no model followed the end of a phase in time.
        """
        started, context = time.perf_counter(), np.full(self._config.dimension, 0.5, dtype=np.float32)
        async with AsyncExitStack() as stack:
            logs = [log_of(vendor) for vendor in self._lines]
            clients = [Client(log, party=vendor) for log, vendor in zip(logs, self._lines, strict=True)]
            for client in clients:
                await stack.enter_async_context(client)
            for phase, events in enumerate(self._plan.phases()):
                await self._phase(clients, events, phase)
                for client in clients:
                    await client.end_phase(phase)
                for client, log in zip(clients, logs, strict=True):
                    await await_version(client, _probes(log.partitions()), context, phase, _ANSWER_SECONDS)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _phase(self, clients: Sequence[Client], events: range, phase: int) -> None:
        homes = self._visits.arrivals.homes
        for first in range(events.start, events.stop, _AT_ONCE):
            some = range(first, min(events.stop, first + _AT_ONCE))
            await asyncio.gather(*(self._visit(clients[homes[event]], event) for event in some))
            if self._progress is not None:
                self._progress(some.stop, self._plan.contexts, f"window {phase + 1}")
        await asyncio.gather(*self._feedback)
        self._feedback.clear()

    async def _visit(self, client: Client, event: int) -> None:
        arrivals, name = self._visits.arrivals, f"visit:{event}"
        user = f"user-{arrivals.users[event]}"
        asked = time.perf_counter()
        decision = await client.decide(name, user, arrivals.contexts[event], timeout=_ANSWER_SECONDS)
        if event % _SAMPLED == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        clicked = self._note(event, decision.arm)
        # No decision of this phase needs this feedback; only the end of the phase waits for it.
        self._feedback.append(asyncio.ensure_future(_answer(client, name, user, decision.arm, clicked)))

    def _note(self, event: int, arm: int) -> bool:
        progress = event / self._plan.contexts
        here = self._visits.arrivals.take(np.array([event]))
        chance = float(self._world.means(here, np.array([arm]), progress)[0])
        clicked = bool(self._visits.coins[event] < chance)
        played = self.played
        played.chosen[event], played.chances[event], played.clicks[event] = arm, chance, clicked
        return clicked


def _probes(partitions: int) -> dict[int, str]:
    """A user of each partition."""
    return {
        partition: next(name for n in count() if partition_of(name := f"probe-{n}", partitions) == partition)
        for partition in range(partitions)
    }


async def _answer(client: Client, event: str, user: str, arm: int, clicked: bool) -> None:
    await client.shown(event, user, arm)
    if clicked:
        await client.reward(event, user, arm, 1.0)


WORLDS = (Vendors, FilmVendors, OwnVendors)
_POSSIBLE = (
    f"over {DRAWN} worlds drawn from a model of the log's clicks by context, home, user and item, "
    "each with users and noise of its own"
)
_NOT_CROSSED = "users of some vendor saw no item of another, so nothing tells what they would click"
_NEVER_OUTCOMES = 1 << 40


@dataclass(frozen=True, slots=True)
class PdapOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and P-DAP's own.

    Attributes:
        dataset: a world of vendors by name.
        contexts: number of contexts of all vendors together.
        first_window: contexts of the first phase.
        window_ratio: contexts at the end of a phase, as a multiple of those at the end of the phase before.
        config: values of the configuration that replace the defaults, nested as in deployment.yaml. Windows end with
            phases, unless ``release.window_units`` is given here. Vendors on trial (by default below epsilon 1)
            declare their click rate alone, over as many other visits.
    """

    dataset: str = "vendors"
    contexts: int = 5_000
    first_window: int = 500
    window_ratio: float = 1.5


def run_pdap(options: PdapOptions, progress: Progress | None = None) -> RunResult:
    """Play a world of vendors and return the clicks of each, guarantee, counts and throughput.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, the world has no vendors, the configuration is
            invalid or has named items, or an internal log would go to a Kafka cluster.
    """
    options.require_runner()
    world = _world(options)
    plan = PdapPlan(options.contexts, Schedule(options.first_window, options.window_ratio))
    visits = Visits.of(world, plan.contexts, options.seed)
    with deployed(options.folder) as folder:
        config = parse_as(PdapConfig, _with_rates(options, world, configured(options, world)))
        if config.named_items:
            raise HushstreamError("vendors.items.named: expected false in a replay, whose world numbers its items")
        marked = f"{world.name}, {INTERNAL_MARK}" if _is_internal(world) else world.name
        system = prepare(folder, config, public_dataset=marked)
        place = options.place(folder)
        loop = PdapLoop(config, world, visits, plan, progress)
        recording = run_to_end(lambda: play_parties(system, place, loop.run))
    apart = simulated("alone", config, world, visits.arrivals, visits.coins, options.seed)
    payoff = _drawn_payoff(options, world) if isinstance(world, OwnVendors) else None
    return _result(options, world, config, system, recording, visits, apart, payoff)


def _world(options: PdapOptions) -> VendorWorld:
    world = seeded_world(options.dataset, options.world, options.seed)
    if not isinstance(world, WORLDS):
        raise HushstreamError(f"dataset: expected a world of vendors, got {options.dataset!r}{hint(options.dataset)}")
    if options.bootstrap is not None and _is_internal(world):
        raise HushstreamError(
            "bootstrap: expected none for an internal log, whose rows would be in clear on "
            f"{options.bootstrap}; the embedded broker keeps them on this machine"
        )
    return cast("VendorWorld", world)


def _is_internal(world: object) -> bool:
    return isinstance(world, OwnVendors) and world.internal


def configured(options: PdapOptions, world: VendorWorld) -> dict[str, Any]:
    """The configuration that fits a world, with the values that the caller set."""
    sizes = np.bincount(world.owners).tolist()
    own = world.vendors if isinstance(world, OwnVendors) else [f"vendor-{place}" for place in range(len(sizes))]
    values: dict[str, Any] = {
        "system": "pdap",
        "deployment": "replay",
        "vendors": [{"name": name, "items": {"capacity": size}} for name, size in zip(own, sizes, strict=True)],
        "features": {"dimension": world.dimension},
        "feedback": {"attribution_window_seconds": NEVER_SECONDS, "remembered_events": max(50_000, options.contexts)},
        "release": {"window_units": _NEVER_OUTCOMES},
    }
    return merged_values(values, options.config)


def _with_rates(options: PdapOptions, world: VendorWorld, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration, in which vendors that would join on trial declare what they reach alone before they join.

    Where the caller has set a rate, it stays.
    """
    learner = values.get("learner")
    asked = isinstance(learner, Mapping) and "clean_share" in learner
    config = parse_as(PdapConfig, {name: value for name, value in values.items() if name != "learner" or not asked})
    if not asked and max(config.level_epsilons) >= 1:
        return values
    before = Visits.of(world, options.contexts, options.seed, "pdap-before")
    earned = simulated("alone", config, world, before.arrivals, before.coins, options.seed)
    vendors = [
        {"declared_rate": round(_mean(earned[before.arrivals.homes == number]), 6), **vendor}
        for number, vendor in enumerate(values["vendors"])
    ]
    return {**values, "vendors": vendors}


def _result(
    options: PdapOptions,
    world: VendorWorld,
    config: PdapConfig,
    deployed: System,
    recording: Recording[PdapPlayed],
    visits: Visits,
    apart: Float64,
    drawn: Payoff | None,
) -> RunResult:
    """The result of a run; ``drawn`` is the comparison over worlds drawn from a log, where one is played."""
    played, where = recording.played, "" if drawn is None else ", in one world drawn from the log"
    counters = "one counter" if config.release.placement == "serving" else "a counter of each home"
    payoff = drawn or _payoff(100 * played.chances, 100 * apart, _by_user(played.chances, apart, visits), "users")
    return RunResult(
        **run_fields(options, world.name, deployed, recording, len(played.chosen)),
        title=f"P-DAP on {world.name}: {counters}{where}",
        facts={"placement": config.release.placement, "gain in points": payoff.gap.value},
        reached=f"{100 * played.chances.mean():.1f} % of visits are clicked{where}",
        headline=None
        if drawn
        else ratio("click rate, shared over vendors alone with exact clicks", paired(played.chances, apart)),
        payoff=payoff,
        rows=_vendors(config, played, visits, apart),
        curve=_curve(options, played, apart),
        warnings=(INTERNAL_MARK,) if _is_internal(world) else (),
    )


def _by_user(shared: Float64, apart: Float64, visits: Visits) -> Gap:
    return paired_gap(100 * shared, 100 * apart, np.asarray(visits.arrivals.users, dtype=np.int64))


def _payoff(shared: Float64, apart: Float64, gap: Gap, units: str, fitted: str = "") -> Payoff:
    """The click rate with sharing compared with that of vendors apart, in points."""
    advice = "log more visits with one another's items" if fitted else "use a larger epsilon or more visits"
    return Payoff(
        what="share of visits clicked, in points of a hundred,",
        value=float(shared.mean()),
        baseline="vendors alone, with exact clicks",
        reference=float(apart.mean()),
        gap=gap,
        units=units,
        otherwise=f"keep the vendors apart, or {advice}",
        digits=1,
        fitted=fitted,
    )


def _drawn_payoff(options: PdapOptions, world: OwnVendors) -> Payoff:
    """The comparison over worlds that the log leaves possible, each deployed once in simulation.

    The interval is that of one more deployment in one more drawn world: mean +- t s sqrt(1 + 1/n). It holds the gain of
    the true world as far as `ClickPosterior` can describe that world.
    """
    found = np.array([_drawn(options, replace(world, number=number)) for number in range(DRAWN)]).T
    gains = found[0] - found[1]
    half = float(stdtrit(DRAWN - 1, 0.975) * gains.std(ddof=1) * math.sqrt(1 + 1 / DRAWN))
    mean = float(gains.mean())
    known = world.posterior.crossed
    gap = Gap(mean, mean - half, mean + half, DRAWN) if known else Gap(mean, None, None, DRAWN)
    return _payoff(found[0], found[1], gap, "worlds", _POSSIBLE if known else _NOT_CROSSED)


def _drawn(options: PdapOptions, world: OwnVendors) -> tuple[float, float]:
    """Points of clicks with sharing and apart in one drawn world."""
    seed = options.seed + world.number
    config = parse_as(PdapConfig, _with_rates(options, world, configured(options, world)))
    if config.release.first_window == _NEVER_OUTCOMES:
        release = replace(config.release, first_window=options.first_window, window_ratio=options.window_ratio)
        config = replace(config, release=release)
    visits = Visits.of(world, options.contexts, seed)
    shared, apart = (
        simulated(form, config, world, visits.arrivals, visits.coins, seed) for form in ("blocks", "alone")
    )
    return 100 * float(shared.mean()), 100 * float(apart.mean())


def _vendors(config: PdapConfig, played: PdapPlayed, visits: Visits, apart: Float64) -> RunRows:
    homes, serving = visits.arrivals.homes, config.owners[played.chosen]
    rows = []
    for number, vendor in enumerate(config.vendors):
        here = homes == number
        shared, alone = _mean(played.chances[here]), _mean(apart[here])
        sent, received = int((here & (serving != number)).sum()), int((~here & (serving == number)).sum())
        rows.append((vendor.name, int(here.sum()), shared, alone, 100 * (shared - alone), sent, received))
    return RunRows(
        "Click rate of the users of each vendor, and the same if it used only its own items and exact clicks. Sent: "
        "visits of its users that got another vendor's item. Received: visits of others that got its own.",
        (
            Column("vendor"),
            Column("visits", ",d"),
            Column("click_rate", ".1%"),
            Column("alone", ".1%"),
            Column("gain_points", "+.1f"),
            Column("sent", ",d"),
            Column("received", ",d"),
        ),
        tuple(rows),
    )


def _curve(options: PdapOptions, played: PdapPlayed, apart: Float64) -> RunCurve:
    """Mean click probability of all answers up to the end of each phase."""
    plan = PdapPlan(options.contexts, Schedule(options.first_window, options.window_ratio))
    ends = tuple(events.stop for events in plan.phases())
    lines = {"shared": played.chances, "vendors alone": apart}
    return RunCurve(
        name="clicks",
        title="Click rate over the run",
        caption="Click rate of all answers so far: of vendors that share, and of the same vendors if each used only "
        "its own items, users and exact clicks.",
        what="Click rate of all answers so far",
        across="visits, all vendors",
        at=ends,
        lines={name: tuple(_mean(one[:end]) for end in ends) for name, one in lines.items()},
    )


def _mean(values: Float64) -> float:
    return float(values.mean()) if len(values) else 0.0
