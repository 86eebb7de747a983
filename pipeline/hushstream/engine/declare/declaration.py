"""What a system declares of itself: its topics, its roles, and what a deployment of it is.

Everything else reads these declarations and never asks which system it is: workers, topics, access rules, documents,
manifests, metrics, key files, preparation, the statement, verification, budgets, erasure, exports and replays. So one
adds a system by writing a declaration (`hushstream.systems.catalogue`), and no privacy rule depends on a list of names
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from hushstream.engine.catalogue import Catalogue
from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom, PublishedKey
from hushstream.engine.declare.device_service import DeviceService
from hushstream.engine.declare.plan import Audience, Plan, ReleasedAt
from hushstream.engine.declare.result import Result
from hushstream.engine.declare.role import DeclarationError, Role
from hushstream.engine.language import Language
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core, DeploymentValues, Priced
from hushstream.privacy.promises.promise import Promises
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.topics import PUBLISHED, Topic


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=Named)


def no_objection(config: Any) -> None:
    """Default of `Kind.check`: valid values are always valid together."""


def no_notes(config: Any) -> Sequence[str]:
    """Default of `Kind.notes`: no valid configuration is useless."""
    return ()


def nothing_resolved(config: Any) -> Mapping[str, str | float]:
    """Default of `Kind.resolved`: no value is chosen automatically."""
    return {}


def nothing_prepared(config: Any, given: Given) -> Mapping[str, bytes]:
    """Default of `Kind.prepare`: preparation makes no files."""
    return {}


def no_facts(config: Any, artefacts: Any) -> Sequence[Fact]:
    """Default of `Kind.facts`: there are none beside the promises."""
    return ()


@dataclass(frozen=True, slots=True)
class Words:
    """What a system says of itself in the statement, beside what its guarantee says.

    Attributes:
        trust: who is trusted with what, in a sentence.
        erasure: what an erasure does, and what stays.
        example: a question about Ann that an observer may ask.
        result: the data it takes in, and what it makes of them.
    """

    trust: str
    erasure: str
    example: str
    result: Result


def home_of_user(user: str, partitions: int) -> tuple[int, ...]:
    """The partition of a user's records, by the hash that every writer uses."""
    return (partition_of(user, partitions),)


def names_user(schema: str, fields: Mapping[str, Any], user: str) -> bool:
    """Whether a record is of a user, where records name one as ``user`` or several as ``users``."""
    return bool(fields.get("user") == user or user in fields.get("users", ()))


