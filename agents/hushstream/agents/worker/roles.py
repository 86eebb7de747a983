"""Collects what a worker must know about its role, from the declaration of its system."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.agents.worker.worker import Reporting
from hushstream.engine.declare.declaration import System, inputs_of, role_of, topic_of, writers, writes_of
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.declare.role import Role, RoleKeys
from hushstream.engine.journal.chain import ChainedMachine
from hushstream.engine.machine import Machine
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.state.published import PUBLIC_RING
from hushstream.engine.system import require_private
from hushstream.privacy.errors import RetiredKey
from hushstream.privacy.key_files import KeyRing, StorageRing
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import Reason

REASONS = (*map(str, Reason), *map(str, Refusal))
"""The reasons for which any role may refuse a record."""


@dataclass(frozen=True, slots=True)
class MachineMaker:
    """Makes the machines of a role: under the zone's current key for a new journal, otherwise under the journal's key.

    Attributes:
        role: the role.
        system: the deployment.
        keys: where keys come from.
    """

    role: Role
    system: System
    keys: KeySource

    def __post_init__(self) -> None:
        """Refuse unusable keys before any connection is opened.

        Raises:
            KeyFileError: a key file is missing, short, or readable by others.
            HushstreamError: a key does not fit its published half.
        """
        if self.role.key_zones:
            self(0)

    def __call__(self, partition: int) -> Machine:
        """The machine of a home partition that has no journal yet, or whose journal is not known."""
        zone = self.role.key_zone
        if zone is None:
            return self.made(partition, RoleKeys(others=self._others()))
        ring = self.keys.ring(zone)
        return self.made(partition, RoleKeys(ring.of(ring.current), ring, self._others()))

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Machine:
        """The machine of a home partition, under the key that its journal began with.

        If that key was destroyed and the machine is ``resumed`` from a snapshot, it gets the current key: the snapshot
        says which key is in force.

        Raises:
            HushstreamError: the key file no longer holds that key, or never held it.
        """
        zone = self.role.key_zone
        if zone is None:
            return self(partition)
        try:
            key = self.keys.of_journal(zone, genesis)
        except RetiredKey:
            if not resumed:
                raise
            return self(partition)
        return self.made(partition, RoleKeys(key, self.keys.ring(zone), self._others()))

    def under_each_key(self, partition: int) -> Sequence[Machine]:
        """The machine of a home partition under each key that is kept.

        It is for those who have a journal record but not the state before it, which says which key is in force.
        """
        if self.role.key_zone is None:
            return [self(partition)]
        ring = self.keys.ring(self.role.key_zone)
        return [self.made(partition, RoleKeys(key, ring, self._others())) for key in ring.kept()]

    def mark_keys(self) -> KeyRing:
        """The keys under which the marks of the role are sealed (`hushstream.agents.recovery.marks`)."""
        if self.role.key_zone is None:
            raise HushstreamError("release marks: expected a role with a key, got one without")
        return self.keys.ring(self.role.key_zone)

    @property
    def irreplaceable(self) -> str:
        """Why no operator may go on without the role's journal (`hushstream.engine.declare.role.Role`)."""
        return self.role.irreplaceable

    @property
    def spending_terms(self) -> SpendingTerms | None:
        """Prices and limit of the role's releases; None if it charges nothing."""
        ledgers = self.system.ledgers
        return next((ledgers[topic] for topic in writes_of(self.role, self.system) if topic in ledgers), None)

    def state_keys(self) -> KeyRing:
        """The keys under which the role's states are sealed, on disk and where they are published.

        They come from the zone's storage key file. If there is none, as in folders of earlier releases, they are the
        zone's own keys. For a role without a key it is a public one, which protects states only against damage.
        """
        before = PUBLIC_RING if self.role.key_zone is None else self.keys.ring(self.role.key_zone)
        storage = self.keys.storage(self.role.storage_zone)
        return before if storage is None else StorageRing.of_zone(storage, before)

    def made(self, partition: int, keys: RoleKeys) -> ChainedMachine:
        """The machine of a home partition under these keys."""
        return self.role.make(self.system.core, partition, keys)

    def _others(self) -> Mapping[str, KeyRing]:
        return {zone: self.keys.ring(zone) for zone in self.role.further_key_zones}


@dataclass(frozen=True, slots=True)
class RoleWork:
    """What a worker needs to know of its role."""

    make_machine: MachineMaker
    topics: RoleTopics
    reporting: Reporting


def role_topics(role: Role, system: System) -> RoleTopics:
    """The topics of one role of a deployment; no key is needed to know them."""
    inputs, writes = inputs_of(role, system), writes_of(role, system)
    every = {*inputs, *writes, *role.broadcasts, *role.own}
    declared = {topic.name: topic for topic in system.topics if topic.name in every}
    evidence, models = _evidence(role, system), (one.journal for one in system.roles if one.key_zone is None)
    return RoleTopics(
        inputs, role.journal, writes, role.broadcasts, system.homes(role), declared, role.marks, evidence,
        role.state.name, {name: system.partitions[name] for name in declared}, frozenset(models) & every,
    )  # fmt: skip


def _evidence(role: Role, system: System) -> tuple[str, ...]:
    """The topics outside its zone that only this role writes: no other role, with its ticks, and no device does."""
    if role.marks is None:
        return ()
    own = topic_of(system, role.marks).zone
    leaving = (topic_of(system, name) for name in writes_of(role, system) if topic_of(system, name).zone != own)
    alone = (topic.name for topic in leaving if writers(topic, system.roles) == (role.name,))
    return tuple(name for name in alone if system.devices.get(name) != "Write")


def role_work(name: str, system: System, keys: KeySource) -> RoleWork:
    """The machines, topics and metrics of one role of a deployment.

    Raises:
        HushstreamError: the deployment has no such role; or a key cannot be used, or does not open the sealed slots.
    """
    role = role_of(system, name)
    reporting = Reporting(
        tuple(role.outcomes),
        (*REASONS, *role.reasons),
        _reason_of,
        partial(_gauges, role),
        system.role_names,
        role.private_work,
        frozenset(name for name in role_topics(role, system).inputs if topic_of(system, name).private_lag),
        role.scope_classes,
        partial(role.figures, system.core),
    )
    return RoleWork(MachineMaker(role, system, keys), role_topics(role, system), reporting)


def require_live(system: System, keys: KeySource) -> None:
    """Refuse to run a worker with real keys in a deployment whose releases are not private.

    A replay of a public dataset may release exact values. It always uses seeded keys, and so its results are marked.

    Raises:
        HushstreamError: the folder is that of a replay; or what is released is not private as stated.
    """
    if keys.seed is not None:
        return
    if system.public_dataset:
        raise HushstreamError(
            f"deployment {system.config.deployment}: expected a live deployment, got the folder of a replay of a "
            f"public dataset, whose content may leave in clear; its workers take --seed and no key files"
        )
    require_private(system.guarantee(), f"deployment {system.config.deployment}")


def all_machines(system: System, keys: KeySource) -> list[Machine]:
    """Every machine of a deployment, in the order in which data flows."""
    return [
        role_work(role.name, system, keys).make_machine(home)
        for role in system.roles
        for home in range(system.homes(role))
    ]


def _gauges(role: Role, machine: Machine) -> Mapping[str, float]:
    return role.gauges(machine, time.time())


def _reason_of(letter: bytes) -> str:
    return str(codec.decode(letter, frozenset({"DeadLetter"}))[1]["reason"])
