"""What a system declares of itself: its topics, its roles, and what a deployment of it is.

Workers, topics, access rules, documents, manifests, metrics, key files, preparation, the statement, verification,
budgets, erasure, exports and replays go over these declarations and never ask which system it is. So a system is added
by writing one (`hushstream.systems.catalogue`), and no privacy rule hangs on a list of names somewhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from hushstream.engine.catalogue import Catalogue
from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom, PublishedKey
from hushstream.engine.declare.plan import Audience, Plan, ReleasedAt
from hushstream.engine.declare.result import Result
from hushstream.engine.declare.role import DeclarationError, Role
from hushstream.engine.language import Language
from hushstream.engine.noise.budget import BudgetFacts, SpendingTerms
from hushstream.engine.system import Core, DeploymentValues, Priced
from hushstream.privacy.promises.promise import Promises
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.topics import PUBLISHED, Topic


class Named(Protocol):
    """Something that goes by name."""

    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=Named)


def no_objection(config: Any) -> None:
    """Of a system whose valid values are always valid together."""


def no_notes(config: Any) -> Sequence[str]:
    """Of a system that allows nothing useless."""
    return ()


def nothing_resolved(config: Any) -> Mapping[str, str | float]:
    """Of a system that leaves nothing automatic."""
    return {}


def nothing_prepared(config: Any, given: Given) -> Mapping[str, bytes]:
    """Of a system that is public as far as it follows from the configuration alone."""
    return {}


def no_facts(config: Any, artefacts: Any) -> Sequence[Fact]:
    """Of a system with nothing to say beside its promises."""
    return ()


@dataclass(frozen=True, slots=True)
class Words:
    """What a system says of itself in the statement, beside what its guarantee says.

    Attributes:
        trust: who is trusted with what, in a sentence.
        erasure: what an erasure does, and what stays.
        example: something about Ann that an onlooker may wonder about.
        result: what it takes in, and what comes of it.
    """

    trust: str
    erasure: str
    example: str
    result: Result


def home_of_user(user: str, partitions: int) -> tuple[int, ...]:
    """The partition where a user's records are, by the rule that every writer follows."""
    return (partition_of(user, partitions),)


def names_user(schema: str, fields: Mapping[str, Any], user: str) -> bool:
    """Whether a record is of a user, where records name one as ``user`` or several as ``users``."""
    return bool(fields.get("user") == user or user in fields.get("users", ()))


@dataclass(frozen=True, slots=True)
class Erasure:
    """How a user is taken out of a deployment.

    Attributes:
        stays: what an erasure leaves for good.
        waits: what is gone only after a while, beside the records on topics that name users.
        holders: which log times of each topic's records an erasure reaches: up to the tombstone's, or for ever.
        names: whether a decoded record of a topic is of a user.
    """

    stays: tuple[str, ...]
    waits: tuple[str, ...]
    names: Callable[[str, Mapping[str, Any], str], bool]
    passed_on: frozenset[str] = frozenset()
    """Topics on which roles pass a user's records on until they fold the tombstone: all of theirs there go."""
    homes: Callable[[str, int], tuple[int, ...]] = home_of_user
    """Which of so many partitions may hold records of a user: a tombstone goes to each."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class System:
    """A deployment of a system: a configuration joined with what was prepared for it.

    Attributes:
        core: what its machines work from, of a class that the system derives from `hushstream.engine.system.Core`: it
            knows configuration, digest, counts and prices.
        roles: in the order in which data flows.
        topics: those that it has; those of its roles' states need not be named.
        erasure: how a user is taken out.
        words: what it says of itself in the statement.
        facts: what follows from configuration and preparation, for whoever checks them.
        holdout: how what is released over its hold-out is read; None where there is none.
        shadow: how what is released of its answers in the shadow is read; None where nothing is.
        ahead: how a plan follows from what was released; None where none does.
        before: what was paid elsewhere for what it began with.
        models: how its released models are read by people; None where nobody wrote that.
        requests: what applications may ask, in the form that the client of this conversation
            (`hushstream.engine.declare.conversation`) refuses by before it sends:
            `hushstream.engine.declare.requests.ContextRules` where decisions are asked for, one of their own elsewhere.
            None where nobody knows before the workers do.
        parties: who has topics and roles of their own in it (`hushstream.engine.declare.parties`); none in most
            systems.
        outside: what somebody beside the workers does under a role's name, where the role has no workers: topics and
            rights by name.
        devices: what those do who hand in slots that were made outside of the workers: topics and rights by name.
            Nobody has these rights unless they are named for it.
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

    def __post_init__(self) -> None:
        """Add the topics of states, and refuse a declaration that does not hold together."""
        object.__setattr__(self, "topics", _with_states(self.topics, self.roles))
        counted = [(f"topic {topic.name}", topic.count) for topic in self.topics]
        counted += [(f"role {role.name}", role.homes) for role in self.roles]
        for what, count in counted:
            if count not in self.counts:
                raise DeclarationError(f"{what}: expected a count among {', '.join(self.counts)}, got {count!r}")

    @property
    def _known(self) -> Core[DeploymentValues]:
        """The same object, as every system has it."""
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
        """16 bytes that stand for the configuration and what was prepared."""
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
        """What may be spent, and how much of what is planned fits; one for each thing that is released."""
        return self._known.budgets

    @property
    def ledgers(self) -> Mapping[str, SpendingTerms]:
        """What the releases cost that are entered on each ledger topic, and out of which limit."""
        return self._known.ledgers

    @property
    def public_dataset(self) -> bool:
        """Whether a public dataset is replayed: only then may content leave un-noised, and only under a seeded key.

        It is a fact about the data of a replay, so no configuration can say it.
        """
        return self._known.public_dataset

    @property
    def role_names(self) -> tuple[str, ...]:
        """In the order in which data flows."""
        return tuple(role.name for role in self.roles)

    @property
    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has, in the order of the declaration."""
        return {topic.name: self.counts[topic.count] for topic in self.topics}

    def homes(self, role: Role) -> int:
        """How many home partitions a role has."""
        return self.counts[role.homes]


DEVICES = "Devices"
"""The topic of what is said of learners on users' devices."""


