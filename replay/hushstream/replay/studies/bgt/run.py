"""Plays a world of ratings through BGTplanner's raters, collector and aggregator, in three rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.agents.worker.deployment import parse_as, prepare, written
from hushstream.engine.declare.declaration import System
from hushstream.replay.catalogue import worlds as catalogue
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.checks import run_fields
from hushstream.replay.configurations import merged_values
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.progress import Progress
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.summaries import Comparison, paired
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.bgt.baselines import baseline_of, predictions_of
from hushstream.replay.studies.bgt.closed_loop import RatingLoop, RatingsPlayed
from hushstream.replay.studies.bgt.play import scored
from hushstream.replay.studies.bgt.report import BgtResult, RoundRow
from hushstream.replay.studies.bgt.worlds import ratings as worlds
from hushstream.replay.studies.bgt.worlds.ratings import Float64, RatingWorld, Split
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.artefacts import inputs_of
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig
from hushstream.systems.bgt.slots import slot_bytes

_BASELINES = ("constant", "local", "local with features")


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


def run_bgt(options: BgtOptions, progress: Progress | None = None) -> BgtResult:
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


def _result(options: BgtOptions, split: Split, deployed: System, recording: Recording[RatingsPlayed]) -> BgtResult:
    played, system, world = recording.played, deployed.core, split.world
    config: BgtConfig = system.config
    truth = world.values[split.later]
    names = [name for name in _BASELINES if world.features.shape[1] or name != "local with features"]
    models = _models(recording)
    alone = _best_alone(split, names, options.seed)
    return BgtResult(
        **run_fields(options, world.name, deployed, recording, world.user_count),
        users=world.user_count,
        items=world.item_count,
        ratings=len(split.earlier),
        judged=len(split.later),
        slot_bytes=slot_bytes(config),
        baselines={name: baseline_of(world, name, options.seed) for name in names},
        rounds=tuple(
            RoundRow(number, kind, *scored(found, truth))
            for number, (found, kind) in enumerate(zip(played.predicted, models.kinds, strict=True))
        ),
        factors=models.factors,
        ratio=models.ratio,
        comparison=_compared(split, played.predicted[-1], alone),
        payoff=_payoff(split, played.predicted[-1], alone),
    )


def _best_alone(split: Split, names: Sequence[str], seed: int) -> Float64:
    """Predictions of the better baseline on the device alone, one for each evaluated rating."""
    world, rows = split.world, split.later
    local = [predictions_of(world, name, seed) for name in names if name.startswith("local")]
    return min(local, key=lambda one: float(((one - world.values[rows]) ** 2).sum()))


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
