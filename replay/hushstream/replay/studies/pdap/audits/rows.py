"""Attacks on P-DAP's releases: one reward, 1 against 0; the attacker sees everything public.

The unit is the first outcome. The attacker chooses all other outcomes, and none of them is a click. All public facts
(windows' outcomes, which blocks exist, their sizes) are compared with those without the click. In the product they
depend only on arms and counts, so they are equal. The noised sums of the unit's blocks remain: the attacker says yes
where each of them reaches 1, where the likelihood ratio is largest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import config_digest
from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.audits.audit import Attack, audit_attack
from hushstream.privacy.audits.laws import Family, laplace_pair, pure
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.replay.audits.draws import each_run, fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.roles.work import audit_of
from hushstream.replay.audits.row import Attacked, Audit, Recipe, Run, made
from hushstream.replay.studies.pdap.audits.forks import fork_rows
from hushstream.replay.studies.pdap.audits.work import works
from hushstream.replay.studies.pdap.experiments.paper import PaperRun, PaperTask, paper_guarantee
from hushstream.replay.studies.pdap.worlds.vendors import names, vendors
from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.noise import KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.outcomes import Outcomes, Release
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.cells import ROOT, Int64
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter.pending import Counter
from hushstream.systems.pdap.promise import release_guarantee

ARMS_ABREAST = 25
WINDOWS = 2
"""The number of windows of a transcript: the unit's window, and one that depends on its release."""

PAPER_EPSILON = 1.0

Choose = Callable[[Serving, Counter, int], Int64]
"""(model, counter, n) -> the arms of n contexts in the middle of the space."""


def config_of(release: BlockConfig, arms: int) -> PdapConfig:
    """Two vendors with ``arms`` items each, and one cell."""
    both = (VendorConfig("one", arms), VendorConfig("two", arms))
    return PdapConfig("audit", both, 1, cells=CellConfig(levels=0), release=release)


def noise_of(config: PdapConfig, key: Key) -> KeyedBlockNoise:
    """The noise of a counter with a journal of its own."""
    address = NoiseAddress(
        purpose="release-noise",
        deployment=config.deployment,
        genesis_nonce=fresh_nonce(),
        system="pdap",
        mechanism="blocks",
        parameters={},
        config_digest=config_digest(config),
        epoch=0,
    )
    return KeyedBlockNoise(key, address, block_scales(config))


@dataclass(frozen=True, slots=True)
class Rig:
    """The attacked deployment; tests replace parts by others that break one rule.

    Attributes:
        config: the deployment's configuration.
        counter: makes its counter.
        choose: chooses the arms of contexts.
    """

    config: PdapConfig
    counter: Callable[[PdapConfig, KeyedBlockNoise], Counter]
    choose: Choose


def product(release: BlockConfig) -> Rig:
    """The parts of the product, where tickets give the arms."""
    return Rig(config_of(release, 1), Counter, by_tickets)


def by_tickets(serving: Serving, counter: Counter, count: int) -> Int64:
    """Choose arms by tickets in turn. The coins are public here, which the guarantee allows."""
    numbers = (np.arange(counter.taken, counter.taken + count) * 97 % 256).astype(np.uint8)
    return serving.answer(np.full((count, 1), 0.5), numbers).arms


def transcript(rig: Rig, key: Key, present: bool) -> list[Release]:
    """The first windows of a deployment in which only the first outcome may be a click."""
    counter, aggregate = rig.counter(rig.config, noise_of(rig.config, key)), Aggregate(rig.config)
    serving = Serving(rig.config.grid, key)
    serving.apply(aggregate.publish())
    releases: list[Release] = []
    while len(releases) < WINDOWS:
        arms = rig.choose(serving, counter, 1)
        _take(counter, arms, np.array([int(present and not counter.taken)]))
        while counter.capacity_left > 0:
            arms = rig.choose(serving, counter, min(10, counter.capacity_left))
            _take(counter, arms, np.zeros(len(arms), dtype=np.int64))
        releases.append(counter.close(counter.window))
        aggregate.fold(releases[-1])
        serving.apply(aggregate.publish())
    return releases


def _take(counter: Counter, arms: Int64, rewards: Int64) -> None:
    root = np.full(len(arms), ROOT, dtype=np.int64)
    counter.take(Outcomes(root, root, arms, rewards, names(counter.taken, len(arms))))


def transcript_attack(rig: Rig) -> Attack:
    """Say yes where public facts changed, or else where the noised sum of the unit's block reaches 1."""
    key = fresh_key()
    known = public(transcript(rig, key, False)[0])
    unit = _first_arm(rig, key)

    def score(present: bool) -> float:
        releases = transcript(rig, key, present)
        if public(releases[0]) != known:
            return 1.0
        seen = [release.blocks.sums[release.blocks.arms == unit] for release in releases]
        return next((float(sums[0]) - 0.5 for sums in seen if len(sums)), -1.0)

    return each_run(score)


def _first_arm(rig: Rig, key: Key) -> int:
    """The arm of the first outcome."""
    serving = Serving(rig.config.grid, key)
    serving.apply(Aggregate(rig.config).publish())
    return int(by_tickets(serving, Counter(rig.config, noise_of(rig.config, key)), 1)[0])


