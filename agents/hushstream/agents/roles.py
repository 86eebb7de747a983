"""Which machine each role runs, on which topics, and what it may show in metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from hushstream.agents.deployment import KeySource
from hushstream.agents.preflight import RoleTopics
from hushstream.agents.role_topics import HOMES, role_topics
from hushstream.agents.worker import Reporting
from hushstream.engine.chain import Chained
from hushstream.engine.machine import Machine
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.spending import Spending
from hushstream.engine.system import RoleName, System
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.errors import RetiredKey
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key, Zone, seeded_key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_EDITION
from hushstream.schemas.reasons import Reason
from hushstream.systems.colin.counter.machine import CounterMachine
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.edge.learner import CollaborativeLearnerMachine
from hushstream.systems.colin.server.machine import CollaborativeAggregatorMachine
from hushstream.systems.p2b.contribution.recipients import Openers
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.edge.learner import LearnerMachine
from hushstream.systems.p2b.server.machine import AggregatorMachine
from hushstream.systems.p2b.shuffler.machine import ShufflerMachine

NO_KEY = seeded_key(0, "nobody")
"""Stands for a key where a role has none; nothing is ever made from it."""

OUTCOMES = (*map(str, Outcome), *map(str, JoinOutcome))
REASONS = (*map(str, Reason), *map(str, Refusal))


class ChainedMachine(Machine, Chained, Protocol):
    """A machine whose journal has a chain, and with it an edition."""


@dataclass(frozen=True, slots=True)
class MachineMaker:
    """Makes the machines of a role: for a journal to come under the zone's current key, else under the journal's own.

    Attributes:
        make: from a home partition, a key (ignored by roles that have none), and the zone's key file.
        keys: where keys come from.
        zone: whose key; None for roles without one.
        edition: in which the machines write (`hushstream.schemas.catalogue`).
    """

    make: Callable[[int, Key, KeyRing | None], ChainedMachine]
    keys: KeySource
    zone: Zone | None
    edition: int = FIRST_EDITION

    def __post_init__(self) -> None:
        """Refuse a key that cannot be used before anything is connected.

        Raises:
            KeyFileError: missing, short, or readable by others.
            HushstreamError: this release does not know the edition.
        """
        codec.require_edition(self.edition)
        if self.zone is not None:
            self.keys.key(self.zone)

    def __call__(self, partition: int) -> Machine:
        """The machine of a home partition whose journal is not known."""
        if self.zone is None:
            return self._made(partition, NO_KEY, None)
        ring = self.keys.ring(self.zone)
        return self._made(partition, ring.of(ring.current), ring)

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Machine:
        """The machine of a home partition, under the key that its journal was begun with.

        Where that key was destroyed, a machine that is ``resumed`` from a snapshot is given the current one: the
        snapshot says which key it is under.

        Raises:
            HushstreamError: that key is not at hand any more, or never was.
        """
        if self.zone is None:
            return self(partition)
        try:
            key = self.keys.of_journal(self.zone, genesis)
        except RetiredKey:
            if not resumed:
                raise
            return self(partition)
        return self._made(partition, key, self.keys.ring(self.zone))

    def _made(self, partition: int, key: Key, ring: KeyRing | None) -> Machine:
        machine = self.make(partition, key, ring)
        machine.chain.edition = self.edition
        return machine


@dataclass(frozen=True, slots=True)
class RoleWork:
    """What a worker needs to know of its role."""

    make_machine: MachineMaker
    topics: RoleTopics
    reporting: Reporting


def role_work(role: RoleName, system: System, keys: KeySource, edition: int = FIRST_EDITION) -> RoleWork:
    """Machines, topics and metrics of one role of a deployment, whose records are written in an edition.

    Raises:
        HushstreamError: the deployment has no such role; a key cannot be used, or does not open the slots that are
            sealed; or this release does not know the edition.
    """
    topics = role_topics(role, system)
    if isinstance(system, P2BSystem):
        maker, gauges = _p2b_machines(role, system, keys), _gauges(role)
    else:
        assert isinstance(system, CollaborativeSystem)
        maker, gauges = _collaborative_machines(role, system, keys), _collaborative_gauges(role)
    reporting = Reporting(OUTCOMES, REASONS, _reason_of, gauges, tuple(system.roles), edition)
    return RoleWork(replace(maker, edition=edition), topics, reporting)


def _p2b_machines(role: RoleName, system: P2BSystem, keys: KeySource) -> MachineMaker:
    if role == "learner":
        return MachineMaker(lambda home, key, _: LearnerMachine(system, home, key), keys, Zone.EDGE)
    if role == "shuffler":
        sealing = _sealing_keys(system, keys)
        return MachineMaker(
            lambda home, key, ring: ShufflerMachine(system, home, key, sealing, ring), keys, Zone.SHUFFLER
        )
    return MachineMaker(lambda line, *_: AggregatorMachine(system, line), keys, None)


def _sealing_keys(system: P2BSystem, keys: KeySource) -> tuple[Key, ...]:
    """The keys that open sealed slots; ones that do not fit what is published are refused before all else."""
    if system.sealing is None:
        return ()
    kept = keys.ring(Zone.SEALING).kept()
    Openers(system.sealing, kept)
    return kept


def _collaborative_machines(role: RoleName, system: CollaborativeSystem, keys: KeySource) -> MachineMaker:
    if role == "learner":
        return MachineMaker(lambda home, key, _: CollaborativeLearnerMachine(system, home, key), keys, Zone.EDGE)
    if role == "counter":
        return MachineMaker(lambda home, key, ring: CounterMachine(system, home, key, ring), keys, Zone.COUNTER)
    return MachineMaker(lambda line, *_: CollaborativeAggregatorMachine(system, line), keys, None)


def all_machines(system: System, keys: KeySource, edition: int = FIRST_EDITION) -> list[Machine]:
    """Every machine of a deployment, in the order in which data flows."""
    return [
        role_work(role, system, keys, edition).make_machine(home)
        for role in system.roles
        for home in range(system.counts[HOMES[role]])
    ]


def _reason_of(letter: bytes) -> str:
    return str(codec.decode(letter, frozenset({"DeadLetter"}))[1]["reason"])


def _gauges(role: RoleName) -> Callable[[Machine], Mapping[str, float]]:
    """What a role's machines may show beside counts; all of it follows from what was released."""

    def learner(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, LearnerMachine)
        spent = {} if machine.spending is None else _budget("lift", machine.spending, machine.refused)
        shared = machine.terms.policy.shared("private")
        if not shared.version:
            return {**spent, "model_version": 0}
        age = _age(machine.models[0].published_ms)
        return {**spent, "model_version": shared.version, "model_age_seconds": age}

    def shuffler(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, ShufflerMachine)
        # A slot is in one window and pays once: for its window, or for the counter that all windows run through.
        price = machine.spending.terms.price.cost.epsilon_micro
        tree = machine.system.window_tree
        covered: dict[str, float] = {}
        if tree is not None:
            covered = {"slot_releases": machine.windows_covered, "slot_releases_limit": tree.horizon}
        return {
            **covered,
            "window_slots": machine.system.config.release.window_slots,
            "slot_spent_micro_epsilon": machine.spending.renewals * price,
            "slot_limit_micro_epsilon": machine.spending.terms.fits * price,
            "slot_price_micro_epsilon": price,
            "slot_refusing": machine.refused is not None,
        }

    def aggregator(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, AggregatorMachine)
        return {"model_version": machine.version}

    gauges: dict[RoleName, Callable[[Machine], Mapping[str, float]]] = {
        "learner": learner,
        "shuffler": shuffler,
        "aggregator": aggregator,
    }
    return gauges[role]


