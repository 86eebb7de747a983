"""Plays users with declared features: cold contributors, their slots, releases of linear sums or codes, new users.

Contributors are cold learners over T interactions (ridge 1 and bonus 1 on contexts of length 1, ties by a coin). Slots
are padded bytes. The shuffler's own functions read, sum and noise them, and the aggregator's make models from them. New
users are played once for each model, with the same visits, coins and tie draws. A model's score is the expected reward
of the items that they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from hushstream.counting import PureEpsilon, best_tree
from hushstream.features.schema import Rows
from hushstream.learners.sparse_population import NormalPrior, SparsePopulation
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.guarantee import linear_sums_guarantee, slot_sums_guarantee
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.studies.p2b.clear_model import ClearSums, written_out
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.mixed_table import EmbeddedUsers, FeatureWorld, MixedTable
from hushstream.replay.worlds.tagged_documents import TaggedDocuments
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.contribution.feature_layout import UNITS, FeatureLayout, layout_of
from hushstream.systems.p2b.contribution.feature_slots import pack_reports, unpack_reports
from hushstream.systems.p2b.edge.candidates import click_chance
from hushstream.systems.p2b.machines.running import RunningSums
from hushstream.systems.p2b.reports.planning.estimated import estimated_spreads
from hushstream.systems.p2b.reports.planning.forecast import UserBehaviour
from hushstream.systems.p2b.reports.planning.plan import ASSUMED_REST
from hushstream.systems.p2b.server.effects import effects, raw_effects
from hushstream.systems.p2b.server.estimate import model_from_sums
from hushstream.systems.p2b.server.fading import WeightedSums
from hushstream.systems.p2b.server.warm_start import cold_start, warm_start
from hushstream.systems.p2b.shuffler.linear_sums import linear_sums, noised_sums
from hushstream.systems.p2b.shuffler.sums import Domain, Reports, noised, slot_sums

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

ROUNDS = 10
"""T: interactions before a slot, and interactions of a new user."""

CODES = 32
_NEW_USERS = 1 << 30
_PUBLIC_USERS = 3 << 29
_PUBLIC_CONTEXTS = 20_000
CHUNK = 5_000

Kind = Literal["mixed", "interactions", "embedding", "documents"]
Form = Literal["cold", "raw", "linear", "codes", "spreads"]
Windows = Literal["one", "ten fresh", "ten counted"]


@dataclass(frozen=True, slots=True)
class Line:
    """One way to make a model.

    Attributes:
        form: ``cold``; ``raw`` (ridge on all interactions in clear); ``linear`` sums; ``codes`` of public k-means; or
            ``spreads``, which scores no users but gives `estimated_of` the linear sums.
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


@lru_cache(maxsize=2)
def _world(kind: Kind, seed: int, arms: int, data_dir: str | None) -> FeatureWorld:
    if kind == "documents":
        return TaggedDocuments(seed, arms, data_dir)
    if kind == "embedding":
        return EmbeddedUsers(seed, arms)
    if kind == "interactions":
        return MixedTable(seed, arms, strength=0.3, pair_strength=0.3)
    return MixedTable(seed, arms)


def guarantee_of(task: Task, line: Line) -> Guarantee | None:
    """What a line guarantees; None for lines that guarantee nothing."""
    if line.form == "linear":
        layout = layout_for(task, line)
        tree = 1 if line.windows != "ten counted" else tree_of(layout, line).parameters["levels"]
        stated = linear_sums_guarantee(str(line.epsilon), UNITS, layout.places, layout.levels, tree_levels=int(tree))
    elif line.form == "codes":
        stated = slot_sums_guarantee(str(line.epsilon))
    else:
        return None
    return stated.under_key(reproducible=True)


