"""What a system declares of itself: its topics, its roles, and what a deployment of it is.

Everything else reads these declarations and never asks which system it is: workers, topics, access rules, documents,
manifests, metrics, key files, preparation, the statement, verification, budgets, erasure, exports and replays. So one
adds a system by writing a declaration (`hushstream.systems.catalogue`), and no privacy rule depends on a list of names
elsewhere.

*Conversation.* The topics to which applications write, and from which they read answers.

*Exploring.* Sentences for the guarantee about a configuration's exploration.

*Flows.* Writers and readers of each topic, from a system's declaration.

*Device service.* What a system declares for a gateway for users' devices: topic and record of slots, and the models for
devices.

*Result.* What a deployment learns from, and what its result is, in words for the person who must approve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from hushstream.engine.catalogue import Catalogue
from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom, PublishedKey
from hushstream.engine.declare.plan import Audience, Plan
from hushstream.engine.declare.role import DeclarationError, Role
from hushstream.engine.language import Language
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core, DeploymentValues, Priced
from hushstream.privacy.promises.promise import Guarantee
from hushstream.schemas.topics import CLIENT, OPERATOR, PUBLISHED, Topic, of_party, partition_of


@dataclass(frozen=True, slots=True)
class Result:
    """What a system takes in and gives, as its statement says it.

    Attributes:
        data: the data about persons that it takes in.
        what: the result, who gets it, and from whose data it is computed.
        product: the result as registries of differentially private deployments describe it.
        release: to whom it is released, and how often.
    """

    data: str
    what: str
    product: str
    release: str


RECOMMENDATIONS = Result(
    data="contexts, clicks and decisions of users",
    what="a model that recommends; it is personalised, so what one user is shown follows from their own data too",
    product="continually updated recommendation model",
    release="interactive to the operator's learners, repeated; published topics",
)
"""The result of every system that decides for its users."""


class Served(Protocol):
    """A signed model in the form that devices fetch."""

    @property
    def tag(self) -> str:
        """The entity tag, a digest of the bytes."""

    def as_bytes(self) -> bytes:
        """The body of the answer."""


class DeviceService(Protocol):
    """What a gateway for devices needs of its deployment.

    Attributes:
        topic, partitions: topic of slots, and its number of partitions.
        digest: digest of the deployment.
        body_bytes: size of every slot's body.
        agreement: the agreement for devices.
        opening: a record that must be in the topic before any slot; None if no such record is needed.
    """

    topic: str
    partitions: int
    digest: bytes
    body_bytes: int
    agreement: bytes
    opening: bytes | None

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        """Whether a slot comes too late, or too early, to count."""

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The record of a slot: name of its schema, and its fields."""

    def follow(self, fields: Mapping[str, Any]) -> Served:
        """Take the model in a record of `statements`, if the deployment has signed it: anybody may have written it.

        Raises:
            BadModel: the aggregator of this deployment has not signed it.
        """


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=Named)


def no_objection(config: Any) -> None:
    """Default of `Kind.check`: valid values are always valid together."""


class Note(NamedTuple):
    """A warning about valid settings.

    Attributes:
        text: what is wrong, and what to state instead.
        weight: ``never`` where nothing can ever be released, which `prepare` refuses; ``useless`` where by its own
            forecast the deployment does not do what it is for; ``warning`` for the rest.
    """

    text: str
    weight: Literal["never", "useless", "warning"] = "warning"


