"""Plays one run: contexts come window by window, stages answer and learn, and at the end greedy choices are scored.

The stages are those of `hushstream.systems.pdap`; only the loop around them is a simulation. A run's form says which
vendors learn together, and through which mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from hushstream.engine.configuration import config_digest
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.replay.studies.pdap.forms import PerEvent, Selected, exact_noise
from hushstream.replay.studies.pdap.worlds.ml_vendors import ml_vendors
from hushstream.replay.studies.pdap.worlds.vendors import Arrivals, Float32, Int64, VendorWorld, names, vendors
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.noise import KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.algorithm.tickets import TICKETS
from hushstream.systems.pdap.configuration import (
    BlockConfig,
    CellConfig,
    EstimateConfig,
    PdapConfig,
    VendorConfig,
)
from hushstream.systems.pdap.counter.pending import Counter

Form = Literal[
    "blocks", "exact", "alone-exact", "alone-blocks", "own-statistics", "negative-digit", "binary", "exponential"
]
"""The form of a run.

blocks: as in a deployment. exact: the same without noise. alone-*: each vendor with its own items and users alone.
own-statistics: each vendor with all items, but with the exact clicks of its own users alone. negative-digit, binary: a
counter for each (cell, arm), released after each event. exponential: a block names its best arm.
"""

EXACT_EPSILON = 20.0
"""The epsilon where no noise is drawn: blocks have one outcome, and the variance is below 1e-8."""

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


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a run.

    Attributes:
        greedy: mean click probability of the greedy choices at the end, over fresh contexts.
        online: mean click probability of all answers up to each of `CHECKPOINTS` that was reached, and up to the end.
        cells: how many cells are open at the end.
        pool: how many arms could be shown at the end.
    """

    greedy: float
    online: dict[int, float] = field(default_factory=dict)
    cells: int = 0
    pool: int = 0


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
        for counter in self.counters:
            self.aggregate.fold(counter.close(self._window))
        self._window += 1
        self.serving.apply(self.aggregate.publish())

    def greedy(self, contexts: Float32) -> Int64:
        """The arm with the best estimate for each context."""
        rows = self.serving.rows(contexts)
        return np.asarray(self.aggregate.best()[rows])


def play(task: Task) -> Played:
    """Play one run; the result depends only on the task."""
    world = make_world(task.world, task.options, task.seed)
    chains = _chains(task, world)
    generator = Draws(task.seed, "pdap-play").generator()
    done, earned, online = 0, 0.0, dict[int, float]()
    stops = [stop for stop in CHECKPOINTS if stop < task.contexts] + [task.contexts]
    while done < task.contexts:
        count = min(stops[len(online)] - done, max(chain.capacity_left for chain in chains))
        earned += _play_some(world, chains, count, done / task.contexts, generator)
        done += count
        if done == stops[len(online)]:
            online[done] = earned / done
    for chain in chains:
        chain.close()
    reached = evaluate(world, chains, world.arrivals(TEST_CONTEXTS, Draws(task.seed, "pdap-test").generator()))
    return Played(reached, online, len(chains[0].aggregate.partition), len(chains[0].aggregate.pool))


def evaluate(world: VendorWorld, chains: Sequence[Chain], test: Arrivals) -> float:
    """Mean click probability of the greedy choices, each chain choosing for its home vendors."""
    arms = np.empty(len(test), dtype=np.int64)
    for place, chain in enumerate(chains):
        mine = _homed(test.homes, place, chains)
        arms[mine] = chain.greedy(test.contexts[mine])
    return float(world.means(test, arms, 1.0).mean())


def _homed(homes: Int64, place: int, chains: Sequence[Chain]) -> Int64:
    return np.flatnonzero(homes == place) if len(chains) > 1 else np.arange(len(homes))


def _play_some(
    world: VendorWorld, chains: Sequence[Chain], count: int, progress: float, generator: np.random.Generator
) -> float:
    """Answer ``count`` arrivals, each chain those of its homes; a chain with a full window closes it and continues."""
    arrivals, earned = world.arrivals(count, generator), 0.0
    for place, chain in enumerate(chains):
        mine = _homed(arrivals.homes, place, chains)
        while len(mine):
            some, mine = arrivals.take(mine[: chain.capacity_left]), mine[chain.capacity_left :]
            numbers = generator.integers(0, TICKETS, len(some)).astype(np.uint8)
            found = chain.serving.answer(some.contexts, numbers)
            chances = world.means(some, found.arms, progress)
            clicks = (generator.random(len(some)) < chances).astype(np.int64)
            named = names(chain.taken, len(some))
            chain.take(Outcomes(found.cells, found.arrivals, found.arms, clicks, named), some.homes)
            earned += float(chances.sum())
    return earned


def configuration(task: Task, world: VendorWorld, epsilon: float | None = None) -> PdapConfig:
    """The configuration of a task's deployment."""
    sizes = np.bincount(world.owners)
    return PdapConfig(
        "study",
        tuple(VendorConfig(f"vendor-{place}", int(size)) for place, size in enumerate(sizes)),
        world.dimension,
        cells=CellConfig(**dict(task.cells)),
        release=BlockConfig(epsilon=task.epsilon if epsilon is None else epsilon, **dict(task.release)),
        estimate=EstimateConfig(**dict(task.estimate)),
    )


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


def _chains(task: Task, world: VendorWorld) -> list[Chain]:
    key = seeded_key(task.seed, "counter")
    if task.form in ("blocks", "exact", "negative-digit", "binary", "exponential"):
        return [_shared(task, world, key)]
    private = task.form == "alone-blocks"
    config = configuration(task, world, None if private else EXACT_EPSILON)
    chains = []
    for vendor in range(len(config.vendors)):
        own = np.flatnonzero(world.owners == vendor)
        arms = None if task.form == "own-statistics" else own
        noise = keyed_noise(config, key, vendor) if private else exact_noise
        chains.append(Chain(config, [Counter(config, noise)], Aggregate(config, arms), key))
    return chains


def _shared(task: Task, world: VendorWorld, key: Key) -> Chain:
    if task.form in ("negative-digit", "binary"):
        config = configuration(task, world)
        events = PerEvent(config, task.form, task.seed)
        return Chain(config, [events.counter], events, key)
    if task.form == "exponential":
        config = configuration(task, world)
        selected = Selected(config, key)
        return Chain(config, [selected.counter], selected, key)
    if task.form == "exact":
        config = configuration(task, world, EXACT_EPSILON)
        return Chain(config, [Counter(config, exact_noise)], Aggregate(config), key)
    config = configuration(task, world)
    homes = len(config.vendors) if config.release.placement == "home" else 1
    counters = [Counter(config, keyed_noise(config, key, home)) for home in range(homes)]
    return Chain(config, counters, Aggregate(config), key)
