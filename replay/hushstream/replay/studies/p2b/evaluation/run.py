"""Replays the log of another policy through P2B, and returns the results."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import KeySource, load, make_folder, parse_as
from hushstream.engine.declare.declaration import System
from hushstream.features.schema import FeatureSchema
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.checks import record_counts, role_checks
from hushstream.replay.collection import seldom_collected
from hushstream.replay.configurations import NEVER_SECONDS, merged_values
from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.catalogue import LOGS, known_logs
from hushstream.replay.logged.evaluate import importance_sampling, policy_values, replay_value, thinned
from hushstream.replay.logged.features import require_histograms
from hushstream.replay.logged.frames import Table
from hushstream.replay.logged.gains import Gains, gains
from hushstream.replay.logged.log import INTERNAL_MARK, LogError, LoggedDataset, concatenate
from hushstream.replay.logged.mapping import DATA_MEANING, load_mapping, parse_mapping
from hushstream.replay.logged.models import expected_rewards, reward_model, with_estimated_propensities
from hushstream.replay.logged.table import stream_table
from hushstream.replay.measures import environment
from hushstream.replay.progress import Progress
from hushstream.replay.report.results import StatedGuarantee
from hushstream.replay.runners.playing import Place, Recording, Runner, deployed, play, require_runner
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.p2b.closed_loop import CONDITIONS
from hushstream.replay.studies.p2b.evaluation.deployed import REWARD_WAIT_SECONDS, NextSteps, evaluated_deployment
from hushstream.replay.studies.p2b.evaluation.evaluation import PolicyRow
from hushstream.replay.studies.p2b.evaluation.logged_loop import LoggedLoop, LoggedPlan, LoggedPlayed
from hushstream.replay.studies.p2b.evaluation.shown import ShownEvaluation
from hushstream.replay.studies.p2b.evaluation.verdict import OF_EXACT
from hushstream.replay.studies.p2b.report.results import WARM_NONPRIVATE, WARM_PRIVATE
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.grid import normalise_grid

_SPLIT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """What to replay, and how.

    Attributes:
        log: the path of a CSV or Parquet file, or a data frame; needs a mapping.
        mapping: the mapping of the log: its file, or its keys and values.
        dataset: a published log by name, in place of a file.
        data_dir: folder of the published log.
        dataset_options: options of the published log (for ``obd``: policy, campaign).
        runner: "direct" or "stream".
        seed: seed of keys, coins, the thinning and the choice of contributors.
        conditions: conditions of the comparison; None for all that the deployment can have.
        contributors: share of the users who contribute a slot; the rows of all others are evaluated.
        deployment: a deployment.yaml, or a draft of one, that is evaluated without changes; it declares features.
        config: values of the configuration that replace the defaults, nested as in deployment.yaml.
        folder: folder of the deployment; a temporary folder by default.
        bootstrap: a Kafka cluster to run on; the embedded broker by default.
        security: YAML file with that cluster's SASL and TLS settings, as `hushstream.agents.security` reads it.
        in_flight: how many rows are played at the same time.
        speed: logged seconds played per second; None: as fast as possible.
        limit: how many rows to replay at most, from the first on.
        first: contributors' rows with lower numbers were played by an earlier run.
        least_propensity: a lower bound of the logging policy's propensities; default: the smallest in the log.
        verify: whether to recompute everything that was published, at the end.
    """

    log: Table | None = None
    mapping: Path | Mapping[str, Any] | None = None
    deployment: Path | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    runner: Runner = "direct"
    seed: int = 0
    conditions: tuple[str, ...] | None = None
    contributors: float = 0.7
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    bootstrap: str | None = None
    security: Path | None = None
    in_flight: int = 512
    speed: float | None = None
    limit: int | None = None
    first: int = 0
    least_propensity: float | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_runner(self.runner, self.bootstrap, self.security)
        if (self.log is None) == (self.dataset is None):
            raise HushstreamError("evaluate: expected a log or the name of a dataset, got both or neither")
        if (self.log is None) != (self.mapping is None):
            raise HushstreamError("evaluate: expected a mapping with a log of your own, and only with one")
        if self.deployment is not None and (self.log is None or self.config):
            raise HushstreamError(
                f"deployment: expected a log of your own and no further setting, as {self.deployment} is "
                "evaluated without changes, got others"
            )
        if self.log is not None and self.dataset_options:
            names = ", ".join(sorted(self.dataset_options))
            raise HushstreamError(f"evaluate: expected options of a published log only with its dataset, got {names}")
        if not 0.0 < self.contributors < 1.0:
            raise HushstreamError(f"contributors: expected a share above 0 and below 1, got {self.contributors!r}")
        if self.limit is not None and self.limit < 1:
            raise HushstreamError(f"limit: expected at least 1 row, got {self.limit!r}")


@seldom_collected()
def evaluate_with(options: EvaluateOptions, progress: Progress | None = None) -> ShownEvaluation:
    """Replay a log through the agents, and evaluate every condition of the comparison on it.

    Args:
        options: what to replay, and how.
        progress: called with (rows done, rows in all, what is going on).

    Raises:
        HushstreamError: the dataset is unknown, the log or the mapping cannot be read, contexts are no histograms, or
            the configuration is invalid.
    """
    deployment = None if options.deployment is None else evaluated_deployment(options.deployment)
    log = read_log(options, None if deployment is None else deployment.schema)
    survives = thinned(log, options.seed, options.least_propensity)
    contributes, contributors = _split(log, options)
    conditions = _conditions(options, log)
    plan = LoggedPlan(contributes, survives, conditions, options.in_flight, options.speed, options.first)
    with deployed(options.folder) as folder:
        config = _config(options, log, contributors) if deployment is None else deployment.replayed(log, contributes)
        played_log = _on_grid(log, config)
        marked = f"{log.name}, {INTERNAL_MARK}" if log.internal else log.name
        keys = KeySource(seed=options.seed)
        make_folder(folder, config, keys=keys, public_dataset=marked, non_private_arm=log.schema is None)
        system = load(folder)
        place = Place(
            options.runner, folder, options.bootstrap, options.seed, options.first > 0, security=options.security
        )
        rules = system.requests if log.schema is not None else None
        recording = run_to_end(lambda: play(system, place, LoggedLoop(played_log, plan, progress, rules).run))
    next_steps = None if deployment is None else deployment.next_steps(log)
    return _evaluation(options, log, plan, contributors, system, recording, next_steps)


def _conditions(options: EvaluateOptions, log: LoggedDataset) -> tuple[str, ...]:
    """The conditions to play; with declared features, none needs a deployment that sends interactions in clear."""
    known = tuple(one for one in CONDITIONS if log.schema is None or one != WARM_NONPRIVATE)
    unknown = sorted(set(options.conditions or ()) & set(CONDITIONS) - set(known))
    if unknown:
        raise HushstreamError(
            f"conditions: expected some of {', '.join(known)} where features are declared, got {', '.join(unknown)}"
        )
    return known if options.conditions is None else options.conditions


def read_log(options: EvaluateOptions, features: FeatureSchema | None = None) -> LoggedDataset:
    """Read the rows to replay, by time; ``features`` are those of the evaluated deployment, if any.

    Raises:
        LogError: the mapping does not say whether the log is public, the log cannot be replayed, or its contexts are no
            histograms.
    """
    if options.dataset is not None:
        log = load_log(options.dataset, options.data_dir, **options.dataset_options)
    else:
        assert options.log is not None
        assert options.mapping is not None
        log = _read_table(options.log, options.mapping, options.limit, features)
    log = log.in_time_order()
    if options.limit is not None:
        log = log.select(np.arange(min(options.limit, len(log))))
    if log.schema is None:
        require_histograms(log)
    if log.internal and options.bootstrap is not None:
        raise HushstreamError(
            "bootstrap: expected none for an internal log, whose rows would be in clear on "
            f"{options.bootstrap}; the embedded broker keeps them on this machine"
        )
    return log if log.propensities is not None else with_estimated_propensities(log, options.seed)


def _read_table(
    table: Table, given: Path | Mapping[str, Any], limit: int | None, features: FeatureSchema | None
) -> LoggedDataset:
    mapping = parse_mapping(given, "mapping", features) if isinstance(given, Mapping) else load_mapping(given, features)
    if mapping.data is None:
        source = "mapping" if isinstance(given, Mapping) else given
        raise LogError(
            f"{source}: an evaluation prints exact figures on contexts and rewards, and its keys come from a seed: "
            f"expected {DATA_MEANING}"
        )
    parts, rows = [], 0
    for part in stream_table(table, mapping):
        parts.append(part)
        rows += len(part)
        if limit is not None and rows >= limit:
            break
    log = concatenate(parts)
    return log if limit is None else log.select(np.arange(min(limit, rows)))


def _split(log: LoggedDataset, options: EvaluateOptions) -> tuple[NDArray[np.bool_], int]:
    """Choose the users who contribute by the seed; return a mask of their rows, and the number of these users."""
    names, user_of_row = np.unique(log.users, return_inverse=True)
    if len(names) < 2:
        raise LogError(f"{log.name}: expected at least 2 users, some to contribute and some to evaluate, got 1")
    count = min(max(1, round(len(names) * options.contributors)), len(names) - 1)
    chosen = np.zeros(len(names), dtype=np.bool_)
    chosen[np.random.default_rng([options.seed, _SPLIT]).permutation(len(names))[:count]] = True
    return chosen[user_of_row], count


def _config(options: EvaluateOptions, log: LoggedDataset, contributors: int) -> P2BConfig:
    """The configuration that fits a log, with the values that the caller set.

    Users of a log have few rows, and most decisions do not agree with it, so a slot is due after the first decision.
    """
    values: dict[str, Any] = {
        "deployment": "evaluate",
        "items": {"capacity": log.arms},
        "features": {"dimension": log.dimension, "digits": 2} if log.schema is None else log.schema.plain,
        "expected_slots": contributors,
        "slot": {"after_interactions": 1},
        "feedback": {"attribution_window_seconds": REWARD_WAIT_SECONDS, "settle_seconds": NEVER_SECONDS},
        "release": {"window_units": max(1_000_000, contributors + 1)},
    }
    config = parse_as(P2BConfig, merged_values(values, options.config))
    dimension = config.context.dimension if log.schema is None else config.context.schema.cells
    if (config.arms, dimension) != (log.arms, log.dimension):
        raise HushstreamError(
            f"configuration: expected the log's {log.arms} arms and {log.dimension} dimensions, got others"
        )
    return config


def _on_grid(log: LoggedDataset, config: P2BConfig) -> LoggedDataset:
    """The log with contexts rounded to the grid, as the learners take them."""
    if log.schema is not None:
        return log
    contexts = normalise_grid(log.contexts, config.context.digits)
    return LoggedDataset(
        log.name, log.arms, log.users, log.timestamps_ms, contexts, log.chosen, log.rewards, eligible=log.eligible
    )


def _evaluation(
    options: EvaluateOptions,
    log: LoggedDataset,
    plan: LoggedPlan,
    contributors: int,
    system: System,
    recording: Recording[LoggedPlayed],
    next_steps: NextSteps | None,
) -> ShownEvaluation:
    policies, against_logged = _evaluate(log, plan, recording.played, options.seed)
    return ShownEvaluation(
        log=log.name,
        runner=options.runner,
        seed=options.seed,
        deployment=system.config.deployment,
        config_digest=system.digest.hex(),
        rows=len(log),
        contributors=contributors,
        users=len(np.unique(log.users)),
        policies=policies,
        gains=against_logged,
        privacy=StatedGuarantee.of(system.promises.releases.under_key(reproducible=True)),
        counts={**recording.counts, **record_counts(recording.logs)},
        seconds=recording.played.seconds,
        verify=role_checks(system, recording.logs, KeySource(seed=options.seed)) if options.verify else None,
        internal=log.internal,
        estimated=log.estimated,
        environment=environment(),
        next_steps=next_steps,
    )


def _evaluate(
    log: LoggedDataset, plan: LoggedPlan, played: LoggedPlayed, seed: int
) -> tuple[tuple[PolicyRow, ...], Gains]:
    """Evaluate every condition of the comparison, and policies that do not learn, all on the same rows."""
    evaluated = ~plan.contributes
    part = log.select(evaluated)
    assert part.propensities is not None
    expected = expected_rewards(log, seed)[evaluated]
    decided = {condition: played.decided[condition][evaluated] for condition in plan.conditions}
    shown = {condition: one_arm(arms, part.arms) for condition, arms in decided.items()}
    shown |= references(log.select(plan.contributes), part)
    rows = []
    for name, probabilities in shown.items():
        matched = None
        if name in decided:
            rows.append(_replayed(part, name, decided[name] == part.chosen, plan.survives[evaluated]))
            matched = rows[-1].matched
        values = policy_values(part, probabilities, expected)
        rows += [PolicyRow.of(name, found, matched) for found in values]
    exact = next(name for name in OF_EXACT if name in shown)
    own = importance_sampling(part, part.propensities, self_normalised=False)
    return (*rows, PolicyRow.of("logged", own)), gains(part, shown, expected, (WARM_PRIVATE, exact))


def _replayed(part: LoggedDataset, condition: str, agrees: NDArray[np.bool_], survives: NDArray[np.bool_]) -> PolicyRow:
    kept, matched = agrees & survives, int(agrees.sum())
    if not kept.any():
        return PolicyRow.none_kept(condition, len(part), matched)
    return PolicyRow.of(condition, replay_value(part, kept), matched)


def load_log(name: str, data_dir: str | Path | None = None, **options: Any) -> LoggedDataset:
    """Load a published log by name.

    Args:
        name: one of `known_logs`.
        data_dir: a local folder in place of the cache.
        options: the options of its loader.

    Raises:
        LogError: the name is unknown or is a world's, or an option is unknown or wrong.
        DatasetError: its files are absent or differ from the published ones.
    """
    known = known_logs()
    loader = LOGS.find(known, name, "" if name in known else hint(name))
    allowed = list(inspect.signature(loader).parameters)[1:]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise LogError(f"log {name!r} has no option {', '.join(unknown)}; known: {', '.join(allowed)}")
    return loader(locate(name, data_dir), **options)


Float64 = npt.NDArray[np.float64]


def references(taught: LoggedDataset, evaluated: LoggedDataset) -> dict[str, Float64]:
    """Probabilities (n, K) of every reference policy on the evaluated rows, by name.

    Args:
        taught: the rows from which "popular" and "non-private" learn, in clear.
        evaluated: the rows of other users, on which policies are evaluated.
    """
    allowed = (
        np.ones((len(evaluated), evaluated.arms), dtype=bool) if evaluated.eligible is None else evaluated.eligible
    )
    popular = np.broadcast_to(_mean_rewards(taught), allowed.shape)
    return {
        "random": allowed / allowed.sum(axis=1, keepdims=True),
        "popular": one_arm(_best(popular, allowed), evaluated.arms),
        "non-private": one_arm(_best(reward_model(taught)(evaluated.contexts), allowed), evaluated.arms),
    }


def one_arm(arms: npt.NDArray[np.int64], count: int) -> Float64:
    """Probabilities (n, K) of a policy that always shows the given arms (n,)."""
    probabilities = np.zeros((len(arms), count))
    probabilities[np.arange(len(arms)), arms] = 1.0
    return probabilities


def _best(scores: Float64, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.asarray(np.where(allowed, scores, -np.inf).argmax(axis=1), dtype=np.int64)


def _mean_rewards(log: LoggedDataset) -> Float64:
    """Mean reward of each arm, with one added row at the log's mean, so that no arm wins by one lucky row."""
    counts = np.bincount(log.chosen, minlength=log.arms)
    earned = np.bincount(log.chosen, log.rewards, minlength=log.arms)
    return np.asarray((earned + log.rewards.mean()) / (counts + 1), dtype=np.float64)
