"""`run` for P2B: a population through learner, shuffler and aggregator, and what a private start is worth to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.agents.deployment import KeySource, load, make_folder, parse_as
from hushstream.engine.declaration import System
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.catalogue.known_worlds import system_of
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.catalogue.worlds import make_world, world_options
from hushstream.replay.checks import record_counts, role_checks
from hushstream.replay.configurations import NEVER_SECONDS, merged_values
from hushstream.replay.measures import environment, throughput
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.progress import Progress
from hushstream.replay.report.counts import slot_public
from hushstream.replay.report.results import StatedGuarantee
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.p2b.closed_loop import CONDITIONS, ClosedLoop, Plan, Played
from hushstream.replay.studies.p2b.report.results import CellRow, ConditionSummary, RunResult
from hushstream.replay.studies.p2b.report.summaries import summarise
from hushstream.replay.worlds.world import World
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.recipients import Openers
from hushstream.systems.p2b.contribution.sealed import SlotPlace
from hushstream.systems.p2b.contribution.slots import unpack
from hushstream.systems.p2b.deployment import P2BSystem


@dataclass(frozen=True, slots=True)
class P2BOptions(PlayOptions):
    """What to run: what every system has (`PlayOptions`), and its own.

    Attributes:
        dataset: a world by name.
        contributors, evaluated: users of the two phases; by default 70 % and 30 % of the world's users.
        conditions: which conditions to compare.
        in_flight: users that act at the same time.
        pace: interactions a second; None for as fast as possible.
        first: contributors below this were played before (resume).
    """

    dataset: str = "synthetic"
    contributors: int | None = None
    evaluated: int | None = None
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    in_flight: int = 512
    pace: float | None = None
    first: int = 0


def run_p2b(options: P2BOptions, progress: Progress | None = None) -> RunResult:
    """Play a world through P2B and return rewards by condition, guarantee, counts and throughput.

    Raises:
        HushstreamError: an unknown world, runner or option; a wrong configuration.
    """
    options.require_runner()
    world = _world(options)
    plan = _plan(options, world)
    with deployed(options.folder) as folder:
        system = _prepared(options, world, folder, parse_as(P2BConfig, _config(options, world, plan)))
        place = options.place(folder, options.first > 0)
        recording = run_to_end(lambda: play(system, place, ClosedLoop(world, plan, progress).run))
    return _result(options, system, recording)


def _prepared(options: P2BOptions, world: World, folder: Path, config: P2BConfig) -> System:
    """The deployment's folder, made and marked as that of a replay where the world is public.

    Beside a broker and workers the encoder is fitted in a process of its own, which gives its memory back.
    """
    keys, public = KeySource(seed=options.seed), options.dataset if world.public else None
    if options.runner == "direct":
        make_folder(folder, config, keys=keys, public_dataset=public)
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(make_folder, folder, config, keys=keys, public_dataset=public).result()
    return load(folder)


def _world(options: P2BOptions) -> World:
    values, known = dict(options.world), world_options(options.dataset)
    if system_of(options.dataset) != "p2b":
        raise HushstreamError(
            f"dataset: expected a world of unrelated users, got {options.dataset!r}{hint(options.dataset)}"
        )
    if "seed" in known:
        values.setdefault("seed", options.seed)
    wanted = (options.contributors or 0) + (options.evaluated or 0)
    if wanted and "users" in known:
        values.setdefault("users", wanted)
    return make_world(options.dataset, **values)


def _plan(options: P2BOptions, world: World) -> Plan:
    contributors = options.contributors if options.contributors is not None else world.users * 7 // 10
    evaluated = options.evaluated if options.evaluated is not None else world.users - contributors
    return Plan(contributors, evaluated, tuple(options.conditions), options.in_flight, options.pace, options.first)


def _config(options: P2BOptions, world: World, plan: Plan) -> dict[str, Any]:
    """The configuration that fits a world, under what the caller asked for."""
    values: dict[str, Any] = {
        "deployment": "replay",
        "arms": world.arms,
        "context": {"dimension": world.dimension},
        "expected_slots": max(1, plan.contributors),
        "slot": {"after_interactions": world.rounds, "settle_seconds": NEVER_SECONDS},
        "feedback": {"attribution_window_seconds": NEVER_SECONDS},
        "release": {"window_slots": max(1_000_000, plan.contributors + 1)},
    }
    return merged_values(values, options.config)


def _result(options: P2BOptions, deployed: System, recording: Recording[Played]) -> RunResult:
    system: P2BSystem = deployed.core
    played, logs, counts = recording.played, recording.logs, recording.counts
    promise = system.guarantee().under_key(reproducible=True)
    public = system.public_dataset
    shown = {name: rewards for name, rewards in played.rewards.items() if name in CONDITIONS} if public else {}
    compared = {name: summarise(name, rewards) for name, rewards in shown.items()}
    return RunResult(
        system="p2b",
        dataset=options.dataset,
        runner=options.runner,
        seed=options.seed,
        deployment=system.config.deployment,
        config_digest=system.digest.hex(),
        public_dataset=public,
        release_mode=system.config.release.mode,
        sampling=system.config.release.sampling,
        privacy=StatedGuarantee.of(promise, _kept(compared)),
        conditions={name: summary for name, (summary, _) in compared.items()},
        rows=tuple(row for _, rows in compared.values() for row in rows),
        counts={**counts, **record_counts(logs)} if public else slot_public({**counts, **record_counts(logs)}),
        throughput=throughput(
            played.seconds, played.decisions, played.latencies, counts if public else {}, recording.peak_memory_bytes
        ),
        cells=tuple(_cells(system, logs, options.seed)) if public else None,
        verify=role_checks(deployed, logs, options.seed) if options.verify else None,
        environment=environment(),
    )


def _kept(compared: Mapping[str, tuple[ConditionSummary, Any]]) -> float | None:
    """What a private start earned of what one from raw interactions did, where both were played."""
    if not {"warm_private", "warm_nonprivate"} <= compared.keys():
        return None
    full = compared["warm_nonprivate"][0].mean
    return compared["warm_private"][0].mean / full if full else None


def _slot_contents(system: P2BSystem, logs: LogCopy, seed: int) -> Iterator[bytes]:
    """What every slot holds, opened where it is sealed."""
    opener = None if system.sealing is None else Openers(system.sealing, KeySource(seed=seed).ring("sealing").kept())
    for _, part in logs.of_topic("reports"):
        for record in part.records:
            name, fields = codec.decode(record.value)
            if name == "SlotReport":
                yield fields["content"]
            elif name == "SealedSlot" and opener is not None:
                place = SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
                yield opener.open(fields["sealed"], place)


def _cells(system: P2BSystem, logs: LogCopy, seed: int) -> list[CellRow]:
    """Exact and noised sums of every cell, for public data."""
    config = system.config
    shape = (system.codes, config.arms)
    exact, noised = np.zeros((2, *shape), dtype=np.int64), np.zeros((2, *shape), dtype=np.int64)
    for content in _slot_contents(system, logs, seed):
        report = unpack(content, *shape, config.release.levels)
        if report is not None:
            exact[0, report.code, report.arm] += report.level
            exact[1, report.code, report.arm] += config.release.levels - report.level
    for _, part in logs.of_topic("crowds"):
        for record in part.records:
            fields = codec.decode(record.value)[1]
            noised += np.stack([np.frombuffer(fields[name], "<i8").reshape(shape) for name in ("ones", "zeros")])
    return [
        CellRow(
            code=code,
            arm=arm,
            exact_ones=int(exact[0, code, arm]),
            exact_zeros=int(exact[1, code, arm]),
            noised_ones=int(noised[0, code, arm]),
            noised_zeros=int(noised[1, code, arm]),
        )
        for code in range(shape[0])
        for arm in range(shape[1])
    ]
