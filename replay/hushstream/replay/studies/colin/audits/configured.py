"""The audit of one collaborative configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree, Plan, PureLength
from hushstream.privacy.amounts import Cost
from hushstream.replay.audits.configured import Noise, first_draw, laplace_law, report_of, seen, steps_for
from hushstream.replay.audits.draws import fresh_key, fresh_nonce
from hushstream.replay.audits.readings import reading_of
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.colin.audits.releases import (
    audit_counter_release,
    audit_noisy_reward,
    collaborative,
    farthest_features,
    parallel_runs,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import GRID_BITS, CollaborativeConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.release import epoch_guarantee, local_reward_of, plan_of
from hushstream.systems.colin.rows import Rows

_ALONE = 3
"""An audit of this many single counters takes as long as one of a group of digit trees."""


_WIDE = 50
"""The estimated time of an audit grows by the same amount for each full group of this many features."""


def audit_config(config: CollaborativeConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration.

    Raises:
        HushstreamError: its release adds no noise, or this number of runs takes too long.
    """
    release, bounds = config.release, config.features
    if release.mechanism == "exact":
        raise HushstreamError(
            "audit: expected a release.mechanism that adds noise, got exact, which guarantees nothing and is "
            "for public data alone"
        )
    # How often a step is released does not change its noise; with one row a step there is space for more users.
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
        attacked, noise, steps_text = audit_noisy_reward(system), _noise_of_rewards(system, promise.cost), ""
    else:
        plan = plan_of(release, bounds)
        most = _steps_of_users(plan, system, runs)
        attacked, noise = audit_counter_release(system, most), _noise_of_counters(system, plan, promise.cost)
        steps = reading_of(plan, most).steps
        settings |= {"horizon": plan.horizon, "steps": steps}
        steps_text = seen(plan, steps, "step")
    return report_of(
        release.mechanism,
        settings,
        attacked,
        noise,
        promise,
        runs,
        false_alarm,
        steps_text,
        _reduced(config, system.nodes),
    )


def _reduced(config: CollaborativeConfig, users: int) -> tuple[str, ...]:
    return (
        f"all users but {users}, and their relation, as each user's sums have noise of their own",
        "the items, as a reward moves the sums by its features alone",
        *(["rows of a step beyond the first, as they do not change its noise"] if config.release.rows != 1 else []),
    )


def _noise_of_counters(system: CollaborativeSystem, plan: Plan, price: Cost) -> Noise:
    """The noise of all users' counters, released after one reward of 0."""
    unit, law = first_draw(plan)
    key, users = fresh_key(), np.arange(system.nodes, dtype=np.int64)
    features = np.zeros((system.nodes, system.features.dimension), dtype=np.float32)
    rows = Rows(users.astype(np.int32), features, np.zeros(system.nodes))

    def read() -> NDArray[np.float64]:
        noised = system.noised_sums(key, fresh_nonce(), 0, 0)
        noised.add(rows)
        drawn = noised.sums(users) / unit
        vectors = isinstance(plan.budget, PureLength) and plan.dimension > 1
        return np.asarray(np.linalg.norm(drawn, axis=1) if vectors else np.abs(drawn).ravel())

    return Noise(read, law, price)


def _noise_of_rewards(system: CollaborativeSystem, price: Cost) -> Noise | None:
    """The noise on rewards of 0; None where a noised reward has one of two values, so that its noise has no size."""
    law = local_reward_of(system.config.release)
    if law.law != "laplace":
        return None
    key, users = fresh_key(), np.arange(system.nodes, dtype=np.int64)
    _, entry = farthest_features(system.features, "gaussian")
    features = np.zeros((system.nodes, system.features.dimension), dtype=np.float32)
    features[:, 0] = entry
    rows = Rows(users.astype(np.int32), features, np.zeros(system.nodes))

    def read() -> NDArray[np.float64]:
        noised = system.noised_sums(key, fresh_nonce(), 0, 0)
        noised.add(rows)
        return np.abs(noised.sums(users)[:, 0]) / (entry * (1 << GRID_BITS))

    return Noise(read, laplace_law(law.levels, system.config.release.epsilon), price)


def _steps_of_users(plan: Plan, system: CollaborativeSystem, runs: int) -> int:
    alone = 1 if isinstance(plan, NegativeDigitTree) else max(1, system.nodes // _ALONE)
    return steps_for(runs, parallel_runs(system), alone * (1 + system.features.dimension // _WIDE))
