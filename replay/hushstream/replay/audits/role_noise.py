"""The noise of every place that a role releases, read out of what its machine published, restarts and all.

The content is known and alike everywhere (slots hold null, rewards are 0), so what is published is the noise; single
draws of a counter are solved for (`hushstream.replay.audits.unmixed`). Where several partitions are looked at they
share a journal's nonce, as they may: their noise must differ all the same.

Runs are journals of their own wherever places are users, cells or partitions; where places are the draws of one
counter, users or cells beside one another are runs, too: another row says that these share no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree, Plan, PureLength
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audit import AuditResult
from hushstream.privacy.audit_laws import Sizes, lattice_sizes
from hushstream.privacy.audit_structure import Name, Noises, audit_structure
from hushstream.privacy.keys import Key
from hushstream.replay.audits.collaborative import collaborative
from hushstream.replay.audits.draws import fresh_key, fresh_nonce
from hushstream.replay.audits.mechanisms import LAPLACE_FAMILY
from hushstream.replay.audits.releases import ARMS, CELLS, p2b
from hushstream.replay.audits.row import Run
from hushstream.replay.audits.unmixed import Unmixed, unmixed
from hushstream.replay.audits.worked import played_lift, played_rewards, played_rows, played_windows
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.collaborative import CollaborativeSystem
from hushstream.systems.collaborative_configuration import GRID_BITS, ContinualConfig, FeatureConfig
from hushstream.systems.collaborative_release import epoch_guarantee, local_reward_of, plan_of
from hushstream.systems.configuration import LiftConfig, PartitionConfig, ReleaseConfig
from hushstream.systems.lift import SUMS, lift_guarantee, lift_tree

PARTITIONS, WINDOWS = 2, 3
SLOTS = 4
"""In a window."""

LEAVES = 63
"""Of a counter whose draws are told apart: beyond any round number at which a mutant may begin."""

NULLS = (None,) * SLOTS

USERS, STEPS = 12, 2
"""Of counters that are held against one another."""

USERS_ABREAST = 50
"""Whose counters are runs beside one another."""

ENTRIES = 2
FEATURES, UNIT = FeatureConfig(ENTRIES, norm_l1=1.0), np.eye(1, ENTRIES, dtype=np.float32)[0]

Axes = dict[str, Sequence[object]]
"""What places are counted by, outermost first: name of an axis -> its labels."""

Read = Callable[[], NDArray[np.float64]]
"""Begins journals, and gives the noise of some runs."""


def fresh_windows() -> Run:
    """Each cell and sum of several windows of two partitions, all noise drawn afresh."""
    system, key = p2b(ReleaseConfig(sums="fresh", window_slots=SLOTS)), fresh_key()
    axes = _cells({"partition": range(PARTITIONS), "window": range(WINDOWS)})

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        return np.array([[played_windows(system, key, [NULLS] * WINDOWS, nonce, p) for p in range(PARTITIONS)]])

    return _run(journal, axes, lattice_sizes(1, LAPLACE_FAMILY), system.guarantee().cost)


def counted_cells() -> Run:
    """Each cell and sum of the first window of two partitions, through a counter over windows."""
    system, key = p2b(ReleaseConfig(sums="counter", windows=LEAVES, window_slots=SLOTS)), fresh_key()

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        first = [played_windows(system, key, [NULLS], nonce, partition) for partition in range(PARTITIONS)]
        return np.stack(first, axis=1)[None]

    axes = _cells({"partition": range(PARTITIONS)})
    return _counted(journal, unmixed(_required(system.window_tree), 1), axes, system.guarantee().cost)


def counted_windows() -> Run:
    """Each draw of a counter over windows, on either sum; cells are runs."""
    system, key = p2b(ReleaseConfig(sums="counter", windows=LEAVES, window_slots=SLOTS)), fresh_key()

    def journal() -> NDArray[np.float64]:
        totals = np.cumsum(played_windows(system, key, [NULLS] * LEAVES), axis=0)
        return np.moveaxis(totals.reshape(LEAVES, 2, CELLS * ARMS), 2, 0)

    axes: Axes = {"sum": ("ones", "zeros")}
    return _counted(journal, unmixed(_required(system.window_tree), LEAVES), axes, system.guarantee().cost)


def counter_draws(release: ContinualConfig) -> Run:
    """Each draw of every user's trusted counter, and each coordinate of it; users are runs."""
    system, plan = _long(release)
    key = fresh_key()

    def journal() -> NDArray[np.float64]:
        return np.moveaxis(played_rewards(system, key, UNIT, np.zeros((LEAVES, system.nodes))), 1, 0)

    axes: Axes = {"entry": range(ENTRIES)}
    return _counted(journal, unmixed(plan, LEAVES), axes, _cost(system), isinstance(plan.budget, PureLength))


def counter_users(release: ContinualConfig, users: int = USERS) -> Run:
    """Each user and entry over some steps of a trusted counter, or of learners that hold the counters."""
    system, plan = _long(release, users)
    key = fresh_key()

    def journal() -> NDArray[np.float64]:
        if release.trust == "edge":
            return _of_partitions(system, key, STEPS)[None]
        return played_rewards(system, key, UNIT, np.zeros((STEPS, users)))[None]

    axes: Axes = {"user": range(users), "entry": range(ENTRIES)}
    return _counted(journal, unmixed(plan, STEPS), axes, _cost(system), isinstance(plan.budget, PureLength))


