"""What declared features bring: the share of the gain that is kept, a new item, and forecast against simulation.

Plays users with declared features: cold contributors, their slots, releases of linear sums or codes, new users.

Contributors learn alone over T interactions (ridge 1 and bonus 1 on contexts of length 1, ties by a coin). Slots
are padded bytes. The shuffler's own functions read, sum and noise them, and the aggregator's make models from them. New
users are played once for each model, with the same visits, coins and tie draws. A model's score is the expected reward
of the items that they are shown.

Measures how much reward users lose in the first windows after a new item enters a running deployment.

The first model is learned from cold contributors, for all items but the last. Then visitors start from the newest
model, window after window, once without the new item and once with it, with the same visits and coins. The product's
catalogue, policy and totals create the item's row and add up sums. The item has no features in common with others, so
it starts from the mean of all.

P2B with declared features: the share of the non-private gain that linear sums keep, compared with codes.

Compares P2B's forecast with the whole simulation, with true and assumed spreads; codes with true ones only.

No part of the forecast for declared features was fitted on these worlds: it is derived
(`hushstream.systems.p2b.forecast`). The formula for lone learners of codes was changed after three of
these worlds were seen. True spreads are those of a world as it was drawn: the least-squares fit of its log-odds on the
blocks, over 20,000 visits. The residuals of the fit are the part that no model can learn. Assumed spreads follow from
the number of features alone. Codes are played in softmax worlds, with log-odds fitted on the histogram itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from hushstream.counting import PureEpsilon, best_tree
from hushstream.engine.catalogue import Catalogue, CatalogueRules, ItemChange
from hushstream.engine.declare.plan import Range
from hushstream.features.schema import Rows, declare
from hushstream.learners.population import NormalPrior, SparsePopulation
from hushstream.learners.sparse import SparseModel
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.guarantee import linear_sums_guarantee, slot_sums_guarantee
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.findings import (
    JOINING_SEEDS,
    Curve,
    Experiment,
    Findings,
    Foretold,
    Provenance,
    Scale,
)
from hushstream.replay.experiments.rows import (
    BenchRow,
    Row,
    at_least,
    at_most,
    beside_alone,
    columns,
    pick,
    privacy_columns,
)
from hushstream.replay.experiments.systems import foretold_worlds
from hushstream.replay.runners.to_end import play_all, play_seeds
from hushstream.replay.studies.p2b.play import Line as CodesLine
from hushstream.replay.studies.p2b.play import Point, WorldSpec
from hushstream.replay.studies.p2b.play import play as play_point
from hushstream.replay.studies.p2b.run import ClearSums, written_out
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.mixed_table import ITEMS, EmbeddedUsers, FeatureWorld, MixedTable, TaggedDocuments
from hushstream.systems.p2b.configuration import ReleaseConfig
from hushstream.systems.p2b.edge.agent import click_chance
from hushstream.systems.p2b.edge.policies import FeaturePolicy
from hushstream.systems.p2b.forecast import (
    Forecast,
    Sample,
    Spreads,
    UserBehaviour,
    forecast_codes,
    forecast_features,
)
from hushstream.systems.p2b.machines.shuffler import RunningSums
from hushstream.systems.p2b.plan import ASSUMED_ENDS, LEAST_GAIN, assumed_for
from hushstream.systems.p2b.server.estimate import WarmStart, cold_start, effects, model_from_sums, warm_start
from hushstream.systems.p2b.server.prior import item_vectors, shaped_effects, vector_length
from hushstream.systems.p2b.server.totals import ItemTotals, WeightedSums
from hushstream.systems.p2b.shuffler import Domain, Reports, linear_sums, noised, noised_sums, slot_sums
from hushstream.systems.p2b.slots import (
    UNITS,
    FeatureLayout,
    layout_of,
    pack_reports,
    shapes_priors,
    unpack_reports,
)

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

ROUNDS = 10
"""T: interactions before a slot, and interactions of a new user."""

LINEAR: tuple[Form, ...] = ("linear", "half", "shaped")
"""Forms that release linear sums."""

CODES = 32
_ITEMS = declare(ITEMS)
_NEW_USERS = 1 << 30
_PUBLIC_USERS = 3 << 29
_PUBLIC_CONTEXTS = 20_000
CHUNK = 5_000

Kind = Literal[
    "mixed", "interactions", "drawn", "embedding", "documents", "featured", "alike", "unlike", "heavy", "flat"
]
Form = Literal["cold", "single", "raw", "linear", "half", "shaped", "codes"]
Windows = Literal["one", "ten fresh", "ten counted"]


@dataclass(frozen=True, slots=True)
class Line:
    """One way to make a model.

    Attributes:
        form: ``cold``; the best ``single`` item; ``raw`` (ridge on all interactions in clear); ``linear`` sums; the
            same where items' totals have at most ``half`` of a report, or under a prior ``shaped`` by items' features
            as the product has it; or ``codes`` of public k-means.
        slots: how many contributors' slots count.
        epsilon: epsilon of a slot; 0 where nothing is private.
        windows: how sums are released.
        draws: how many releases are made, each with its own noise; figures are means over them.
    """

    form: Form
    slots: int = 0
    epsilon: float = 0.0
    windows: Windows = "one"
    draws: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One world, played with one seed.

    Attributes:
        kind: kind of the world.
        arms: K.
        seed: seed of world, coins and keys.
        lines: the lines that are compared; there are as many contributors as the largest one needs.
        evaluated: how many new users each model gets.
        data_dir: a local folder of datasets.
    """

    kind: Kind
    arms: int
    seed: int
    lines: tuple[Line, ...] = field(default=())
    evaluated: int = 2_500
    data_dir: str | None = None


def world_of(task: Task) -> FeatureWorld:
    """The world of a task."""
    return _world(task.kind, task.seed, task.arms, task.data_dir)


def drawn_table(seed: int, arms: int, featured: bool = False) -> MixedTable:
    """A mixed table with click rates from .02 to .5, effects of many sizes, strong pairs and heavy tails.

    Where items have features, from none to four fifths of the variance of effects follow them.
    """
    draw = Draws(seed, "drawn-table").generator()
    rate = float(np.exp(draw.uniform(np.log(0.02), np.log(0.5))))
    strength, pairs, items = draw.uniform(0.3, 0.9), draw.choice([0.0, 0.175, 0.35]), draw.uniform(0.1, 0.5)
    heavy, alike = bool(draw.random() < 0.3), float(draw.uniform(0.0, 0.8)) if featured else None
    return MixedTable(seed, arms, float(strength), float(pairs), float(items), heavy, rate, alike)