def play(task: Task) -> dict[Line, tuple[float, ...]]:
    """Mean expected reward of new users for each line, one figure for each release; for spreads see `estimated_of`."""
    contributed = _contribute(task, max((line.slots for line in task.lines), default=0))
    return {
        line: estimated_of(task, line, contributed)
        if line.form == "spreads"
        else tuple(_judge(task, _prior(task, line, contributed, draw)) for draw in range(line.draws))
        for line in task.lines
    }


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
        population = SparsePopulation(cold, len(numbers), ROUNDS)
        seen = np.zeros((ROUNDS, len(numbers)), world.schema.layout)
        shown, clicks = np.zeros((2, *seen.shape), dtype=np.int64)
        for turn in range(ROUNDS):
            visits = world.visits(numbers, turn)
            contexts = written_out(world.schema, visits.rows)
            coins = Draws(task.seed, "coins").uniforms(numbers, turn, world.arms + 1)
            # Ties are broken by a coin that is much smaller than any difference of scores.
            chosen = np.asarray((population.scores(contexts) + 1e-5 * coins[:, 1:]).argmax(axis=1))
            clicked = (coins[:, 0] < visits.chances[np.arange(len(numbers)), chosen]).astype(np.int64)
            population.learn(contexts, chosen, clicked.astype(np.float64))
            seen[turn], shown[turn], clicks[turn] = visits.rows, chosen, clicked
            if wanted:
                sums.add(contexts, chosen, clicked.astype(np.float64))
        if high in wanted:
            clear[high] = sums.prior()
        drawn = Draws(task.seed, "slot").uniforms(numbers, 0, 3)
        place = np.arange(len(numbers))
        by_click = preferred(clicks, drawn, click_chance(world.click_rate))
        uniform = (drawn[:, 2] * ROUNDS).astype(np.int64)
        parts.append(tuple(one[turn, place] for turn in (by_click, uniform) for one in (seen, shown, clicks)))
    rows, arms, clicks, uniform_rows, uniform_arms, uniform_clicks = map(np.concatenate, zip(*parts, strict=True))
    return _Contributed(rows, arms, clicks, uniform_rows, uniform_arms, uniform_clicks, clear)


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
    population = SparsePopulation(prior, len(users), ROUNDS)
    seen = np.zeros((ROUNDS, len(users)), world.schema.layout)
    shown, clicks = np.zeros((2, ROUNDS, len(users)), dtype=np.int64)
    place, earned = np.arange(len(users)), 0.0
    items = np.arange(world.arms) if offered is None else np.flatnonzero(offered)
    hidden = np.full(world.arms, -np.inf)
    hidden[items] = 0.0
    for turn in range(ROUNDS):
        visits = world.visits(users, turn)
        contexts = written_out(world.schema, visits.rows)
        coins = Draws(seed, "coins").uniforms(users, turn, world.arms + 1)
        chosen = np.asarray((population.scores(contexts) + 1e-5 * coins[:, 1:] + hidden).argmax(axis=1))
        if explored:
            drawn = Draws(seed, "explore").uniforms(users, turn, 2)
            anything = items[(drawn[:, 1] * len(items)).astype(np.int64)]
            chosen = np.where(drawn[:, 0] < explored, anything, chosen)
        chances = visits.chances[place, chosen]
        clicked = (coins[:, 0] < chances).astype(np.int64)
        population.learn(contexts, chosen, clicked.astype(np.float64))
        seen[turn], shown[turn], clicks[turn] = visits.rows, chosen, clicked
        earned += float(chances.sum())
    turns = preferred(clicks, Draws(seed, "slot").uniforms(users, 0, 3), click_chance(world.click_rate))
    times = np.bincount(shown.ravel(), minlength=world.arms)
    return PlayedInteractions(seen[turns, place], shown[turns, place], clicks[turns, place], earned, times)


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
        population = SparsePopulation(prior, len(users), ROUNDS)
        for turn in range(ROUNDS):
            visits = world.visits(users, turn)
            contexts = written_out(world.schema, visits.rows)
            coins = Draws(task.seed, "coins").uniforms(users, turn, world.arms + 1)
            chosen = np.asarray((population.scores(contexts) + 1e-5 * coins[:, 1:]).argmax(axis=1))
            chances = visits.chances[np.arange(len(users)), chosen]
            population.learn(contexts, chosen, (coins[:, 0] < chances).astype(np.float64))
            total += float(chances.sum())
    return total / (task.evaluated * ROUNDS)


def _prior(task: Task, line: Line, contributed: _Contributed, draw: int) -> NormalPrior:
    world = world_of(task)
    match line.form:
        case "cold":
            return _cold(world)
        case "raw":
            return contributed.clear[line.slots]
        case "linear":
            return _linear(task, line, contributed, draw)
        case "codes":
            return _codes(task, line, contributed, draw)
        case "spreads":
            raise HushstreamError("play: expected a line that makes a model, got one of spreads")


