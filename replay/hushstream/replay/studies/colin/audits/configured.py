"""The audit of one collaborative configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hushstream.counting import NegativeDigitTree, Plan
from hushstream.replay.audits.configured import seen, steps_for
from hushstream.replay.audits.readings import reading_of
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.colin.audits.releases import (
    audit_counter_release,
    audit_noisy_reward,
    collaborative,
    runs_abreast,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.release import epoch_guarantee, plan_of

_ALONE = 3
"""So many counters that stand alone take as long as a group of digit trees."""


_WIDE = 50
"""Features with so many more entries take as long again."""


def audit_config(config: CollaborativeConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack what a configuration releases.

    Raises:
        HushstreamError: its release adds no noise, or so many runs of it take too long.
    """
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
        "noise_at": release.noise_at,
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
    return AuditReport(release.mechanism, settings, result, promise, seen(plan, steps, "steps"))


def _steps_of_users(plan: Plan, system: CollaborativeSystem, runs: int) -> int:
    alone = 1 if isinstance(plan, NegativeDigitTree) else max(1, system.nodes // _ALONE)
    return steps_for(runs, runs_abreast(system), alone * (1 + system.features.dimension // _WIDE))
