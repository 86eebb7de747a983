"""What declared features bring: the share of the gain that is kept, and forecast against simulation.

Contributors learn alone over T interactions (ridge 1 and bonus 1 on contexts of length 1, ties by a coin). Slots
are padded bytes. The shuffler's own functions read, sum and noise them, and the aggregator's make models from them. New
users are played once for each model, with the same visits, coins and tie draws. A model's score is the expected reward
of the items that they are shown.

*Joining.* The share of the non-private gain that linear sums keep, compared with codes.

*Forecast.* P2B's forecast with assumed spreads against the whole simulation, in drawn worlds. No part of it was fitted
on them: it is derived (`hushstream.systems.p2b.forecast`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from hushstream.engine.declare.plan import DAYS, Audience, Range
from hushstream.features.schema import Rows, declare
from hushstream.learners.population import NormalPrior, Population
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
    Findings,
    Foretold,
    Scale,
)
from hushstream.replay.experiments.rows import (
    Row,
    beside_alone,
    columns,
    privacy_columns,
)
from hushstream.replay.experiments.systems import foretold_worlds
from hushstream.replay.runners.to_end import play_seeds
from hushstream.replay.studies.p2b.play import Line as CodesLine
from hushstream.replay.studies.p2b.play import Point, WorldSpec
from hushstream.replay.studies.p2b.play import play as play_point
from hushstream.replay.studies.p2b.run import clear_sums, written_out
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.mixed_table import ITEMS, EmbeddedUsers, FeatureWorld, MixedTable, TaggedDocuments
from hushstream.replay.worlds.world import World
from hushstream.systems.p2b.configuration import ReleaseConfig
from hushstream.systems.p2b.edge.agent import click_chance
from hushstream.systems.p2b.forecast import (
    Forecast,
    Sample,
    UserBehaviour,
    forecast_features,
)
from hushstream.systems.p2b.plan import (
    ASSUMED_ENDS,
    HIGH,
    LEAST_GAIN,
    LOW,
    MIDDLE,
    Forecaster,
    assumed_for,
    assumed_spreads,
    plan,
)
from hushstream.systems.p2b.server.estimate import cold_start, effects, model_from_sums, warm_start
from hushstream.systems.p2b.server.prior import item_vectors, shaped_effects, vector_length
from hushstream.systems.p2b.server.totals import WeightedSums
from hushstream.systems.p2b.shuffler import Domain, Reports, linear_sums, noised_sums, slot_sums
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

LINEAR: tuple[Form, ...] = ("linear", "shaped")
"""Forms that release linear sums."""

CODES = 32
_ITEMS = declare(ITEMS)
_NEW_USERS = 1 << 30
_PUBLIC_USERS = 3 << 29
_PUBLIC_CONTEXTS = 20_000
CHUNK = 5_000

Kind = Literal["mixed", "interactions", "drawn", "embedding", "documents", "featured"]
Form = Literal["cold", "raw", "linear", "shaped", "codes"]
Windows = Literal["one", "ten fresh"]


@dataclass(frozen=True, slots=True)
class Line:
    """One way to make a model.

    Attributes:
        form: ``cold``; ``raw`` (ridge on all interactions in clear); ``linear`` sums; the same under a prior ``shaped``
            by items' features; or ``codes`` of public k-means.
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
    return MixedTable(seed, arms)


def guarantee_of(task: Task, line: Line) -> Guarantee | None:
    """What a line guarantees; None for lines that guarantee nothing."""
    if line.form in LINEAR:
        layout = layout_for(task, line)
        stated = linear_sums_guarantee(str(line.epsilon), UNITS, layout.places, layout.levels)
    elif line.form == "codes":
        stated = slot_sums_guarantee(str(line.epsilon))
    else:
        return None
    return stated.under_key(reproducible=True)


