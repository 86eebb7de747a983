"""Plays a population through P2B's learner, shuffler and aggregator, and measures the gain of a private start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import KEYS, KeySource, load, make_folder, parse_as
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import key_names
from hushstream.engine.devices.recipients import Openers
from hushstream.engine.devices.sealing import SlotPlace
from hushstream.features.schema import FeatureSchema
from hushstream.ops.log_copy import LogCopy
from hushstream.privacy.keys import generate_keys
from hushstream.replay.catalogue.known_worlds import system_of
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.catalogue.worlds import make_world, world_options
from hushstream.replay.checks import record_counts, role_checks
from hushstream.replay.configurations import NEVER_SECONDS, merged_values
from hushstream.replay.measures import environment, throughput
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.progress import Progress
from hushstream.replay.report.counts import slot_public
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.runners.playing import Place, Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.p2b.clear_model import DeclaredWorld, clear_rewards, clear_sums_of
from hushstream.replay.studies.p2b.closed_loop import CONDITIONS, ClosedLoop, Plan, Played
from hushstream.replay.studies.p2b.report.results import WARM_NONPRIVATE, CellRow, ComparisonArm, RunResult
from hushstream.replay.studies.p2b.report.summaries import kept_of, payoff_of, summarise
from hushstream.replay.worlds.world import World
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.slots import unpack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.summed import summed_of


@dataclass(frozen=True, slots=True)
class P2BOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and P2B's own.

    Attributes:
        dataset: name of a world.
        contributors, evaluated: users of the two phases; by default 70 % and 30 % of the world's users.
        conditions: which conditions to compare.
        in_flight: how many users act at the same time.
        pace: interactions per second; None: as fast as possible.
        first: contributors with lower numbers were played before (resume).
        secret_keys: whether the private deployment has random keys in files, as a live one has, in place of keys from
            the seed; then every run has other noise.
    """

    dataset: str = "synthetic"
    contributors: int | None = None
    evaluated: int | None = None
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    in_flight: int = 512
    pace: float | None = None
    first: int = 0
    secret_keys: bool = False


def run_p2b(options: P2BOptions, progress: Progress | None = None) -> RunResult:
    """Play a world through P2B and return rewards by condition, guarantee, counts and throughput.

    The private conditions have a deployment for themselves. The non-private condition has another one (`arms_of`).

    Raises:
        HushstreamError: the world, the runner or an option is unknown, or the configuration is invalid.
    """
    options.require_runner()
    world = _world(options)
    plan = _plan(options, world)
    with deployed(options.folder) as folder:
        values = _config(options, world, plan)
        arms = arms_of(values["deployment"], folder, _played_conditions(world, plan))
        plans = [replace(plan, conditions=arm.conditions) for arm in arms]
        counts = [one.interactions(world.rounds) for one in plans]
        played = [
            _play(options, world, part, arm, values, after(progress, sum(counts[:place]), sum(counts)))
            for place, (arm, part) in enumerate(zip(arms, plans, strict=True))
        ]
        return _result(options, world.public, played, _clear(options, world, plan, played[0].recording.played))


@dataclass(frozen=True, slots=True)
class _PlayedArm:
    arm: Arm
    system: System
    recording: Recording[Played]
    keys: KeySource


def _play(
    options: P2BOptions, world: World, plan: Plan, arm: Arm, values: Mapping[str, Any], progress: Progress | None
) -> _PlayedArm:
    config = parse_as(P2BConfig, {**values, "deployment": arm.name})
    place = options.place(arm.folder, options.first > 0)
    if options.secret_keys and not arm.non_private:
        place = replace(place, seed=None)
    system = _prepared(options, world, arm, config, place)
    rules = system.requests if _declares(world) else None
    recording = run_to_end(lambda: play(system, place, ClosedLoop(world, plan, progress, rules).run))
    return _PlayedArm(arm, system, recording, place.keys)


def _prepared(options: P2BOptions, world: World, arm: Arm, config: P2BConfig, place: Place) -> System:
    """Prepare the deployment's folder: with seeded keys as a replay, otherwise with new random keys.

    With a broker and workers, the encoder is fitted in a process of its own, which then frees its memory.
    """
    seeded = place.seed is not None
    made = partial(
        make_folder,
        arm.folder,
        config,
        public_dataset=options.dataset if world.public and seeded else None,
        non_private_arm=arm.non_private,
    )
    if not seeded:
        _new_keys(arm.folder, config)
    if options.runner == "direct":
        made(keys=place.keys)
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(made, keys=place.keys).result()
    return load(arm.folder)


def _new_keys(folder: Path, config: P2BConfig) -> None:
    """Make a random key for each zone, unless an earlier run that is resumed left its keys."""
    if not (folder / KEYS).exists():
        generate_keys(folder / KEYS, key_names(kind_of(config.system).roles))


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
    """The configuration that fits a world, with the values that the caller set."""
    values: dict[str, Any] = {
        "deployment": "replay",
        "items": {"capacity": world.arms},
        "features": world.schema.plain if _declares(world) else {"dimension": world.dimension},
        "expected_slots": max(1, plan.contributors),
        "slot": {"after_interactions": world.rounds},
        "feedback": {
            "attribution_window_seconds": NEVER_SECONDS,
            "settle_seconds": NEVER_SECONDS,
            **({"click_rate": world.click_rate} if _declares(world) else {}),
        },
        "release": {"window_units": max(1_000_000, plan.contributors + 1)},
    }
    return merged_values(values, options.config)


