"""The three functions of the Python API: `run`, `evaluate`, `experiment`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hushstream.engine.configuration import meanings
from hushstream.replay.catalogue import known_worlds, names, options_of, own_names, own_values, run_with, world_values
from hushstream.replay.checks import nested
from hushstream.replay.experiments import catalogue, findings
from hushstream.replay.logged.table import Table, is_file, source_of
from hushstream.replay.report.replayed import RunResult, document, table, view, write
from hushstream.replay.result import Result
from hushstream.replay.study import Progress, Study, studies, study_of
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import DEFAULT


def own_options(system: str = DEFAULT) -> dict[str, str]:
    """The options that only this system accepts in `run`: by name, the meaning.

    Raises:
        HushstreamError: there is no such system.
    """
    study = study_of(system)
    said = meanings(study.options)
    return {name: said.get(name, "") for name in own_names(study)}


def path(given: str | Path | None) -> Path | None:
    """A `Path`, or None if none is given."""
    return None if given is None else Path(given)


def world_of(study: Study, dataset: Any, world: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a world and its options, for a dataset by name, by the path of a table, or as a data frame.

    Raises:
        HushstreamError: a table was given, and the system plays no tables.
    """
    if dataset is None:
        return study.dataset, dict(world)
    if isinstance(dataset, str) and (dataset in known_worlds() or not Path(dataset).is_file()):
        return dataset, dict(world)
    if study.own_table is None:
        kind = "a file" if is_file(dataset) else "a data frame"
        raise HushstreamError(
            f"dataset: expected the name of a world, as {study.system} asks for arms that a table does not "
            f"have; got {kind}: evaluate(log, mapping=...) judges a log of decisions"
        )
    if "mapping" not in world:
        raise HushstreamError(f"world: expected the mapping of the table (world={{'mapping': ...}}), got {dict(world)}")
    is_file(dataset)
    return study.own_table, {"file": dataset, **world}


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
) -> Result[RunResult]:
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
    return _result(run_with(options, progress))


def _result(found: RunResult) -> Result[RunResult]:
    return Result(
        details=found,
        view=view(found),
        shown=partial(table, found),
        document=partial(document, found),
        written=partial(write, found),
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
) -> Result[RunResult]:
    """Replay the log of another policy through the agents: what would they have earned (`hushstream evaluate`)?

    Args:
        log: the path of a CSV, Parquet or JSON file, a query (`duckdb:SELECT ...`), or a data frame; needs a mapping.
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
        "log": source_of(log) if log is not None and is_file(log) else log,
        "mapping": Path(mapping) if isinstance(mapping, str) else mapping,
        "deployment": path(deployment),
        "dataset": dataset or "",
        "world": dict(option or {}),
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
    return _result(judge(options, progress))


def experiment(
    name: str,
    *,
    quick: bool = False,
    data_dir: str | Path | None = None,
    system: str | None = None,
    progress: Progress | None = None,
) -> Result[findings.Findings]:
    """A table or figure of a paper (`hushstream experiment`).

    Args:
        name: name of the experiment; `hushstream experiment` lists them.
        quick: whether to run a small version, which takes up to two minutes.
        data_dir: a local folder instead of downloads.
        system: only this system's rows, in `joining`.
        progress: as in `run`.

    Raises:
        HushstreamError: there is no such experiment, or a dataset that it needs is absent.
    """
    chosen = catalogue.find_experiment(name)
    found = catalogue.played(chosen, quick=quick, data_dir=data_dir, system=system, progress=progress)
    return Result(
        details=found,
        view=catalogue.view(chosen, found),
        shown=partial(findings.table, chosen, found),
        document=partial(findings.document, chosen, found),
        written=partial(catalogue.write, chosen, found),
    )