def public(release: Release) -> tuple[int, bytes]:
    """The parts of a release that no reward may change: outcomes, arrivals, and its blocks without their sums."""
    blocks = release.blocks
    columns = (release.arrived, release.arrivals, blocks.cells, blocks.arms, blocks.counts)
    return release.outcomes, b"|".join(column.tobytes() for column in columns)


def audit_transcript(rig: Rig) -> Run:
    """Attack the whole transcript of a closed loop."""
    return partial(audit_attack, transcript_attack(rig), release_guarantee(rig.config).cost, family())


@dataclass(frozen=True, slots=True, eq=False)
class ParallelBlocks:
    """Blocks that are attacked together, one unit in each, as a reward changes only its own block.

    Attributes:
        config: the deployment's configuration.
        counter: makes its counter.
        level: level of the blocks' cells.
        arms: how many arms there are, with one block each.
    """

    config: PdapConfig
    counter: Callable[[PdapConfig, KeyedBlockNoise], Counter]
    level: int
    arms: int

    def sums(self, key: Key, present: bool) -> NDArray[np.float64]:
        """The smallest sum of each arm in all its releases, also in a release that should not exist, (arms,)."""
        size = self.config.least_counts[self.level]
        cell, below = self._cells()
        one = self.counter(self.config, noise_of(self.config, key))
        arms = np.repeat(np.arange(self.arms), size)
        rewards = np.zeros(len(arms), dtype=np.int64)
        rewards[::size] = int(present) * self.config.release.reward_levels
        served, arrived = (np.full(len(arms), place, dtype=np.int64) for place in (cell, below))
        one.take(Outcomes(served, arrived, arms, rewards, names(one.taken, len(arms))))
        least = np.full(self.arms, np.inf)
        for window in range(WINDOWS):
            blocks = one.close(window).blocks
            np.minimum.at(least, blocks.arms, blocks.sums.astype(np.float64))
        return least

    def _cells(self) -> tuple[int, int]:
        """The cell of the level in a corner of the space, and the cell in it where contexts arrive."""
        grid = self.config.grid
        path = int(grid.paths(np.zeros((1, grid.dimension)))[0])
        return grid.cell_at(path, self.level), grid.cell_at(path, min(self.level + 1, grid.levels))


def blocks_attack(blocks: ParallelBlocks) -> Attack:
    """Attack by reading every release of an arm's block, also a release that should not exist."""
    key, levels = fresh_key(), blocks.config.release.reward_levels
    return side_by_side(lambda present: blocks.sums(key, present) - levels + 0.5, blocks.arms)


def audit_blocks(release: BlockConfig, counter: Callable[[PdapConfig, KeyedBlockNoise], Counter] = Counter) -> Attacked:
    """Attack all releases of a block, with one level."""
    config = config_of(release, ARMS_ABREAST)
    return attacked_blocks(ParallelBlocks(config, counter, 0, config.arms))


def attacked_blocks(blocks: ParallelBlocks) -> Attacked:
    """Attack all releases of a block, at the largest epsilon of all levels."""
    config = blocks.config
    return Attacked(blocks_attack(blocks), release_guarantee(config).cost, family(config.release.reward_levels))


def family(levels: int = 1) -> Family:
    """The distributions of Laplace noise on one sum that changes by all levels of a reward."""
    return pure(lambda epsilon: laplace_pair(epsilon, 1, levels).power)


def audit_paper() -> Run:
    """Attack the paper's form: one more click decides whether a forwarded context gets the second item."""
    world, task = vendors(vendors=2, arms=2), PaperTask("P-DAP", PAPER_EPSILON, 1_000, (), 0, 2, 2)

    def score(present: bool) -> float:
        run = PaperRun(task, world)
        cell = run.cell(1, [ROOT])
        cell.shown += 10
        cell.clicks += 5
        cell.clicks[1] += int(present)
        run.forward(1, [ROOT], [0.5, 0.5])
        return 1.0 if cell.shown[1] > 10 else -1.0

    return partial(audit_attack, each_run(score), paper_guarantee("P-DAP", PAPER_EPSILON).cost, None)


def audits() -> tuple[Audit, ...]:
    """The audits of P-DAP's blocks, its closed loop and the paper's form."""
    blocks, levels = BlockConfig(), BlockConfig(reward_levels=3)
    about = "a reward of 1 against 0, all releases seen"
    return (
        Audit("pdap-blocks", "release", about, 1_000, audit_blocks(blocks), subjects=(blocks,)),
        Audit("pdap-blocks-levels", "release", about, 1_000, audit_blocks(levels), subjects=(levels,)),
        Audit(
            "pdap-transcript",
            "attack",
            "the first reward, 1 against 0, in a closed loop that an adversary feeds",
            500,
            audit_transcript(product(BlockConfig(first_window=30))),
            factor=2,
        ),
        Audit(
            "pdap-paper",
            "release",
            "one more click, and the item that a neighbour's context gets",
            200,
            audit_paper(),
            paper_claim=Cost(epsilon_micro(PAPER_EPSILON)),
        ),
        *map(audit_of, works()),
    )


def rows() -> tuple[Recipe, ...]:
    """Every audit of P-DAP."""
    return (*map(made, audits()), *fork_rows(config_of(BlockConfig(), ARMS_ABREAST)))
