"""One point of a table or figure: a world, a population, and the private deployments that are compared on it.

A point is played under several seeds, each with its own world, coins and noise. Rewards differ more between worlds
than between users, so intervals are over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.catalogue.worlds import make_world
from hushstream.replay.experiments.findings import Provenance
from hushstream.replay.experiments.rows import Row, over_seeds, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.experiments.population_run import (
    COLD,
    WARM_NONPRIVATE,
    WARM_PRIVATE,
    PopulationRun,
    run_systems,
)
from hushstream.replay.studies.p2b.experiments.released import Released
from hushstream.replay.worlds.world import World
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.contribution.fitting import fit_grid
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.summed import resolve_codes

CONTRIBUTING = 0.7
"""Share of the users who contribute; the others are evaluated (P2B, section 5.2)."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world without its size and seed.

    Attributes:
        key: its name in rows.
        label: variant and settings in words, as in captions.
        name: name of the world's factory.
        options: options of the factory other than size and seed.
    """

    key: str
    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, users: int, rounds: int, dimension: int, arms: int, seed: int) -> World:
        """Make the world with a size and a seed."""
        return make_world(
            self.name, users=users, rounds=rounds, dimension=dimension, arms=arms, seed=seed, **self.options
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A private deployment of a point: its label, its codes and its release."""

    label: str
    codes: int | Literal["auto"]
    release: ReleaseConfig


@dataclass(frozen=True, slots=True)
class Point:
    """One comparison; see the module.

    Attributes:
        experiment: name of the experiment; the deployments have it too.
        columns: the values that identify the point, at the front of each of its rows.
        world: the world.
        users: contributors and evaluated users together.
        rounds: T.
        dimension: d.
        arms: K.
        lines: the private deployments.
        slot_every: a slot is due after this many interactions; None: one slot after T interactions.
    """

    experiment: str
    columns: Mapping[str, Any]
    world: WorldSpec
    users: int
    rounds: int
    dimension: int
    arms: int
    lines: tuple[Line, ...]
    slot_every: int | None = None

    @property
    def contributors(self) -> int:
        """How many users phase 0 has."""
        return round(self.users * CONTRIBUTING)

    def configuration(self, line: Line) -> P2BConfig:
        """The deployment of a line; all slots are in one window, which is as large as possible."""
        every = self.rounds if self.slot_every is None else self.slot_every
        lifetime = self.rounds // every
        slots = self.contributors * lifetime
        return P2BConfig(
            self.experiment,
            self.arms,
            ContextConfig(self.dimension),
            slots,
            encoder=EncoderConfig(codes=line.codes),
            slot=SlotConfig(after_interactions=every, lifetime_slots=lifetime),
            release=replace(line.release, window_slots=slots),
        )

    def interactions(self) -> int:
        """How many interactions are played under one seed."""
        return (self.contributors + (self.users - self.contributors) * (2 + len(self.lines))) * self.rounds


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A point under all seeds.

    Attributes:
        point: what was played.
        systems: the deployments, in the order of the lines.
        guarantees: the guarantees of the deployments, with seeded keys.
        means: (seeds, 2 + lines): mean reward of cold, non-private, and each line.
        released: what was released and withheld, by line, over all seeds.
    """

    point: Point
    systems: tuple[P2BSystem, ...]
    guarantees: tuple[Guarantee, ...]
    means: NDArray[np.float64]
    released: tuple[Released, ...]

    def rows(self) -> list[Row]:
        """One row for cold, one for non-private, and one for each line."""
        front = {**self.point.columns, "world": self.point.world.key, "users": self.point.users}
        return [
            {**front, "condition": COLD, **self._reward(0)},
            {**front, "condition": WARM_NONPRIVATE, **self._reward(1)},
            *({**front, **self._private(index)} for index in range(len(self.systems))),
        ]

    def ratio(self, line: int, condition: str) -> tuple[float, float, float]:
        """Reward of a line divided by that of cold or non-private users: mean over seeds, and its 95 % interval."""
        return over_seeds(self.means[:, 2 + line] / self.means[:, 0 if condition == COLD else 1])

    def _reward(self, column: int) -> Row:
        mean, low, high = over_seeds(self.means[:, column])
        return {"reward": mean, "reward_low": low, "reward_high": high, "seeds": len(self.means)}

    def _private(self, index: int) -> Row:
        system, guarantee, released = self.systems[index], self.guarantees[index], self.released[index]
        to_nonprivate, to_cold = self.ratio(index, WARM_NONPRIVATE), self.ratio(index, COLD)
        return {
            "condition": WARM_PRIVATE,
            "line": self.point.lines[index].label,
            "mode": system.config.release.mode,
            "codes": system.codes,
            **self._reward(2 + index),
            "of_nonprivate": to_nonprivate[0],
            "of_nonprivate_low": to_nonprivate[1],
            "of_nonprivate_high": to_nonprivate[2],
            "of_cold": to_cold[0],
            "of_cold_low": to_cold[1],
            "of_cold_high": to_cold[2],
            "withheld_share": released.withheld_share,
            "unsampled_share": released.unsampled / released.reports,
            "released_share": released.released / released.reports,
            **privacy_columns(guarantee),
            "digest": system.digest.hex(),
        }


def play(point: Point, seeds: Sequence[int], progress: Progress | None = None) -> Played:
    """Play a point under each seed.

    Args:
        point: what to play.
        seeds: at least one.
        progress: called with interactions done, interactions in all, and what is played, for this point.
    """
    systems = tuple(fitted_system(point.configuration(line)) for line in point.lines)
    total = point.interactions() * len(seeds)
    what = ", ".join(f"{name} {value}" for name, value in point.columns.items())
    runs: list[list[PopulationRun]] = []
    for number, seed in enumerate(seeds):
        before = number * point.interactions()

        def step(done: int, _: int, __: str, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total, what)

        world = point.world.make(point.users, point.rounds, point.dimension, point.arms, seed)
        evaluated = point.users - point.contributors
        runs.append(run_systems(systems, world, point.contributors, evaluated, seed, progress=step))
    means = np.array([_means(of_seed) for of_seed in runs])
    released = tuple(_sum([of_seed[line].released for of_seed in runs]) for line in range(len(systems)))
    guarantees = tuple(run.guarantee for run in runs[0])
    return Played(point, systems, guarantees, means, released)


def _means(runs: Sequence[PopulationRun]) -> list[float]:
    return [runs[0].mean(COLD), runs[0].mean(WARM_NONPRIVATE), *(run.mean(WARM_PRIVATE) for run in runs)]


def _sum(parts: Sequence[Released]) -> Released:
    total = Released()
    for part in parts:
        total = total.plus(part)
    return total


def fitted_system(config: P2BConfig) -> P2BSystem:
    """`P2BSystem.fitted`, with each encoder fitted once in a process."""
    context = config.context
    lattice = _lattice(context.dimension, context.digits, resolve_codes(config), config.encoder.seed)
    return P2BSystem.of(config, lattice)


@lru_cache(maxsize=64)
def _lattice(dimension: int, digits: int, codes: int, seed: int) -> NDArray[np.int64]:
    """An encoder's centroids; all deployments with the same settings share them, so they are fitted once."""
    return fit_grid(dimension, digits, codes, seed).lattice


def provenance(played: Sequence[Played]) -> tuple[Provenance, ...]:
    """The deployments of some points."""
    return tuple(
        Provenance(line.label, guarantee, system.digest.hex())
        for one in played
        for line, guarantee, system in zip(one.point.lines, one.guarantees, one.systems, strict=True)
    )