def _collaborative_gauges(role: RoleName) -> Callable[[Machine], Mapping[str, float]]:
    """The same for a collaborative system; versions and epochs follow from what was released."""

    def learner(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, CollaborativeLearnerMachine)
        spent = {} if machine.moments is None else _budget("reward", machine.spending, machine.refused)
        if not machine.shared.version:
            return {**spent, "model_version": 0}
        age = _age(machine.models[0].published_ms)
        return {**spent, "model_version": machine.shared.version, "model_age_seconds": age}

    def counter(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, CounterMachine)
        # An epoch that adds noise anew to all rewards before it makes each of them pay again.
        return _budget("reward", machine.spending, machine.refused)

    def aggregator(machine: Machine) -> Mapping[str, float]:
        assert isinstance(machine, CollaborativeAggregatorMachine)
        return {"model_version": machine.version}

    gauges: dict[RoleName, Callable[[Machine], Mapping[str, float]]] = {
        "learner": learner,
        "counter": counter,
        "aggregator": aggregator,
    }
    return gauges[role]


def _budget(scope_class: str, spending: Spending, refused: Exhausted | None) -> Mapping[str, float]:
    return {
        f"{scope_class}_spent_micro_epsilon": spending.spent.epsilon_micro,
        f"{scope_class}_limit_micro_epsilon": spending.terms.ceiling.epsilon_micro,
        f"{scope_class}_price_micro_epsilon": spending.terms.price.cost.epsilon_micro,
        f"{scope_class}_refusing": refused is not None,
    }


def _age(log_time_ms: int) -> float:
    return max(0.0, time.time() - log_time_ms / 1000)