@dataclass(frozen=True, slots=True)
class Erasure:
    """How a user is erased from a deployment.

    Attributes:
        stays: what an erasure leaves for ever.
        waits: what is deleted only after some time, apart from records on topics that name users.
        holders: which records of each topic an erasure reaches by log time: those up to the tombstone's log time, or
            all.
        names: whether a decoded record of a topic is of a user.
    """

    stays: tuple[str, ...]
    waits: tuple[str, ...]
    names: Callable[[str, Mapping[str, Any], str], bool]
    passed_on: frozenset[str] = frozenset()
    """Topics to which roles forward a user's records until they fold the tombstone. All of the user's records there are
    deleted."""
    homes: Callable[[str, int], tuple[int, ...]] = home_of_user
    """Which partitions, of a given number, may hold records of a user. A tombstone is sent to each."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class System:
    """A deployment of a system: a configuration and the artefacts that were prepared for it.

    Attributes:
        core: what its machines work from, of a class that the system derives from `hushstream.engine.system.Core`: it
            knows configuration, digest, counts and prices.
        roles: in the order in which data flows.
        topics: those that it has; those of its roles' states need not be named.
        erasure: how a user is taken out.
        words: what it says of itself in the statement.
        facts: facts that follow from configuration and preparation, for people who check them.
        holdout: how releases about its hold-out are read; None if there is no hold-out.
        shadow: how releases about its answers in shadow mode are read; None if there are none.
        ahead: how a plan is computed from releases; None if there is no such plan.
        before: what other deployments paid for the model that it began with.
        models: how people read its released models; None if there is no reader.
        requests: rules of valid requests; the client of this conversation (`hushstream.engine.declare.conversation`)
            checks them before it sends. `hushstream.engine.declare.requests.ContextRules` where applications request
            decisions, another class elsewhere. None if only the workers can check.
        parties: parties that have topics and roles of their own (`hushstream.engine.declare.parties`); none in most
            systems.
        outside: of a role without workers, the topics and rights that somebody else needs under its name.
        devices: topics and rights that are needed to hand in slots from users' devices. Nobody has these rights unless
            an operator names them for it.
        device_service: makes what a gateway for users' devices needs, for the schema generation in which it writes
            records; None if no gateway serves devices.
    """

    core: Any
    roles: tuple[Role, ...]
    topics: tuple[Topic, ...]
    erasure: Erasure
    words: Words
    facts: Mapping[str, str | float] = field(default_factory=dict)
    holdout: HoldoutView | None = None
    shadow: HoldoutView | None = None
    ahead: PlanView | None = None
    before: Sequence[Fact] = ()
    models: ModelView | None = None
    requests: Any = None
    parties: tuple[str, ...] = ()
    outside: Mapping[str, Mapping[str, Literal["Read", "Write"]]] = field(default_factory=dict)
    devices: Mapping[str, Literal["Read", "Write"]] = field(default_factory=dict)
    device_service: Callable[[int], DeviceService] | None = None

    def __post_init__(self) -> None:
        """Add the topics of states, and refuse a declaration that contradicts itself."""
        _require_own_journals(f"deployment {self.config.deployment}", self.roles)
        object.__setattr__(self, "topics", _with_states(self.topics, self.roles))
        counted = [(f"topic {topic.name}", topic.count) for topic in self.topics]
        counted += [(f"role {role.name}", role.homes) for role in self.roles]
        for what, count in counted:
            if count not in self.counts:
                raise DeclarationError(f"{what}: expected a count among {', '.join(self.counts)}, got {count!r}")

    @property
    def _known(self) -> Core[DeploymentValues]:
        """The core, typed as every system has it."""
        known: Core[DeploymentValues] = self.core
        return known

    @property
    def kind(self) -> str:
        """The system's name, as the configuration has it."""
        return self._known.config.system

    @property
    def config(self) -> DeploymentValues:
        """The configuration."""
        return self._known.config

    @property
    def digest(self) -> bytes:
        """Digest of the configuration and the prepared artefacts (16 bytes)."""
        return self._known.digest

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions, by what is counted."""
        return self._known.counts

    @property
    def promises(self) -> Promises:
        """What the configured releases promise, to whom, over a lifetime."""
        return self._known.promises

    @property
    def budgets(self) -> tuple[BudgetFacts, ...]:
        """The budgets: what may be spent, and how much of the plan fits; one for each kind of release."""
        return self._known.budgets

    @property
    def ledgers(self) -> Mapping[str, SpendingTerms]:
        """Prices and limits of the releases that are entered on each ledger topic."""
        return self._known.ledgers

    @property
    def public_dataset(self) -> bool:
        """Whether a public dataset is replayed.

        Only then may content be released without noise, and only under a seeded key. It is a fact about the data of a
        replay, so no configuration has this setting.
        """
        return self._known.public_dataset

    @property
    def role_names(self) -> tuple[str, ...]:
        """The names of the roles, in the order in which data flows."""
        return tuple(role.name for role in self.roles)

    @property
    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has, in the order of the declaration."""
        return {topic.name: self.counts[topic.count] for topic in self.topics}

    def homes(self, role: Role) -> int:
        """How many home partitions a role has."""
        return self.counts[role.homes]


DEVICES = "Devices"
"""Heading of the facts about learners on users' devices."""


class Fact(NamedTuple):
    """A fact that follows from a configuration and the prepared artefacts.

    Attributes:
        name: its key for scripts.
        value: for scripts.
        text: a line for people.
        topic: its heading; empty for facts about what a deployment gives.
    """

    name: str
    value: float
    text: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class HoldoutView:
    """How releases of a lift are read, from a hold-out or in shadow mode.

    Attributes:
        topics: that hold it.
        read: a report of it, from the values of their records.
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes]], HoldoutReport]


@dataclass(frozen=True, slots=True)
class PlanView:
    """How a plan is computed from a deployment's releases.

    Attributes:
        topics: of its releases.
        plan: computes it from their records, the expected audience (None for the number seen so far), and the share of
            visits that reward an item drawn at random (None for the share in the releases).
    """

    topics: tuple[str, ...]
    plan: Callable[[Iterable[ReleasedAt], Audience | None, float | None], Plan]


EVERYBODY = ""
"""Key, in place of a party, for items that all parties share."""

Catalogues: TypeAlias = "Mapping[str, Catalogue]"
"""Names of items by party, or `EVERYBODY`."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """How released models are read.

    Attributes:
        topics: that hold them.
        read: reads one version from the values of their records in log order; the newest if the number is None. The
            catalogues give names of items by party; none if items have no names.
        change: the difference between an older and a newer version.
        export: a version as files, to decide with it elsewhere; None if that needs a key.
        drawn: whether a page can be made from the plain values of a version (`model show --page`).
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes], int | None, Catalogues], Report]
    change: Callable[[Any, Any], Report]
    export: Callable[[Iterable[bytes], int | None, Catalogues], Exported] | None = None
    drawn: bool = False