def play(task: Task) -> dict[Line, tuple[float, ...]]:
    """Mean expected reward of new users for each line, one figure for each release."""
    contributed = _contribute(task, max((line.slots for line in task.lines), default=0))
    return {
        line: tuple(_judge(task, _prior(task, line, contributed, draw)) for draw in range(line.draws))
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
    sums = clear_sums(world.schema, world.arms)
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
) -> Iterator[_Turn]:
    """Let users (n,) act over T interactions from one model, and learn from each; see `act`."""
    population, place = Population(prior, len(users), ROUNDS), np.arange(len(users))
    for turn in range(ROUNDS):
        visits = world.visits(users, turn)
        contexts = written_out(world.schema, visits.rows)
        coins = Draws(seed, "coins").uniforms(users, turn, world.arms + 1)
        # Ties are broken by a coin that is much smaller than any difference of scores.
        chosen = np.asarray((population.scores(contexts) + 1e-5 * coins[:, 1:]).argmax(axis=1))
        chances = visits.chances[place, chosen]
        clicked = (coins[:, 0] < chances).astype(np.int64)
        population.learn(contexts, chosen, clicked.astype(np.float64))
        yield _Turn(visits.rows, chosen, clicked, contexts, chances)


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


def _linear(task: Task, line: Line, contributed: _Contributed, draw: int) -> NormalPrior:
    layout, sums = layout_for(task, line), _released(task, line, contributed, draw)
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


def _released(task: Task, line: Line, contributed: _Contributed, draw: int) -> WeightedSums:
    world, layout, key = world_of(task), layout_for(task, line), seeded_key(task.seed, "shuffler")
    blocks = world.schema.blocks(contributed.rows[: line.slots])
    arms, clicks = contributed.arms[: line.slots], contributed.clicks[: line.slots]
    contents = pack_reports(layout, arms, clicks, 0, layout.units_of(blocks))
    windows, scale = 1 if line.windows == "one" else 10, laplace_scale(str(line.epsilon), layout.sensitivity)
    shape, found = (2, layout.arms, layout.cells), []
    for window in range(windows):
        reports = unpack_reports(layout, contents[window::windows])
        exact = linear_sums(layout, reports, np.ones(len(reports.held), dtype=np.bool_))
        released = noised_sums(exact, _noise(key, _address(task, line, draw, window), scale, shape))
        found.append(np.stack([released.ones, released.zeros]))
    ones, zeros = np.sum(found, axis=0)
    return WeightedSums(ones, zeros, windows * laplace_variance(*scale))


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
    released = noised_sums(slot_sums(Reports.of(domain, codes, arms, clicks)), noise)
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
    return layout_of(world_of(task).schema, task.arms, 1, line.epsilon, line.slots, fresh)


def _address(task: Task, line: Line, draw: int, window: int | None = None) -> NoiseAddress:
    # Forms that are compared have the same noise.
    line = replace(line, form="linear") if line.form in LINEAR else line
    parameters: dict[str, int | str | bytes] = {"line": repr(line), "draw": draw}
    return NoiseAddress(
        "release-noise", "experiment", bytes(32), "p2b", line.form, parameters, b"experiment", 0, window
    )


FEATURES = "what joining brings, p2b"
FEATURES_SETTINGS = (
    "Shares are of the gain of ridge regression on all ten interactions of every contributor over own learning.",
    "Rewards are expected ones over the first ten interactions of 2,500 new users; intervals are over worlds.",
    "Linear sums: U = 4096 units, T = 10, h = .8 (TMC2007: .5, its declared click rate being .2), shrunk warm starts.",
    "The words of TMC2007 are tags of redundancy .2: most occur together, and each has the reward of the others.",
    "Codes: 32 centroids of a public sample of 20,000 contexts of the same world, a uniform interaction a slot.",
)


Runs = Sequence[Mapping[Line, tuple[float, ...]]]
"""A task under each seed: the rewards of its lines, one for each release."""


