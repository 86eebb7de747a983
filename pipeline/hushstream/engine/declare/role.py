"""A role as a system declares it, and the keys that its machine is made with.

*Gauges.* Gauges of machines, which roles may show besides counters. All of them follow from releases.

*Parties.* Topics and roles that each party of a deployment has of its own, for instance each of several vendors.

A system declares such a topic or role once, with `each`. A deployment has one for each party, with the party's name
behind a dot: ``clicks.alpha`` is read by ``learner.alpha`` and written by ``client.alpha``. Zones, keys, groups,
accounts and duties go with it, so that the access rules of a broker keep parties apart as they keep zones apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

from hushstream.engine.declare import topics as shared_topics
from hushstream.engine.journal.chain import ChainedMachine
from hushstream.engine.noise.spending import Spending
from hushstream.privacy.key_files import KeyRing, storage_zone
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PUBLISHED, Topic, letter_reader, of_party


class Versioned(Protocol):
    """A machine that publishes versions of a model."""

    version: int


class Spender(Protocol):
    """A machine that charges a budget for its releases."""

    @property
    def spending(self) -> Spending | None: ...
    @property
    def refused(self) -> Exhausted | None: ...


def version_gauges(machine: Versioned, now_seconds: float) -> Mapping[str, float]:
    """The version that was published last."""
    return {"model_version": machine.version}


def model_gauges(version: int, published_ms: int, now_seconds: float) -> Mapping[str, float]:
    """The version in use, and its age in seconds; 0 before there is a version.

    The age is left out if the record was deleted before this start, because then the time of its publication is
    unknown.
    """
    if not version or not published_ms:
        return {"model_version": version}
    return {"model_version": version, "model_age_seconds": max(0.0, now_seconds - published_ms / 1000)}


def spending_gauges(scope_class: str, machine: Spender, now_seconds: float) -> Mapping[str, float]:
    """What one unit of a class of scopes has paid, its limit, the next price, and whether the budget is exhausted.

    There are none for a machine that charges nothing.
    """
    spending = machine.spending
    if spending is None:
        return {}
    return {
        f"{scope_class}_spent_micro_epsilon": spending.spent.epsilon_micro,
        f"{scope_class}_limit_micro_epsilon": spending.terms.ceiling.epsilon_micro,
        f"{scope_class}_next_charge_micro_epsilon": spending.terms.price.cost.epsilon_micro,
        f"{scope_class}_refusing": machine.refused is not None,
    }


MetricClass = Literal["released", "slot-public", "zone-private"]
"""A metric is the output of a mechanism, follows from public values, or depends on content (PRIVACY rule 11)."""


class DeclarationError(HushstreamError):
    """A system's declaration contradicts itself."""


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """The keys that a role's machine works with.

    Attributes:
        key: the first key of its journal; None for a role without a key.
        ring: content of the zone's key file; None if keys come from no file, or the role has none.
        others: the key files of the further zones that the role declares, by zone.
    """

    key: Key | None = None
    ring: KeyRing | None = None
    others: Mapping[str, KeyRing] = field(default_factory=dict)

    @property
    def own(self) -> Key:
        """The key of a role that has one.

        Raises:
            DeclarationError: it has none.
        """
        if self.key is None:
            raise DeclarationError("role: expected a zone with a key, got none")
        return self.key

    def kept(self, zone: str) -> tuple[Key, ...]:
        """All keys of a further zone's file; none where there is no file."""
        return tuple(self.others[zone].kept()) if zone in self.others else ()


def key_names(roles: Iterable[Role]) -> tuple[str, ...]:
    """The names of all key files that roles need: of their zones, and of their zones' storage."""
    return tuple(dict.fromkeys(name for role in roles for name in (*role.key_zones, role.storage_zone)))


def no_gauges(machine: Any, now_seconds: float) -> Mapping[str, float]:
    """Default of `Role.gauges`: none beside the counters."""
    return {}


def no_figures(core: Any, topic: str, value: bytes) -> Mapping[str, float]:
    """Default of `Role.figures`: only the number of records is shown."""
    return {}


