"""What a system declares of itself: its topics, its roles, and what a deployment of it is.

Workers, topics, access rules, documents, manifests, metrics, key files, preparation, the statement, verification,
budgets, erasure, exports and replays go over these declarations and never ask which system it is. So a system is added
by writing one (`hushstream.systems.catalogue`), and no privacy rule hangs on a list of names somewhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from hushstream.engine import topics as shared_topics
from hushstream.engine.budget import BudgetFacts, SpendingTerms
from hushstream.engine.generations import Chained
from hushstream.engine.machine import Machine
from hushstream.engine.result import Result
from hushstream.engine.system import DeploymentValues
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.promise import Promises
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.topics import CLIENT, OPERATOR, PUBLISHED, Topic, of_party

MetricClass = Literal["released", "slot-public", "zone-private"]
"""Out of a mechanism, following from what is public anyway, or telling of content (PRIVACY rule 11)."""


class Named(Protocol):
    """Something that goes by name."""

    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=Named)


PUBLIC_DATASET = "public-dataset.json"
"""Says, in the folder of a replay alone, which public dataset is replayed there."""


class DeclarationError(HushstreamError):
    """A system declares something that cannot be."""


class ChainedMachine(Machine, Chained, Protocol):
    """A machine whose journal has a chain, and with it a schema generation."""


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """The keys that a role's machine works with.

    Attributes:
        key: the key that its journal begins, or began, with; None for a role without one.
        ring: all that the zone's key file holds; None where keys come from no file, or the role has none.
        others: the key files of the further zones that the role declares, by zone.
    """

    key: Key | None = None
    ring: KeyRing | None = None
    others: Mapping[str, KeyRing] = field(default_factory=dict)

    @property
    def own(self) -> Key:
        """The key, of a role that has one.

        Raises:
            DeclarationError: it has none.
        """
        if self.key is None:
            raise DeclarationError("role: expected a zone with a key, got none")
        return self.key


def no_objection(config: Any) -> None:
    """Of a system whose values allow nothing together that each does not."""


def no_notes(config: Any) -> Sequence[str]:
    """Of a system that allows nothing useless."""
    return ()


def nothing_resolved(config: Any) -> Mapping[str, str | float]:
    """Of a system that leaves nothing automatic."""
    return {}


def no_facts(config: Any, artefacts: Any) -> Sequence[Fact]:
    """Of a system with nothing to say beside its promises."""
    return ()


def no_gauges(machine: Any, now_seconds: float) -> Mapping[str, float]:
    """What a role shows that has nothing to show beside its counts."""
    return {}


def no_flaw(core: Any, home: int, logs: Any, party: str = "") -> Iterable[tuple[int, str]]:
    """Of a role of which nothing is to be shown beside what follows from its journal."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role of a system: what it reads and writes, and how its machine is made.

    Attributes:
        name: as workers are started by.
        zone: whose operator reads its dead letters.
        key_zone: the zone whose key its journal is under; None for a role that journals public values only.
        further_key_zones: zones of other keys that its workers need.
        inputs: the co-partitioned input topics; the first is the home topic.
        journal: what it writes ahead of everything else.
        writes: everything it writes besides.
        broadcasts: what each of its machines reads beside its inputs.
        marks: where it notes how far it has released; None for a role that adds no noise and spends no allowance.
        homes: which count of the deployment says how many home partitions it has.
        make: its machine, from the deployment, a home partition and the keys.
        gauges: what it shows of a machine beside counts, at a time in seconds, by the names of
            `hushstream.agents.metric_table.role_gauges_of`; all of it follows from what was released.
        scope_classes: classes of the charges that its gauges show.
        reasons: why it may refuse a record beside what the codec (`hushstream.schemas.reasons`) and the engine
            (`hushstream.engine.outcomes.Refusal`) refuse.
        outcomes: what may become of an event here, each with its class.
        private_work: whether its batches follow from content, so that their number and times are zone-private.
        proof: what else `verify` shows of the published records of a home partition whose journal it could follow: from
            the deployment, the home partition and a copy of the logs, (offset in the journal, why) of each flaw.
        each: whether each party of a deployment runs one of its own (`hushstream.engine.parties`); ``make`` is then
            told the ``party``.
        party: whose it is; "" where all parties share it, or there are none.
        writes_abroad: what it writes of the other parties' own topics.
    """

    name: str
    zone: str
    key_zone: str | None
    inputs: tuple[str, ...]
    journal: str
    writes: tuple[str, ...]
    homes: str
    make: Callable[..., ChainedMachine]
    private_work: bool
    outcomes: Mapping[str, MetricClass]
    further_key_zones: tuple[str, ...] = ()
    broadcasts: tuple[str, ...] = ()
    marks: str | None = None
    gauges: Callable[[Any, float], Mapping[str, float]] = no_gauges
    scope_classes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    proof: Callable[..., Iterable[tuple[int, str]]] = no_flaw
    each: bool = False
    party: str = ""
    writes_abroad: tuple[str, ...] = ()

    @property
    def state(self) -> Topic:
        """Where its workers publish what they hold, so that any of them can take a partition up at any age."""
        return shared_topics.state(self.name, self.zone, self.homes, each=self.each, party=self.party)

    @property
    def own(self) -> tuple[str, ...]:
        """What it writes for itself and reads again."""
        return (self.journal, *(() if self.marks is None else (self.marks,)), self.state.name)

    @property
    def key_zones(self) -> tuple[str, ...]:
        """Every zone whose key its workers need."""
        return (*(() if self.key_zone is None else (self.key_zone,)), *self.further_key_zones)


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
        kind: name of the system, as the configuration has it.
        config: the configuration.
        digest: 16 bytes that stand for the configuration and what was prepared.
        roles: in the order in which data flows.
        topics: those that it has; those of its roles' states need not be named.
        counts: numbers of partitions, by what is counted.
        promises: what the configured releases promise, to whom, over a lifetime.
        budgets: what may be spent, and how much of what is planned fits; one for each thing that is released.
        ledgers: what the releases cost that are entered on each ledger topic, and out of which limit.
        erasure: how a user is taken out.
        words: what it says of itself in the statement.
        facts: what follows from configuration and preparation, for whoever checks them.
        holdout: how what is released over its hold-out is read; None where there is none.
        core: the system's own object, which its machines work from.
        requests: what applications may ask, in the form that the client of this conversation
            (`hushstream.engine.conversation`) refuses by before it sends: `hushstream.engine.requests.ContextRules`
            where decisions are asked for, one of their own elsewhere. None where nobody knows before the workers do.
        parties: who has topics and roles of their own in it (`hushstream.engine.parties`); none in most systems.
        outside: what somebody beside the workers does under a role's name, where the role has no workers: topics and
            rights by name.
        public_dataset: whether a public dataset is replayed: only then may content leave un-noised, and only under a
            seeded key. It is a fact about the data of a replay, so no configuration can say it.
    """

    kind: str
    config: DeploymentValues
    digest: bytes
    roles: tuple[Role, ...]
    topics: tuple[Topic, ...]
    counts: Mapping[str, int]
    promises: Promises
    budgets: tuple[BudgetFacts, ...]
    ledgers: Mapping[str, SpendingTerms]
    erasure: Erasure
    words: Words
    facts: Mapping[str, str | float]
    core: Any
    public_dataset: bool
    holdout: HoldoutView | None = None
    requests: Any = None
    parties: tuple[str, ...] = ()
    outside: Mapping[str, Mapping[str, Literal["Read", "Write"]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add the topics of states, and refuse a declaration that does not hold together."""
        object.__setattr__(self, "topics", _with_states(self.topics, self.roles))
        counted = [(f"topic {topic.name}", topic.count) for topic in self.topics]
        counted += [(f"role {role.name}", role.homes) for role in self.roles]
        for what, count in counted:
            if count not in self.counts:
                raise DeclarationError(f"{what}: expected a count among {', '.join(self.counts)}, got {count!r}")

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


class Artefacts(NamedTuple):
    """What lies beside a configuration: files by name, and where they are, for errors.

    Attributes:
        where: the folder's name.
        files: their bytes.
    """

    where: str
    files: Mapping[str, bytes]

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return name in self.files

    def path(self, name: str) -> str:
        """How errors name a file."""
        return f"{self.where}/{name}"

    @property
    def public_dataset(self) -> str | None:
        """Which public dataset is replayed in the folder; None for a deployment.

        No configuration can say so, and no command of a deployment writes it.

        Raises:
            ConfigurationError: the file is damaged.
        """
        if not self.has(PUBLIC_DATASET):
            return None
        content = self.json(PUBLIC_DATASET, "the name of a public dataset")
        name = content.get("dataset") if isinstance(content, dict) else None
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{self.path(PUBLIC_DATASET)}: expected the name of a public dataset, got none")
        return name

    def json(self, name: str, what: str) -> Any:
        """The content of a JSON file.

        Raises:
            ConfigurationError: it is missing, or no JSON.
        """
        if name not in self.files:
            raise ConfigurationError(f"{self.path(name)}: expected {what}, got none; run `hushstream prepare`")
        try:
            return json.loads(self.files[name])
        except ValueError as error:
            raise ConfigurationError(
                f"{self.path(name)}: expected {what} as JSON, got {type(error).__name__}"
            ) from None


class Fact(NamedTuple):
    """Something that follows from a configuration and what was prepared.

    Attributes:
        name: its key for scripts.
        value: for scripts.
        text: a line for people.
    """

    name: str
    value: float
    text: str


class Given(NamedTuple):
    """What preparation starts from.

    Attributes:
        artefacts: what was prepared before, which is never changed.
        inputs: the files that were named for it, by the names of `Kind.inputs`, as (path, text).
        keys: the key files at hand, by zone; None where none are.
    """

    artefacts: Artefacts
    inputs: Mapping[str, tuple[str, str]]
    keys: Callable[[str], KeyRing] | None


@dataclass(frozen=True, slots=True)
class PreparedFrom:
    """A file that preparation may be given.

    Attributes:
        name: of the option that names it.
        help: what it holds.
    """

    name: str
    help: str


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A key whose public half is among the artefacts, and how a later one is put beside it.

    Attributes:
        zone: whose key.
        artefact: the file.
        period_ms: how long a period is, by the configuration: a new key holds from the beginning of one.
        publish: the new file and the key's public half, from the old one, the key file and the first period.
    """

    zone: str
    artefact: str
    period_ms: Callable[[Any], int]
    publish: Callable[[Artefacts, KeyRing, int], tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HoldoutView:
    """How what is released over a hold-out is read.

    Attributes:
        topics: that hold it.
        read: a report of it, from the values of their records.
    """

    topics: tuple[str, ...]
    read: Callable[[Iterable[bytes]], Report]


class Report(Protocol):
    """Something found, for people and for scripts."""

    def as_text(self) -> str:
        """Whole lines."""

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A system as it is declared: what the catalogue knows of it before there is a deployment.

    Attributes:
        name: as configurations, commands and noise addresses have it.
        summary: a line.
        config: the class of its configurations.
        topics, roles: all that a deployment of it may have, whatever its configuration says; topics of states need
            not be named.
        inputs: files that preparation may be given.
        prepare: the artefacts that are still missing, by file name.
        assemble: a deployment from configuration and artefacts.
        promises, budgets: what a configuration promises, which may be asked before anything was prepared.
        artefacts: names of the files that preparation makes.
        resolved: what follows from a configuration alone, by name.
        facts: what else follows from configuration and artefacts, and is said beside the promises.
        check: refuses what each value of a configuration allows and all together do not.
        notes: what is allowed and serves nobody.
        published_key: a key whose public half the artefacts hold, if there is one.
        study: its studies (`module:attribute`), found by name, since they draw pictures and a worker does not; None
            for a system that is run and not studied here.
    """

    name: str
    summary: str
    config: type
    topics: tuple[Topic, ...]
    roles: tuple[Role, ...]
    prepare: Callable[[Any, Given], Mapping[str, bytes]]
    assemble: Callable[[Any, Artefacts], System]
    promises: Callable[[Any, Artefacts], Promises]
    budgets: Callable[[Any, Artefacts], tuple[BudgetFacts, ...]]
    study: str | None = None
    artefacts: tuple[str, ...] = ()
    inputs: tuple[PreparedFrom, ...] = ()
    resolved: Callable[[Any], Mapping[str, str | float]] = nothing_resolved
    facts: Callable[[Any, Artefacts], Sequence[Fact]] = no_facts
    check: Callable[[Any], None] = no_objection
    notes: Callable[[Any], Sequence[str]] = no_notes
    published_key: PublishedKey | None = None

    def __post_init__(self) -> None:
        """Add the topics of states, and refuse a declaration that does not hold together."""
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


def writes_of(role: Role, system: System) -> tuple[str, ...]:
    """Everything that a role writes in a deployment besides its journal."""
    there = {topic.name for topic in system.topics}
    return tuple(name for name in role.writes if name in there)


def inputs_of(role: Role, system: System) -> tuple[str, ...]:
    """The inputs that a role has in a deployment."""
    there = {topic.name for topic in system.topics}
    return tuple(name for name in role.inputs if name in there)


def writers(topic: Topic, roles: Iterable[Role]) -> tuple[str, ...]:
    """Who writes a topic, in the order in which data flows."""
    found = [role.name for role in roles if topic.name in _written(role) or _ticks(role, topic)]
    return tuple(dict.fromkeys(([topic.application] if topic.client == "writes" else []) + found))


def readers(topic: Topic, roles: Iterable[Role]) -> tuple[str, ...]:
    """Who reads a topic; a journal's writer reads it, too."""
    found = [role.name for role in roles if topic.name in (*role.own, *role.inputs, *role.broadcasts)]
    clients = [topic.application] if topic.client == "reads" else []
    return tuple(dict.fromkeys(clients + found + ([] if topic.reader is None else [topic.reader])))


def beside_workers(system: System) -> tuple[str, ...]:
    """Who writes or reads topics of a deployment without running a worker of it."""
    readers = (topic.reader for topic in system.topics if topic.reader is not None)
    clients = [of_party(CLIENT, party) for party in system.parties] or [CLIENT]
    return tuple(dict.fromkeys((*clients, OPERATOR, *readers)))


def _written(role: Role) -> tuple[str, ...]:
    return (*role.own, *role.writes, *role.writes_abroad)


def _ticks(role: Role, topic: Topic) -> bool:
    return topic.ticks and topic.name in role.inputs


def _named(there: Iterable[_NamedT], name: str, what: str, why: str = "") -> _NamedT:
    known = {one.name: one for one in there}
    if name not in known:
        raise DeclarationError(f"expected a {what} ({', '.join(known)}), got {name!r}{why}")
    return known[name]