class Fact(NamedTuple):
    """Something that follows from a configuration and what was prepared.

    Attributes:
        name: its key for scripts.
        value: for scripts.
        text: a line for people.
        topic: the heading that it stands under; empty for what a deployment gives.
    """

    name: str
    value: float
    text: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class HoldoutView:
    """How what is released of a lift is read, over a hold-out or in the shadow.

    Attributes:
        topics: that hold it.
        read: a report of it, from the values of their records.
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes]], HoldoutReport]


@dataclass(frozen=True, slots=True)
class PlanView:
    """How a plan follows from what a deployment has released.

    Attributes:
        topics: of its releases.
        plan: from their records, who is expected (None for as many as have come), and the share of visits that reward
            an item drawn at random (None for what the releases say).
    """

    topics: tuple[str, ...]
    plan: Callable[[Iterable[ReleasedAt], Audience | None, float | None], Plan]


EVERYBODY = ""
"""In place of a party: whose items are everybody's."""

Catalogues: TypeAlias = "Mapping[str, Catalogue]"
"""What items are called, by the party whose they are, or `EVERYBODY`."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """How released models are read.

    Attributes:
        topics: that hold them.
        read: one version, from the values of their records in log order; the newest where the number is None. The
            catalogues say what items are called, by party; none where items have no names.
        change: what differs between an older and a newer one of these.
        export: the same version as files, for whoever decides with it elsewhere; None where nobody can without a key.
        drawn: whether the plain values of a version are those that a page is made of (`model show --page`).
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes], int | None, Catalogues], Report]
    change: Callable[[Any, Any], Report]
    export: Callable[[Iterable[bytes], int | None, Catalogues], Exported] | None = None
    drawn: bool = False


class Exported(Protocol):
    """A released model that is taken out."""

    def as_json(self) -> bytes:
        """A file of it as JSON."""

    def as_npz(self) -> bytes:
        """A file of it as numpy's archive."""


class Report(Protocol):
    """Something found, for people and for scripts."""

    def as_text(self) -> str:
        """Whole lines."""

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""


class HoldoutReport(Report, Protocol):
    """What is known of a model beside its hold-out, or of its answers in the shadow."""

    @property
    def exit_code(self) -> int:
        """0 where the lift is known, 1 where too little was shown to tell."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A system as it is declared: what the catalogue knows of it before there is a deployment.

    Attributes:
        name: as configurations, commands and noise addresses have it.
        summary: a line.
        config: the class of its configurations.
        unit: what privacy is counted in: one of these pays the configured epsilon.
        keys: where keys stand that are not where that class has their values (`hushstream.engine.language`).
        topics, roles: all that a deployment of it may have, whatever its configuration says; topics of states need
            not be named.
        inputs: files that preparation may be given.
        prepare: the artefacts that are still missing, by file name.
        assemble: a deployment from configuration and artefacts.
        priced: what a configuration promises and costs, which may be asked before anything was prepared.
        artefacts: names of the files that preparation makes.
        resolved: what follows from a configuration alone, by name.
        facts: what else follows from configuration and artefacts, and is said beside the promises.
        check: refuses valid values of a configuration that are not valid together.
        notes: what is allowed and serves nobody.
        plan: what it will bring so many people, before it runs; None for a system that cannot say. It reads public
            numbers alone, and takes a second or two at most.
        published_keys: keys whose public halves the artefacts hold; the first is there wherever another is.
        study: its studies (`module:attribute`), found by name, since they draw pictures and a worker does not; None
            for a system that is run and not studied here.
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
        """Add the topics of states, and refuse a declaration that does not hold together."""
        object.__setattr__(self, "language", Language(self.config, self.keys))
        object.__setattr__(self, "topics", _with_states(self.topics, self.roles))
        names = [topic.name for topic in self.topics]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DeclarationError(f"system {self.name}: expected each topic once, got {', '.join(twice)} again")
        for role in self.roles:
            self._check_topics(role)
            self._check_zones(role)

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
                f"rolled back would be gone on with"
            )

    def _check_zones(self, role: Role) -> None:
        """A role is of the zone of some topic, and what it refuses goes to that zone's dead letters."""
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
            )

    def promises(self, config: Any, artefacts: Artefacts) -> Promises:
        """What a configuration promises, before anything runs."""
        return self.priced(config, artefacts).promises

    def budgets(self, config: Any, artefacts: Artefacts) -> tuple[BudgetFacts, ...]:
        """What may be spent under a configuration, before anything runs."""
        return self.priced(config, artefacts).budgets

    def topic(self, name: str) -> Topic:
        """One of its topics.

        Raises:
            DeclarationError: it has no such topic.
        """
        return _named(self.topics, name, f"topic of system {self.name}")


def _with_states(topics: tuple[Topic, ...], roles: tuple[Role, ...]) -> tuple[Topic, ...]:
    """Topics with one for the state of each role."""
    named = {topic.name for topic in topics}
    return (*topics, *{role.state.name: role.state for role in roles if role.state.name not in named}.values())


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


def asked_partitions(system: System) -> int:
    """How many partitions there are of what applications write, which a user's records are spread over.

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
