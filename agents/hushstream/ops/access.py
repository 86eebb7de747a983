"""Derives from the topic declarations what each principal may do, and compares it with what a broker enforces.

Each role gets the rights that its declaration names and its code uses, and no others. It gets Write on the topics that
it writes, Read on those that it reads (both on its journal), DescribeConfigs on the same topics (a worker compares them
with their declaration before it starts), and Read on its own consumer group. Read and Write include Describe.
Idempotent production needs no rule of its own since Kafka 3.0: Write on any topic carries it (KIP-679). The operator
may read the settings of every topic, so that ``hushstream topics check --no-acls`` runs under its account. (To list
access rules is a right on the whole cluster, which only the administrator has.) It may read the records of a topic only
as declared. Each zone's dead letters have a reader of their own (``letters-ZONE``), who reads nothing else: what was
refused follows from content, so no account sees the dead letters of two zones.

The operator may give duties to principals besides the roles; by default nobody has one.

``requeue-ZONE`` puts refused records on their topics again (``hushstream logs repair letter``). It may read that
zone's dead letters, and read and write the inputs of that zone's workers. Writing to an input is a strong right: not
even a worker of that zone has it.

``verify-ROLE`` recomputes what one role published (``hushstream verify --role ROLE``), or exports the logs for that
(``hushstream topics export --role ROLE``). It may read only what that role reads and writes, with marks and states.

``devices`` hands in what users' devices made (a gateway for devices), or ends rounds of their ratings
(`hushstream.client.ratings.connect_rounds`). It may write the topic of slots, and read what is published for devices.

``gateway`` answers applications over HTTP (``hushstream worker gateway``). It has the rights of an application: it
writes requests and feedback, and reads answers and the items, and what was released of a measurement and paid, for its
owner's page. It adds items only where requests may name new ones.
If each party has applications of its own, ``gateway.alpha`` is the account of party alpha.

``export`` copies the whole deployment (``hushstream topics export``): it may read every topic. It sees both sides of
the shuffler, so give it only to somebody who holds the keys of all zones anyway.

Nothing here removes a rule of a broker: a rule that grants too much is reported, with the command that removes it. A
broker without an authorizer (the embedded one, or Apache Kafka by default) enforces nothing; then the functions return
None.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from aiokafka.errors import IncompatibleBrokerVersion, SecurityDisabled, for_code
from aiokafka.protocol.admin import CreateAclsRequest, DescribeAclsRequest

from hushstream.agents.errors import AccessDenied
from hushstream.agents.kafka.administration import DESCRIBE_CONFIGS, READ, WRITE, Asking, asking
from hushstream.agents.settings import group_of
from hushstream.agents.worker.preflight import operations_of
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import (
    System,
    beside_workers,
    conversation_of,
    readers,
    role_of,
    topic_of,
    writers,
)
from hushstream.engine.declare.role import Role
from hushstream.ops.connection import BrokerRefused, Connection, client_errors, guard_code
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import CLIENT, OPERATOR, Topic, common_name, of_party, physical
from hushstream.systems.catalogue import kinds

Operation = Literal["Read", "Write", "Describe", "DescribeConfigs"]
Rights: TypeAlias = Mapping[str, frozenset[Operation]]
"""Operations by logical topic."""

DEVICES, EXPORT, GATEWAY = "devices", "export", "gateway"
_REQUEUE, _VERIFY = "requeue-", "verify-"
_READ: frozenset[Operation] = frozenset({"Read"})
_BOTH: frozenset[Operation] = frozenset({"Read", "Write"})


def duty_names() -> tuple[str, ...]:
    """The names of all duties, in any system."""
    of_kinds = list(kinds().values())
    zones = dict.fromkeys(topic.zone for kind in of_kinds for topic in kind.topics if topic.holds_dead_letters)
    roles = dict.fromkeys(role.name for kind in of_kinds for role in kind.roles)
    return (*(f"{_REQUEUE}{zone}" for zone in zones), *(f"{_VERIFY}{role}" for role in roles), DEVICES, GATEWAY, EXPORT)


def rights_of(duty: str, system: System) -> Rights:
    """The rights that a duty needs in a deployment.

    Raises:
        HushstreamError: the deployment has no such zone, role or party, takes no slots of devices, or answers no
            requests.
    """
    if duty == EXPORT:
        return dict.fromkeys(system.partitions, _READ)
    if common_name(duty) == GATEWAY:
        return _gateway(duty, system)
    if duty == DEVICES:
        return _devices(system)
    if duty.startswith(_REQUEUE):
        return _requeue(duty.removeprefix(_REQUEUE), system)
    return _verify(duty.removeprefix(_VERIFY), system)


def _gateway(duty: str, system: System) -> Rights:
    """What the client of a gateway's party does, and what it shows of releases.

    It changes the catalogue, too: by requests that may name new items, and by its page and `POST /v1/catalogue`, which
    ask for an operator's token.
    """
    party = duty.partition(".")[2]
    talked = conversation_of(system, party)
    found = {topic: _declared(topic, of_party(CLIENT, party), system) for topic in system.topics}
    asks = {
        topic.name: frozenset(held)
        for topic, held in found.items()
        if held and (topic.client == "changes" or topic.name in {talked.requests, talked.answers, *talked.feedback})
    }
    return {**dict.fromkeys((*system.overview_topics, *system.similar_topics), _READ), **asks}


def _devices(system: System) -> Rights:
    if not system.devices:
        raise HushstreamError(
            f"--principals: expected a duty of deployment {system.config.deployment}, got {DEVICES}: it takes no slots "
            f"that devices made"
        )
    return {topic: frozenset((right,)) for topic, right in system.devices.items()}


def _requeue(zone: str, system: System) -> Rights:
    letters = [topic for topic in system.topics if topic.holds_dead_letters and topic.zone == zone]
    refusing = {name for topic in letters for name in writers(topic, system.roles)}
    if not refusing:
        raise HushstreamError(
            f"--principals: expected a zone of deployment {system.config.deployment}, got {_REQUEUE}{zone}: nothing is "
            f"refused there"
        )
    inputs = {topic for role in system.roles if role.name in refusing for topic in role_topics(role, system).inputs}
    return {letters[0].name: _READ, **dict.fromkeys(sorted(inputs), _BOTH)}


def _verify(name: str, system: System) -> Rights:
    if name not in system.role_names:
        raise HushstreamError(
            f"--principals: expected a role of deployment {system.config.deployment} "
            f"({', '.join(system.role_names)}), got {_VERIFY}{name}"
        )
    return dict.fromkeys(sorted(role_topics(role_of(system, name), system).all), _READ)


ADMINISTRATOR = "administrator"
"""The account whose rights are not compared: it creates topics and rules, so it needs more rights than any role."""

Kind = Literal["topic", "group"]

_OPERATIONS: Mapping[int, Operation] = {READ: "Read", WRITE: "Write", DESCRIBE_CONFIGS: "DescribeConfigs"}
_EVERYBODY = "User:*"
_CARRIED: Mapping[str, frozenset[str]] = {
    "Read": frozenset({"Describe"}), "Write": frozenset({"Describe"}), "Delete": frozenset({"Describe"}),
    "Alter": frozenset({"Describe"}), "AlterConfigs": frozenset({"DescribeConfigs"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One right of one principal."""

    principal: str
    kind: Kind
    name: str
    operation: Operation

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

    @property
    def removal(self) -> str:
        """Kafka's own command that takes the rule away."""
        way, pattern = "allow" if self.allows else "deny", "prefixed" if self.prefixed else "literal"
        return (
            f"kafka-acls.sh --bootstrap-server HOST:PORT --remove --force --{way}-principal "
            f"{shlex.quote(self.principal)} --{way}-host {shlex.quote(self.host)} --operation {self.operation} "
            f"--{self.kind} {shlex.quote(self.name)} --resource-pattern-type {pattern}"
        )