def no_notes(config: Any) -> Sequence[Note]:
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
        holders: which records of each topic an erasure reaches by log time: those up to the deletion request's log
            time, or all.
        names: whether a decoded record of a topic is of a user.
    """

    stays: tuple[str, ...]
    waits: tuple[str, ...]
    names: Callable[[str, Mapping[str, Any], str], bool]
    passed_on: frozenset[str] = frozenset()
    """Topics to which roles forward a user's records until they fold the deletion request. All of these records
    there are deleted."""
    homes: Callable[[str, int], tuple[int, ...]] = home_of_user
    """Which partitions, of a given number, may hold records of a user. A deletion request is sent to each."""


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
        measurement: how releases about what its model brings are read; None if there are none.
        before: what other deployments paid for the model that it began with.
        models: how people read its released models; None if there is no reader.
        requests: rules of valid requests; the client of this conversation (`Conversation`)
            checks them before it sends. `hushstream.engine.declare.requests.ContextRules` where applications request
            decisions, another class elsewhere. None if only the workers can check.
        parties: parties that have topics and roles of their own (`hushstream.engine.declare.role`); none in most
            systems.
        devices: topics and rights that are needed to hand in slots from users' devices. Nobody has these rights unless
            an operator names them for it.
        device_service: makes what a gateway for users' devices needs; None if no gateway serves devices. With it there
            are no learner workers, because devices do their work.
    """

    core: Any
    roles: tuple[Role, ...]
    topics: tuple[Topic, ...]
    erasure: Erasure
    words: Words
    facts: Mapping[str, str | float] = field(default_factory=dict)
    measurement: MeasurementView | None = None
    before: Sequence[Fact] = ()
    models: ModelView | None = None
    requests: Any = None
    parties: tuple[str, ...] = ()
    devices: Mapping[str, Literal["Read", "Write"]] = field(default_factory=dict)
    device_service: Callable[[], DeviceService] | None = None

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

    def guarantee(self) -> Guarantee:
        """What the configured releases promise, to whom, over a lifetime."""
        return self._known.guarantee()

    @property
    def budgets(self) -> tuple[BudgetFacts, ...]:
        """The budgets: what may be spent, and how much of the plan fits; one for each kind of release."""
        return self._known.budgets

    @property
    def ledgers(self) -> Mapping[str, SpendingTerms]:
        """Prices and limits of the releases that are entered on each ledger topic."""
        return self._known.ledgers

    @property
    def overview_topics(self) -> tuple[str, ...]:
        """Topics with what was released of a measurement and what was paid: what an owner is shown is made of these."""
        return (*self.ledgers, *(() if self.measurement is None else self.measurement.topics))

    @property
    def similar_topics(self) -> tuple[str, ...]:
        """Topics with the released models that tell which items are alike; none if models do not."""
        return self.models.topics if self.models is not None and self.models.similar is not None else ()

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
class MeasurementView:
    """How releases about what a model brings are read.

    Attributes:
        topics: that hold it.
        read: a report of it, from the values of their records.
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes]], MeasurementReport]


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
        similar: the items of a version that are most like one of them, at most so many; None if models do not tell.
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes], int | None, Catalogues], Report]
    change: Callable[[Any, Any], Report]
    export: Callable[[Iterable[bytes], int | None, Catalogues], Exported] | None = None
    similar: Callable[[Any, str, int], Report] | None = None


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


class Compared(NamedTuple):
    """One comparison of what a model brings.

    Attributes:
        over: what it is compared with, in words.
        difference: how much more a decision earns; None while the noise hides it.
        interval: of the difference, 95 %; None where it is.
        counted: noised number of decisions behind it.
        needed: about how many let the interval exclude 0 if the difference stays, or a rate be told from the noise
            where there is no difference; None if no number does.
        harm: name of the guardrail's harm, of which a decision then has so much more; empty where rewards are compared.
    """

    over: str
    difference: float | None
    interval: tuple[float, float] | None
    counted: float
    needed: float | None
    harm: str = ""


class MeasurementReport(Report, Protocol):
    """A comparison of what a model brings with what is shown or known without it."""

    def comparisons(self) -> Sequence[Compared]:
        """The figures, by what the model is compared with."""

    @property
    def exit_code(self) -> int:
        """0 if the comparison is known, 1 if too few decisions were counted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A deployment at its end: everything that came is counted, and nobody writes.

    Attributes:
        machines: those of the role that counts, by home partition, as they end.
        models: values of the records of models (`ModelView.topics`).
        catalogues: by party.
        ledger, marks: digests of all records of these topics, in hexadecimal.
        key_ids: of the keys that stay the same (`Succession.key_zones`), by zone, in hexadecimal.
    """

    machines: Sequence[Any]
    models: Sequence[bytes]
    catalogues: Catalogues
    ledger: str
    marks: str
    key_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Succession:
    """How a deployment goes on with a changed configuration: what was learned stays, and what persons have paid.

    Attributes:
        counts: the role that counts what persons give; it is read to its end.
        key_zones: zones whose keys stay the same, as they name what was counted.
        told: what persons have paid and will pay, in words, from the core and the new configuration; it raises a
            `ConfigurationError` where they could pay more than they were promised.
        has_ended: whether a machine of that role has counted everything up to the end of a phase.
        left: the inputs of preparation for the next generation by name, from the core, the new configuration, and how
            the deployment ended.
    """

    counts: str
    key_zones: tuple[str, ...]
    told: Callable[[Any, Any], str]
    has_ended: Callable[[Any, int], bool]
    left: Callable[[Any, Any, Ended], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """The declaration of a system, which needs no deployment.

    Attributes:
        name: its name in configurations, commands and noise addresses.
        summary: one line.
        config: the class of its configurations.
        unit: the unit of privacy: one of these pays the configured epsilon.
        keys: keys of attributes of shared classes that have other ones here; None for an attribute without a key.
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
        audience: the audience that a configuration expects; None if it states none.
        published_keys: keys whose public halves are artefacts; every deployment that has one of them has the first.
        succession: how a deployment goes on with a changed configuration; None if it cannot.
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
    notes: Callable[[Any], Sequence[Note]] = no_notes
    plan: Callable[[Any, Artefacts, Audience], Plan] | None = None
    audience: Callable[[Any], Audience] | None = None
    published_keys: tuple[PublishedKey, ...] = ()
    succession: Succession | None = None
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

    def guarantee(self, config: Any, artefacts: Artefacts) -> Guarantee:
        """The guarantee of a configuration, before anything runs."""
        return self.priced(config, artefacts).guarantee.derived_from(artefacts.tainted)

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
    why = "; users' devices do the work that has no workers here" if system.device_service is not None else ""
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


