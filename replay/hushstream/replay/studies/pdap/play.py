"""Plays one run: contexts come window by window, stages answer and learn, and at the end greedy choices are scored.

The stages are those of `hushstream.systems.pdap`; only the loop around them is a simulation. A run's form says which
vendors learn together, and through which mechanism.

Rows of the P-DAP experiments, and their privacy statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from hushstream.engine.configuration import config_digest
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.rows import Row, columns, privacy_columns
from hushstream.replay.studies.pdap.worlds import Arrivals, Float32, Int64, VendorWorld, ml_vendors, names, vendors
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdap.algorithm.aggregate import TICKETS, Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.blocks import Blocks, KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, EstimateConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter import Counter
from hushstream.systems.pdap.promise import RELATION, UNIT, release_guarantee

Form = Literal["blocks", "exact", "alone"]
"""The form of a run.

blocks: as in a deployment. exact: the same without noise. alone: each vendor with its own items and the exact clicks of
its own users, which is the best that it has without sharing.
"""

ALONE_SCHEDULE: Mapping[str, Any] = {"first_window": 100, "window_ratio": 1.05}
"""Windows of a vendor alone: it has no noise to wait for. With the first of 500 and a ratio of 1.5, as sharing has
them, 4 points fewer of a vendor's answers are clicked over 20,000 contexts (4 x 100 or 1,000 items, four seeds)."""

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


def _chains(task: Task, world: VendorWorld) -> list[Chain]:
    key = seeded_key(task.seed, "counter")
    if task.form in ("blocks", "exact"):
        return [_shared(task, world, key)]
    config = configuration(task, world, EXACT_EPSILON)
    config = replace(config, release=replace(config.release, **ALONE_SCHEDULE))
    chains = []
    for vendor in range(len(config.vendors)):
        own = np.flatnonzero(world.owners == vendor)
        chains.append(Chain(config, [Counter(config, exact_noise)], Aggregate(config, own), key))
    return chains


def _shared(task: Task, world: VendorWorld, key: Key) -> Chain:
    if task.form == "exact":
        config = configuration(task, world, EXACT_EPSILON)
        return Chain(config, [Counter(config, exact_noise)], Aggregate(config), key)
    config = configuration(task, world)
    homes = len(config.vendors) if config.release.placement == "home" else 1
    counters = [Counter(config, keyed_noise(config, key, home)) for home in range(homes)]
    return Chain(config, counters, Aggregate(config), key)


SOURCE = "Zhou et al., Differentially Private Online Learning for Cloud-Based Video Recommendation (P-DAP)"

EXACT_FORMS = ("exact", "alone")
"""Forms without noise; they release exact figures, or nothing."""

SETTINGS = (
    f"Unit: {UNIT} ({RELATION}); cells, arms, homes and timing are public. A person with c events has c times epsilon.",
    "Accuracy in %: mean click probability of the greedy choices after learning, over 20,000 fresh contexts; "
    "online: of all answers during learning.",
    "exact and alone have no noise; alone, a vendor shows its own items to its own users.",
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
