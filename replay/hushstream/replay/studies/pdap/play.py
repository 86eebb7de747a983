"""Plays one run: contexts come window by window, stages answer and learn, and at the end greedy choices are scored.

The stages are those of `hushstream.systems.pdap`; only the loop around them is a simulation. A run's form says which
vendors learn together, and through which mechanism.

Rows of the P-DAP experiments, and their privacy statements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import config_digest
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.rows import Row, columns, privacy_columns
from hushstream.replay.studies.pdap.worlds import (
    Arrivals,
    Float32,
    Float64,
    Int64,
    VendorWorld,
    ml_vendors,
    names,
    vendors,
)
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdap.algorithm.aggregate import TICKETS, Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.blocks import Blocks, KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.serving import EXACT_EPSILON, Decisions, OwnRewards, Serving
from hushstream.systems.pdap.configuration import (
    TRIAL_SHARE,
    BlockConfig,
    CellConfig,
    EstimateConfig,
    PdapConfig,
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
        """Visits that no release comes between."""
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
class Visits:
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


def _visits(task: Task, world: VendorWorld) -> Visits:
    generator, count = Draws(task.seed, "pdap-before" if task.before else "pdap-play").generator(), task.contexts
    arrivals = world.arrivals(count, generator)
    numbers = generator.integers(0, TICKETS, count).astype(np.uint8)
    return Visits(arrivals, numbers, generator.random(count), generator.random(count))


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


def _play_some(world: VendorWorld, mall: Mall, visits: Visits, events: range, chances: Float64) -> None:
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
    mall, visits = _mall(form, config, seed), Visits(arrivals, numbers, coins, generator.random(count))
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
