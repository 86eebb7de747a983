"""The audits of P-DAP: work, forks, blocks, and configurations.

*Work.* The time of the counter's work on outcomes without clicks and on clicks is compared.

*Releases.* Attacks on one reward, 1 against 0; the attacker sees everything public. The unit is the first outcome. The
attacker chooses all other outcomes, and none of them is a click. All public facts (windows' outcomes, which blocks
exist, their sizes) are compared with those without the click. In the product they depend only on arms and counts, so
they are equal. The noised sums of the unit's blocks remain: the attacker says yes where each of them reaches 1, where
the likelihood ratio is largest.

*Dark visits.* Attacks on one reward of a dark visit to a vendor on trial. It changes what later dark visits show, and
must change no byte that leaves the learner: no outcome, forward or change of an item, also after a restart.

At the end it declares the study, which `hushstream.replay.study` finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import config_digest
from hushstream.privacy.amounts import Cost, count_text, epsilon_micro
from hushstream.privacy.audits import Attack, Family, laplace_pair, pure, reaching
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.replay.audits.configured import AuditReport, laplace_law, report_of
from hushstream.replay.audits.recordings import Branch, PlayedRole, fresh_key, fresh_nonce, phase_end_fields
from hushstream.replay.audits.row import Audit, fork_row
from hushstream.replay.audits.tests import ForkTest, NeighbourTest, SizeTest, columns, each_run, side_by_side
from hushstream.replay.audits.work import SLOTS, Holds, Work, audit_of, has_content
from hushstream.replay.datasets.builtin import ML_100K, simulated_dataset
from hushstream.replay.experiments.systems import foretold_worlds
from hushstream.replay.studies.pdap.experiments import (
    EXPERIMENTS,
    PaperRun,
    PaperTask,
    foretold,
    paper_guarantee,
    paper_line,
    run_sharing,
)
from hushstream.replay.studies.pdap.own import own_vendors
from hushstream.replay.studies.pdap.play import (
    PdapOptions,
    run_pdap,
)
from hushstream.replay.studies.pdap.worlds import ml_vendors, names, vendors
from hushstream.replay.study import Study
from hushstream.schemas import codec
from hushstream.systems.pdap.algorithm.aggregate import Aggregate, Outcomes, Release
from hushstream.systems.pdap.algorithm.blocks import KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.cells import ROOT, Int64
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter import BlockCounterMachine, Counter
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.edge import PdapLearnerMachine
from hushstream.systems.pdap.promise import release_guarantee
from hushstream.systems.pdap.records import outcome_fields

_ARMS, _A_RECORD = 16, 32


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of one window with ``slots`` outcomes."""
    vendors = (VendorConfig("one", _ARMS), VendorConfig("two", _ARMS))
    release = BlockConfig(first_window=slots)
    system = PdapSystem.of(PdapConfig("audit", vendors, 1, cells=CellConfig(levels=0), release=release))
    make = partial(BlockCounterMachine, system, seeded_key(0, "counter"))
    about = "a window of outcomes without clicks against one of clicks"
    return (Work("time-of-outcomes", ("pdap", "counter"), about, make, (), partial(_window, system)),)


def _window(system: PdapSystem, holds: Holds) -> Sequence[bytes]:
    values = []
    for first in range(0, system.config.release.first_window, _A_RECORD):
        places = range(first, first + _A_RECORD)
        names = np.array([list(place.to_bytes(16, "big")) for place in places], dtype=np.uint8)
        arms = np.array([place * 5 % (2 * _ARMS) for place in places], dtype=np.int64)
        rewards = np.array([int(has_content(holds, place)) for place in places], dtype=np.int64)
        outcomes = Outcomes(np.zeros_like(arms), np.full_like(arms, 1 << 57), arms, rewards, names)
        values.append(codec.encode("Outcomes", outcome_fields(0, system.digest, outcomes)))
    return values