@lru_cache(maxsize=2)
def _world(kind: Kind, seed: int, arms: int, data_dir: str | None) -> FeatureWorld:
    if kind == "documents":
        return TaggedDocuments(seed, arms, data_dir)
    if kind == "embedding":
        return EmbeddedUsers(seed, arms)
    if kind in ("drawn", "featured"):
        return drawn_table(seed, arms, kind == "featured")
    if kind == "interactions":
        return MixedTable(seed, arms, strength=0.3, pair_strength=0.3)
    if kind == "flat":
        return MixedTable(seed, arms, strength=0.0, pair_strength=0.0, item_spread=0.0, alike=0.0)
    alike = {"alike": 0.5, "heavy": 0.5, "unlike": 0.0}.get(kind)
    return MixedTable(seed, arms, heavy=kind == "heavy", alike=alike)


def guarantee_of(task: Task, line: Line) -> Guarantee | None:
    """What a line guarantees; None for lines that guarantee nothing."""
    if line.form in LINEAR:
        layout = layout_for(task, line)
        tree = 1 if line.windows != "ten counted" else tree_of(layout, line).parameters["levels"]
        stated = linear_sums_guarantee(str(line.epsilon), UNITS, layout.places, layout.levels, tree_levels=int(tree))
    elif line.form == "codes":
        stated = slot_sums_guarantee(str(line.epsilon))
    else:
        return None
    return stated.under_key(reproducible=True)


def play(task: Task) -> dict[Line, tuple[float, ...]]:
    """Mean expected reward of new users for each line, one figure for each release."""
    contributed = _contribute(task, max((line.slots for line in task.lines), default=0))
    return {
        line: (_single(task),)
        if line.form == "single"
        else tuple(_judge(task, _prior(task, line, contributed, draw)) for draw in range(line.draws))
        for line in task.lines
    }


def _single(task: Task) -> float:
    """Mean expected reward of the one item that is best for all new users together."""
    world, users = world_of(task), np.arange(task.evaluated) + _NEW_USERS
    return float(max(sum(world.visits(users, turn).chances.mean(axis=0) for turn in range(ROUNDS)) / ROUNDS))


class _Contributed(NamedTuple):
    """Results of n cold users: the slot's interaction, by preference and by a uniform draw, and ridge sums of all."""

    rows: Rows
    arms: Int64
    clicks: Int64
    uniform_rows: Rows
    uniform_arms: Int64
    uniform_clicks: Int64
    clear: dict[int, NormalPrior]


def _contribute(task: Task, users: int) -> _Contributed:
    world = world_of(task)
    cold = _cold(world)
    sums = ClearSums(world.schema, world.arms)
    wanted = {line.slots for line in task.lines if line.form == "raw"}
    parts: list[tuple[Any, ...]] = []
    clear: dict[int, NormalPrior] = {}
    ends = sorted({*range(CHUNK, users, CHUNK), users, *(size for size in wanted if size <= users)} - {0})
    for low, high in zip([0, *ends[:-1]], ends, strict=True):
        numbers = np.arange(low, high)
        turns = list(_turns(world, task.seed, numbers, cold))
        if wanted:
            for one in turns:
                sums.add(one.contexts, one.chosen, one.clicked.astype(np.float64))
        if high in wanted:
            clear[high] = sums.prior()
        drawn = Draws(task.seed, "slot").uniforms(numbers, 0, 3)
        place = np.arange(len(numbers))
        seen, shown, clicks = (np.stack(column) for column in zip(*(one[:3] for one in turns), strict=True))
        by_click = preferred(clicks, drawn, click_chance(world.click_rate))
        uniform = (drawn[:, 2] * ROUNDS).astype(np.int64)
        parts.append(tuple(one[turn, place] for turn in (by_click, uniform) for one in (seen, shown, clicks)))
    rows, arms, clicks, uniform_rows, uniform_arms, uniform_clicks = map(np.concatenate, zip(*parts, strict=True))
    return _Contributed(rows, arms, clicks, uniform_rows, uniform_arms, uniform_clicks, clear)


class _Turn(NamedTuple):
    """One interaction of n users: what each saw and did, its dense context, and the chance of a click."""

    rows: Rows
    chosen: Int64
    clicked: Int64
    contexts: Float32
    chances: Float64


def _turns(
    world: FeatureWorld,
    seed: int,
    users: Int64,
    prior: NormalPrior,
    explored: float = 0.0,
    offered: NDArray[np.bool_] | None = None,
) -> Iterator[_Turn]:
    """Let users (n,) act over T interactions from one model, and learn from each; see `act`."""
    population, place = SparsePopulation(prior, len(users), ROUNDS), np.arange(len(users))
    items = np.arange(world.arms) if offered is None else np.flatnonzero(offered)
    hidden = np.full(world.arms, -np.inf)
    hidden[items] = 0.0
    for turn in range(ROUNDS):
        visits = world.visits(users, turn)
        contexts = written_out(world.schema, visits.rows)
        coins = Draws(seed, "coins").uniforms(users, turn, world.arms + 1)
        # Ties are broken by a coin that is much smaller than any difference of scores.
        chosen = np.asarray((population.scores(contexts) + 1e-5 * coins[:, 1:] + hidden).argmax(axis=1))
        if explored:
            drawn = Draws(seed, "explore").uniforms(users, turn, 2)
            anything = items[(drawn[:, 1] * len(items)).astype(np.int64)]
            chosen = np.where(drawn[:, 0] < explored, anything, chosen)
        chances = visits.chances[place, chosen]
        clicked = (coins[:, 0] < chances).astype(np.int64)
        population.learn(contexts, chosen, clicked.astype(np.float64))
        yield _Turn(visits.rows, chosen, clicked, contexts, chances)


class PlayedInteractions(NamedTuple):
    """The outcome of T interactions of n users.

    Attributes:
        rows, arms, clicks: (n,) the contents of their slots.
        earned: their expected rewards, summed over all visits.
        shown: (K,) how often each item was shown.
    """

    rows: Rows
    arms: Int64
    clicks: Int64
    earned: float
    shown: Int64


