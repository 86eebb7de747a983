"""Which topics each role of a deployment uses; no key is needed to know them."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.agents.preflight import RoleTopics
from hushstream.engine.system import RoleName, System
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.p2b.deployment import P2BSystem

HOMES: Mapping[RoleName, str] = {
    "learner": "learner",
    "shuffler": "shuffler",
    "counter": "counter",
    "aggregator": "lines",
}
"""Which count of a deployment says how many home partitions a role has."""

JOURNALS: Mapping[RoleName, str] = {
    "learner": "decisions",
    "shuffler": "journal-shuffler",
    "counter": "journal-counter",
    "aggregator": "models",
}
"""What each role writes ahead of everything else."""


def role_topics(role: RoleName, system: System) -> RoleTopics:
    """The topics of one role of a deployment.

    Raises:
        HushstreamError: the deployment has no such role.
    """
    if role not in system.roles:
        raise HushstreamError(
            f"role: expected one of {', '.join(system.roles)} for deployment {system.config.deployment}, got {role}"
        )
    if isinstance(system, P2BSystem):
        inputs, writes = _of_p2b(role, system)
    else:
        assert isinstance(system, CollaborativeSystem)
        inputs, writes = _of_collaborative(role, system)
    broadcasts = (JOURNALS["aggregator"],) if role == "learner" else ()
    return RoleTopics(inputs, JOURNALS[role], writes, broadcasts, system.counts[HOMES[role]])


def _of_p2b(role: RoleName, system: P2BSystem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Inputs and outputs."""
    public = ("interactions",) if system.config.public_dataset else ()
    if role == "learner":
        lift = ("lift", "ledger-edge") if system.config.lift.holdout else ()
        return ("contexts", "clicks"), ("reports", "dead-letters-edge", *public, *lift)
    if role == "shuffler":
        return ("reports",), ("crowds", "ledger", "dead-letters-shuffler")
    return ("crowds", *public), ("dead-letters-server",)


def _of_collaborative(role: RoleName, system: CollaborativeSystem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Inputs and outputs."""
    if role == "learner":
        sent = ("rewards",) if system.config.release.trust == "server" else ("releases", "ledger")
        return ("contexts", "clicks"), (*sent, "dead-letters-edge")
    if role == "counter":
        return ("rewards",), ("releases", "ledger", "dead-letters-counter")
    return ("releases",), ("dead-letters-server",)
