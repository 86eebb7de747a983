"""Plays the three slots in batches, and the predictors to compare them with; makes rows of the results.

All users of a world act at once, through the stages of a deployment. The predictors are those that a device alone has,
and those without privacy.

Plays a deployment of BGTplanner in a closed loop, directly or through a broker, and reports the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushstream.agents.worker.deployment import parse_as, prepare, written
from hushstream.client.logs import EventLog
from hushstream.client.ratings import RatingClient
from hushstream.engine.declare.declaration import System
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay import catalogue
from hushstream.replay.catalogue import hint
from hushstream.replay.checks import PlayOptions, merged_values, run_fields
from hushstream.replay.experiments.rows import Row, columns, privacy_columns
from hushstream.replay.report.parts import Comparison, paired, ratio
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.runners import playing
from hushstream.replay.runners.playing import Recording, deployed
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.bgt import worlds as worlds
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, Float64, Int64, RatingWorld, Split, make_world
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.artefacts import bgt_address, inputs_of
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, bgt_digest
from hushstream.systems.bgt.edge.agent import Ratings, fit, make_slots, predict, solve
from hushstream.systems.bgt.guarantee import RELATION, UNIT_OF_PROMISE, epoch_guarantee
from hushstream.systems.bgt.records import ROUNDS, Model, Round, slot_bytes
from hushstream.systems.bgt.server import Server
from hushstream.systems.bgt.shuffler import Collector

_ID = 16


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        world: name of the world.
        epsilon: None for no noise.
        seed: seed of split, keys and losses.
        features: whether public features are used, where the world has them.
        lost: share of slots that never arrive, drawn anew in each round.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    epsilon: float | None
    seed: int
    features: bool = False
    lost: float = 0.0
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a run.

    Attributes:
        rmse: of predictions by devices, each of which mixes the last model with its own mean.
        released: RMSE of predictions by the last model alone.
        f1, balanced: scores for ratings above one half (see `evaluate`).
        after: RMSE after each round.
        kinds: the kind of slot that each round asked for.
        ratio: largest eigenvalue of the pairs divided by the edge of the noise; 0 where no edge was tested.
        factors: how many factors were kept.
    """

    rmse: float
    released: float
    f1: float
    balanced: float
    after: tuple[float, ...]
    kinds: tuple[str, ...]
    ratio: float
    factors: int


def configuration(task: Task, world: RatingWorld) -> BgtConfig:
    """The configuration of a run."""
    release = ReleaseConfig("exact" if task.epsilon is None else "gaussian", task.epsilon or 1.0)
    return BgtConfig("experiment", world.item_count, world.features.shape[1], UNIT_SCALE, release)


def play(task: Task) -> Played:
    """Play one run."""
    world = make_world(task.world, task.data_dir)
    return play_world(task, world if task.features else world.without_features())


def play_world(task: Task, world: RatingWorld) -> Played:
    """Run a task on a world that is loaded already; see `Task`."""
    config, split = configuration(task, world), world.split(task.seed)
    known = split.known(config)
    server, after, kinds = Server(config, world.features), [], []
    for asked in answered(server, known, config, task):
        after.append(evaluate(split, known, server.model, config)[0])
        kinds.append(asked.kind)
    rmse, f1, balanced = evaluate(split, known, server.model, config)
    released = evaluate(split, known, server.model, config, released=True)[0]
    spectrum = server.spectrum
    ratio = float(spectrum.largest[0] / spectrum.edge) if spectrum is not None and spectrum.edge else 0.0
    return Played(rmse, released, f1, balanced, tuple(after), tuple(kinds), ratio, server.model.factors.shape[1])


def answered(server: Server, known: Ratings, config: BgtConfig, task: Task) -> Iterator[Round]:
    """Play the rounds; yield each one after the server has learned from it."""
    while server.asked is not None:
        asked = server.asked
        collector = open_round(asked, config, task.seed)
        collect(collector, known, config, task)
        server.take(collector.release())
        yield asked


def open_round(asked: Round, config: BgtConfig, seed: int) -> Collector:
    """A collector with a seeded key."""
    key = None if config.release.noise == "exact" else seeded_key(seed, "collector")
    return Collector(asked, config, key, bgt_address(config, bgt_digest(config), bytes(32), 0))