def estimated_of(task: Task, line: Line, contributed: _Contributed) -> tuple[float, ...]:
    """The spreads that released sums show: smallest and largest factor, click rate, items, then blocks in order."""
    world, layout = world_of(task), layout_for(task, line)
    windows = list(_released(task, replace(line, form="linear"), contributed, 0))
    behaviour = UserBehaviour(task.arms, ROUNDS, ROUNDS, click_chance(world.click_rate))
    first = raw_effects(layout, *_weighted_sums(windows[:1])).share
    found = estimated_spreads(raw_effects(layout, *_weighted_sums(windows)), first, behaviour, ASSUMED_REST, None)
    low, _, high = found.factors
    spreads = found.spreads
    return (low, high, spreads.rate, spreads.arms, *spreads.blocks.values())


class _Window(NamedTuple):
    """Released sums of a window (2, K, P), and the variance that they add to the total."""

    sums: Int64
    variance: float


def _weighted_sums(windows: Sequence[_Window]) -> WeightedSums:
    together = np.sum([one.sums for one in windows], axis=0)
    return WeightedSums(together[0], together[1], sum(one.variance for one in windows))


def _linear(task: Task, line: Line, contributed: _Contributed, draw: int) -> NormalPrior:
    found = effects(layout_for(task, line), *_weighted_sums(list(_released(task, line, contributed, draw))))
    start = warm_start(found, click_chance(world_of(task).click_rate), ROUNDS)
    return NormalPrior.of(start.means, start.variances, start.reward_variance)


def _released(task: Task, line: Line, contributed: _Contributed, draw: int) -> Iterator[_Window]:
    world, layout = world_of(task), layout_for(task, line)
    key, address = seeded_key(task.seed, "shuffler"), _address(task, line, draw)
    blocks = world.schema.blocks(contributed.rows[: line.slots])
    arms, clicks = contributed.arms[: line.slots], contributed.clicks[: line.slots]
    contents = pack_reports(layout, arms, clicks, 0, layout.units_of(blocks))
    windows = 1 if line.windows == "one" else 10
    numerator, denominator = laplace_scale(str(line.epsilon), layout.sensitivity)
    shape = (2, layout.arms, layout.cells)
    running = RunningSums(tree_of(layout, line), key, address) if line.windows == "ten counted" else None
    for window in range(windows):
        reports = unpack_reports(layout, contents[window::windows])
        exact = linear_sums(layout, reports, np.ones(len(reports.held), dtype=np.bool_))
        if running is not None:
            step = running.step(np.concatenate([exact.ones.ravel(), exact.zeros.ravel()]))
            yield _Window(step.sums.reshape(shape), step.variance)
            continue
        stream = KeyedStream(key, _address(task, line, draw, window))
        noise = discrete_laplace(stream, numerator, denominator, int(np.prod(shape))).reshape(shape)
        released = noised_sums(exact, noise)
        yield _Window(np.stack([released.ones, released.zeros]), laplace_variance(numerator, denominator))


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
    numerator, denominator = laplace_scale(str(line.epsilon), 1)
    stream = KeyedStream(seeded_key(task.seed, "shuffler"), _address(task, line, draw))
    shape = (2, CODES, world.arms)
    noise = discrete_laplace(stream, numerator, denominator, int(np.prod(shape))).reshape(shape)
    released = noised(slot_sums(Reports.of(domain, codes, arms, clicks)), noise)
    variance = laplace_variance(numerator, denominator)
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
    return layout_of(world_of(task).schema, task.arms, 1, line.epsilon, line.slots, fresh)


@lru_cache(maxsize=16)
def tree_of(layout: FeatureLayout, line: Line) -> Any:
    """The counter over a line's ten windows."""
    return best_tree(PureEpsilon(str(line.epsilon)), 10, 2 * layout.arms * layout.cells, layout.sensitivity)


def _address(task: Task, line: Line, draw: int, window: int | None = None) -> NoiseAddress:
    parameters: dict[str, int | str | bytes] = {"line": repr(line), "draw": draw}
    return NoiseAddress(
        "release-noise", "experiment", bytes(32), "p2b", line.form, parameters, b"experiment", 0, window
    )