def noisy_rewards(release: ContinualConfig) -> Run:
    """Each user's noised rewards, of learners of two partitions."""
    system = _deployment(release, USERS)
    law, key = local_reward_of(system.config.release), fresh_key()
    # A reward is noised in steps of its levels; sums are on the lattice, where a feature of 1 is 2^GRID_BITS.
    step = law.levels / float(1 << GRID_BITS)

    def journal() -> NDArray[np.float64]:
        sums = _of_partitions(system, key, STEPS)[..., 0]
        noised = np.rint(np.diff(sums, axis=0, prepend=0.0) * step)
        return np.asarray(noised / law.levels, dtype=np.float64)[None]

    axes: Axes = {"reward": range(STEPS), "user": range(USERS)}
    return _run(journal, axes, lattice_sizes(law.levels, LAPLACE_FAMILY), _cost(system))


def lift_counts(lift: LiftConfig, levels: int) -> Run:
    """Each draw of a lift's counter, on each of its sums, in two partitions."""
    system, key = p2b(ReleaseConfig(levels=levels), lift), fresh_key()

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        counts = [played_lift(system, key, lift.releases, nonce, partition) for partition in range(PARTITIONS)]
        return np.stack(counts, axis=1)[None]

    axes: Axes = {"partition": range(PARTITIONS), "sum": range(SUMS)}
    return _counted(journal, unmixed(lift_tree(lift, levels), lift.releases), axes, lift_guarantee(lift, levels).cost)


def _cells(outer: Axes) -> Axes:
    return {**outer, "sum": ("ones", "zeros"), "code": range(CELLS), "arm": range(ARMS)}


def _deployment(release: ContinualConfig, users: int = USERS_ABREAST) -> CollaborativeSystem:
    """Users and entries as stated above; a step of a trusted counter closes with a row of every user."""
    return collaborative(replace(release, rows=users), FEATURES, users, PartitionConfig(learner=PARTITIONS))


def _long(release: ContinualConfig, users: int = USERS_ABREAST) -> tuple[CollaborativeSystem, Plan]:
    """With counters of `LEAVES` leaves."""
    system = _deployment(replace(release, horizon=LEAVES, rewards_per_user=LEAVES), users)
    return system, plan_of(system.config.release, FEATURES)


def _of_partitions(system: CollaborativeSystem, key: Key, steps: int) -> NDArray[np.float64]:
    """Sums of the users of all partitions, float64 (steps, users, entries)."""
    nonce, rewards = fresh_nonce(), np.zeros((steps, system.nodes))
    parts = [played_rows(system, key, UNIT, rewards, partition, nonce) for partition in range(PARTITIONS)]
    return np.concatenate(parts, axis=1)


def _cost(system: CollaborativeSystem) -> Cost:
    return epoch_guarantee(system.config.release, system.features, system.nodes).cost


def _required(tree: NegativeDigitTree | None) -> NegativeDigitTree:
    if tree is None:
        raise HushstreamError("audit: expected windows that run through a counter, got fresh noise")
    return tree


def _run(read: Read, axes: Axes, law: Sizes, claimed: Cost) -> Run:
    """The audit of places whose noise ``read`` gives, (width, *axes)."""
    name = _name(axes)

    def run(runs: int, false_alarm: float) -> AuditResult:
        drawn = _gathered(read, runs).reshape(runs, -1)
        return audit_structure(Noises(drawn, name), law, claimed, false_alarm)

    return run


def _counted(read: Read, solved: Unmixed, axes: Axes, claimed: Cost, vectors: bool = False) -> Run:
    """The audit of the draws behind a counter's releases, whose noise ``read`` gives, (width, leaves, *axes).

    What a release has is a sum of draws, which all are symmetric with one mode: it is no smaller in law than one of
    them (Anderson 1955), so the size of each release is held against the law of a draw, too. With ``vectors`` the last
    axis is one draw.
    """
    name = _name({"draw": range(solved.draws), **axes})

    def run(runs: int, false_alarm: float) -> AuditResult:
        releases = np.moveaxis(_gathered(read, runs), 1, 0)
        draws, scaled = solved(releases), (releases.T / solved.spreads).T
        sizes = [np.linalg.norm(part, axis=-1) if vectors else np.abs(part) for part in (draws, scaled)]
        each = np.concatenate([_by_run(part) for part in sizes], axis=1)
        return audit_structure(Noises(_by_run(draws), name, each), solved.law, claimed, false_alarm)

    return run


def _by_run(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From (draws, runs, ...) to (runs, places)."""
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)


def _gathered(read: Read, runs: int) -> NDArray[np.float64]:
    """So many runs, of as many journals as it takes."""
    parts = [read()]
    parts += [read() for _ in range(-(-runs // len(parts[0])) - 1)]
    return np.concatenate(parts)[:runs]


def _name(axes: Axes) -> Name:
    labels = [[f"{axis} {label}" for label in names] for axis, names in axes.items()]
    return [", ".join(parts) for parts in product(*labels)].__getitem__