class Exported(Protocol):
    """An exported model."""

    def as_json(self) -> bytes:
        """A file of it as JSON."""

    def as_npz(self) -> bytes:
        """A file of it as numpy's archive."""


class Report(Protocol):
    """A result, for people and for scripts."""

    def as_text(self) -> str:
        """Whole lines."""

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""


class HoldoutReport(Report, Protocol):
    """A comparison of a model with its hold-out, or of its answers in shadow mode."""

    @property
    def exit_code(self) -> int:
        """0 if the lift is known, 1 if too few decisions were shown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """The declaration of a system, which needs no deployment.

    Attributes:
        name: its name in configurations, commands and noise addresses.
        summary: one line.
        config: the class of its configurations.
        unit: the unit of privacy: one of these pays the configured epsilon.
        keys: places of keys whose values the class has elsewhere (`hushstream.engine.language`).
        topics, roles: all that any deployment of it may have; topics of states need not be named.
        inputs: files that preparation may be given.
        prepare: makes the artefacts that are still missing, by file name.
        assemble: makes a deployment from configuration and artefacts.
        priced: promises and costs of a configuration; it needs no preparation.
        artefacts: names of the files that preparation makes.
        resolved: values that are chosen from a configuration alone, by name.
        facts: further facts from configuration and artefacts, shown beside the promises.
        check: refuses combinations of valid settings that are not valid together.
        notes: warnings about settings that are valid and useless.
        plan: forecast for an audience, before the deployment runs; None if the system has none. It reads public numbers
            alone, and takes two seconds at most.
        published_keys: keys whose public halves are artefacts; every deployment that has one of them has the first.
        study: its studies (`module:attribute`). They are found by name, because they import plotting libraries that a
            worker does not need; None if there are none.
    """

    name: str
    summary: str
    config: type
    topics: tuple[Topic, ...]
    roles: tuple[Role, ...]
    assemble: Callable[[Any, Artefacts], System]
    priced: Callable[[Any, Artefacts], Priced]
    prepare: Callable[[Any, Given], Mapping[str, bytes]] = nothing_prepared
    study: str | None = None
    artefacts: tuple[str, ...] = ()
    inputs: tuple[PreparedFrom, ...] = ()
    resolved: Callable[[Any], Mapping[str, str | float]] = nothing_resolved
    facts: Callable[[Any, Artefacts], Sequence[Fact]] = no_facts
    check: Callable[[Any], None] = no_objection
    notes: Callable[[Any], Sequence[str]] = no_notes
    plan: Callable[[Any, Artefacts, Audience], Plan] | None = None
    published_keys: tuple[PublishedKey, ...] = ()
    unit: str = "unit"
    keys: Mapping[str, str | None] = field(default_factory=dict)
    language: Language = field(init=False)

    def __post_init__(self) -> None:
        """Add the topics of states, and refuse a declaration that contradicts itself."""
        object.__setattr__(self, "language", Language(self.config, self.keys))
        object.__setattr__(self, "topics", _with_states(self.topics, self.roles))
        names = [topic.name for topic in self.topics]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DeclarationError(f"system {self.name}: expected each topic once, got {', '.join(twice)} again")
        # A deployment has one form of each role; its forms have name, zone and journal in common.
        _require_own_journals(f"system {self.name}", {(r.name, r.zone, r.journal): r for r in self.roles}.values())
        for role in self.roles:
            self._check_zones(role)
            self._check_topics(role)

    def _check_topics(self, role: Role) -> None:
        known = {topic.name: topic for topic in self.topics}
        where = f"system {self.name}: role {role.name}"
        used = {role.journal, *role.inputs, *role.writes, *role.writes_abroad, *role.broadcasts, *role.own}
        unknown = used - known.keys()
        if unknown:
            raise DeclarationError(
                f"{where}: expected topics among {', '.join(sorted(known))}, got {', '.join(sorted(unknown))}"
            )
        shared = [name for name in (*role.own, *role.writes_abroad) if role.each and not known[name].each]
        if shared:
            raise DeclarationError(
                f"{where}: expected topics that each party has of its own, as the role is, got {', '.join(shared)}"
            )
        if not known[role.journal].is_journal:
            raise DeclarationError(f"{where}: expected a journal, whose first record is a Genesis, got {role.journal}")
        noised = [name for name in role.writes if known[name].noised]
        if noised and role.marks is None:
            raise DeclarationError(
                f"{where}: expected a topic of marks, since it writes {', '.join(noised)}, got none: a journal that is "
                f"rolled back would be continued"
            )

    def _check_zones(self, role: Role) -> None:
        """Refuse a role whose zone has no topic, or that does not write the dead letters of its zone."""
        where = f"system {self.name}: role {role.name}"
        zones = sorted({topic.zone for topic in self.topics} - {PUBLISHED})
        named = [zone for zone in (role.zone, role.key_zone) if zone is not None and zone not in zones]
        if named:
            raise DeclarationError(f"{where}: expected a zone among {', '.join(zones)}, got {named[0]}")
        letters = [topic.name for topic in self.topics if topic.holds_dead_letters and topic.zone == role.zone]
        if not set(letters) & set(role.writes):
            raise DeclarationError(
                f"{where}: expected it to write the dead letters of zone {role.zone} "
                f"({', '.join(letters) or 'there is no such topic'}), got {', '.join(role.writes) or 'nothing'}"
                f"{'' if letters else f'; add topics.dead_letters({role.zone!r}, {role.homes!r}, each={role.each})'}"
            )

    def promises(self, config: Any, artefacts: Artefacts) -> Promises:
        """The promises of a configuration, before anything runs."""
        return self.priced(config, artefacts).promises

    def budgets(self, config: Any, artefacts: Artefacts) -> tuple[BudgetFacts, ...]:
        """The budgets of a configuration, before anything runs."""
        return self.priced(config, artefacts).budgets

    def topic(self, name: str) -> Topic:
        """One of its topics.

        Raises:
            DeclarationError: it has no such topic.
        """
        return _named(self.topics, name, f"topic of system {self.name}")


def _with_states(topics: tuple[Topic, ...], roles: tuple[Role, ...]) -> tuple[Topic, ...]:
    """The topics, and one more for the state of each role."""
    named = {topic.name for topic in topics}
    return (*topics, *{role.state.name: role.state for role in roles if role.state.name not in named}.values())


def _require_own_journals(where: str, roles: Iterable[Role]) -> None:
    """Refuse two roles of one name, and two that write one journal: each would break the chain of the other."""
    for one, other in combinations(roles, 2):
        for what in ("name", "journal"):
            if getattr(one, what) == getattr(other, what):
                raise DeclarationError(
                    f"{where}: role {other.name} of zone {other.zone}: expected a {what} that no other role has, got "
                    f"{getattr(other, what)}, as role {one.name} of zone {one.zone} has; both are arguments: "
                    "`publishing_role(name=..., journal=...)`, and so in `releasing_role` and `answering_role`"
                )


def role_of(system: System, name: str) -> Role:
    """One role of a deployment.

    Raises:
        DeclarationError: it has no such role, or no workers of it.
    """
    outside = "; by the configuration this work is done outside of its workers, who must not see it"
    why = outside if name in system.outside else ""
    return _named(system.roles, name, f"role of deployment {system.config.deployment}", why)


def topic_of(system: System, name: str) -> Topic:
    """One topic of a deployment.

    Raises:
        DeclarationError: it has no such topic.
    """
    return _named(system.topics, name, f"topic of deployment {system.config.deployment}")


def request_partitions(system: System) -> int:
    """Number of partitions of the topics that applications write, over which users are distributed.

    Raises:
        DeclarationError: applications write nothing.
    """
    for topic in system.topics:
        if topic.client == "writes":
            return system.partitions[topic.name]
    raise DeclarationError(f"deployment {system.config.deployment}: expected a topic that applications write, got none")


def _named(there: Iterable[_NamedT], name: str, what: str, why: str = "") -> _NamedT:
    known = {one.name: one for one in there}
    if name not in known:
        raise DeclarationError(f"expected a {what} ({', '.join(known)}), got {name!r}{why}")
    return known[name]
