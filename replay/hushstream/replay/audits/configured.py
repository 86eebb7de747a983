"""The audit of one configuration: what a system of it releases, attacked at the epsilon and horizon that it names.

The sizes are those of the configuration, but for what the noise does not depend on: where centroids lie, how many
users there are and how they are tied. A counter that is too long for an audit is attacked by its first releases: its
noise is that of its whole horizon, and the curve is that of what these releases can tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hushstream.counting import NegativeDigitTree, Plan
from hushstream.privacy.audit import FALSE_ALARM
from hushstream.replay.audits.readings import reading_of
from hushstream.replay.audits.report import RUNS, AuditReport, require_runs
from hushstream.replay.studies.colin.audits.releases import (
    audit_counter_release,
    audit_noisy_reward,
    collaborative,
    runs_abreast,
)
from hushstream.replay.studies.p2b.audits.releases import audit_slot_sums_release, stand_in
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.release import epoch_guarantee, plan_of
from hushstream.systems.p2b.configuration import P2BConfig

_LEAVES = 40_000
"""Steps that an audit feeds to counters on each neighbour, all runs together: some seconds."""

_SUMS = 1 << 21
"""Noised sums of all steps that one counter over windows is fed."""

_ALONE = 3
"""So many counters that stand alone take as long as a group of digit trees."""

_WIDE = 50
"""Features with so many more entries take as long again."""


def audit_config(
    config: P2BConfig | CollaborativeConfig, runs: int = RUNS, false_alarm: float = FALSE_ALARM
) -> AuditReport:
    """Attack what a configuration releases.

    Args:
        config: of any system.
        runs: releases on each of two neighbours.
        false_alarm: probability with which an honest mechanism fails.

    Raises:
        HushstreamError: the configuration's release has no noise to audit, or runs or the false alarm are out of range.
    """
    require_runs(runs, false_alarm)
    if isinstance(config, P2BConfig):
        return _audit_p2b(config, runs, false_alarm)
    return _audit_collaborative(config, runs, false_alarm)


def _audit_p2b(config: P2BConfig, runs: int, false_alarm: float) -> AuditReport:
    release = config.release
    if release.mode != "slot-sums":
        raise HushstreamError(
            f"audit: expected release.mode slot-sums, whose noise can be attacked at any size, got {release.mode}; "
            f"hushstream audit --only {release.mode} attacks that mode in a small deployment"
        )
    # Whether slots travel sealed changes nothing about what is released of them.
    system = stand_in(replace(config, slot=replace(config.slot, sealed=False)))
    tree, cells = system.window_tree, system.codes * config.arms
    most = min(_SUMS // cells, _steps(runs, cells, 1)) if tree is not None else 1
    result = audit_slot_sums_release(system, most)(runs, false_alarm)
    steps = 1 if tree is None else reading_of(tree, most).steps
    settings = {
        "system": config.system,
        "epsilon": release.epsilon,
        "levels": release.levels,
        "sampling": release.sampling,
        "sums": "fresh" if tree is None else "counter",
        "horizon": None if tree is None else tree.horizon,
        "steps": steps,
    }
    return AuditReport(release.mode, settings, result, system.guarantee(), _seen(tree, steps, "windows"))


def _audit_collaborative(config: CollaborativeConfig, runs: int, false_alarm: float) -> AuditReport:
    release, bounds = config.release, config.features
    if release.mechanism == "exact":
        raise HushstreamError(
            "audit: expected a release.mechanism that adds noise, got exact, which promises nothing and is for public "
            "data alone"
        )
    # How often a step is released does not shape its noise; one row a step leaves room for more users.
    system = collaborative(replace(release, rows=1), bounds)
    settings: dict[str, Any] = {
        "system": config.system,
        "epsilon": release.epsilon,
        "trust": release.trust,
        "noise": release.noise,
        "dimension": bounds.dimension,
        "users": system.nodes,
    }
    promise = epoch_guarantee(release, bounds, system.nodes)
    if release.mechanism == "noisy-reward":
        settings |= {"levels": release.reward_levels}
        return AuditReport(release.mechanism, settings, audit_noisy_reward(system)(runs, false_alarm), promise)
    plan = plan_of(release, bounds)
    most = _steps_of_users(plan, system, runs)
    result = audit_counter_release(system, most)(runs, false_alarm)
    steps = reading_of(plan, most).steps
    settings |= {"horizon": plan.horizon, "steps": steps}
    return AuditReport(release.mechanism, settings, result, promise, _seen(plan, steps, "steps"))


def _steps_of_users(plan: Plan, system: CollaborativeSystem, runs: int) -> int:
    alone = 1 if isinstance(plan, NegativeDigitTree) else max(1, system.nodes // _ALONE)
    return _steps(runs, runs_abreast(system), alone * (1 + system.features.dimension // _WIDE))


def _steps(runs: int, abreast: int, effort: int) -> int:
    """How many steps each counter may be fed, where one takes so many times the least effort.

    Raises:
        HushstreamError: so many runs of this configuration leave time for none.
    """
    steps = _LEAVES // (-(-runs // abreast) * effort)
    if not steps:
        raise HushstreamError(
            f"audit: expected at most {_LEAVES // effort * abreast} runs of this configuration, of which one release "
            f"gives {abreast}, got {runs}; with so many there is no time for even the first step of its counter, so "
            f"take fewer by --runs"
        )
    return steps


def _seen(plan: Plan | None, steps: int, what: str) -> str:
    if plan is None:
        return ""
    least = f"the first {steps:,} of at most {plan.horizon:,} {what} of the counter"
    if steps >= plan.horizon:
        return f"{least}, all there are"
    return f"{least}, with noise for them all, against the curve of what these can tell"