def collect(collector: Collector, known: Ratings, config: BgtConfig, task: Task) -> None:
    """Let every user answer whose slot is not lost."""
    users = np.arange(known.users)
    salts = Draws(task.seed, "bgt-salts").generator().integers(0, 2**63, known.users).astype(np.uint64)
    slots = make_slots(known, collector.asked, config, salts)
    there = Draws(task.seed, "bgt-lost").uniforms(users, collector.asked.number, 1)[:, 0] >= task.lost
    named = [user.to_bytes(_ID, "big") for user in users[there].tolist()]
    collector.take(slots[there], named)


def evaluate(
    split: Split, known: Ratings, model: Model, config: BgtConfig, released: bool = False
) -> tuple[float, float, float]:
    """RMSE, F1 and balanced accuracy of `predicted_later`."""
    found = predicted_later(split, known, model, config, released)
    return scored(found, split.world.values[split.later])


def predicted_later(split: Split, known: Ratings, model: Model, config: BgtConfig, released: bool = False) -> Float64:
    """Predictions of the later ratings, in their order: by devices that mix or, where ``released``, the model alone."""
    world, rows = split.world, split.later
    own = fit(known, model, world.features, config)
    if released:
        own = own._replace(weight=np.ones(len(own.weight)))
    return predict(own, world.users[rows], world.items[rows], model, world.features, config)


def scored(found: Float64, truth: Float64) -> tuple[float, float, float]:
    """RMSE; F1 and balanced accuracy of being above one half."""
    rmse = float(np.sqrt(np.mean((found - truth) ** 2)))
    yes, said = truth > 0.5, found > 0.5
    right, wrong = (int(np.count_nonzero(said & one)) for one in (yes, ~yes))
    positives, negatives = int(np.count_nonzero(yes)), int(np.count_nonzero(~yes))
    f1 = 2 * right / max(1, positives + right + wrong)
    return rmse, f1, (right / max(1, positives) + 1 - wrong / max(1, negatives)) / 2


_ROUNDS = 20
_OWN_RIDGES = (2.0, 5.0, 20.0, 80.0, 1e9)
_BIAS_RIDGE = 4.0

NAMES = ("constant", "alone", "user and item bias", "all positive")
"""``alone``: see `_alone`."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline on a split.

    Attributes:
        world: name of the world.
        name: one of `NAMES`, or random: a random one of the earlier ratings.
        seed: seed of the split, and of random.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    name: str
    seed: int
    data_dir: str | None = None


def baseline(task: Baseline) -> tuple[float, float, float]:
    """Score a baseline: RMSE, F1 and balanced accuracy."""
    return baseline_of(make_world(task.world, task.data_dir), task.name, task.seed)


def baseline_of(world: RatingWorld, name: str, seed: int) -> tuple[float, float, float]:
    """Score a baseline as `baseline` does, on a world that is loaded already."""
    return scored(predictions_of(world, name, seed), world.values[world.split(seed).later])


def predictions_of(world: RatingWorld, name: str, seed: int) -> Float64:
    """A baseline's predictions of the later ratings, in their order."""
    config = BgtConfig("experiment", world.item_count, world.features.shape[1], UNIT_SCALE)
    split = world.split(seed)
    known, rows = split.known(config), split.later
    users, items = world.users[rows], world.items[rows]
    if name in ("constant", "all positive"):
        return np.full(len(rows), 1.0 if name == "all positive" else float(known.values.mean()))
    if name == "random":
        return np.asarray(Draws(seed, "bgt-random").generator().choice(known.values, len(rows)))
    if name == "alone":
        return _alone(world, known, config, users, items)
    mean, user, item = _biases(known, world.item_count)
    return np.clip(mean + user[users] + item[items], 0, 1)


def _alone(world: RatingWorld, known: Ratings, config: BgtConfig, users: Int64, items: Int64) -> Float64:
    """Predictions of (n,) ``items`` by each device's own ratings, as good as they get without others.

    A device's mean, and where they help its ridge regression on public features, are shrunk toward the mean of all
    ratings, by the strength that predicts left-out ratings best. No device alone knows that mean and strength: with
    strengths of its own, in a world whose users are all alike, it lost to a constant.
    """
    mean, public = float(known.values.mean()), config.model.feature_scale * world.features
    fits = [
        (features, solve(known, known.values - mean, features, ridge, config.model.factor_ridge))
        for features in (public, public[:, :0])
        for ridge in _OWN_RIDGES
    ]
    features, best = min(fits, key=lambda one: float((one[1].left_out ** 2).mean()))
    found = mean + best.own[users, 0] + (best.own[users, 1:] * features[items]).sum(axis=1)
    return np.asarray(np.clip(found, 0, 1))