def no_flaw(core: Any, home: int, logs: Any, party: str = "") -> Iterable[tuple[int, str]]:
    """Default of `Role.proof`: the journal is the only evidence."""
    return ()


def keyed(machine: Callable[[Any, int, Key], ChainedMachine]) -> Callable[[Any, int, RoleKeys], ChainedMachine]:
    """Make `Role.make` from a class whose machine takes the deployment, a home partition and the key of its zone."""
    return lambda system, home, keys: machine(system, home, keys.own)


def ringed(
    machine: Callable[[Any, int, Key, KeyRing | None], ChainedMachine],
) -> Callable[[Any, int, RoleKeys], ChainedMachine]:
    """The same for a role whose key rotates: its machine takes the zone's key file, too."""
    return lambda system, home, keys: machine(system, home, keys.own, keys.ring)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role of a system: what it reads and writes, and how its machine is made.

    Attributes:
        name: the name in `hushstream worker NAME`.
        zone: the zone whose operator reads its dead letters.
        key_zone: the zone whose key its journal is under; None for a role that journals public values only.
        further_key_zones: zones of other keys that its workers need.
        inputs: the co-partitioned input topics; the first is the home topic.
        journal: the topic of its write-ahead records.
        writes: the other topics that it writes.
        broadcasts: topics that each of its machines reads besides its inputs.
        marks: topic of its release marks; None for a role that adds no noise and spends no allowance.
        irreplaceable: why no operator may go on without its journal, in words; empty if one may, at a price.
        homes: name of the deployment's count that is its number of home partitions.
        make: makes its machine from the deployment, a home partition and the keys; see `keyed` and `ringed`.
        gauges: values of a machine that it shows besides counters, at a time in seconds, by the names of
            `hushstream.agents.observe.metric_table.role_gauges_of`; all of it follows from what was released.
        figures: gauges of a record after it was sent, from the deployment, its topic and its bytes, by the names of
            `gauges`. (A machine may hold values that are not in its journal yet, and so not charged.)
        scope_classes: classes of the charges that its gauges show.
        reasons: reasons for which it may refuse a record, besides those of the codec (`hushstream.schemas.rows`) and
            the engine (`hushstream.engine.declare.outcomes.Refusal`) refuse.
        outcomes: outcomes that it counts, each with its class.
        private_work: whether its batches depend on content, so that their number and times are zone-private.
        proof: a further check by `verify` of a home partition whose journal it could follow: returns the (offset in the
            journal, reason) of each flaw, from the deployment, the home partition and a copy of the logs.
        each: whether each party of a deployment runs one of its own (see *Parties* above); ``make``
            then gets the ``party``.
        party: its party; "" if all parties share it, or there are none.
        writes_abroad: topics of other parties that it writes.
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
    irreplaceable: str = ""
    gauges: Callable[[Any, float], Mapping[str, float]] = no_gauges
    figures: Callable[[Any, str, bytes], Mapping[str, float]] = no_figures
    scope_classes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    proof: Callable[..., Iterable[tuple[int, str]]] = no_flaw
    each: bool = False
    party: str = ""
    writes_abroad: tuple[str, ...] = ()

    @property
    def state(self) -> Topic:
        """The topic of its workers' states, with which any worker can take up a partition at any time."""
        return shared_topics.state(self.name, self.zone, self.homes, each=self.each, party=self.party)

    @property
    def own(self) -> tuple[str, ...]:
        """Topics that it writes and reads itself."""
        return (self.journal, *(() if self.marks is None else (self.marks,)), self.state.name)

    @property
    def key_zones(self) -> tuple[str, ...]:
        """Every zone whose key its workers need."""
        return (*(() if self.key_zone is None else (self.key_zone,)), *self.further_key_zones)

    @property
    def storage_zone(self) -> str:
        """Name of the key file with its workers' storage key. An aggregator has no other key."""
        return storage_zone(self.zone if self.key_zone is None else self.key_zone)