def blocks(config: PdapConfig) -> ForkTest:
    """The fork of the block of each arm that one window releases; each arm is one run."""
    system, key = PdapSystem.of(config), fresh_key()
    arms = np.repeat(np.arange(config.arms), config.least_counts[0])

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = PlayedRole(partial(BlockCounterMachine, system, key), nonce, branch)
        root, rewards = np.full(len(arms), ROOT, dtype=np.int64), np.zeros(len(arms), dtype=np.int64)
        rewards[0] = branch.other_contents
        names = [list(branch.number(event).to_bytes(16, "big")) for event in range(len(arms))]
        outcomes = Outcomes(root, root, arms, rewards, np.array(names, dtype=np.uint8))
        role.put("outcomes", "Outcomes", outcome_fields(0, system.digest, outcomes))
        for origin in range(system.origins):
            role.put("outcomes", "Seal", {**phase_end_fields(system.digest, 0), "origin": origin})
        role.work()
        (release,) = role.published("releases", "BlockRelease")
        exact = np.bincount(arms, rewards, minlength=config.arms)
        return columns(np.frombuffer(release["sums"], "<i8") - exact[np.frombuffer(release["arms"], "<i4")])

    return ForkTest("pdap", "counter", play, release_guarantee(config).cost)


def fork_rows(config: PdapConfig) -> tuple[Audit, ...]:
    """All audits of forks."""
    return (fork_row("forked-blocks", "blocks of arms", partial(blocks, config)),)


ARMS_ABREAST = 25
WINDOWS = 2
"""The number of windows of a transcript: the unit's window, and one that depends on its release."""

PAPER_EPSILON = 1.0

DARK = "a reward of a dark visit on trial, all that leaves the vendor seen"


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


def by_tickets(serving: Serving, counter: Counter, count: int) -> Int64:
    """Choose arms by tickets in turn. The coins are public here, which the guarantee allows."""
    numbers = (np.arange(counter.taken, counter.taken + count) * 97 % 256).astype(np.uint8)
    return serving.answer(np.full((count, 1), 0.5), numbers).arms


def transcript(config: PdapConfig, key: Key, present: bool) -> list[Release]:
    """The first windows of a deployment in which only the first outcome may be a click."""
    counter, aggregate = Counter(config, noise_of(config, key)), Aggregate(config)
    serving = Serving(config.grid, key)
    serving.apply(aggregate.publish())
    releases: list[Release] = []
    while len(releases) < WINDOWS:
        arms = by_tickets(serving, counter, 1)
        _take(counter, arms, np.array([int(present and not counter.taken)]))
        while counter.capacity_left > 0:
            arms = by_tickets(serving, counter, min(10, counter.capacity_left))
            _take(counter, arms, np.zeros(len(arms), dtype=np.int64))
        releases.append(counter.close(counter.window))
        aggregate.fold(releases[-1])
        serving.apply(aggregate.publish())
    return releases


def _take(counter: Counter, arms: Int64, rewards: Int64) -> None:
    root = np.full(len(arms), ROOT, dtype=np.int64)
    counter.take(Outcomes(root, root, arms, rewards, names(counter.taken, len(arms))))


def transcript_attack(config: PdapConfig) -> Attack:
    """Say yes where public facts changed, or else where the noised sum of the unit's block reaches 1."""
    key = fresh_key()
    known = public(transcript(config, key, False)[0])
    unit = _first_arm(config, key)

    def score(present: bool) -> float:
        releases = transcript(config, key, present)
        if public(releases[0]) != known:
            return 1.0
        seen = [release.blocks.sums[release.blocks.arms == unit] for release in releases]
        return next((float(sums[0]) - 0.5 for sums in seen if len(sums)), -1.0)

    return each_run(score)


def _first_arm(config: PdapConfig, key: Key) -> int:
    """The arm of the first outcome."""
    serving = Serving(config.grid, key)
    serving.apply(Aggregate(config).publish())
    return int(by_tickets(serving, Counter(config, noise_of(config, key)), 1)[0])


def public(release: Release) -> tuple[int, bytes]:
    """The parts of a release that no reward may change: outcomes, arrivals, and its blocks without their sums."""
    blocks = release.blocks
    columns = (release.arrived, release.arrivals, blocks.cells, blocks.arms, blocks.counts)
    return release.outcomes, b"|".join(column.tobytes() for column in columns)


def audit_transcript(config: PdapConfig) -> NeighbourTest:
    """Attack the whole transcript of a closed loop."""
    return NeighbourTest(transcript_attack(config), release_guarantee(config).cost, family(), reaching(1))


@dataclass(frozen=True, slots=True, eq=False)
class ParallelBlocks:
    """Blocks that are attacked together, one unit in each, as a reward changes only its own block.

    Attributes:
        config: the deployment's configuration.
        level: level of the blocks' cells.
        arms: how many arms there are, with one block each.
    """

    config: PdapConfig
    level: int
    arms: int

    def sums(self, key: Key, present: bool) -> NDArray[np.float64]:
        """The smallest sum of each arm in all its releases, also in a release that should not exist, (arms,)."""
        size = self.config.least_counts[self.level]
        cell, below = self._cells()
        one = Counter(self.config, noise_of(self.config, key))
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