def _biases(known: Ratings, count: int) -> tuple[float, Float64, Float64]:
    """Offsets of users and items, fitted in turns; each is shrunk as if it had `_BIAS_RIDGE` more ratings of 0."""
    mean, item = float(known.values.mean()), np.zeros(count)
    user = np.zeros(known.users)
    rated = np.bincount(known.items, minlength=count)
    for _ in range(_ROUNDS):
        user = known.sums(known.values - mean - item[known.items]) / (known.counts + _BIAS_RIDGE)
        rest = known.values - mean - user[known.owners]
        item = np.bincount(known.items, weights=rest, minlength=count) / (rated + _BIAS_RIDGE)
    return mean, user, item


SOURCE = (
    "Zhang et al., BGTplanner: Maximizing Training Accuracy for Differentially Private Federated Recommenders via "
    "Strategic Privacy Budget Allocation (arXiv:2412.02934)"
)
SEEDS = (0, 1, 2)
EPSILONS = (10.0, 5.0, 3.0, 1.0)

SETTINGS = (
    f"Unit: {UNIT_OF_PROMISE} ({RELATION}); delta 1e-5. A user's reports against other reports of the same user cost 4"
    " rho: epsilon 24.2 where the guarantee against null is 10.",
    "RMSE on a scale from 0 to 1: FilmTrust (r - .5) / 3.5, MovieLens r / 5; a random four fifths of the ratings"
    " are for learning. F1 and balanced accuracy are for a rating above one half; all positive says yes to all.",
    "Local rows predict each user's own mean (with features: own ridge on genres and year), without data of others.",
    "Worlds' splits and keys are seeded: REPRODUCIBLE, NOT PRIVATE.",
)


def score_columns(scores: Sequence[tuple[float, float, float]]) -> Row:
    """Columns of RMSE, F1 and balanced accuracy from one triple a seed."""
    rmse, f1, balanced = zip(*scores, strict=True)
    return {
        **columns("rmse", rmse),
        "f1": float(np.mean(f1)),
        "balanced": float(np.mean(balanced)),
    }


def guarantee_of(task: Task) -> Guarantee:
    """The guarantee of a run, whose key is seeded."""
    world = make_world(task.world, task.data_dir)
    world = world if task.features else world.without_features()
    return epoch_guarantee(configuration(task, world)).under_key(True)


def promised(task: Task) -> Row:
    """The guarantee as columns."""
    return privacy_columns(guarantee_of(task))


_TIMEOUT_SECONDS = 300.0
_AT_ONCE = 64
"""The number of users who send ratings or requests at the same time."""


_Act = Callable[[RatingClient, int], Awaitable[None]]


@dataclass(slots=True)
class RatingsPlayed:
    """The outcome of a run.

    Attributes:
        predicted: (rounds, m) predictions of the later ratings after each round, from 0 to 1.
        seconds: from the first rating to the last answer.
        latencies: seconds from request to answer, of each user after the last round.
    """

    predicted: Float64
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def user_name(user: int) -> str:
    """The name of a world's user in the deployment."""
    return f"user-{user}"


class RatingLoop:
    """Plays a split world against a deployment."""

    def __init__(self, split: Split, config: BgtConfig, progress: Progress | None = None) -> None:
        """Bind a split world to the configuration of its deployment."""
        self._split = split
        self._config = config
        self._progress = progress
        self._done = 0
        self.played = RatingsPlayed(np.zeros((ROUNDS, len(split.later))))

    async def run(self, log: EventLog) -> RatingsPlayed:
        """Play over a client's log.

        Raises:
            PredictionTimeout: a rater's answer or the model of a round did not come in time.
        """
        started = time.perf_counter()
        async with RatingClient(log, self._config) as client:
            await self._all(client, self._rate, "ratings")
            for number in range(ROUNDS):
                await client.end_round(number)
                await self._all(client, self._ask(number), f"round {number + 1} of {ROUNDS}")
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _all(self, client: RatingClient, act: _Act, what: str) -> None:
        """Let every user act, `_AT_ONCE` users at a time."""
        users = self._split.world.user_count
        for first in range(0, users, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, users))
            await asyncio.gather(*(act(client, user) for user in some))
            self._done += len(some)
            if self._progress is not None:
                self._progress(self._done, (1 + ROUNDS) * users, what)

    async def _rate(self, client: RatingClient, user: int) -> None:
        world, rows = self._split.world, self._rows(self._split.earlier, user)
        scale = self._config.scale
        values = scale.lowest + world.values[rows] * (scale.highest - scale.lowest)
        await client.rate(user_name(user), world.items[rows].tolist(), values)

    def _ask(self, number: int) -> _Act:
        async def asked(client: RatingClient, user: int) -> None:
            world, rows = self._split.world, self._rows(self._split.later, user)
            if not len(rows):
                return
            began = time.perf_counter()
            found = await client.predict(
                f"round-{number}-{user}",
                user_name(user),
                world.items[rows].tolist(),
                after_round=number,
                timeout=_TIMEOUT_SECONDS,
            )
            if number + 1 == ROUNDS:
                self.played.latencies.append(time.perf_counter() - began)
            scale = self._config.scale
            places = np.searchsorted(self._split.later, rows)
            self.played.predicted[number, places] = (found.values - scale.lowest) / (scale.highest - scale.lowest)

        return asked

    def _rows(self, among: Int64, user: int) -> Int64:
        return np.asarray(among[self._split.world.users[among] == user])


