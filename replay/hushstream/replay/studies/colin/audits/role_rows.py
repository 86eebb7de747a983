"""The audits of the roles of collaborative bandits: the noise of each place, and neighbouring inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

from hushstream.replay.audits.roles.noise import LEAVES
from hushstream.replay.audits.roles.rows import FEWER_RUNS, attack_row, noise_row
from hushstream.replay.audits.row import Recipe
from hushstream.replay.studies.colin.audits import role_attacks, role_noise
from hushstream.replay.studies.colin.audits.forks import fork_rows
from hushstream.systems.colin.configuration import ContinualConfig, Mechanism, NoiseAt, NoiseLaw

EPSILON = 8.0
"""Epsilon of one reward; large, so that few runs detect an error."""

FEW_USERS = 8
"""Users of slow audits, as single counters take long to open."""

TARGETS = 7
"""The number of steps from which the attacked step is drawn."""
TARGET_EPSILON = 4.0


def role_rows() -> tuple[Recipe, ...]:
    """All audits of roles, in the order of the table."""
    return (*_counters(), *_edge(), *_attacks(), *fork_rows(EVERY_COUNTER, NOISY))


def _counters() -> tuple[Recipe, ...]:
    draws, users = role_noise.counter_draws, role_noise.counter_users
    over = f"draws of {LEAVES} steps, entries"
    return (
        noise_row("counter-binary-each-draw", over, partial(draws, _release(mechanism="binary"))),
        noise_row("counter-negative-digit-each-draw", over, partial(draws, _release())),
        noise_row("counter-k-norm-each-draw", over, partial(draws, _release(noise="k-norm")), FEWER_RUNS),
        noise_row(
            "counter-honaker-each-draw",
            over,
            partial(draws, _release(mechanism="honaker", noise="gaussian")),
            FEWER_RUNS,
        ),
        noise_row(
            "counter-blt-each-draw", over, partial(draws, _release(mechanism="blt", noise="gaussian")), FEWER_RUNS
        ),
        noise_row("counter-each-user", "users, entries, steps", partial(users, _release())),
        noise_row(
            "counter-honaker-each-user",
            "users, entries, steps",
            partial(users, _release(mechanism="honaker", noise="gaussian"), FEW_USERS),
            FEWER_RUNS,
        ),
    )


def _edge() -> tuple[Recipe, ...]:
    return (
        noise_row(
            "edge-counters-each-user",
            "users, entries, steps",
            partial(role_noise.counter_users, _release(noise_at="learner")),
        ),
        noise_row("noisy-rewards-each-user", "users, rewards", partial(role_noise.noisy_rewards, NOISY)),
    )


def _attacks() -> tuple[Recipe, ...]:
    step = "a reward of 1 against 0 at a random step, through a {} that restarts"
    return (
        attack_row(
            "random-step-of-the-counter",
            step.format("counter"),
            3_000,
            partial(role_attacks.audit_target_leaf, target_release("server")),
            factor=1,
        ),
        attack_row(
            "random-step-at-the-edge",
            step.format("learner"),
            3_000,
            partial(role_attacks.audit_target_leaf, target_release("learner")),
            factor=1,
        ),
        attack_row(
            "redrawn-sums", "a released reward is lost, sums anew", 500, partial(role_attacks.redrawn_sums, ONCE)
        ),
        *(
            attack_row(
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
"""With this few steps a counter has one level and negative digits, so its noise is drawn ahead."""


def target_release(noise_at: NoiseAt) -> ContinualConfig:
    """A counter of which any step may be attacked."""
    return ContinualConfig(
        noise_at=noise_at, mechanism="binary", epsilon=TARGET_EPSILON, horizon=TARGETS, rewards_per_user=TARGETS
    )


def _release(**settings: Any) -> ContinualConfig:
    return ContinualConfig(**{"epsilon": EPSILON, "horizon": 63, "rewards_per_user": 63, **settings})


COUNTERS: tuple[tuple[NoiseLaw, tuple[Mechanism, ...]], ...] = (
    ("laplace", ("negative-digit", "binary", "honaker")),
    ("k-norm", ("negative-digit", "binary", "honaker")),
    ("gaussian", ("negative-digit", "binary", "honaker", "blt")),
)
"""The mechanisms that a configuration may name."""

EVERY_COUNTER = tuple(
    _release(mechanism=mechanism, noise=noise) for noise, mechanisms in COUNTERS for mechanism in mechanisms
)

NOISY = _release(
    noise_at="learner",
    mechanism="noisy-reward",
    epsilon=3.0,
    reward_levels=4,
    horizon=TARGETS,
    rewards_per_user=TARGETS,
)