def answering_role(
    name: str, zone: str, make: Callable[..., ChainedMachine], *, broadcasts: tuple[str, ...] = ("models",), **more: Any
) -> Role:
    """A role that answers users: its batches follow from content; arguments as for `_role`."""
    return _role(name, zone, make, key_zone=zone, broadcasts=broadcasts, private_work=True, **more)


def releasing_role(name: str, zone: str, make: Callable[..., ChainedMachine], *, charges: str, **more: Any) -> Role:
    """A role that releases noise: it raises marks, and shows what one unit has paid of the budget.

    Args:
        name, zone, make, more: as for `_role`.
        charges: what a charge is for, by its name in the gauges.
    """
    shown = {"gauges": partial(spending_gauges, charges), "scope_classes": (charges,), **more}
    return _role(name, zone, make, key_zone=zone, marks=f"marks-{zone}", **shown)


def publishing_role(
    zone: str,
    make: Callable[[Any, int], ChainedMachine],
    *,
    name: str = "aggregator",
    inputs: tuple[str, ...] = ("releases",),
    journal: str = "models",
    writes: tuple[str, ...] = (),
    **more: Any,
) -> Role:
    """A role that makes versions of a model from releases. It has no key, because all that it reads is public.

    Args:
        name, zone, inputs, journal, writes, more: as for `_role`.
        make: makes its machine from the deployment and the number of a model track.
    """
    return _role(
        name,
        zone,
        lambda system, track, keys: make(system, track),
        key_zone=None,
        inputs=inputs,
        journal=journal,
        writes=writes,
        homes="tracks",
        private_work=False,
        **{"gauges": version_gauges, **more},
    )


def _role(name: str, zone: str, make: Callable[..., ChainedMachine], *, writes: tuple[str, ...], **fields: Any) -> Role:
    """A role that refuses records into its zone's dead letters.

    Args:
        name, zone, make, fields: as `Role` has them.
        writes: besides journal, marks and dead letters.
    """
    return Role(name=name, zone=zone, make=make, writes=(*writes, dead_letters_of(zone)), **fields)


def dead_letters_of(zone: str) -> str:
    """The topic of the records that a zone's roles refuse."""
    return f"dead-letters-{zone}"


def topics_of(topics: Iterable[Topic], parties: Sequence[str]) -> tuple[Topic, ...]:
    """The topics of a deployment with these parties."""
    return tuple(
        one for topic in topics for one in ([_own(topic, party) for party in parties] if topic.each else [topic])
    )


def roles_of(roles: Iterable[Role], topics: Iterable[Topic], parties: Sequence[str]) -> tuple[Role, ...]:
    """The roles of a deployment with these parties; ``topics`` are as the system declares them."""
    each = {topic.name: topic.each for topic in topics}
    return tuple(
        one
        for role in roles
        for one in ([_own_role(role, each, party, parties) for party in parties] if role.each else [role])
    )


def _own(topic: Topic, party: str) -> Topic:
    zone = topic.zone if topic.zone == PUBLISHED else of_party(topic.zone, party)
    letters = topic.reader == letter_reader(topic.zone)
    reader = letter_reader(zone) if letters else topic.reader
    return replace(topic, name=of_party(topic.name, party), zone=zone, reader=reader, party=party)


def _own_role(role: Role, each: Mapping[str, bool], party: str, parties: Sequence[str]) -> Role:
    def own(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(of_party(name, party) if each[name] else name for name in names)

    abroad = tuple(of_party(name, other) for name in role.writes_abroad for other in parties if other != party)
    return replace(
        role,
        name=of_party(role.name, party),
        party=party,
        zone=of_party(role.zone, party),
        key_zone=None if role.key_zone is None else of_party(role.key_zone, party),
        inputs=own(role.inputs),
        journal=own([role.journal])[0],
        writes=(*own(role.writes), *abroad),
        writes_abroad=(),
        broadcasts=own(role.broadcasts),
        marks=None if role.marks is None else own([role.marks])[0],
        make=partial(role.make, party=party),
        proof=partial(role.proof, party=party),
    )