_LETTERS = {"items": "A", "pairs": "B", "factors": "C"}
_BASELINES = {"each device alone": "alone", "constant": "constant"}
"""Predictors without others, as readers know them."""


@dataclass(frozen=True, slots=True)
class BgtOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and BGTplanner's own.

    Attributes:
        dataset: name of a world of ratings.
        epsilon: the epsilon of all slots of a user; the configuration may set more settings of the release.
        features: whether public features of items are used, where the world has them.
    """

    dataset: str = "filmtrust"
    epsilon: float = 10.0
    features: bool = True


def run_bgt(options: BgtOptions, progress: Progress | None = None) -> RunResult:
    """Play three rounds; return errors and those of the baselines, guarantee, counts and throughput.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, the world has no ratings, or the configuration
            is invalid.
    """
    options.require_runner()
    world = _world(options)
    with deployed(options.folder) as folder:
        config = parse_as(BgtConfig, config_values(options, world))
        playing.require_hosted(config.devices)
        if config.items != world.item_count or config.features != world.features.shape[1]:
            raise HushstreamError(
                f"items, features: expected the world's {world.item_count} and {world.features.shape[1]}, got "
                f"{config.items} and {config.features}"
            )
        system = prepare(folder, config, inputs_of(world.features), public_dataset=world.name)
        place = options.place(folder)
        split = world.split(options.seed)
        loop = RatingLoop(split, config, progress)
        recording = run_to_end(lambda: playing.play(system, place, loop.run))
    return _result(options, split, system, recording)


def config_values(options: BgtOptions, world: RatingWorld) -> dict[str, Any]:
    """The configuration that fits a world, with the values that the caller set."""
    release = ReleaseConfig(epsilon=options.epsilon)
    fitting = BgtConfig("replay", world.item_count, world.features.shape[1], worlds.UNIT_SCALE, release)
    return merged_values(written(fitting), options.config)


def _world(options: BgtOptions) -> RatingWorld:
    # For this system, ``ml-100k`` means the ratings of MovieLens; another system has a world of this name.
    name = "ml-ratings" if options.dataset == "ml-100k" else options.dataset
    world = catalogue.seeded_world(name, options.world, options.seed)
    if not isinstance(world, RatingWorld):
        raise HushstreamError(f"dataset: expected a world of ratings, got {options.dataset!r}{hint(options.dataset)}")
    if not world.public:
        raise HushstreamError(
            "dataset: expected a public one, as errors are exact figures on ratings; if yours are public, "
            "write `public: true` into their mapping"
        )
    return world if options.features else world.without_features()


def _result(options: BgtOptions, split: Split, deployed: System, recording: Recording[RatingsPlayed]) -> RunResult:
    played, world, models = recording.played, split.world, _models(recording)
    truth = world.values[split.later]
    alone = predictions_of(world, "alone", options.seed)
    rounds = [scored(found, truth) for found in played.predicted]
    names = [f"round {number}: {_content(kind)}" for number, kind in enumerate(models.kinds, 1)]
    baselines = {name: baseline_of(world, key, options.seed) for name, key in _BASELINES.items()}
    size = slot_bytes(deployed.core.config)
    lines = {"shared": [one[0] for one in rounds]} | {name: [one[0]] * ROUNDS for name, one in baselines.items()}
    return RunResult(
        **run_fields(options, world.name, deployed, recording, world.user_count),
        title=f"bgt on {world.name}: rounds {' '.join(_LETTERS.get(kind, '-') for kind in models.kinds)}",
        facts={
            "users": world.user_count,
            "items": world.item_count,
            "ratings on devices": len(split.earlier),
            "ratings predicted": len(split.later),
            "bytes of a slot": size,
            "bytes of a round": size * world.user_count,
            "factors kept": models.factors,
            "largest eigenvalue over the noise's edge": models.ratio,
        },
        reached=f"RMSE {rounds[-1][0]:.4f} of predicted ratings, on a scale from 0 to 1",
        headline=ratio("RMSE over that of each device alone", _compared(split, played.predicted[-1], alone)),
        payoff=_payoff(split, played.predicted[-1], alone),
        rows=RunRows(
            "RMSE on a scale from 0 to 1; F1 and balanced accuracy are of being above one half.",
            (Column("predicted_by"), Column("RMSE", ".4f"), Column("F1", ".4f"), Column("balanced_accuracy", ".4f")),
            tuple((name, *scores) for name, scores in [*zip(names, rounds, strict=True), *baselines.items()]),
        ),
        curve=RunCurve(
            name="rmse",
            title="Error of predicted ratings",
            caption="RMSE on a scale from 0 to 1; lower is better, and the axis does not start at 0.",
            what="RMSE",
            across="rounds",
            at=tuple(range(1, ROUNDS + 1)),
            lines={name: tuple(values) for name, values in lines.items()},
            form="alone",
        ),
    )


def _content(kind: str) -> str:
    """What the slots of a round are about."""
    return f"{_LETTERS[kind]} ({kind})" if kind in _LETTERS else "withheld"


def _compared(split: Split, found: Float64, alone: Float64) -> Comparison | None:
    """RMSE divided by that of a device alone; the sample is the users, each with the sum of their squared errors."""
    world, rows = split.world, split.later
    ours, others = (
        np.bincount(world.users[rows], (one - world.values[rows]) ** 2, world.user_count) for one in (found, alone)
    )
    squares = paired(np.asarray(ours, dtype=np.float64), np.asarray(others, dtype=np.float64))
    if squares is None:
        return None
    return Comparison(*(float(np.sqrt(max(0.0, one))) for one in (squares.ratio, squares.low, squares.high)))


def _payoff(split: Split, found: Float64, alone: Float64) -> Payoff:
    """RMSE compared with that of a device alone; the sample is the users.

    The interval is that of the linear part of the difference: if the mean below a root changes, the root changes by
    that change divided by twice the root (the delta method).
    """
    truth = split.world.values[split.later]
    squares = [(one - truth) ** 2 for one in (found, alone)]
    ours, others = (float(np.sqrt(one.mean())) for one in squares)
    users = np.asarray(split.world.users[split.later], dtype=np.int64)
    # For a perfect prediction the error is 0, where the root has no derivative.
    linear = [one / (2 * root) if root else one for one, root in zip(squares, (ours, others), strict=True)]
    gap = paired_gap(linear[0], linear[1], users)
    return Payoff(
        what="RMSE",
        value=ours,
        baseline="each device alone, which is told the mean of all ratings",
        reference=others,
        gap=gap.around(ours - others),
        units="users",
        otherwise="leave ratings on the devices, or use a larger epsilon or more users",
        less_is_better=True,
        digits=4,
    )


@dataclass(frozen=True, slots=True)
class _Models:
    """Facts on the rounds from the published models.

    Attributes:
        kinds: the kind of slot that each round requested; "none" where it requested none.
        factors: how many factors the last model has.
        ratio: largest eigenvalue divided by the edge of the noise; 0 where no edge was tested.
    """

    kinds: tuple[str, ...]
    factors: int
    ratio: float


def _models(recording: Recording[RatingsPlayed]) -> _Models:
    records = [codec.decode(record.value) for record in recording.logs.parts["models", 0].records]
    models = [fields for name, fields in records if name == "RatingModel"]
    last, items = models[-1], len(models[-1]["biases"]) // 8
    edges = [_ratio(fields) for fields in models if fields["edge"] > 0]
    kinds = ("items", *(fields["next_kind"] for fields in models))
    padded = (*kinds, *["none"] * 3)[:3]
    return _Models(padded, len(last["factors"]) // (8 * items), edges[-1] if edges else 0.0)


def _ratio(fields: Mapping[str, Any]) -> float:
    return float(np.frombuffer(fields["largest"], "<f8")[0] / fields["edge"])
