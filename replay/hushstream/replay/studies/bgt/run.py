"""Plays a deployment of BGTplanner in a closed loop, directly or through a broker, and reports the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushstream.agents.worker.deployment import parse_as, prepare, written
from hushstream.client.logs import EventLog
from hushstream.client.ratings import RatingClient
from hushstream.engine.declare.declaration import System
from hushstream.replay import catalogue
from hushstream.replay.catalogue import hint
from hushstream.replay.checks import PlayOptions, merged_values, run_fields
from hushstream.replay.report.parts import Comparison, paired, ratio
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.bgt import worlds as worlds
from hushstream.replay.studies.bgt.play import baseline_of, predictions_of, scored
from hushstream.replay.studies.bgt.worlds import Float64, Int64, RatingWorld, Split
from hushstream.replay.study import Progress
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.artefacts import inputs_of
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig
from hushstream.systems.bgt.slots import ROUNDS, slot_bytes

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
        if config.items != world.item_count or config.features != world.features.shape[1]:
            raise HushstreamError(
                f"items, features: expected the world's {world.item_count} and {world.features.shape[1]}, got "
                f"{config.items} and {config.features}"
            )
        system = prepare(folder, config, inputs_of(world.features), public_dataset=world.name)
        place = options.place(folder)
        split = world.split(options.seed)
        loop = RatingLoop(split, config, progress)
        recording = run_to_end(lambda: play(system, place, loop.run))
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
        baseline="each device alone",
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