@dataclass(frozen=True, slots=True)
class AccessDifference:
    """An access rule that is missing, or one that grants or denies more than the declaration does."""

    what: Literal["missing", "excess", "denied"]
    rule: str
    removal: str = ""

    def __str__(self) -> str:
        """One line that names the fix."""
        if self.what == "missing":
            return f"access: expected {self.rule}, there is no such rule; `hushstream topics apply` creates it"
        return (
            f"access: a rule {self.rule}, which the declaration does not; remove it with Kafka's own `{self.removal}` "
            f"(and --command-config of an administrator), or name its owner with --principals {ADMINISTRATOR}=PRINCIPAL"
        )


@dataclass(frozen=True, slots=True)
class Principals:
    """The broker's names (principals) of the accounts that run roles, have duties, or administer the cluster.

    The module's docstring lists the duties. If each party of a deployment has workers of its own,
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
            found.append(AccessDifference("denied", str(one), one.removal))
        if one.allows and one.principal not in administrators and _gives_too_much(one, places, wanted):
            found.append(AccessDifference("excess", str(one), one.removal))
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


_ANY, _ALLOW, _LITERAL, _PREFIXED = 1, 3, 3, 4
_KINDS = {2: "topic", 3: "group"}
_ACL_OPERATIONS = {
    2: "All", 3: "Read", 4: "Write", 5: "Create", 6: "Delete", 7: "Alter", 8: "Describe", 9: "ClusterAction",
    10: "DescribeConfigs", 11: "AlterConfigs", 12: "IdempotentWrite",
}  # fmt: skip
_KIND_NUMBERS = {name: number for number, name in _KINDS.items()}
_OPERATION_NUMBERS = {name: number for number, name in _ACL_OPERATIONS.items()}

_WAIT_SECONDS = 0.05
_HINT = "; run it as an administrator of the cluster, or leave access rules out with --no-acls"


async def enforced_async(connection: Connection) -> tuple[Enforced, ...] | None:
    """Every rule on topics and groups; None when the broker has no authorizer.

    Raises:
        AccessDenied: the broker does not allow this account to list rules.
        BrokerUnreachable, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    doing = "list access rules"
    async with client_errors(connection, doing), asking(connection.cluster, connection.timeout_seconds) as asked:
        return await _enforced(asked)