def audit_blocks(release: BlockConfig) -> NeighbourTest:
    """Attack all releases of a block, with one level."""
    config = config_of(release, ARMS_ABREAST)
    return attacked_blocks(ParallelBlocks(config, 0, config.arms))


def attacked_blocks(blocks: ParallelBlocks) -> NeighbourTest:
    """Attack all releases of a block, at the largest epsilon of all levels."""
    config, levels = blocks.config, blocks.config.release.reward_levels
    return NeighbourTest(blocks_attack(blocks), release_guarantee(config).cost, family(levels), reaching(levels))


FIRST, LATER = 160, 60
"""Visits before a vendor has drawn tickets from exact rewards, and after it."""


def on_trial(placement: Literal["serving", "home"], named: bool) -> PdapSystem:
    """Two vendors on trial with three items each, and two visits of five clean."""
    both = tuple(VendorConfig(name, 3, named, 0.3) for name in ("one", "two"))
    release = BlockConfig(epsilon=0.1, placement=placement)
    return PdapSystem.of(PdapConfig("audit", both, 1, cells=CellConfig(levels=0), release=release, clean_share=0.4))


class TrialLearner:
    """A learner of a vendor on trial, in which the reward of the first dark visit may be another."""

    def __init__(self, system: PdapSystem, key: Key) -> None:
        """Begin, with all items on offer."""
        self.system, self.topics = system, {name: f"{name}.one" for name in ("contexts", "clicks", "items")}
        self.role = PlayedRole(partial(PdapLearnerMachine, system, "one", 0, key), bytes(32))
        if system.config.named_items:
            items = [{"item": f"item-{row}", "offered": True, "title": "", "features": ""} for row in range(3)]
            change = {"version": 1, "items": items, "config_digest": system.digest}
            self.role.put(self.topics["items"], "ItemChanges", change)
        self._flipped = ""

    def visit(self, phase: int, events: Sequence[str], present: bool) -> None:
        """Answer visits, reward half of them, and end a phase, so that all outcomes leave."""
        point, role = np.array([0.5], "<f4").tobytes(), self.role
        for event in events:
            context = {"event_id": event, "user": "ann", "line": "one", "context": point}
            role.put(self.topics["contexts"], "Context", context)
        role.work()
        learner = cast(PdapLearnerMachine, role.machine)
        for event in events:
            decided = learner.past.get(event)
            assert decided is not None
            dark = not learner.is_clean("ann", event)
            self._flipped = self._flipped or (event if dark else "")
            earned = (decided.arm + len(event)) % 2 != (present and event == self._flipped)
            for kind, reward in (("shown", 0.0), *[("reward", 1.0)] * earned):
                fields = {"kind": kind, "event_id": event, "user": "ann", "arm": decided.arm, "reward": reward}
                role.put(self.topics["clicks"], "Feedback", fields)
        role.put(self.topics["contexts"], "Seal", phase_end_fields(self.system.digest, phase))
        role.work()

    @property
    def left(self) -> list[bytes]:
        """Every record that left for a counter or another vendor."""
        topics = self.system.counters_topic("outcomes", "one"), "forwards.two"
        return [record.value for topic in topics for record in self.role.log.slice(topic, 0, 0).records]


def audit_dark(placement: Literal["serving", "home"], named: bool) -> NeighbourTest:
    """Say yes where any byte that leaves a vendor differs from what leaves it without the reward."""
    system = on_trial(placement, named)

    def left(key: Key, present: bool) -> list[bytes]:
        learner, names = TrialLearner(system, key), [f"e{number}" for number in range(FIRST + LATER)]
        learner.visit(0, names[:FIRST], present)
        learner.role.keep()
        learner.role.restart(*learner.role.kept)
        learner.visit(1, names[FIRST:], present)
        return learner.left

    def score(present: bool) -> float:
        key = fresh_key()
        return 1.0 if left(key, present) != left(key, False) else -1.0

    return NeighbourTest(each_run(score), Cost(0))


def family(levels: int = 1) -> Family:
    """The distributions of Laplace noise on one sum that changes by all levels of a reward."""
    return pure(lambda epsilon: laplace_pair(epsilon, 1, levels).power)


def audit_paper() -> NeighbourTest:
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

    return NeighbourTest(each_run(score), paper_guarantee("P-DAP", PAPER_EPSILON).cost)


