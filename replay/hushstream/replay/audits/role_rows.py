"""The audits of what roles publish: every place by itself, and neighbours through machines that are stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hushstream.replay.audits import role_attacks, role_noise
from hushstream.replay.audits.row import Audit, Recipe, Run
from hushstream.systems.collaborative_configuration import ContinualConfig, Trust
from hushstream.systems.configuration import LiftConfig, ReleaseConfig

EPSILON = 8.0
"""Of one reward, so that few runs see it."""

RUNS = 300
"""Finds half the noise of any one place, and any two places that share theirs (`tests/audits/test_role_power.py`)."""

FEW_USERS = 8
"""Counters that stand alone are slow to open."""

TARGETS = 7
"""Steps among which the one that is attacked is drawn."""
TARGET_EPSILON = 4.0

LIFT = LiftConfig(holdout=0.5, epsilon=3.0, decisions_per_user=3, releases=4)


def role_recipes() -> tuple[Recipe, ...]:
    """All of them, in the order of the table."""
    return (*_windows(), *_counters(), *_edge(), *_attacks())


def _windows() -> tuple[Recipe, ...]:
    return (
        _noise("windows-each-cell", "cells, sums, windows, partitions", role_noise.fresh_windows),
        _noise("counted-windows-each-cell", "cells, sums, partitions", role_noise.counted_cells),
        _noise("counted-windows-each-draw", "draws of 63 windows, sums", role_noise.counted_windows),
    )


def _counters() -> tuple[Recipe, ...]:
    draws, users = role_noise.counter_draws, role_noise.counter_users
    over = f"draws of {role_noise.LEAVES} steps, entries"
    return (
        _noise("counter-binary-each-draw", over, partial(draws, _release(mechanism="binary"))),
        _noise("counter-negative-digit-each-draw", over, partial(draws, _release())),
        _noise("counter-k-norm-each-draw", over, partial(draws, _release(noise="k-norm"))),
        _noise("counter-honaker-each-draw", over, partial(draws, _release(mechanism="honaker", noise="gaussian"))),
        _noise("counter-blt-each-draw", over, partial(draws, _release(mechanism="blt", noise="gaussian"))),
        _noise("counter-each-user", "users, entries, steps", partial(users, _release())),
        _noise(
            "counter-honaker-each-user",
            "users, entries, steps",
            partial(users, _release(mechanism="honaker", noise="gaussian"), FEW_USERS),
        ),
    )


def _edge() -> tuple[Recipe, ...]:
    noisy = _release(
        trust="edge", mechanism="noisy-reward", epsilon=3.0, reward_levels=4, horizon=TARGETS, rewards_per_user=TARGETS
    )
    return (
        _noise(
            "edge-counters-each-user",
            "users, entries, steps",
            partial(role_noise.counter_users, _release(trust="edge")),
        ),
        _noise("noisy-rewards-each-user", "users, rewards", partial(role_noise.noisy_rewards, noisy)),
        _noise("lift-each-sum", "sums, draws, partitions", partial(role_noise.lift_counts, LIFT, 2)),
    )


def _attacks() -> tuple[Recipe, ...]:
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=32)
    slot = "a report against null, through a shuffler that restarts"
    step = "a reward of 1 against 0 at a random step, through a {} that restarts"
    return (
        _attack("windows-through-the-role", slot, 3_000, partial(role_attacks.audit_worked_windows, fresh, 1)),
        _attack(
            "counted-windows-through-the-role",
            slot,
            2_000,
            partial(role_attacks.audit_worked_windows, running, 32),
            factor=1,
        ),
        _attack(
            "random-step-of-the-counter",
            step.format("counter"),
            4_000,
            partial(role_attacks.audit_target_leaf, target_release("server")),
            factor=1,
        ),
        _attack(
            "random-step-at-the-edge",
            step.format("learner"),
            4_000,
            partial(role_attacks.audit_target_leaf, target_release("edge")),
            factor=1,
        ),
        _attack(
            "renoised-sums", "a released reward is lost, sums anew", 500, partial(role_attacks.renoised_sums, ONCE)
        ),
        *(
            _attack(
                f"forked-counter-{mechanism}",
                "a journal rolled back, other rewards",
                500,
                partial(role_attacks.forked_counter, _release(mechanism=mechanism, noise=noise, epsilon=1.0)),
                factor=1,
            )
            for mechanism, noise in (("binary", "laplace"), ("honaker", "gaussian"), ("blt", "gaussian"))
        ),
    )


ONCE = ContinualConfig(horizon=32, rewards_per_user=32)
"""Of these few steps a counter has one level, and negative digits: its noise is drawn ahead."""


def target_release(trust: Trust) -> ContinualConfig:
    """A counter of which every step may be attacked."""
    return ContinualConfig(
        trust=trust, mechanism="binary", epsilon=TARGET_EPSILON, horizon=TARGETS, rewards_per_user=TARGETS
    )


def _release(**settings: Any) -> ContinualConfig:
    return ContinualConfig(**{"epsilon": EPSILON, "horizon": 63, "rewards_per_user": 63, **settings})


def _noise(name: str, places: str, run: Callable[[], Run]) -> Recipe:
    about = f"noise by itself and against all others: {places}"
    return Recipe(name, lambda: Audit(name, "role", about, RUNS, run(), factor=1))


def _attack(name: str, about: str, runs: int, run: Callable[[], Run], factor: int = 2) -> Recipe:
    return Recipe(name, lambda: Audit(name, "role", about, runs, run(), factor))
