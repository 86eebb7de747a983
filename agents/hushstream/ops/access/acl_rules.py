"""Derives from the topic declarations what each principal may do, and compares it with what a broker enforces.

Each role gets the rights that its declaration names and its code uses, and no others. It gets Write on the topics that
it writes, Read on those that it reads (both on its journal), DescribeConfigs on the same topics (a worker compares them
with their declaration before it starts), and Read on its own consumer group. Read and Write include Describe.
Idempotent production needs no rule of its own since Kafka 3.0: Write on any topic carries it (KIP-679). The operator
may read the settings of every topic, so that ``hushstream topics check --no-acls`` runs under its account. (To list
access rules is a right on the whole cluster, which only the administrator has.) It may read the records of a topic only
as declared. Each zone's dead letters have a reader of their own (``letters-ZONE``), who reads nothing else: what was
refused follows from content, so no account sees the dead letters of two zones.

Nobody may requeue, verify or export unless the operator names a principal for it (`hushstream.ops.access.grants`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hushstream.agents.kafka.acl_check import DESCRIBE_CONFIGS, READ, WRITE
from hushstream.agents.settings import group_of
from hushstream.agents.worker.preflight import operations_of
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.flows import beside_workers, readers, writers
from hushstream.engine.declare.role import Role
from hushstream.ops.access.grants import Operation, duty_names, rights_of
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import CLIENT, OPERATOR, Topic, common_name, physical
from hushstream.systems.catalogue import kinds

ADMINISTRATOR = "administrator"
"""The account whose rights are not compared: it creates topics and rules, so it needs more rights than any role."""

Kind = Literal["topic", "group"]

_OPERATIONS: Mapping[int, Operation] = {READ: "Read", WRITE: "Write", DESCRIBE_CONFIGS: "DescribeConfigs"}
_EVERYBODY = "User:*"
_CARRIED: Mapping[str, frozenset[str]] = {
    "Read": frozenset({"Describe"}),
    "Write": frozenset({"Describe"}),
    "Delete": frozenset({"Describe"}),
    "Alter": frozenset({"Describe"}),
    "AlterConfigs": frozenset({"DescribeConfigs"}),
}


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One right of one principal."""

    principal: str
    kind: Kind
    name: str
    operation: Operation

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """One line."""
        return f"{self.operation} on {self.kind} {self.name} for {self.principal}"


@dataclass(frozen=True, slots=True)
class Enforced:
    """A rule that the broker enforces; ``operation`` may be All, ``name`` may be * or, if ``prefixed``, a prefix."""

    principal: str
    kind: str
    name: str
    operation: str
    host: str = "*"
    prefixed: bool = False
    allows: bool = True

    def covers(self, kind: Kind, name: str) -> bool:
        """Whether the rule applies to this topic or group."""
        fits = name.startswith(self.name) if self.prefixed else self.name in ("*", name)
        return kind == self.kind and fits

    def carries(self, operation: str) -> bool:
        """Whether the rule decides this operation: it names the operation, or one that includes it."""
        if self.operation in ("All", operation):
            return True
        # A rule that denies Read does not deny Describe.
        return self.allows and operation in _CARRIED.get(self.operation, frozenset())

    def __str__(self) -> str:
        """One line."""
        verb = "allows" if self.allows else "denies"
        name = f"{self.name}..." if self.prefixed else self.name
        host = "" if self.host == "*" else f" from {self.host}"
        return f"{verb} {self.principal}{host} {self.operation} on {self.kind} {name}"


@dataclass(frozen=True, slots=True)
class AccessDifference:
    """An access rule that is missing, or one that grants or denies more than the declaration does."""

    what: Literal["missing", "excess", "denied"]
    rule: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """One line that names the fix."""
        if self.what == "missing":
            return f"access: expected {self.rule}, there is no such rule; `hushstream topics apply` creates it"
        return (
            f"access: a rule {self.rule}, which the declaration does not; remove it with Kafka's `kafka-acls.sh "
            f"--remove`, or name its owner with --principals {ADMINISTRATOR}=PRINCIPAL"
        )


@dataclass(frozen=True, slots=True)
class Principals:
    """The broker's names (principals) of the accounts that run roles, have duties, or administer the cluster.

    `hushstream.ops.access.grants` lists the duties. If each party of a deployment has workers of its own,
    ``learner.alpha`` is the account of party alpha's learners.
    """

    by_role: Mapping[str, str]
    administrators: frozenset[str] = frozenset()
    duties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[str] = ()) -> Principals:
        """Read ``ROLE=PRINCIPAL`` texts. A role that is not named is run by ``User:ROLE``; a duty is given to nobody.

        Raises:
            HushstreamError: an unknown role, no principal, or one principal for two roles.
        """
        by_role = {name: f"User:{name}" for name in account_names()}
        known = duty_names()
        names = (*by_role, *known, ADMINISTRATOR)
        administrators = set()
        for text in texts:
            role, _, principal = text.partition("=")
            kind, colon, name = principal.partition(":")
            if not (kind and colon and name) or common_name(role) not in names:
                raise HushstreamError(
                    f"--principals: expected ROLE=TYPE:NAME, for instance learner=User:CN=learner, with one of the "
                    f"roles {', '.join(names)}, got {text!r}"
                )
            if role == ADMINISTRATOR:
                administrators.add(principal)
            else:
                by_role[role] = principal
        for role, principal in by_role.items():
            others = [other for other, one in by_role.items() if one == principal and other != role]
            if others or principal == _EVERYBODY:
                raise HushstreamError(
                    f"--principals: expected a principal of its own for each role, got {principal} for {role}"
                    f"{''.join(f' and {other}' for other in others)}: it could see what each of them may"
                )
        duties = {name: by_role.pop(name) for name in list(by_role) if common_name(name) in known}
        return cls(by_role, frozenset(administrators), duties)

    def of_role(self, role: str) -> str:
        """The principal that runs a role, or that reads or writes besides the roles."""
        return self.by_role.get(role, f"User:{role}")