def act(
    world: FeatureWorld,
    seed: int,
    users: Int64,
    prior: NormalPrior,
    explored: float = 0.0,
    offered: NDArray[np.bool_] | None = None,
) -> PlayedInteractions:
    """Let users act over T interactions, and fill their slots.

    Args:
        world, seed: the population and the seed of its coins.
        users: (n,) the users who act.
        prior: the model that all of them start from.
        explored: share of decisions that choose any item on offer.
        offered: (K,) items that may be shown; None: all.
    """
    turns = list(_turns(world, seed, users, prior, explored, offered))
    seen, shown, clicks = (np.stack(column) for column in zip(*(one[:3] for one in turns), strict=True))
    held = preferred(clicks, Draws(seed, "slot").uniforms(users, 0, 3), click_chance(world.click_rate))
    place, earned = np.arange(len(users)), sum(float(one.chances.sum()) for one in turns)
    times = np.bincount(shown.ravel(), minlength=world.arms)
    return PlayedInteractions(seen[held, place], shown[held, place], clicks[held, place], earned, times)


def preferred(clicks: Int64, drawn: Float64, chance: float | None) -> Int64:
    """(n,) the interaction that each slot holds, as `edge.candidates` chooses; clicks (T, n), coins (n, 2 or more)."""
    if chance is None:
        return np.asarray(drawn[:, 1] * len(clicks), dtype=np.int64)
    unclicked = 1 - clicks
    rank = np.cumsum(unclicked, axis=0)
    target = np.floor(drawn[:, 1] * unclicked.sum(axis=0)) + 1
    quiet = ((rank == target) & (unclicked == 1)).argmax(axis=0)
    has_click, has_quiet = clicks.any(axis=0), unclicked.any(axis=0)
    wants = np.where(drawn[:, 0] < chance, has_click, ~has_quiet)
    return np.asarray(np.where(wants, clicks.argmax(axis=0), quiet), dtype=np.int64)


def _judge(task: Task, prior: NormalPrior) -> float:
    """Mean expected reward of new users over their first T interactions."""
    world, total = world_of(task), 0.0
    for low in range(0, task.evaluated, CHUNK):
        users = np.arange(low, min(low + CHUNK, task.evaluated)) + _NEW_USERS
        total += sum(float(one.chances.sum()) for one in _turns(world, task.seed, users, prior))
    return total / (task.evaluated * ROUNDS)


def _prior(task: Task, line: Line, contributed: _Contributed, draw: int) -> NormalPrior:
    world = world_of(task)
    match line.form:
        case "cold":
            return _cold(world)
        case "raw":
            return contributed.clear[line.slots]
        case "codes":
            return _codes(task, line, contributed, draw)
        case _:
            return _linear(task, line, contributed, draw)


class _Window(NamedTuple):
    """Released sums of a window (2, K, P), and the variance that they add to the total."""

    sums: Int64
    variance: float


def _weighted_sums(windows: Sequence[_Window]) -> WeightedSums:
    together = np.sum([one.sums for one in windows], axis=0)
    return WeightedSums(together[0], together[1], sum(one.variance for one in windows))


def _linear(task: Task, line: Line, contributed: _Contributed, draw: int) -> NormalPrior:
    layout, sums = layout_for(task, line), _weighted_sums(list(_released(task, line, contributed, draw)))
    found = shaped_effects(layout, *sums, _vectors(task)) if _shapes(task, line) else effects(layout, *sums)
    start = warm_start(found, click_chance(world_of(task).click_rate), ROUNDS)
    return NormalPrior.of(start.means, start.variances, start.reward_variance)


def _shapes(task: Task, line: Line) -> bool:
    """Whether items' features shape the prior of a line's models."""
    return line.form == "shaped" and shapes_priors(_ITEMS, np.ones(task.arms, np.int32))


def _vectors(task: Task) -> Float64:
    """(K, m) the items' features, as the aggregator has them."""
    world = world_of(task)
    assert isinstance(world, MixedTable), "expected a world of the mixed table"
    return item_vectors(_ITEMS, np.concatenate([_ITEMS.read(_ITEMS.encode(item).row) for item in world.items]))


def _released(task: Task, line: Line, contributed: _Contributed, draw: int) -> Iterator[_Window]:
    world, layout = world_of(task), layout_for(task, line)
    key, address = seeded_key(task.seed, "shuffler"), _address(task, line, draw)
    blocks = world.schema.blocks(contributed.rows[: line.slots])
    arms, clicks = contributed.arms[: line.slots], contributed.clicks[: line.slots]
    contents = pack_reports(layout, arms, clicks, 0, layout.units_of(blocks))
    windows = 1 if line.windows == "one" else 10
    scale = laplace_scale(str(line.epsilon), layout.sensitivity)
    shape = (2, layout.arms, layout.cells)
    running = RunningSums(tree_of(layout, line), key, address) if line.windows == "ten counted" else None
    for window in range(windows):
        reports = unpack_reports(layout, contents[window::windows])
        exact = linear_sums(layout, reports, np.ones(len(reports.held), dtype=np.bool_))
        if running is not None:
            step = running.step(np.concatenate([exact.ones.ravel(), exact.zeros.ravel()]))
            yield _Window(step.sums.reshape(shape), step.variance)
            continue
        released = noised_sums(exact, _noise(key, _address(task, line, draw, window), scale, shape))
        yield _Window(np.stack([released.ones, released.zeros]), laplace_variance(*scale))


def _noise(key: Key, address: NoiseAddress, scale: tuple[int, int], shape: tuple[int, ...]) -> Int64:
    """Discrete Laplace noise of a scale, given as a fraction."""
    return np.asarray(discrete_laplace(KeyedStream(key, address), *scale, int(np.prod(shape))).reshape(shape))


def _codes(task: Task, line: Line, contributed: _Contributed, draw: int) -> NormalPrior:
    """A model by codes: nearest of k centroids of a public sample, a uniform interaction, noised cells."""
    world = world_of(task)
    means = _public_codes(task)
    scale = np.sqrt(len(world.schema.table) + 1)
    codes = means.predict(written_out(world.schema, contributed.uniform_rows[: line.slots]) / np.float32(scale)).astype(
        np.int64
    )
    domain = Domain(CODES, world.arms, 1)
    arms, clicks = contributed.uniform_arms[: line.slots], contributed.uniform_clicks[: line.slots]
    fraction = laplace_scale(str(line.epsilon), 1)
    key, address = seeded_key(task.seed, "shuffler"), _address(task, line, draw)
    noise = _noise(key, address, fraction, (2, CODES, world.arms))
    released = noised(slot_sums(Reports.of(domain, codes, arms, clicks)), noise)
    variance = laplace_variance(*fraction)
    found = model_from_sums(released.ones, released.zeros, 1, variance, means.cluster_centers_.astype(np.float64))
    covariance = np.linalg.inv(found.gram)
    theta = np.einsum("kij,kj->ki", covariance, found.moment)
    # The model is for contexts divided by sqrt(F + 1); here they are not scaled.
    return NormalPrior.of(theta / scale, covariance / scale**2, 1.0)