class Conversation(NamedTuple):
    """Topics of an application's requests, of its feedback, and of the answers.

    Attributes:
        requests: topic of requests, also of erasures.
        feedback: other topics that applications write.
        answers: journal of the role that reads the requests; None if applications may not read it.
    """

    requests: str
    feedback: tuple[str, ...]
    answers: str | None

    def of(self, party: str) -> Conversation:
        """The conversation of a party, with the party's own topics."""
        feedback = tuple(of_party(name, party) for name in self.feedback)
        return Conversation(of_party(self.requests, party), feedback, self.answers and of_party(self.answers, party))


DECISIONS = Conversation("contexts", ("clicks",), "decisions")
"""The conversation of every system that decides for its users."""


def conversation_of(system: System, party: str = "") -> Conversation:
    """The topics of the applications of a deployment, or of one of its parties.

    Raises:
        DeclarationError: applications write no topic, no topic of theirs takes erasures, or no role reads it; or the
            party is missing or unknown.
    """
    if party not in (system.parties or ("",)):
        known = f"one of its parties ({', '.join(system.parties)})" if system.parties else "no party's name"
        raise DeclarationError(f"deployment {system.config.deployment}: expected {known}, got {party or 'none'}")
    written = [topic for topic in system.topics if topic.client == "writes" and topic.party == party]
    requests = next((topic.name for topic in written if topic.deletions), None)
    if requests is None:
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected a topic of deletion requests by applications, got none"
        )
    journal = topic_of(system, reader_of_requests(system, requests).journal)
    feedback = tuple(topic.name for topic in written if topic.name != requests)
    return Conversation(requests, feedback, journal.name if journal.client == "reads" else None)


def reader_of_requests(system: System, requests: str) -> Role:
    """The role that reads the requests of applications.

    Raises:
        DeclarationError: there is none.
    """
    for role in system.roles:
        if requests in role.inputs:
            return role
    raise DeclarationError(f"deployment {system.config.deployment}: expected a role that reads {requests}, got none")


def exploration_facts(exploration: ExplorationConfig, why: str) -> Sequence[Fact]:
    """The facts about exploration; none if the best arm is always chosen.

    Args:
        exploration: as configured.
        why: the reason why no guarantee of this system depends on it.
    """
    if exploration.choice == "greedy":
        return ()
    if exploration.choice == "epsilon":
        value, how = exploration.share, f"{exploration.share:.3g} of the decisions go to any eligible item"
    else:
        value = exploration.temperature
        how = f"an item that scores {exploration.temperature:.3g} less is chosen 2.7 times less often"
    return (
        Fact(
            f"exploration_{exploration.choice}",
            value,
            f"{how}, by a keyed draw of user and event, and the decision states the exact chance. {why}",
        ),
    )


def writes_of(role: Role, system: System) -> tuple[str, ...]:
    """The topics that a role writes in a deployment, without its journal."""
    existing = {topic.name for topic in system.topics}
    return tuple(name for name in role.writes if name in existing)


def inputs_of(role: Role, system: System) -> tuple[str, ...]:
    """The inputs that a role has in a deployment."""
    existing = {topic.name for topic in system.topics}
    return tuple(name for name in role.inputs if name in existing)


def writers(topic: Topic, roles: Iterable[Role]) -> tuple[str, ...]:
    """The writers of a topic, in the order in which data flows."""
    found = [role.name for role in roles if topic.name in _written(role) or _ticks(role, topic)]
    return tuple(dict.fromkeys(([topic.application] if topic.client in ("writes", "changes") else []) + found))


def readers(topic: Topic, roles: Iterable[Role]) -> tuple[str, ...]:
    """The readers of a topic; the writer of a journal is also its reader."""
    found = [role.name for role in roles if topic.name in (*role.own, *role.inputs, *role.broadcasts)]
    clients = [topic.application] if topic.client in ("reads", "changes") else []
    if topic.client == "changes" and topic.party:
        # What one party is shown may be another's item.
        clients = [of_party(CLIENT, role.party) for role in roles if role.party]
    return tuple(dict.fromkeys(clients + found + ([] if topic.reader is None else [topic.reader])))


def beside_workers(system: System) -> tuple[str, ...]:
    """Those who write or read topics of a deployment and run no worker."""
    readers = (topic.reader for topic in system.topics if topic.reader is not None)
    clients = [of_party(CLIENT, party) for party in system.parties] or [CLIENT]
    return tuple(dict.fromkeys((*clients, OPERATOR, *readers)))


def _written(role: Role) -> tuple[str, ...]:
    return (*role.own, *role.writes, *role.writes_abroad)


def _ticks(role: Role, topic: Topic) -> bool:
    return topic.ticks and topic.name in role.inputs