def rules_of(system: System, prefix: str, principals: Principals) -> tuple[Rule, ...]:
    """Derive the rights that a deployment needs.

    Args:
        system: the deployment.
        prefix: the prefix of its topics' names.
        principals: who runs the roles.

    Raises:
        HushstreamError: the code of a role uses a topic that the declaration does not allow; one principal is named for
            two accounts; or a principal is named for a duty that the deployment does not have.
    """
    _require_apart(system, principals)
    rules = set()
    for topic in system.topics:
        name = physical(prefix, topic.name)
        for who in beside_workers(system):
            rules |= {Rule(principals.of_role(who), "topic", name, one) for one in _declared(topic, who, system)}
    for who, held in system.outside.items():
        rules |= {Rule(principals.of_role(who), "topic", physical(prefix, used), one) for used, one in held.items()}
    for role in system.roles:
        principal = principals.of_role(role.name)
        rules.add(Rule(principal, "group", group_of(system.config.deployment, role.name), "Read"))
        for used, operations in _used(system, role).items():
            rules |= {Rule(principal, "topic", physical(prefix, used), one) for one in operations}
    for duty, principal in principals.duties.items():
        for used, allowed in rights_of(duty, system).items():
            rules |= {Rule(principal, "topic", physical(prefix, used), one) for one in allowed}
    return tuple(sorted(rules))


def _require_apart(system: System, principals: Principals) -> None:
    """Refuse one principal for two accounts of a deployment."""
    owners: dict[str, str] = {}
    for account in accounts_of(system):
        other = owners.setdefault(principals.of_role(account), account)
        if other != account:
            raise HushstreamError(
                f"--principals: expected a principal of its own for each role, got {principals.of_role(account)} for "
                f"{other} and {account}: it could see what each of them may"
            )


def account_names() -> tuple[str, ...]:
    """The accounts that may need a principal, in any system; accounts of parties are named without the party."""
    named = [role.name for kind in kinds().values() for role in kind.roles]
    readers_alone = [topic.reader for kind in kinds().values() for topic in kind.topics if topic.reader is not None]
    return tuple(dict.fromkeys((CLIENT, *named, OPERATOR, *readers_alone)))


def accounts_of(system: System) -> tuple[str, ...]:
    """The accounts that need a principal in this deployment: its roles, and those with rights besides the workers."""
    return (*system.role_names, *beside_workers(system))


def missing(wanted: Collection[Rule], enforced: Collection[Enforced]) -> tuple[Rule, ...]:
    """The rights that no enforced rule grants."""
    return tuple(rule for rule in wanted if not any(one.allows and _speaks(one, rule) for one in enforced))


def access_differences(
    wanted: Collection[Rule], enforced: Collection[Enforced], administrators: Collection[str]
) -> tuple[AccessDifference, ...]:
    """List rights that no rule grants, rules that deny one, and rules that grant more than declared."""
    found = [AccessDifference("missing", str(rule)) for rule in missing(wanted, enforced)]
    places = sorted({(rule.kind, rule.name) for rule in wanted})
    for one in enforced:
        if not one.allows and any(_speaks(one, rule) for rule in wanted):
            found.append(AccessDifference("denied", str(one)))
        if one.allows and one.principal not in administrators and _gives_too_much(one, places, wanted):
            found.append(AccessDifference("excess", str(one)))
    return tuple(found)


def _used(system: System, role: Role) -> Mapping[str, set[Operation]]:
    """The operations that the workers of a role use, by topic."""
    found: dict[str, set[Operation]] = {}
    for topic, numbers in operations_of(role_topics(role, system)).items():
        found[topic] = {_OPERATIONS[number] for number in numbers}
        if not found[topic] <= {*_declared(topic_of(system, topic), role.name, system), "DescribeConfigs"}:
            raise HushstreamError(
                f"topic {topic}: expected {role.name} to be declared as its reader or writer, it is not"
            )
    return found


def _declared(topic: Topic, who: str, system: System) -> set[Operation]:
    operations: set[Operation] = set()
    if who in writers(topic, system.roles):
        operations.add("Write")
    if who in readers(topic, system.roles):
        operations.add("Read")
    if who == OPERATOR:
        operations |= {"Describe", "DescribeConfigs"}
    return operations


def _speaks(one: Enforced, rule: Rule) -> bool:
    """Whether an enforced rule decides this right. A rule for one host can deny the right, but does not grant it."""
    named = one.principal in (rule.principal, _EVERYBODY)
    hosts = one.host == "*" or not one.allows
    return named and hosts and one.covers(rule.kind, rule.name) and one.carries(rule.operation)


def _gives_too_much(one: Enforced, places: Sequence[tuple[Kind, str]], wanted: Collection[Rule]) -> bool:
    for kind, name in places:
        if not one.covers(kind, name):
            continue
        own = {
            rule.operation for rule in wanted if (rule.principal, rule.kind, rule.name) == (one.principal, kind, name)
        }
        if one.operation not in own and not any(one.operation in _CARRIED.get(had, ()) for had in own):
            return True
    return False
