"""Compares the time of the counter's work on rewards of 0 and of 1, for every counter and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.replay.audits.roles.work import SLOTS, Holds, Work, has_content
from hushstream.replay.studies.colin.audits.releases import collaborative
from hushstream.schemas import codec
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig
from hushstream.systems.colin.counter.machine import CounterMachine
from hushstream.systems.colin.deployment import CollaborativeSystem

_FEATURES = 5
_A_RECORD = 32
"""The number of rewards in one record."""

_USERS = 16

FORMS = {
    "negative-digit": ContinualConfig(epsilon=8.0, horizon=32, rewards_per_user=32),
    "binary": ContinualConfig(mechanism="binary", epsilon=8.0, horizon=32, rewards_per_user=32),
    "gaussian": ContinualConfig(mechanism="honaker", noise="gaussian", epsilon=8.0, horizon=32, rewards_per_user=32),
}


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of one step with ``slots`` rewards, for each form."""
    features = FeatureConfig(_FEATURES, norm_l1=_FEATURES**0.5)
    return tuple(
        _work(form, collaborative(replace(release, rows=slots), features, _USERS)) for form, release in FORMS.items()
    )


def _work(form: str, system: CollaborativeSystem) -> Work:
    make = partial(CounterMachine, system, 0, seeded_key(0, "counter"))
    about = "a step of rewards of 0 against one of rewards of 1"
    return Work(f"time-of-rewards-{form}", ("colin", "counter"), about, make, (), partial(_step, system))


def _step(system: CollaborativeSystem, holds: Holds) -> Sequence[bytes]:
    unit = np.full((_A_RECORD, _FEATURES), _FEATURES**-0.5 * 0.99, dtype="<f4")
    values = []
    for first in range(0, system.config.release.rows, _A_RECORD):
        places = range(first, first + _A_RECORD)
        fields = {
            "batch_id": (first + 1).to_bytes(16, "big"),
            "config_digest": system.digest,
            "nodes": np.array([place % system.nodes for place in places], "<i4").tobytes(),
            "contexts": unit.tobytes(),
            "rewards": np.array([float(has_content(holds, place)) for place in places], "<f8").tobytes(),
        }
        values.append(codec.encode("Rewards", fields))
    return values
