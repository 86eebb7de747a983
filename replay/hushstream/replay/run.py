"""`run`: one call that plays a dataset through a system and returns what came of it."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.agents.deployment import KeySource, make_folder, parse_p2b
from hushstream.agents.prepared import ENCODER, read_encoder
from hushstream.contribution.recipients import Openers
from hushstream.contribution.sealed import SlotPlace
from hushstream.contribution.slots import unpack
from hushstream.ops.copies import LogCopy
from hushstream.privacy.keys import Zone
from hushstream.replay.checks import record_counts, role_checks
from hushstream.replay.closed_loop import ARMS, ClosedLoop, Plan, Played, Progress
from hushstream.replay.configurations import NEVER_SECONDS, merged_values
from hushstream.replay.report.counts import slot_public
from hushstream.replay.report.results import CellRow, RunResult, StatedGuarantee
from hushstream.replay.report.summaries import summarise
from hushstream.replay.runners.playing import Place, Recording, Runner, play, require_runner
from hushstream.replay.worlds.catalogue import make_world, world_options
from hushstream.replay.worlds.world import World
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.configuration import P2BConfig
from hushstream.systems.p2b import P2BSystem


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run.

    Attributes:
        system: which system ("p2b").
        dataset: a world by name.
        runner: "direct" (machines in this process) or "stream" (broker and workers as processes).
        seed: of world, coins and keys: the run is reproducible, and says that it is not private.
        contributors, evaluated: users of the two phases; by default 70 % and 30 % of the world's users.
        arms: which arms to compare.
        world: options of the world.
        config: values of the configuration in place of the defaults, nested as in deployment.yaml.
        folder: where the deployment lives; a temporary folder by default.
        bootstrap: a Kafka to run on; the embedded broker by default.
        security: YAML file with that Kafka's SASL and TLS settings, as `hushstream.agents.security` reads it.
        in_flight: users that act at the same time.
        pace: interactions a second; None for as fast as possible.
        first: contributors below this were played before (resume).
        verify: recompute everything that was published, at the end.
    """

    system: str = "p2b"
    dataset: str = "synthetic"
    runner: Runner = "direct"
    seed: int = 0
    contributors: int | None = None
    evaluated: int | None = None
    arms: tuple[str, ...] = tuple(ARMS)
    world: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    bootstrap: str | None = None
    security: Path | None = None
    in_flight: int = 512
    pace: float | None = None
    first: int = 0
    verify: bool = True


