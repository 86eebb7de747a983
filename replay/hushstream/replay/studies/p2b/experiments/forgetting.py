"""Measures the gain of a half-life of windows in a changing world, and its cost in a constant one.

Visitors start from the newest model, window after window. It is made from all windows with equal weight, or with
weights that decay with age. In the rotating world the items swap their reward functions for every generation of 50,000
users. All deployments have the same visits and coins.

In a constant world, most of the cost comes from exploration: items that are no longer shown become uncertain, and
visitors try them once more. A longer half-life makes that rarer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.sparse_population import NormalPrior
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.bench.rows import BenchRow, at_least, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings, Provenance
from hushstream.replay.experiments.rows import Row, over_seeds, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.p2b.experiments.feature_play import CHUNK, ROUNDS, act
from hushstream.replay.worlds.mixed_table import FeatureWorld, MixedTable, Rotating
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.contribution.feature_slots import pack_reports, unpack_reports
from hushstream.systems.p2b.edge.candidates import click_chance
from hushstream.systems.p2b.guarantee.promise import layout_of_slots, release_guarantee, window_tree_of
from hushstream.systems.p2b.machines.running import open_running
from hushstream.systems.p2b.server.effects import effects
from hushstream.systems.p2b.server.forgetting import fade_of_windows, fades_of_crowds
from hushstream.systems.p2b.server.half_lives import HalfLives, add_crowd
from hushstream.systems.p2b.server.totals import CrowdTotals
from hushstream.systems.p2b.server.warm_start import cold_start, warm_start
from hushstream.systems.p2b.shuffler.linear_sums import linear_sums, noised_sums

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

NAME = "p2b-forgetting"
TITLE = "Forgetting: half-lives of windows in a world that changes and in one that does not"
SEEDS = (1, 2, 3, 4, 5)
SETTINGS = (
    "Mixed table of eight features, 10 items, eps 1, T = 10, h = .8; windows of 6,250 slots with fresh noise; 150,000"
    " visitors start from the newest model, window after window.",
    "In the rotating world items swap their rewards every 50,000 users. Rewards are expected ones of visits (generation"
    " 0: of all users), with the same visits and coins in all deployments; intervals are over worlds.",
    "A half-life of 2 windows is one of 12,500 users, one of 8 windows one of 50,000.",
)
HALF_LIVES: tuple[float | Literal["auto"] | None, ...] = (None, 2.0, 8.0, "auto")
EPSILON = 1.0
_HALF_LIFE_WORDS = {None: "none", "auto": "auto", 2.0: "2 windows", 8.0: "8 windows"}

Played = Mapping["Trial", tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Trial:
    """One deployment in one world.

    Attributes:
        rotating: whether the world changes.
        half_life: ``model.half_life``.
        sums: how the noise of windows is made.
        window: how many slots a window has.
        generation: the number of users after which the rotating world changes.
        generations: how many generations there are.
        seed: seed of world, coins and keys.
        arms: K items.
    """

    rotating: bool
    half_life: float | Literal["auto"] | None
    sums: Literal["fresh", "counter"] = "fresh"
    window: int = 6_250
    generation: int = 50_000
    generations: int = 3
    seed: int = 0
    arms: int = 10

    @property
    def plain(self) -> Trial:
        """The same trial without a half-life."""
        return replace(self, half_life=None)

    @property
    def users(self) -> int:
        """How many users all generations have."""
        return self.generation * self.generations


@lru_cache(maxsize=2)
def _world(seed: int, arms: int, generation: int | None) -> FeatureWorld:
    still = MixedTable(seed, arms)
    return still if generation is None else Rotating(still, generation)


def world_of(trial: Trial) -> FeatureWorld:
    """The world of a trial."""
    return _world(trial.seed, trial.arms, trial.generation if trial.rotating else None)


def config_of(trial: Trial) -> P2BConfig:
    """The configuration of its deployment."""
    world = world_of(trial)
    windows = trial.users // trial.window
    release = ReleaseConfig(epsilon=EPSILON, window_slots=trial.window, sums=trial.sums, windows=windows)
    return P2BConfig(
        deployment="forgetting",
        arms=trial.arms,
        context=ContextConfig(declared=world.schema),
        expected_slots=trial.users,
        slot=SlotConfig(after_interactions=ROUNDS),
        release=release,
        click_rate=world.click_rate,
        half_life=trial.half_life,
    )


def play(trial: Trial) -> tuple[float, ...]:
    """Mean expected reward of a visit, window by window."""
    world, config = world_of(trial), config_of(trial)
    layout = layout_of_slots(config)
    kept = HalfLives(partial(CrowdTotals, layout.arms, layout.cells), fades_of_crowds(config))
    start = cold_start(world.arms, layout.cells, len(world.schema.table))
    releases, rewards = _Releases(trial, config), []
    for low in range(0, trial.users, trial.window):
        prior = NormalPrior.of(start.means, start.variances, start.reward_variance)
        users = np.arange(low, low + trial.window)
        parts = [act(world, trial.seed, users[at : at + CHUNK], prior) for at in range(0, trial.window, CHUNK)]
        rewards.append(sum(part.earned for part in parts) / (trial.window * ROUNDS))
        rows = np.concatenate([part.rows for part in parts])
        arms, clicks = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
        add_crowd(kept, layout, *releases.of(rows, arms, clicks), trial.window)
        start = warm_start(effects(layout, *kept.best.weighted_sums()), click_chance(world.click_rate), ROUNDS)
    return tuple(rewards)


class _Releases:
    """Releases the windows of a deployment."""

    def __init__(self, trial: Trial, config: P2BConfig) -> None:
        self._layout, self._windows = layout_of_slots(config), 0
        self._key = seeded_key(trial.seed, "shuffler")
        self._running = open_running(window_tree_of(config), self._key, _address(None), fade_of_windows(config))

    def of(self, rows: NDArray[np.void], arms: Int64, clicks: Int64) -> tuple[Int64, Int64, float]:
        """The noised sums of the next window, and the variance that they add to the total."""
        layout = self._layout
        contents = pack_reports(layout, arms, clicks, 0, layout.units_of(layout.schema.blocks(rows)))
        reports = unpack_reports(layout, contents)
        exact = linear_sums(layout, reports, np.ones(len(reports.held), dtype=np.bool_))
        shape = (2, layout.arms, layout.cells)
        if self._running is not None:
            step = self._running.step(np.concatenate([exact.ones.ravel(), exact.zeros.ravel()]))
            ones, zeros = step.sums.reshape(shape)
            return ones, zeros, step.variance
        numerator, denominator = laplace_scale(str(EPSILON), layout.sensitivity)
        stream = KeyedStream(self._key, _address(self._windows))
        self._windows += 1
        found = noised_sums(exact, discrete_laplace(stream, numerator, denominator, int(np.prod(shape))).reshape(shape))
        return found.ones, found.zeros, laplace_variance(numerator, denominator)


def _address(window: int | None) -> NoiseAddress:
    return NoiseAddress("release-noise", "experiment", bytes(32), "p2b", NAME, {}, b"experiment", 0, window)


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play all deployments in both worlds under every seed; quick: small worlds without targets."""
    small = Trial(False, None, window=500, generation=1_000, generations=2)
    seeds, trial = (SEEDS[:2], small) if scale.quick else (SEEDS, Trial(False, None))
    lines = [replace(trial, rotating=rotating, half_life=one) for rotating in (True, False) for one in HALF_LIVES]
    played: Played = play_all(play, [replace(line, seed=seed) for line in lines for seed in seeds], NAME, progress)
    # Generation 0 stands for all generations together.
    rows = [_row(line, generation, played, seeds) for line in lines for generation in (0, *_numbers(trial))]
    worlds = tuple(dict.fromkeys(f"{world_of(line).name}, {line.arms} items" for line in lines))
    description = Description(NAME, TITLE, "hushstream's linear sums", worlds, seeds, SETTINGS, _provenance(lines))
    return Findings(description, rows, [] if scale.quick else _targets(played, seeds))


