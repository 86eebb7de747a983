"""The record of a lift's release: the noised sums, and what they cost a user."""

from __future__ import annotations

from typing import Any

from hushstream.privacy.amounts import delta_to_bytes
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.lift import LiftStep, lift_debit, required_lift


def lift_record(
    system: P2BSystem, step: LiftStep, counter_id: bytes, release_id: bytes, reproducible: bool
) -> dict[str, Any]:
    """The fields of a Lift record; under a ``reproducible`` key nothing is private."""
    config = system.config
    price = lift_debit(*required_lift(config)).cost
    return {
        "release_id": release_id,
        "config_digest": system.digest,
        "counter": counter_id,
        "leaf": step.leaf,
        "levels": config.release.levels,
        "sums": step.sums.astype("<i8").tobytes(),
        "variance": step.variance,
        "epsilon_micro": price.epsilon_micro,
        "delta_units": delta_to_bytes(price.delta_units),
        "private_as_stated": not reproducible,
    }