def _declares(world: World) -> TypeGuard[DeclaredWorld]:
    return isinstance(getattr(world, "schema", None), FeatureSchema)


def _played_conditions(world: World, plan: Plan) -> tuple[str, ...]:
    """The conditions that deployments play; with declared features no deployment sends interactions in clear."""
    return tuple(one for one in plan.conditions if one != WARM_NONPRIVATE or not _declares(world))


def _clear(options: P2BOptions, world: World, plan: Plan, played: Played) -> dict[str, NDArray[np.float64]]:
    """Rewards of users who start from a model of all interactions in clear, for declared features."""
    contributed = plan.contributors - plan.first
    if WARM_NONPRIVATE not in plan.conditions or not _declares(world) or not contributed:
        return {}
    users = np.arange(plan.first, plan.contributors + plan.evaluated)
    chosen, rewards = played.chosen["contributors"], played.rewards["contributors"]
    prior = clear_sums_of(world, users[:contributed], chosen, rewards).prior()
    return {WARM_NONPRIVATE: clear_rewards(world, prior, users[contributed:], options.seed)}


def _result(
    options: P2BOptions, public: bool, arms: Sequence[_PlayedArm], clear: Mapping[str, NDArray[np.float64]]
) -> RunResult:
    private, *others = arms
    system: P2BSystem = private.system.core
    recording, logs, counts = private.recording, private.recording.logs, private.recording.counts
    rewards = {
        name: found
        for one in arms
        for name, found in one.recording.played.rewards.items()
        if public and name in one.arm.conditions
    } | (dict(clear) if public else {})
    compared = {name: summarise(name, rewards[name]) for name in CONDITIONS if name in rewards}
    all_counts = {**counts, **record_counts(logs)}
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
        privacy=_stated(private),
        comparison_arm=next((ComparisonArm(one.arm.name, _stated(one)) for one in others), None),
        conditions={name: summary for name, (summary, _) in compared.items()},
        rows=tuple(row for _, rows in compared.values() for row in rows),
        kept=kept_of(rewards),
        payoff=payoff_of(rewards),
        counts=all_counts if public else slot_public(all_counts),
        throughput=throughput(
            recording.played.seconds,
            recording.played.decisions,
            recording.played.latencies,
            counts if public else {},
            recording.peak_memory_bytes,
        ),
        cells=tuple(_cells(system, logs, private.keys)) if public and summed_of(system.config).fits_encoder else None,
        verify=_checked(arms) if options.verify else None,
        environment=environment(),
    )


def _stated(played: _PlayedArm) -> StatedGuarantee:
    system: P2BSystem = played.system.core
    return StatedGuarantee.of(system.guarantee().under_key(reproducible=played.keys.seed is not None))


def _checked(arms: Sequence[_PlayedArm]) -> dict[str, RoleCheck]:
    """The findings of `verify` by role, for all arms together."""
    found = [role_checks(one.system, one.recording.logs, one.keys) for one in arms]
    return {role: sum((one[role] for one in found[1:]), found[0][role]) for role in found[0]}


def _slot_contents(system: P2BSystem, logs: LogCopy, keys: KeySource) -> Iterator[bytes]:
    """The content of every slot, opened where it is sealed."""
    sealing = system.sealing
    opener = None if sealing is None else Openers(sealing, keys.ring("sealing").kept(), system.form.opener)
    for record in logs.records(["reports"]):
        name, fields = codec.decode(record.value)
        if name == "SlotReport":
            yield fields["content"]
        elif name == "SealedSlot" and opener is not None:
            place = SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
            yield opener.open(fields["sealed"], place)


def _cells(system: P2BSystem, logs: LogCopy, keys: KeySource) -> list[CellRow]:
    """Exact and noised sums of every cell, for public data."""
    config = system.config
    shape = (system.codes, config.arms)
    exact, noised = np.zeros((2, *shape), dtype=np.int64), np.zeros((2, *shape), dtype=np.int64)
    for content in _slot_contents(system, logs, keys):
        report = unpack(content, *shape, config.release.levels)
        if report is not None:
            exact[0, report.code, report.arm] += report.level
            exact[1, report.code, report.arm] += config.release.levels - report.level
    for record in logs.records(["crowds"]):
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


NOT_PRIVATE_NAME = "not-private"


@dataclass(frozen=True, slots=True)
class Arm:
    """A deployment, and the conditions that it plays.

    Attributes:
        name: the name of the deployment.
        folder: the folder of the deployment.
        conditions: the conditions of the comparison.
        non_private: whether it also sends exact interactions in clear.
    """

    name: str
    folder: Path
    conditions: tuple[str, ...]
    non_private: bool = False


def arms_of(name: str, folder: Path, conditions: Sequence[str]) -> tuple[Arm, ...]:
    """The private arm and, where a condition asks for exact interactions, the arm that has them.

    Args:
        name: name of the private deployment.
        folder: folder of the private deployment; the other one lies below it.
        conditions: names of the conditions of the comparison.
    """
    private = Arm(name, folder, tuple(one for one in conditions if one != WARM_NONPRIVATE))
    if WARM_NONPRIVATE not in conditions:
        return (private,)
    beside = f"{name}-{NOT_PRIVATE_NAME}"
    return (private, Arm(beside, folder / NOT_PRIVATE_NAME, (WARM_NONPRIVATE,), non_private=True))


def after(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Progress of one arm as a part of ``total`` of all arms, with ``done`` by the arms before it."""
    if progress is None:
        return None
    return lambda here, _, what: progress(done + here, total, what)