def audits() -> tuple[Audit, ...]:
    """The audits of P-DAP's blocks, its closed loop and the paper's form."""
    blocks, levels = BlockConfig(), BlockConfig(reward_levels=3)
    about = "a reward of 1 against 0, all releases seen"
    return (
        Audit("pdap-blocks", "release", about, 1_000, partial(audit_blocks, blocks), subjects=(blocks,)),
        Audit("pdap-blocks-levels", "release", about, 1_500, partial(audit_blocks, levels), subjects=(levels,)),
        Audit(
            "pdap-transcript",
            "attack",
            "the first reward, 1 against 0, in a closed loop that an adversary feeds",
            700,
            partial(audit_transcript, config_of(BlockConfig(first_window=30), 1)),
            factor=2,
        ),
        Audit(
            "pdap-paper",
            "release",
            "one more click, and the item that a neighbour's context gets",
            200,
            audit_paper,
            paper_claim=Cost(epsilon_micro(PAPER_EPSILON)),
        ),
        *map(audit_of, works()),
        Audit("pdap-dark", "attack", DARK, 25, partial(audit_dark, "serving", False), factor=2),
        Audit("pdap-dark-named", "attack", DARK, 25, partial(audit_dark, "home", True), factor=2),
    )


def rows() -> tuple[Audit, ...]:
    """Every audit of P-DAP."""
    return (*audits(), *fork_rows(config_of(BlockConfig(), ARMS_ABREAST)))


MOST_ARMS = 2_000
"""The most blocks that one deployment of the audit has."""


def audit_config(config: PdapConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration: blocks of its cells and items, on the level with the largest epsilon."""
    release, epsilons = config.release, config.level_epsilons
    # Of levels with equal epsilon take the deepest, as a unit there is tested on every level.
    level = max(range(len(epsilons)), key=lambda one: (epsilons[one], one))
    most = max(1, release.horizon // config.least_counts[level])
    blocks = ParallelBlocks(config, level, min(config.arms, MOST_ARMS, runs, most))
    settings = {
        "system": config.system,
        "epsilon": epsilons[level],
        "reward_levels": release.reward_levels,
        "level": level,
        "least": config.least_counts[level],
        "items": blocks.arms,
    }
    attacked_steps = (
        f"all releases of blocks of level {level}, with the least "
        f"{count_text(config.least_counts[level], 'outcome')}, one unit each"
    )
    return report_of(
        "blocks",
        settings,
        attacked_blocks(blocks),
        _noise_of(blocks, epsilons[level]),
        release_guarantee(config),
        runs,
        false_alarm,
        attacked_steps,
        _reduced(config, blocks),
    )


def _reduced(config: PdapConfig, blocks: ParallelBlocks) -> tuple[str, ...]:
    fewer = config.arms - blocks.arms
    return (
        *(
            [f"{count_text(fewer, 'item')}, as each block has noise of its own, of one size for all items"]
            if fewer
            else []
        ),
        *(
            [f"counters of all vendors but one, as each outcome is in one of the {config.counters}"]
            if config.counters > 1
            else []
        ),
        *(["blocks of other levels, whose epsilon is no larger"] if config.cells.levels else []),
        "the closing of windows, which follows from public counts: one with all units is closed, and one after it",
    )


def _noise_of(blocks: ParallelBlocks, epsilon: float) -> SizeTest:
    key, levels = fresh_key(), blocks.config.release.reward_levels

    def read() -> NDArray[np.float64]:
        return np.abs(blocks.sums(key, False)) / levels

    return SizeTest(read, release_guarantee(blocks.config).cost, laplace_law(levels, epsilon))


VENDORS = simulated_dataset(
    "vendors",
    "Simulated vendors with items of their own, specialised or alike, stationary or drifting",
    page="https://arxiv.org/abs/1509.00181",
)

FILM_VENDORS = replace(
    ML_100K,
    name="ml-vendors",
    description="MovieLens-100K with its films divided among vendors; clicks are those of a fitted model",
    note="The files of ml-100k.",
)


def _plays(made: Any) -> bool:
    """Whether an object is a class of worlds of vendors."""
    return hasattr(made, "arrivals") and hasattr(made, "means")


STUDY = Study(
    system="pdap",
    options=PdapOptions,
    dataset="vendors",
    play=run_pdap,
    worlds={"vendors": vendors, "ml-vendors": ml_vendors, "own-vendors": own_vendors},
    own_table="own-vendors",
    datasets=(VENDORS, FILM_VENDORS),
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_sharing,
    audits=rows,
    audit_config=audit_config,
)
