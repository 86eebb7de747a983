"""Which machine each role runs, on which topics, and what it may show in metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hushstream.agents.deployment import KeySource
from hushstream.agents.preflight import RoleTopics
from hushstream.agents.worker import Reporting
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.keys import Zone
from hushstream.roles.aggregator import AggregatorMachine
from hushstream.roles.learner import LearnerMachine
from hushstream.roles.machine import Machine
from hushstream.roles.outcomes import Outcome, Refusal
from hushstream.roles.shuffler import ShufflerMachine
from hushstream.schemas import codec
from hushstream.schemas.reasons import Reason
from hushstream.systems.p2b import P2BSystem

RoleName = Literal["learner", "shuffler", "aggregator"]
ROLES: tuple[RoleName, ...] = get_args(RoleName)

OUTCOMES = (*map(str, Outcome), *map(str, JoinOutcome))
REASONS = (*map(str, Reason), *map(str, Refusal))


@dataclass(frozen=True, slots=True)
class RoleWork:
    """What a worker needs to know of its role."""

    make_machine: Callable[[int], Machine]
    topics: RoleTopics
    reporting: Reporting


def role_work(role: RoleName, system: P2BSystem, keys: KeySource) -> RoleWork:
    """Machines, topics and metrics of one role of a deployment.

    Raises:
        KeyFileError: the key of the role's zone cannot be used.
    """
    reporting = Reporting(OUTCOMES, REASONS, _reason_of, _gauges(role))
    if role == "learner":
        edge = keys.key(Zone.EDGE)
        writes = ("reports", "dead-letters-edge", *(("interactions",) if system.config.public_dataset else ()))
        topics = RoleTopics(("contexts", "clicks"), writes, system.config.partitions.learner)
        return RoleWork(lambda partition: LearnerMachine(system, partition, edge), topics, reporting)
    if role == "shuffler":
        secret = keys.key(Zone.SHUFFLER)
        topics = RoleTopics(
            ("reports",), ("crowds", "ledger", "dead-letters-shuffler"), system.config.partitions.shuffler
        )
        return RoleWork(lambda partition: ShufflerMachine(system, partition, secret), topics, reporting)
    inputs = ("crowds", "interactions") if system.config.public_dataset else ("crowds",)
    topics = RoleTopics(inputs, ("dead-letters-server",), system.line_count)
    return RoleWork(lambda line: AggregatorMachine(system, line), topics, reporting)


def all_machines(system: P2BSystem, keys: KeySource) -> list[Machine]:
    """Every machine of a deployment, in the order in which data flows."""
    partitions = system.config.partitions
    counts: Mapping[RoleName, int] = {
        "learner": partitions.learner,
        "shuffler": partitions.shuffler,
        "aggregator": system.line_count,
    }
    return [role_work(role, system, keys).make_machine(home) for role in ROLES for home in range(counts[role])]


def _reason_of(letter: bytes) -> str:
    return str(codec.decode(letter, frozenset({"DeadLetter"}))[1]["reason"])


def _gauges(role: RoleName) -> Callable[[Machine], Mapping[str, float]]:
    """What a role's machines may show beside counts; all of it follows from what was released."""

    def learner(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, LearnerMachine)
        shared = machine.terms.policy.shared("private")
        if not shared.version:
            return {"model_version": 0}
        return {"model_version": shared.version, "model_age_seconds": _age(machine.models[0].published_ms)}

    def shuffler(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, ShufflerMachine)
        return {
            "budget_spent_micro_epsilon": machine.windows_released * machine.system.guarantee().epsilon_micro,
        }

    def aggregator(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, AggregatorMachine)
        return {"model_version": machine.version}

    return {"learner": learner, "shuffler": shuffler, "aggregator": aggregator}[role]


def _age(log_time_ms: int) -> float:
    return max(0.0, time.time() - log_time_ms / 1000)
