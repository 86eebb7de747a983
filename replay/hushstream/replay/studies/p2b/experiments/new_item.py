"""Measures how much reward users lose in the first windows after a new item enters a running deployment.

The first model is learned from cold contributors, for all items but the last. Then visitors start from the newest
model, window after window, once without the new item and once with it, with the same visits and coins. The product's
catalogue, policy and totals create the item's row and add up sums. The item has no features in common with others, so
it starts from the mean of all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue, CatalogueRules, ItemChange
from hushstream.learners.sparse import SparseModel
from hushstream.learners.sparse_population import NormalPrior
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.replay.studies.p2b.experiments.feature_play import (
    CHUNK,
    ROUNDS,
    PlayedInteractions,
    Task,
    act,
    world_of,
)
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout, layout_of
from hushstream.systems.p2b.contribution.feature_slots import pack_reports, unpack_reports
from hushstream.systems.p2b.edge.candidates import click_chance
from hushstream.systems.p2b.edge.feature_policy import FeaturePolicy
from hushstream.systems.p2b.server.effects import effects
from hushstream.systems.p2b.server.item_totals import ItemTotals
from hushstream.systems.p2b.server.warm_start import WarmStart, cold_start, warm_start
from hushstream.systems.p2b.shuffler.linear_sums import linear_sums, noised_sums

EPSILON = 1.0
CONTRIBUTORS, WINDOW, WINDOWS = 50_000, 10_000, 3
"""Slots of the first model, slots of each later window, and how many windows are played."""

_TRACK = "private"

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Entry(NamedTuple):
    """The results of one world's new item; (windows,) each.

    Attributes:
        without: mean expected reward of a visit without the item.
        with_item: the same with it.
        shown: share of visits that the new item was shown in.
    """

    without: tuple[float, ...]
    with_item: tuple[float, ...]
    shown: tuple[float, ...]


def play_new_item(task: Task, explored: float = 0.0, contributors: int = CONTRIBUTORS, window: int = WINDOW) -> Entry:
    """Play one world; its last arm is the new item.

    Args:
        task: the world and its seed.
        explored: share of decisions that choose any item on offer (``exploration: {choice: epsilon}``).
        contributors: slots of the first model.
        window: slots of each window after it.
    """
    deployment = _Deployment(task, explored, contributors + WINDOWS * window)
    deployment.teach(np.arange(contributors), 0)
    other = deployment.twin()
    other.enter()
    played = []
    for number in range(1, WINDOWS + 1):
        visitors = contributors + np.arange((number - 1) * window, number * window)
        played.append((deployment.teach(visitors, number), other.teach(visitors, number)))
    without, entered = zip(*played, strict=True)
    return Entry(
        tuple(one.reward for one in without),
        tuple(one.reward for one in entered),
        tuple(one.shown for one in entered),
    )


class _Taught(NamedTuple):
    reward: float
    shown: float


class _Deployment:
    """A deployment with named items: its catalogue, what windows released, and the model that users start from."""

    def __init__(self, task: Task, explored: float, slots: int) -> None:
        world = world_of(task)
        self._task, self._world, self._explored = task, world, explored
        self._layout: FeatureLayout = layout_of(world.schema, world.arms, 1, EPSILON, slots, 1)
        # The schema does not count the constant's cell, so this adds one.
        self._cells = world.schema.cells + 1
        self._totals = ItemTotals(world.arms, self._cells, carried=False)
        self._catalogue = Catalogue(CatalogueRules(world.arms, 0, bytes(16)))
        for number in range(world.arms - 1):
            self._catalogue.take(ItemChange(f"item-{number}", number + 1, True), 0)
        self._cold = cold_start(world.arms, self._cells, len(world.schema.table))
        self._policy = self._followed()

    def twin(self) -> _Deployment:
        """A copy of this deployment in its present state."""
        made = _Deployment(self._task, self._explored, 1)
        made._layout = self._layout
        made._totals.load(self._totals.dump())
        made._adopt()
        return made

    def enter(self) -> None:
        """Offer the new item."""
        row = self._world.arms - 1
        self._catalogue.take(ItemChange(f"item-{row}", row + 1, True), 0)
        self._policy.entered(row)

    def teach(self, users: Int64, number: int) -> _Taught:
        """Let users act, each from the newest model, release their window, and return their rewards."""
        prior = self._prior()
        parts = [self._act(users[low : low + CHUNK], prior) for low in range(0, len(users), CHUNK)]
        rows = np.concatenate([part.rows for part in parts])
        arms, clicks = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
        self._release(rows, arms, clicks, number)
        visits = len(users) * ROUNDS
        new = sum(int(part.shown[-1]) for part in parts)
        return _Taught(sum(part.earned for part in parts) / visits, new / visits)

    def _act(self, users: Int64, prior: NormalPrior) -> PlayedInteractions:
        return act(self._world, self._task.seed, users, prior, self._explored, self._catalogue.offered)

    def _release(self, rows: NDArray[np.void], arms: Int64, clicks: Int64, number: int) -> None:
        layout, schema = self._layout, self._world.schema
        reports = unpack_reports(layout, pack_reports(layout, arms, clicks, 0, layout.units_of(schema.blocks(rows))))
        exact = linear_sums(layout, reports, np.ones(len(reports.held), dtype=np.bool_))
        numerator, denominator = laplace_scale(str(EPSILON), layout.sensitivity)
        # The noise is the same with and without the item, so only the item makes a difference.
        address = NoiseAddress(
            "release-noise", "experiment", bytes(32), "p2b", "new-item", {}, b"experiment", 0, number
        )
        shape = (2, layout.arms, layout.cells)
        stream = KeyedStream(seeded_key(self._task.seed, "shuffler"), address)
        noise = discrete_laplace(stream, numerator, denominator, int(np.prod(shape))).reshape(shape)
        found = noised_sums(exact, noise)
        variance = laplace_variance(numerator, denominator)
        self._totals.add(found.ones, found.zeros, variance, len(rows), self._catalogue.version, self._catalogue.entries)
        self._adopt()

    def _followed(self) -> FeaturePolicy:
        cold = SparseModel.of(self._cold.means, self._cold.variances, self._cold.reward_variance)
        policy = FeaturePolicy(self._layout, cold, (_TRACK,))
        policy.follow(self._catalogue)
        return policy

    def _adopt(self) -> None:
        """Make the model of all windows so far, and adopt it as learners do."""
        found = self._model()
        entries = self._totals.entries.astype(np.float64)
        variance = np.array([found.reward_variance])
        version = self._policy.shared(_TRACK).version + 1
        self._policy.adopt(_TRACK, version, found.means, found.variances, variance, entries)

    def _model(self) -> WarmStart:
        """The model as `NamedTotals` makes it; rows that never had an item keep their initial values."""
        totals, start = self._totals, cold_start(self._world.arms, self._cells, len(self._world.schema.table))
        rows = np.flatnonzero(totals.entries > 0)
        layout = replace(self._layout, arms=int(rows.size))
        found = effects(layout, *totals.weighted_sums(rows))
        known = warm_start(found, click_chance(self._world.click_rate), ROUNDS)
        start.means[rows], start.variances[rows] = known.means, known.variances
        return start._replace(reward_variance=known.reward_variance)

    def _prior(self) -> NormalPrior:
        model, arms = self._policy.shared(_TRACK).state.model, self._world.arms
        table = model.table.astype(np.float64)
        return NormalPrior.of(table[:, :arms].T, table[:, arms:].T, model.reward_variance)