@lru_cache(maxsize=2)
def _public_codes(task: Task) -> Any:
    world = world_of(task)
    rows = world.visits(np.arange(_PUBLIC_CONTEXTS) + _PUBLIC_USERS, 0).rows
    contexts = written_out(world.schema, rows) / np.float32(np.sqrt(len(world.schema.table) + 1))
    return KMeans(n_clusters=CODES, n_init=1, random_state=task.seed, max_iter=50).fit(contexts)


def _cold(world: FeatureWorld) -> NormalPrior:
    start = cold_start(world.arms, world.schema.cells + 1, len(world.schema.table))
    return NormalPrior.of(start.means, start.variances, start.reward_variance)


def layout_for(task: Task, line: Line) -> FeatureLayout:
    """The layout by which a line's slots divide their units."""
    fresh = 10 if line.windows == "ten fresh" else 1
    found = layout_of(world_of(task).schema, task.arms, 1, line.epsilon, line.slots, fresh)
    features = len(found.budgets) - 1
    each = max(found.budgets[1], UNITS // 2 // features)
    return found if line.form != "half" else replace(found, budgets=(UNITS - each * features, *[each] * features))


@lru_cache(maxsize=16)
def tree_of(layout: FeatureLayout, line: Line) -> Any:
    """The counter over a line's ten windows."""
    return best_tree(PureEpsilon(str(line.epsilon)), 10, 2 * layout.arms * layout.cells, layout.sensitivity)


def _address(task: Task, line: Line, draw: int, window: int | None = None) -> NoiseAddress:
    # Forms that are compared have the same noise.
    line = replace(line, form="linear") if line.form in LINEAR else line
    parameters: dict[str, int | str | bytes] = {"line": repr(line), "draw": draw}
    return NoiseAddress(
        "release-noise", "experiment", bytes(32), "p2b", line.form, parameters, b"experiment", 0, window
    )


EPSILON = 1.0
CONTRIBUTORS, WINDOW, WINDOWS = 50_000, 10_000, 3
"""Slots of the first model, slots of each later window, and how many windows are played."""

_TRACK = "private"


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
        scale = laplace_scale(str(EPSILON), layout.sensitivity)
        # The noise is the same with and without the item, so only the item makes a difference.
        address = NoiseAddress(
            "release-noise", "experiment", bytes(32), "p2b", "new-item", {}, b"experiment", 0, number
        )
        key, shape = seeded_key(self._task.seed, "shuffler"), (2, layout.arms, layout.cells)
        found = noised_sums(exact, _noise(key, address, scale, shape))
        variance = laplace_variance(*scale)
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


FEATURES = "what joining brings, p2b"
FEATURES_SETTINGS = (
    "Shares are of the gain of ridge regression on all ten interactions of every contributor over own learning.",
    "Rewards are expected ones over the first ten interactions of 2,500 new users; intervals are over worlds.",
    "Linear sums: U = 4096 units, T = 10, h = .8 (TMC2007: .5, its declared click rate being .2), shrunk warm starts.",
    "The words of TMC2007 are tags of redundancy .2: most occur together, and each has the reward of the others.",
    "New item: the last of ten enters a running deployment with windows of fresh noise; it starts at the others' mean.",
    "Its gain is the difference of a visit's reward with and without it, over all items, on the same visits and coins.",
    "Codes: 32 centroids of a public sample of 20,000 contexts of the same world, a uniform interaction a slot.",
)

_NEW_ITEM = Task("mixed", 10, 0)

Runs = Sequence[Mapping[Line, tuple[float, ...]]]
"""A task under each seed: the rewards of its lines, one for each release."""


def run_features(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play every world under every seed; quick: two small worlds without targets."""
    seeds = JOINING_SEEDS[:2] if scale.quick else JOINING_SEEDS
    tasks = _quick() if scale.quick else _COMPARED if scale.compared else _whole(scale.data_dir)
    played = play_seeds(play, tasks, seeds, FEATURES, progress)
    rows = [_features_row(task, line, played[task]) for task in tasks for line in task.lines]
    targets: list[BenchRow] = []
    if not scale.compared:
        sizes = (2_000, 500) if scale.quick else (CONTRIBUTORS, WINDOW)
        entries = _entries(seeds, sizes, progress)
        rows += _new_item_rows(entries, sizes)
        if not scale.quick:
            targets = [*_features_targets([played[task] for task in tasks]), _new_item_target(entries)]
    worlds = tuple(dict.fromkeys(row["world"] for row in rows))
    return Findings(rows, targets, worlds, seeds, FEATURES_SETTINGS, _features_provenance(tasks))


def _entries(seeds: Sequence[int], sizes: tuple[int, int], progress: Progress | None) -> Sequence[Entry]:
    """The results of a new item, by seed."""
    play_one = partial(play_new_item, contributors=sizes[0], window=sizes[1])
    return play_seeds(play_one, [_NEW_ITEM], seeds, f"{FEATURES}, new item", progress)[_NEW_ITEM]


def _gained(entries: Sequence[Entry]) -> Float64:
    """The difference of a visit's reward with and without the new item, (seeds, windows)."""
    return np.array([np.subtract(one.with_item, one.without) for one in entries])


def _new_item_rows(entries: Sequence[Entry], sizes: tuple[int, int]) -> list[Row]:
    stated = guarantee_of(_NEW_ITEM, Line("linear", sizes[0], 1.0))
    assert stated is not None
    rows: list[Row] = []
    for window in range(WINDOWS):
        row: Row = {
            "world": world_of(_NEW_ITEM).name,
            "items": _NEW_ITEM.arms,
            "form": f"new item, window {window + 1}",
            "slots": sizes[0] + window * sizes[1],
            "windows": "one" if not window else f"{window + 1} fresh",
        }
        row |= columns("reward", [one.with_item[window] for one in entries])
        row |= columns("gain", _gained(entries)[:, window])
        rows.append({**row, "seeds": len(entries), **privacy_columns(stated)})
    return rows


def _new_item_target(entries: Sequence[Entry]) -> BenchRow:
    lost = [float(one) for one in -_gained(entries).mean(axis=0)]
    return at_most("a new item: loss of a visit in the worst of its first three windows", [max(lost)], "reward", 0.003)


def _lines(sizes: Sequence[int], private: Sequence[Line]) -> tuple[Line, ...]:
    return (Line("cold"), *(Line("raw", size) for size in sizes), *private)


def _quick() -> tuple[Task, ...]:
    private = (
        Line("linear", 2_000, 1.0),
        Line("linear", 2_000, 1.0, "ten fresh"),
        Line("linear", 2_000, 1.0, "ten counted"),
        Line("codes", 2_000, 1.0),
    )
    lines = _lines((2_000,), private)
    return (Task("mixed", 4, 0, lines, 200), Task("embedding", 4, 0, lines[:3], 200))


_COMPARED = (
    Task("mixed", 10, 0, _lines((2_000, 50_000), (Line("linear", 2_000, 1.0), Line("linear", 50_000, 1.0)))),
    Task("interactions", 10, 0, _lines((50_000,), (Line("linear", 50_000, 1.0),))),
)


def _whole(data_dir: str | None) -> tuple[Task, ...]:
    mixed = (
        Line("linear", 2_000, 0.5, draws=5),
        Line("linear", 2_000, 1.0),
        *(Line("linear", size, epsilon) for size in (10_000, 50_000, 200_000) for epsilon in (0.5, 1.0, 8.0)),
        *(Line("linear", 50_000, 1.0, windows) for windows in _SEVERAL),
        *(Line("codes", size, 1.0) for size in (10_000, 50_000, 200_000)),
    )
    few = (Line("linear", 50_000, 1.0), Line("codes", 50_000, 1.0))
    return (
        Task("mixed", 10, 0, _lines((2_000, 10_000, 50_000, 200_000), mixed)),
        Task("mixed", 25, 0, _lines((50_000,), few)),
        Task("interactions", 10, 0, _lines((50_000,), few)),
        Task("embedding", 10, 0, _lines((50_000,), few)),
        # Ridge regression on 502 entries of every interaction takes as long as all the rest, so there is no share here.
        Task("documents", 22, 0, _lines((), few), data_dir=data_dir),
    )


_SEVERAL: tuple[Windows, ...] = ("ten fresh", "ten counted")


def _values(runs: Runs, line: Line) -> Float64:
    """Mean reward over a line's releases, (seeds,)."""
    return np.array([float(np.mean(run[line])) for run in runs])


def _gains(runs: Runs, line: Line) -> Float64:
    return _values(runs, line) - _values(runs, Line("cold"))


def _shares(runs: Runs, line: Line) -> Float64:
    """The kept share of the non-private gain with equally many contributors, (seeds,)."""
    return _gains(runs, line) / _gains(runs, Line("raw", line.slots))


def _features_row(task: Task, line: Line, runs: Runs) -> Row:
    stated = guarantee_of(task, line)
    values, named = {"reward": _values(runs, line), "gain": _gains(runs, line)}, {"form": _WORDS[line.form]}
    before = replace(line, form="half")
    if line.form == "shaped" and before in task.lines:
        values["more"] = values["reward"] - _values(runs, before)
    policies: dict[str, Float64] = {}
    if stated is not None:
        policies = {"alone": _values(runs, Line("cold")), "joined": values["reward"]}
        named["measure"] = "mean reward of new users"
        if Line("raw", line.slots) in task.lines:
            policies["without_privacy"] = _values(runs, Line("raw", line.slots))
            values["kept"] = _shares(runs, line)
    row: Row = {
        "world": _NAMES.get(task.kind) or world_of(task).name,
        "items": task.arms,
        **named,
        "slots": line.slots,
        "windows": line.windows if line.form in LINEAR else "one",
    }
    for name, found in values.items():
        row |= columns(name, found)
    row |= beside_alone(False, **policies) if policies else {}
    return {**row, "seeds": len(runs), **({"marks": ""} if stated is None else privacy_columns(stated))}


_WORDS: Mapping[Form, str] = {
    "cold": "cold",
    "single": "best single item",
    "raw": "non-private",
    "linear": "linear sums",
    "half": "linear sums, totals at most half",
    "shaped": "linear sums, shaped by items' features",
    "codes": "codes",
}

_NAMES: Mapping[Kind, str] = {
    "interactions": "mixed table, strong pairs",
    "alike": "mixed table, items alike by half",
    "unlike": "mixed table, items' features say nothing",
    "heavy": "mixed table, items alike by half, heavy tail",
    "flat": "no item is better",
}


def _features_provenance(tasks: Sequence[Task]) -> tuple[Provenance, ...]:
    found = []
    for task in tasks:
        for line in task.lines:
            stated = guarantee_of(task, line)
            if stated is not None:
                label = f"{_WORDS[line.form]}, {world_of(task).name}, {task.arms} items, eps {line.epsilon:g}"
                found.append(Provenance(label, stated, world_of(task).schema.digest.hex()))
    return tuple(found)


def _features_targets(played: Sequence[Runs]) -> list[BenchRow]:
    table, many, _, embedded, documents = played

    def kept(runs: Runs, line: Line) -> float:
        return float(_shares(runs, line).mean())

    several = max(kept(table, Line("linear", 50_000, 1.0, windows)) for windows in _SEVERAL)
    small = Line("linear", 2_000, 0.5, draws=5)
    cold = _values(table, Line("cold"))
    releases = np.concatenate([np.array(run[small]) - level for run, level in zip(table, cold, strict=True)])
    linear = Line("linear", 50_000, 1.0)
    return [
        at_least("mixed table, 10 items, eps 1, 50,000 slots: share kept", [kept(table, linear)], "share", 0.8),
        at_least(
            "mixed table, 10 items, eps 1, 200,000 slots: share kept",
            [kept(table, Line("linear", 200_000, 1.0))],
            "share",
            0.9,
        ),
        at_least("ten windows, the better of fresh and counted, 50,000 slots: share kept", [several], "share", 0.7),
        at_least("25 items, eps 1, 50,000 slots: share kept", [kept(many, linear)], "share", 0.7),
        at_least("2,000 slots, eps .5: mean gain over cold", [float(releases.mean())], "reward", 0.01),
        at_most("2,000 slots, eps .5: releases below cold - .003", [float((releases < -0.003).mean())], "share", 0.05),
        at_least("embedding alone, eps 1, 50,000 slots: share kept", [kept(embedded, linear)], "share", 0.85),
        at_least(
            "TMC2007, eps 1, 50,000 slots: reward",
            [float(_values(documents, linear).mean())],
            "reward",
            0.65,
        ),
        at_least(
            "mixed table, 50,000 slots: linear sums less codes",
            [kept(table, linear) - kept(table, Line("codes", 50_000, 1.0))],
            "share",
            0.0,
        ),
    ]


SHAPED_SEEDS = range(101, 111)
"""Worlds on which nothing was chosen."""

COMPARED: tuple[Form, ...] = ("half", "shaped")

SHAPED_SETTINGS = (
    "Items have a kind (8), a price and 5 tags; alike by half: half of the variance of effects, in each cell and of the"
    " items themselves, follows them.",
    "Rewards as in joining; column more: over linear sums whose totals have at most half of a report, without items'"
    " features, under the same noise.",
)


def _shaped_tasks(scale: Scale) -> tuple[Task, ...]:
    if scale.quick:
        return (_shaped_task("alike", 40, (1_000,), evaluated=200),)
    return (
        _shaped_task("alike", 200, (2_000, 20_000, 50_000)),
        _shaped_task("alike", 50, (2_000, 20_000, 50_000)),
        _shaped_task("unlike", 50, (2_000, 20_000, 50_000)),
        _shaped_task("heavy", 200, (20_000,)),
        _shaped_task("flat", 200, (20_000,)),
        _shaped_task("alike", 10, (2_000,)),
    )


def _shaped_task(kind: Kind, arms: int, sizes: Sequence[int], evaluated: int = 2_500) -> Task:
    private = (Line(form, size, 1.0) for size in sizes for form in COMPARED)
    return Task(kind, arms, 0, (Line("cold"), Line("single"), *private), evaluated)


def run_shaped(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play catalogues with features, each world under every seed; quick: one small world without targets."""
    seeds, tasks = SHAPED_SEEDS[:2] if scale.quick else SHAPED_SEEDS, _shaped_tasks(scale)
    played = play_seeds(play, tasks, seeds, SHAPED.name, progress)
    rows = [_features_row(task, line, played[task]) for task in tasks for line in task.lines]
    targets = [] if scale.quick else list(_shaped_targets(rows))
    worlds = tuple(dict.fromkeys(row["world"] for row in rows))
    return Findings(rows, targets, worlds, seeds, SHAPED_SETTINGS, _features_provenance(tasks))


def _shaped_targets(rows: Sequence[Row]) -> Iterator[BenchRow]:
    """What the design asks of worlds on which nothing was chosen."""

    def reward(kind: Kind, form: Form, slots: int = 0, items: int = 200) -> float:
        return float(pick(rows, world=_NAMES[kind], items=items, form=_WORDS[form], slots=slots)["reward"])

    least: Mapping[tuple[Kind, int, int], float] = {
        ("alike", 200, 2_000): 0.015,
        ("alike", 200, 20_000): 0.008,
        ("alike", 200, 50_000): 0.008,
        ("alike", 50, 20_000): 0.003,
        ("alike", 10, 2_000): 0.0,
        ("unlike", 50, 2_000): -0.005,
        ("unlike", 50, 20_000): -0.001,
    }
    for (kind, items, slots), wanted in least.items():
        name = f"{_NAMES[kind]}, {items} items, {slots:,} slots: more than before"
        more = reward(kind, "shaped", slots, items) - reward(kind, "half", slots, items)
        yield at_least(name, [more], "reward", wanted)
    heavy = reward("heavy", "shaped", 20_000) - reward("heavy", "single")
    yield at_least(f"{_NAMES['heavy']}: over the best single item", [heavy], "reward", -0.01)
    flat = reward("flat", "shaped", 20_000) - reward("flat", "cold")
    yield at_least(f"{_NAMES['flat']}: over own learning", [flat], "reward", 0.0)


SHAPED = Experiment(
    "p2b-items",
    "What features of items, and larger shares of items' totals, add to the model",
    "linear sums",
    run_shaped,
    (
        Curve(
            title="Reward of new users by the number of slots",
            values=("reward",),
            across="slots",
            by=("form",),
            panels=("world", "items"),
            log="x",
        ),
    ),
)

FEATURED, FEATURED_SEEDS = "items with features", range(3_000, 3_020)
"""Drawn worlds of 40 to 200 items, on which nothing was chosen."""

KNOWN = "known spreads"
FORECAST_SEEDS = (1, 2, 3, 4, 5)
FORECAST_SETTINGS = (
    "Gains are expected rewards over the first ten interactions of new users, over those of own learning; means over"
    " worlds.",
    "The forecast with true spreads knows the spread of each feature's effects in the world, and the click "
    "rate of a random item; with assumed spreads it knows the number of features and that rate.",
    "Nothing was fitted on these worlds.",
)

_DIMENSION = 10
_VISITS = 20_000
_JUDGED_USERS = 1 << 31
_WITHIN = 0.15


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration: a kind of world, and one way to release.

    Attributes:
        task: the task of the world, without lines and with any seed.
        line: the release.
        seeds: seeds of worlds.
    """

    task: Task
    line: Line
    seeds: tuple[int, ...] = FORECAST_SEEDS

    def played(self) -> tuple[Task, ...]:
        """The tasks of all worlds."""
        return tuple(replace(self.task, seed=seed, lines=(Line("cold"), self.line)) for seed in self.seeds)


@dataclass(frozen=True, slots=True)
class ForecastCheck:
    """The result of a case: means over its worlds.

    Attributes:
        case: what was played.
        gain: gain in the whole simulation.
        forecast: forecast with true spreads.
        low, assumed, high: forecast with assumed spreads.
    """

    case: Case
    gain: float
    forecast: float
    low: float
    assumed: float
    high: float

    @property
    def within(self) -> bool:
        """Whether the forecast with true spreads is within 15 % of the gain."""
        return abs(self.forecast - self.gain) <= _WITHIN * abs(self.gain)

    @property
    def in_assumed(self) -> bool:
        """Whether the range of the assumed spreads holds the gain."""
        return self.low <= self.gain <= self.high


_MIXED, _MANY, _PAIRS = Task("mixed", 10, 0), Task("mixed", 25, 0), Task("interactions", 10, 0)
CASES = (
    *(Case(_MIXED, Line("linear", slots, epsilon)) for slots in (10_000, 50_000) for epsilon in (0.5, 1.0, 8.0)),
    Case(_MIXED, Line("linear", 50_000, 1.0, "ten fresh")),
    Case(_MIXED, Line("linear", 50_000, 1.0, "ten counted")),
    Case(_MANY, Line("linear", 25_000, 4.0)),
    Case(_MANY, Line("linear", 50_000, 1.0)),
    Case(_PAIRS, Line("linear", 50_000, 1.0)),
    Case(_PAIRS, Line("linear", 50_000, 4.0)),
)
"""Twelve cases, with at least 10,000 slots each."""


def drawn_case(seed: int, featured: bool = False) -> Case:
    """A case with everything drawn: items, with or without features, slots, epsilon, and the world (`drawn_table`)."""
    draw = Draws(seed, "drawn-case").generator()
    slots = int(np.exp(draw.uniform(np.log(1_000), np.log(20_000))))
    epsilon, arms = (
        float(draw.choice([0.5, 1.0, 2.0])),
        int(draw.choice([40, 100, 200] if featured else [5, 10, 20, 40])),
    )
    task = Task("featured" if featured else "drawn", arms, 0, evaluated=1_500)
    return Case(task, Line("shaped" if featured else "linear", slots, epsilon), (seed,))


SAMPLE = Case(Task("mixed", 8, 0, evaluated=1_500), Line("linear", 10_000, 2.0), (21, 22))
"""A small case, for a test."""


def check_forecasts(
    cases: Sequence[Case], progress: Progress | None = None, processes: int | None = None
) -> list[ForecastCheck]:
    """Play every world of every case once, and compute its forecasts; ``processes`` as in `play_all`."""
    together: dict[Task, dict[Line, None]] = {}
    for case in cases:
        for task in case.played():
            together.setdefault(replace(task, lines=()), {}).update(dict.fromkeys(task.lines))
    tasks = {bare: replace(bare, lines=tuple(lines)) for bare, lines in together.items()}
    found = play_all(play, tasks.values(), KNOWN, progress, processes)
    return [_check(case, [found[tasks[replace(task, lines=())]] for task in case.played()]) for case in cases]


def _check(case: Case, played: Sequence[dict[Line, tuple[float, ...]]]) -> ForecastCheck:
    gains = [float(np.mean(one[case.line])) - one[Line("cold")][0] for one in played]
    true, assumed = [], []
    for task in case.played():
        spreads = true_spreads(task)
        true.append(forecast_of(task, case.line, spreads).gain)
        assumed.append([end.gain for end in assumed_forecasts(task, case.line, spreads)])
    return ForecastCheck(case, float(np.mean(gains)), float(np.mean(true)), *np.mean(assumed, axis=0).tolist())


def assumed_forecasts(task: Task, line: Line, spreads: Spreads) -> list[Forecast]:
    """The forecasts at both ends and in the middle of assumed spreads; of the true ones it takes the rate alone."""
    guess = assumed_for([*spreads.blocks], spreads.rate)
    return [
        forecast_of(task, line, guess.times(end.items, end.features, end.alike)).unlucky(end.luck)
        for end in ASSUMED_ENDS
    ]


def forecast_of(task: Task, line: Line, spreads: Spreads) -> Forecast:
    """The forecast of a line in a world of these spreads."""
    layout = layout_for(task, line)
    shaping = vector_length(_ITEMS) if _shapes(task, line) else 0
    chance = click_chance(world_of(task).click_rate)
    behaviour = UserBehaviour(task.arms, ROUNDS, ROUNDS, chance, item_features=shaping)
    return forecast_features(layout, spreads, behaviour, Sample(line.slots, line.slots * ROUNDS, _variance(task, line)))


def _variance(task: Task, line: Line) -> float:
    layout = layout_for(task, line)
    if line.windows == "ten counted":
        tree = tree_of(layout, line)
        return float(10 * tree.mean_square(10) - 9 * tree.mean_square(9))
    windows = 10 if line.windows == "ten fresh" else 1
    return windows * laplace_variance(*laplace_scale(str(line.epsilon), layout.sensitivity))


@lru_cache(maxsize=64)
def true_spreads(task: Task) -> Spreads:
    """The spread of effects over items in a world of the mixed table, as it was drawn; see the module."""
    world = world_of(replace(task, lines=()))
    assert isinstance(world, MixedTable), "expected a world of the mixed table"
    truth = world.true_values(np.arange(_VISITS, dtype=np.int64) + _JUDGED_USERS)
    contexts = written_out(world.schema, truth.rows).astype(np.float64)
    # As each block sums to 1, several coefficient vectors give the same function; the shortest one is taken.
    found = np.linalg.lstsq(contexts, truth.effects, rcond=None)[0]
    blocks = {}
    for block in world.schema.table:
        across = slice(1 + block.first_cell, 1 + block.first_cell + block.cells)
        part = contexts[:, across] @ found[across]
        blocks[block.name] = _spread(part - part.mean(axis=0))
    arms = float(truth.effects.mean(axis=0).std(ddof=1))
    return Spreads(arms, blocks, _spread(truth.effects - contexts @ found), truth.rate)


def _spread(effects: np.ndarray) -> float:
    """Standard deviation over items at a visit, root mean square over visits."""
    return float(np.sqrt(effects.var(axis=1, ddof=1).mean()))


@dataclass(frozen=True, slots=True)
class CodesCase:
    """Sums over codes in one softmax world: (reward scale, weight scale), users, items, codes and epsilon."""

    scales: tuple[float, float]
    users: int
    arms: int
    codes: int
    epsilon: float

    @property
    def point(self) -> Point:
        """The point that is played."""
        reward, weight = self.scales
        world = WorldSpec(
            f"softmax-{reward:g}", "softmax", "synthetic", {"reward_scale": reward, "weight_scale": weight}
        )
        line = CodesLine("slot sums", self.codes, ReleaseConfig(epsilon=self.epsilon))
        return Point(KNOWN, {"part": "codes"}, world, self.users, ROUNDS, _DIMENSION, self.arms, (line,))


CODES_CASES = (
    CodesCase((1.0, 5.0), 20_000, 10, 8, 1.0),
    CodesCase((1.0, 5.0), 20_000, 10, 32, 0.7),
    CodesCase((0.5, 5.0), 20_000, 10, 16, 1.0),
    CodesCase((0.5, 5.0), 20_000, 10, 32, 0.5),
    CodesCase((0.2, 5.0), 60_000, 10, 16, 1.0),
    CodesCase((0.5, 3.0), 40_000, 5, 16, 0.5),
    CodesCase((0.3, 4.0), 40_000, 20, 16, 1.0),
)
CODES_SEEDS = (0, 1, 2, 3)


def codes_row(case: CodesCase, seeds: Sequence[int]) -> Row:
    """A case of codes: the simulated gain and its forecast with true spreads, means over worlds."""
    point = case.point
    played = play_point(point, seeds)
    slots = point.contributors
    variance = laplace_variance(*laplace_scale(str(case.epsilon), 1))
    behaviour = UserBehaviour(case.arms, ROUNDS, ROUNDS, None, float(np.sqrt(2 / (_DIMENSION + 1))), returning=False)
    forecasts = [
        forecast_codes(_DIMENSION, case.codes, _spreads_of(point, seed), behaviour, Sample(slots, slots, variance)).gain
        for seed in seeds
    ]
    gain, forecast = float((played.means[:, 2] - played.means[:, 0]).mean()), float(np.mean(forecasts))
    return {
        "world": f"softmax, reward scale {case.scales[0]:g}, W scale {case.scales[1]:g}",
        "form": "codes",
        "items": case.arms,
        "slots": slots,
        "windows": "one",
        "gain": gain,
        "forecast": forecast,
        "error": forecast / gain - 1,
        "within": abs(forecast - gain) <= _WITHIN * gain,
        "seeds": len(seeds),
        **privacy_columns(played.guarantees[0]),
    }


def _spreads_of(point: Point, seed: int) -> Spreads:
    """The spread of log-odds over items in a softmax world, as it was drawn."""
    world = point.world.make(point.users, point.rounds, point.dimension, point.arms, seed)
    users = np.arange(5_000, dtype=np.int64)
    contexts = world.contexts(users, 0).astype(np.float64)
    means = [world.expected(users, 0, np.full(len(users), arm)) for arm in range(point.arms)]
    chances = np.stack([one for one in means if one is not None], axis=1)
    odds = np.log(chances / (1 - chances))
    fit = contexts @ np.linalg.lstsq(contexts, odds, rcond=None)[0]
    arms = fit.mean(axis=0)
    return Spreads(
        float(arms.std(ddof=1)), {"context": _spread(fit - arms)}, _spread(odds - fit), float(chances.mean())
    )


def foretold(seed: int) -> Foretold:
    """A drawn world (`drawn_case`), the forecast with assumed spreads, and what warm users gain."""
    return _foretold(drawn_case(seed))


def foretold_of_featured(seed: int) -> Foretold:
    """The same of a world whose items have features."""
    return _foretold(drawn_case(seed, featured=True))


def _foretold(case: Case) -> Foretold:
    (task,) = case.played()
    played, spreads = play(task), true_spreads(task)
    ends = assumed_forecasts(task, case.line, spreads)
    better = [end.gain > LEAST_GAIN * end.cold for end in ends]
    cold, stated = played[Line("cold")][0], guarantee_of(task, case.line)
    assert stated is not None
    return Foretold(
        world=f"{task.arms} items, {case.line.slots:,} reports, rate {spreads.rate:.2g}, epsilon {case.line.epsilon:g}",
        measure="reward a visit of a new user, over own learning",
        said=Range(*sorted(end.gain for end in ends)),
        beats=True if all(better) else None if any(better) else False,
        gain=float(np.mean(played[case.line])) - cold,
        guarantee=stated,
        least=LEAST_GAIN * cold,
    )


def run_forecast(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the drawn worlds, then twelve cases of known spreads and seven of codes; quick: a small one alone."""
    drawn, cases = foretold_worlds(foretold, scale, progress), (SAMPLE,) if scale.quick else CASES
    more = [] if scale.quick else [foretold_worlds(foretold_of_featured, scale, progress, drawn=FEATURED_SEEDS)]
    found = check_forecasts(cases, progress)
    rows, targets = [_forecast_row(one) for one in found], list(drawn.targets)
    targets += [replace(one, name=f"{FEATURED}: {one.name}") for part in more for one in part.targets]
    if not scale.quick:
        coded = [codes_row(case, CODES_SEEDS) for case in CODES_CASES]
        targets += [
            at_least(name, [sum(held)], "cases", least)
            for name, held, least in (
                ("of 12: forecasts with true spreads within 15 %", [one.within for one in found], 11),
                ("of 12: gains in the range of assumed spreads", [one.in_assumed for one in found], 12),
                ("of 7 with codes: within 15 %", [row["within"] for row in coded], 5),
            )
        ]
        rows += coded
    return replace(
        drawn,
        rows=[
            *drawn.rows,
            *({**row, "part": FEATURED} for part in more for row in part.rows),
            *({"part": KNOWN, **row} for row in rows),
        ],
        targets=targets,
        settings=(*drawn.settings, *FORECAST_SETTINGS),
        deployments=_forecast_provenance(cases),
    )


def _forecast_row(one: ForecastCheck) -> Row:
    task, line = one.case.task, one.case.line
    stated = guarantee_of(task, line)
    return {
        "world": {"mixed": "mixed table", "drawn": "mixed table, drawn"}.get(task.kind, "mixed table, strong pairs"),
        "form": "features",
        "items": task.arms,
        "slots": line.slots,
        "windows": line.windows,
        "gain": one.gain,
        "forecast": one.forecast,
        "error": one.forecast / one.gain - 1,
        "assumed_low": one.low,
        "assumed": one.assumed,
        "assumed_high": one.high,
        "within": one.within,
        "covered": one.in_assumed,
        "seeds": len(one.case.seeds),
        **({"marks": ""} if stated is None else privacy_columns(stated)),
    }


def _forecast_provenance(cases: Sequence[Case]) -> tuple[Provenance, ...]:
    found = []
    for case in cases:
        stated = guarantee_of(case.task, case.line)
        if stated is not None:
            label = f"linear sums, {case.task.arms} items, eps {case.line.epsilon:g}, {case.line.slots:,} slots"
            found.append(Provenance(label, stated, world_of(case.task).schema.digest.hex()))
    return tuple(found)