def run(system: str = "p2b", *, progress: Progress | None = None, **options: Any) -> RunResult:
    """Play a dataset through a system and return rows, guarantee, counts and throughput.

    Args:
        system: which system ("p2b").
        progress: called with (interactions done, interactions in all, what is going on).
        options: see `RunOptions`.

    Raises:
        HushstreamError: an unknown system, dataset, runner or option; a wrong configuration.
    """
    unknown = sorted(set(options) - set(RunOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(RunOptions.__dataclass_fields__)
        raise HushstreamError(f"run: expected options among {known}; got {', '.join(unknown)}")
    return run_with(RunOptions(system, **options), progress)


def run_with(options: RunOptions, progress: Progress | None = None) -> RunResult:
    """`run` for options that were put together already."""
    if options.system != "p2b":
        raise HushstreamError(f"system: expected p2b, got {options.system!r}")
    require_runner(options.runner, options.bootstrap, options.security)
    world = _world(options)
    plan = _plan(options, world)
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hushstream-")))
        system = _prepared(options, folder, parse_p2b(_config(options, world, plan)))
        place = Place(
            options.runner, folder, options.bootstrap, options.seed, options.first > 0, security=options.security
        )
        recording = asyncio.run(play(system, place, ClosedLoop(world, plan, progress).run))
    return _result(options, system, recording)


def _prepared(options: RunOptions, folder: Path, config: P2BConfig) -> P2BSystem:
    """The deployment's folder, made.

    Beside a broker and workers the encoder is fitted in a process of its own, which gives its memory back.
    """
    if options.runner == "direct":
        make_folder(folder, config, keys=KeySource(seed=options.seed))
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(make_folder, folder, config, keys=KeySource(seed=options.seed)).result()
    return read_encoder(config, folder / ENCODER)


def _world(options: RunOptions) -> World:
    values = dict(options.world)
    if "seed" in world_options(options.dataset):
        values.setdefault("seed", options.seed)
    wanted = (options.contributors or 0) + (options.evaluated or 0)
    if wanted and "users" in world_options(options.dataset):
        values.setdefault("users", wanted)
    return make_world(options.dataset, **values)


def _plan(options: RunOptions, world: World) -> Plan:
    contributors = options.contributors if options.contributors is not None else world.users * 7 // 10
    evaluated = options.evaluated if options.evaluated is not None else world.users - contributors
    return Plan(contributors, evaluated, tuple(options.arms), options.in_flight, options.pace, options.first)


def _config(options: RunOptions, world: World, plan: Plan) -> dict[str, Any]:
    """The configuration that fits a world, under what the caller asked for."""
    values: dict[str, Any] = {
        "deployment": "replay",
        "arms": world.arms,
        "context": {"dimension": world.dimension},
        "expected_slots": max(1, plan.contributors),
        "slot": {"after_interactions": world.rounds, "settle_seconds": NEVER_SECONDS},
        "feedback": {"reward_wait_seconds": NEVER_SECONDS},
        "release": {"window_slots": max(1_000_000, plan.contributors + 1)},
        "public_dataset": world.public,
    }
    return merged_values(values, options.config)


def _result(options: RunOptions, system: P2BSystem, recording: Recording[Played]) -> RunResult:
    played, logs, counts = recording.played, recording.logs, recording.counts
    promise = system.guarantee().under_key(reproducible=True)
    public = system.config.public_dataset
    shown = {name: rewards for name, rewards in played.rewards.items() if name in ARMS} if public else {}
    compared = {name: summarise(name, rewards) for name, rewards in shown.items()}
    return RunResult(
        system=options.system,
        dataset=options.dataset,
        runner=options.runner,
        seed=options.seed,
        deployment=system.config.deployment,
        config_digest=system.digest.hex(),
        public_dataset=public,
        release_mode=system.config.release.mode,
        sampling=system.config.release.sampling,
        privacy=StatedGuarantee.of(promise),
        arms={name: summary for name, (summary, _) in compared.items()},
        rows=tuple(row for _, rows in compared.values() for row in rows),
        counts={**counts, **record_counts(logs)} if public else slot_public({**counts, **record_counts(logs)}),
        throughput=_throughput(played, counts if public else {}, recording.peak_memory_bytes),
        cells=tuple(_cells(system, logs, options.seed)) if public else None,
        verify=role_checks(system, logs, options.seed) if options.verify else None,
        environment={
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": os.cpu_count() or 1,
        },
    )


def _throughput(played: Played, counts: Mapping[str, int], memory: Mapping[str, int]) -> dict[str, float]:
    # How many rewards came is zone-private: a live run gives no counts here, and its events are decisions.
    events = played.decisions + counts.get("rewarded", 0)
    figures = {
        "seconds": played.seconds,
        "decisions": float(played.decisions),
        "decisions_per_second": played.decisions / played.seconds,
        "events_per_second": events / played.seconds,
        "decision_seconds_p50": float(np.percentile(played.latencies, 50)),
        "decision_seconds_p99": float(np.percentile(played.latencies, 99)),
    }
    return figures | {f"peak_memory_bytes_{name}": float(size) for name, size in memory.items()}


def _slot_contents(system: P2BSystem, logs: LogCopy, seed: int) -> Iterator[bytes]:
    """What every slot holds, opened where it is sealed."""
    opener = None if system.sealing is None else Openers(system.sealing, KeySource(seed=seed).ring(Zone.SEALING).kept())
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