def run_features(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play every world under every seed; quick: two small worlds without targets."""
    seeds = JOINING_SEEDS[:2] if scale.quick else JOINING_SEEDS
    tasks = _quick() if scale.quick else _COMPARED if scale.compared else _whole(scale.data_dir)
    played = play_seeds(play, tasks, seeds, FEATURES, progress)
    rows = [_features_row(task, line, played[task]) for task in tasks for line in task.lines]
    worlds = tuple(dict.fromkeys(row["world"] for row in rows))
    return Findings(rows, [], worlds, seeds, FEATURES_SETTINGS)


def _lines(sizes: Sequence[int], private: Sequence[Line]) -> tuple[Line, ...]:
    return (Line("cold"), *(Line("raw", size) for size in sizes), *private)


def _quick() -> tuple[Task, ...]:
    private = (
        Line("linear", 2_000, 1.0),
        Line("linear", 2_000, 1.0, "ten fresh"),
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
        *(Line("linear", size, 1.0) for size in (2_000, 10_000, 50_000, 200_000)),
        Line("linear", 50_000, 1.0, "ten fresh"),
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
    "raw": "non-private",
    "linear": "linear sums",
    "shaped": "linear sums, shaped by items' features",
    "codes": "codes",
}

_NAMES: Mapping[Kind, str] = {"interactions": "mixed table, strong pairs"}


FEATURED, FEATURED_SEEDS = "items with features", range(3_000, 3_020)
"""Drawn worlds of 40 to 200 items, on which nothing was chosen."""


class Case(NamedTuple):
    """One configuration: a world with one seed, without lines, and one way to release."""

    task: Task
    line: Line


def drawn_case(seed: int, featured: bool = False) -> Case:
    """A case with everything drawn: items, with or without features, slots, epsilon, and the world (`drawn_table`)."""
    draw = Draws(seed, "drawn-case").generator()
    slots = int(np.exp(draw.uniform(np.log(1_000), np.log(20_000))))
    epsilon, arms = (
        float(draw.choice([0.5, 1.0, 2.0])),
        int(draw.choice([40, 100, 200] if featured else [5, 10, 20, 40])),
    )
    task = Task("featured" if featured else "drawn", arms, seed, evaluated=1_500)
    return Case(task, Line("shaped" if featured else "linear", slots, epsilon))


def assumed_forecasts(task: Task, line: Line) -> list[Forecast]:
    """The forecasts at both ends and in the middle of assumed spreads; of the world they know the click rate alone."""
    world, layout = world_of(task), layout_for(task, line)
    assert isinstance(world, MixedTable), "expected a world of the mixed table"
    guess = assumed_for([block.name for block in world.schema.table], world.rate)
    shaping = vector_length(_ITEMS) if _shapes(task, line) else 0
    behaviour = UserBehaviour(task.arms, ROUNDS, ROUNDS, click_chance(world.click_rate), item_features=shaping)
    variance = laplace_variance(*laplace_scale(str(line.epsilon), layout.sensitivity))
    sample = Sample(line.slots, line.slots * ROUNDS, variance)
    return [
        forecast_features(layout, guess.times(end.items, end.features, end.alike), behaviour, sample).unlucky(end.luck)
        for end in ASSUMED_ENDS
    ]


CODED, CODED_SEEDS = "codes of histograms", range(3_100, 3_140)
"""Drawn worlds on which `CODES_ENDS` was not fitted."""


def drawn_point(seed: int) -> Point:
    """A drawn world of histograms (`hushstream.replay.worlds.synthetic`) with 1,000 to 17,500 reports of one window."""
    draw = Draws(seed, "drawn-codes").generator()
    options = {
        "variant": str(draw.choice(["softmax", "softmax", "linear"])),
        "reward_scale": float(draw.choice([0.15, 0.3, 0.6, 1.0])),
        "weight_scale": float(draw.choice([0.5, 1.0, 2.0, 3.0, 5.0])),
    }
    arms, wide, users = int(draw.choice([4, 8, 10, 20])), int(draw.choice([4, 6, 10])), int(1_500 * 17 ** draw.random())
    label = ", ".join(f"{name} {value}" for name, value in options.items())
    line = CodesLine("slot sums", "auto", ReleaseConfig(epsilon=float(draw.choice([0.5, 1.0, 2.0]))))
    return Point("codes", {}, WorldSpec(CODED, label, "synthetic", options), users, ROUNDS, wide, arms, (line,))


def foretold_of_codes(seed: int) -> Foretold:
    """A drawn world of histograms (`drawn_point`), the plan of its codes, and what warm users gain."""
    point = drawn_point(seed)
    played, config = play_point(point, (seed,)), point.configuration(point.lines[0])
    rate = _rate_of(point.world.make(point.users, ROUNDS, point.dimension, point.arms, seed))
    audience = Audience(point.contributors, ROUNDS, rate=rate)
    ahead = Forecaster(config, audience, assumed_spreads(config, rate))
    (cold, _, private), ends = played.means[0].tolist(), [ahead.at(DAYS[-1], end).gain for end in (LOW, MIDDLE, HIGH)]
    return Foretold(
        world=f"{point.world.label}; {point.arms} items, {point.contributors:,} reports, rate {rate:.2g}, "
        f"epsilon {point.lines[0].release.epsilon:g}",
        measure="reward a visit of a new user, over own learning",
        said=Range(min(ends), ends[MIDDLE], max(ends)),
        beats=plan(config, audience).beats,
        gain=private - cold,
        guarantee=played.guarantees[0],
        least=LEAST_GAIN * cold,
    )


def _rate_of(world: World) -> float:
    """Share of visits that reward a random item."""
    users = np.arange(min(1_500, world.users))
    means = [world.expected(users, 0, np.full(len(users), arm)) for arm in range(world.arms)]
    return float(np.clip(np.mean([one for one in means if one is not None]), 1e-3, 0.99))


def foretold(seed: int) -> Foretold:
    """A drawn world (`drawn_case`), the forecast with assumed spreads, and what warm users gain."""
    return _foretold(drawn_case(seed))


def foretold_of_featured(seed: int) -> Foretold:
    """The same of a world whose items have features."""
    return _foretold(drawn_case(seed, featured=True))


def _foretold(case: Case) -> Foretold:
    task, line = case
    played = play(replace(task, lines=(Line("cold"), line)))
    ends = assumed_forecasts(task, line)
    better = [end.gain > LEAST_GAIN * end.cold for end in ends]
    cold, stated = played[Line("cold")][0], guarantee_of(task, line)
    world = world_of(task)
    assert stated is not None
    assert isinstance(world, MixedTable)
    return Foretold(
        world=f"{task.arms} items, {line.slots:,} reports, rate {world.rate:.2g}, epsilon {line.epsilon:g}",
        measure="reward a visit of a new user, over own learning",
        said=Range(*sorted(end.gain for end in ends)),
        beats=True if all(better) else None if any(better) else False,
        gain=float(np.mean(played[line])) - cold,
        guarantee=stated,
        least=LEAST_GAIN * cold,
    )


def run_forecast(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the drawn worlds, then those whose items have features, and those of codes; quick: the first alone."""
    drawn = foretold_worlds(foretold, scale, progress)
    if scale.quick:
        return drawn
    for part, play_one, seeds in (
        (FEATURED, foretold_of_featured, FEATURED_SEEDS),
        (CODED, foretold_of_codes, CODED_SEEDS),
    ):
        more = foretold_worlds(play_one, scale, progress, drawn=seeds)
        drawn = replace(
            drawn,
            rows=[*drawn.rows, *({**row, "part": part} for row in more.rows)],
            targets=[*drawn.targets, *(replace(one, name=f"{part}: {one.name}") for one in more.targets)],
        )
    return drawn