def _numbers(trial: Trial) -> range:
    return range(1, trial.generations + 1)


def _rewards(line: Trial, generation: int, played: Played, seeds: Sequence[int]) -> Float64:
    """(seeds,) mean reward of a visit in a generation, counted from 1; 0 for all of them."""
    each = line.generation // line.window
    windows = slice(None) if not generation else slice((generation - 1) * each, generation * each)
    return np.array([float(np.mean(played[replace(line, seed=seed)][windows])) for seed in seeds])


def _gains(line: Trial, generation: int, played: Played, seeds: Sequence[int]) -> Float64:
    """Reward minus that of the deployment without a half-life, (seeds,)."""
    return _rewards(line, generation, played, seeds) - _rewards(line.plain, generation, played, seeds)


def _row(line: Trial, generation: int, played: Played, seeds: Sequence[int]) -> Row:
    row: Row = {
        "world": world_of(line).name,
        "items": line.arms,
        "half_life": _HALF_LIFE_WORDS[line.half_life],
        "generation": generation,
    }
    columns = {"reward": _rewards(line, generation, played, seeds), "gain": _gains(line, generation, played, seeds)}
    for name, values in columns.items():
        row[name], row[f"{name}_low"], row[f"{name}_high"] = over_seeds(values)
    return {**row, "seeds": len(seeds), **privacy_columns(_guarantee(line))}


def _guarantee(line: Trial) -> Guarantee:
    return release_guarantee(config_of(line)).under_key(reproducible=True)


def _provenance(lines: Sequence[Trial]) -> tuple[Provenance, ...]:
    digest = world_of(lines[0]).schema.digest.hex()
    return tuple(
        Provenance(f"half-life {line.half_life}, {world_of(line).name}", _guarantee(line), digest) for line in lines
    )


def _targets(played: Played, seeds: Sequence[int]) -> list[BenchRow]:
    def reward(half_life: float | Literal["auto"]) -> float:
        return float(_rewards(Trial(True, half_life), 0, played, seeds).mean())

    def cost(half_life: float | Literal["auto"]) -> float:
        return -float(_gains(Trial(False, half_life), 0, played, seeds).mean())

    gain = float(_gains(Trial(True, 8.0), 0, played, seeds).mean())
    return [
        at_least("rotating world, half-life of 12,500 users: reward", [reward(2.0)], "reward", 0.118),
        at_most("constant world, half-life of 12,500 users: cost", [cost(2.0)], "reward", 0.004),
        at_least("rotating world, half-life of 50,000 users: gain over no half-life", [gain], "reward", 0.0),
        at_most("constant world, half-life of 50,000 users: cost", [cost(8.0)], "reward", 0.004),
        at_least("rotating world, half-life auto: reward", [reward("auto")], "reward", 0.118),
        at_most("constant world, half-life auto: cost", [cost("auto")], "reward", 0.001),
    ]
