"""The three functions of the Python API: `run`, `evaluate`, `experiment`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hushstream.api.options import names, own_values, path, world_of
from hushstream.replay.configurations import nested
from hushstream.replay.experiments.catalogue import find_experiment, played, write_outcome
from hushstream.replay.experiments.findings import Findings
from hushstream.replay.experiments.view import findings_view
from hushstream.replay.logged.frames import Table, is_file
from hushstream.replay.progress import Progress
from hushstream.replay.result import Result
from hushstream.replay.run import options_of, run_with, world_values
from hushstream.replay.study import studies, study_of
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import DEFAULT

Runner = Literal["direct", "stream"]


def run(
    system: str = DEFAULT,
    *,
    dataset: Table | None = None,
    runner: Runner = "direct",
    bootstrap: str | None = None,
    security: str | Path | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    set: Mapping[str, Any] | None = None,
    world: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: Progress | None = None,
    **own: Any,
) -> Result[Any]:
    """Play a dataset through a system, as an application would (`hushstream replay`).

    Args:
        system: name of a system, built in or of another package.
        dataset: name of a world; for a system that plays tables, also the path of a table, or a data frame, with
            ``world={"mapping": ...}``. By default the system's own.
        runner: "direct" (machines in this process) or "stream" (broker and workers as processes).
        bootstrap: a Kafka to run on; by default the embedded broker.
        security: YAML file with that Kafka's SASL and TLS settings.
        folder: where the deployment's folder is kept.
        seed: seed of the world, of random choices and of the keys: the run is reproducible, and says that it is not
            private.
        limit: users in all.
        set: values of the configuration: ``{"privacy.epsilon": 0.5}``, or nested.
        world: options of the dataset.
        data_dir: a local folder instead of downloads.
        verify: recompute everything that was published, at the end.
        progress: called with (interactions done, interactions in all, name of the present work), maybe from another
            thread.
        own: options that only this system has; `own_options` lists them with their meanings.

    Raises:
        HushstreamError: an unknown system, dataset or option; an invalid configuration.
    """
    study = study_of(system)
    name, values = world_of(study, dataset, world or {})
    shared = {
        "dataset": name,
        "runner": runner,
        "seed": seed,
        "config": nested(set or {}, "set"),
        "folder": path(folder),
        "bootstrap": bootstrap,
        "security": path(security),
        "verify": verify,
    }
    options = options_of(system, {**shared, **own_values(study, own)})
    options = replace(options, world=world_values(name, values, limit, path(data_dir)))
    found = run_with(options, progress)
    if study.view is None:
        raise HushstreamError(f"run: expected studies that say how a result is shown, got those of {system} without")
    return Result(
        details=found,
        view=study.view(found),
        shown=partial(study.table, found),
        document=partial(study.document, found),
        written=partial(study.report, found),
    )


def evaluate(
    log: Table | None = None,
    *,
    mapping: str | Path | Mapping[str, Any] | None = None,
    deployment: str | Path | None = None,
    dataset: str | None = None,
    option: Mapping[str, Any] | None = None,
    runner: Runner = "direct",
    bootstrap: str | None = None,
    security: str | Path | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    contributors: float = 0.7,
    limit: int | None = None,
    from_: int = 0,
    speed: float | None = None,
    in_flight: int = 512,
    condition: str | Sequence[str] | None = None,
    least_propensity: float | None = None,
    set: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: Progress | None = None,
) -> Result[Any]:
    """Replay the log of another policy through the agents: what would they have earned (`hushstream evaluate`)?

    Args:
        log: the path of a CSV or Parquet file, or a data frame; needs a mapping.
        mapping: the meaning of each column: a YAML file, or its keys and values.
        deployment: a deployment.yaml, or a draft of one, that is evaluated unchanged; it declares features.
        dataset: name of a published log, instead of a log of one's own.
        option: options of the published log.
        runner, bootstrap, security, folder, verify, progress: as in `run`.
        seed: seed of the keys, of random choices, and of who contributes.
        contributors: share of the users who contribute a slot; the others are evaluated.
        limit: largest number of rows.
        from_: first row to play; contributors' rows before it were played already.
        speed: multiple of logged time; by default as fast as possible.
        in_flight: largest number of rows in flight.
        condition: only these conditions of the comparison.
        least_propensity: lower bound of the logging policy's propensities; by default the log's least.
        set: values of the configuration.
        data_dir: a local folder instead of downloads.

    Raises:
        HushstreamError: an unknown dataset or option; a log or mapping that cannot be read or replayed.
    """
    judge = next(study.evaluate for study in studies().values() if study.evaluate is not None)
    options: dict[str, Any] = {
        "log": Path(log) if log is not None and is_file(log) else log,
        "mapping": Path(mapping) if isinstance(mapping, str) else mapping,
        "deployment": path(deployment),
        "dataset": dataset,
        "dataset_options": dict(option or {}),
        "runner": runner,
        "bootstrap": bootstrap,
        "security": path(security),
        "folder": path(folder),
        "seed": seed,
        "contributors": contributors,
        "limit": limit,
        "first": from_,
        "speed": speed,
        "in_flight": in_flight,
        "least_propensity": least_propensity,
        "config": nested(set or {}, "set"),
        "data_dir": path(data_dir),
        "verify": verify,
        **({} if condition is None else {"conditions": names(condition)}),
    }
    found = judge(options, progress)
    return Result(details=found, view=found.view(), shown=found.table, document=found.as_json, written=found.write)


def experiment(
    name: str,
    *,
    quick: bool = False,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Result[Findings]:
    """A table or figure of a paper (`hushstream experiment`).

    Args:
        name: name of the experiment; `hushstream experiment` lists them.
        quick: whether to run a small version, which takes seconds.
        data_dir: a local folder instead of downloads.
        progress: as in `run`.

    Raises:
        HushstreamError: there is no such experiment, or a dataset that it needs is absent.
    """
    found = find_experiment(name)
    findings = played(found, quick=quick, data_dir=data_dir, progress=progress)
    return Result(
        details=findings,
        view=findings_view(findings, found.pictures),
        shown=findings.table,
        document=findings.as_json,
        written=partial(write_outcome, findings, found),
    )
