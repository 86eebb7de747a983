"""Which topics each role of a deployment uses; no key is needed to know them."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.agents.preflight import RoleTopics
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import TOPICS
from hushstream.systems.collaborative import CollaborativeSystem
from hushstream.systems.p2b import P2BSystem
from hushstream.systems.system import RoleName, System

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
            f"{_why_no_learner(role, system)}"
        )
    inputs, writes = _flows(role, system)
    broadcasts = (JOURNALS["aggregator"],) if role == "learner" else ()
    marks, count = marks_of(role), system.counts[HOMES[role]]
    return RoleTopics(inputs, JOURNALS[role], writes, broadcasts, count, marks, _evidence(role, system, marks))


def marks_of(role: RoleName) -> str | None:
    """Where a role notes how far it has released; None for one that holds no key."""
    found = [spec.name for spec in TOPICS.values() if spec.schemas == ("ReleaseMark",) and role in spec.writers]
    return found[0] if found else None


def _evidence(role: RoleName, system: System, marks: str | None) -> tuple[str, ...]:
    """What a role writes out of its zone, where no other role of the system writes, ticks among it."""
    if marks is None:
        return ()
    others = {topic for other in system.roles if other != role for topic in _flows(other, system)[1]}
    ticked = {topic for other in system.roles for topic in _flows(other, system)[0] if other in TOPICS[topic].writers}
    own = TOPICS[marks].zone
    foreign = others | ticked
    return tuple(name for name in _flows(role, system)[1] if TOPICS[name].zone is not own and name not in foreign)


def _flows(role: RoleName, system: System) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Inputs and outputs."""
    if isinstance(system, P2BSystem):
        return _of_p2b(role, system)
    assert isinstance(system, CollaborativeSystem)
    return _of_collaborative(role, system)


def _why_no_learner(role: RoleName, system: System) -> str:
    if role != "learner":
        return ""
    return (
        "; with kind edge learners are agents on users' devices: a worker that ran them would hold contexts and clicks "
        "in clear, which is kind hosted"
    )


def _of_p2b(role: RoleName, system: P2BSystem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Inputs and outputs."""
    public = ("interactions",) if system.public_dataset else ()
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