async def plan_async(connection: Connection, system: System, principals: Principals) -> tuple[Rule, ...] | None:
    """The rules that must be created; None if the broker has no authorizer. Errors are those of `enforced_async`."""
    found = await enforced_async(connection)
    return None if found is None else missing(rules_of(system, connection.prefix, principals), found)


async def apply_async(connection: Connection, system: System, principals: Principals) -> tuple[Rule, ...] | None:
    """Create missing rules, wait until they are in force, and return them; None without an authorizer.

    Raises:
        AccessDenied: the broker does not allow this account to create rules.
        BrokerUnreachable, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    wanted = await plan_async(connection, system, principals)
    if not wanted:
        return wanted
    await create_async(connection, wanted)
    return wanted


async def create_async(connection: Connection, wanted: Collection[Rule]) -> None:
    """Create rules and wait until they are in force. Errors are those of `apply_async`."""
    doing = "create access rules"
    async with client_errors(connection, doing), asking(connection.cluster, connection.timeout_seconds) as asked:
        answers = await asyncio.gather(*(asked.anyone(_creation(rule)) for rule in wanted))
        for rule, answer in zip(wanted, answers, strict=True):
            _guard(f"{doing}: {rule}", *answer.creation_responses[0])
        # The controller has the rules now; a broker enforces them when it has read them from the metadata log.
        deadline = time.monotonic() + connection.timeout_seconds
        while late := missing(wanted, await _enforced(asked) or ()):
            if time.monotonic() > deadline:
                raise BrokerRefused(f"{doing}: expected {late[0]} to be in force by now, but it is not")
            await asyncio.sleep(_WAIT_SECONDS)


async def check_async(
    connection: Connection, system: System, principals: Principals
) -> tuple[AccessDifference, ...] | None:
    """The differences from the declaration; None without an authorizer. Errors are those of `enforced_async`."""
    found = await enforced_async(connection)
    if found is None:
        return None
    return access_differences(rules_of(system, connection.prefix, principals), found, principals.administrators)


async def _enforced(asked: Asking) -> tuple[Enforced, ...] | None:
    # Ask for all kinds and patterns: a rule on * or on a prefix applies to the deployment's topics, too.
    try:
        answer = await asked.anyone(DescribeAclsRequest(_ANY, None, _ANY, None, None, _ANY, _ANY))
    except IncompatibleBrokerVersion:
        return None
    if answer.error_code == SecurityDisabled.errno:
        return None
    _guard("list access rules", answer.error_code, answer.error_message)
    return tuple(_rules(answer.resources))


def _rules(resources: Collection[tuple[int, str, int, Collection[tuple[str, str, int, int]]]]) -> list[Enforced]:
    return [
        Enforced(
            principal, _KINDS[kind], name, _ACL_OPERATIONS.get(operation, str(operation)), host,
            prefixed=pattern == _PREFIXED, allows=permission == _ALLOW,
        )
        for kind, name, pattern, rules in resources
        if kind in _KINDS
        for principal, host, operation, permission in rules
    ]  # fmt: skip


def _creation(rule: Rule) -> CreateAclsRequest:
    kind, operation = _KIND_NUMBERS[rule.kind], _OPERATION_NUMBERS[rule.operation]
    return CreateAclsRequest(kind, rule.name, _LITERAL, rule.principal, "*", operation, _ALLOW)


def _guard(doing: str, code: int, message: str | None) -> None:
    try:
        guard_code(doing, code, message, for_code)
    except AccessDenied as error:
        raise AccessDenied(f"{error}{_HINT}") from None
