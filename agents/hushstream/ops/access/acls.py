"""Access rules on a broker: what is missing, creating it, and what differs from the declaration.

Nothing here removes a rule: a rule that grants too much is reported, with the command that removes it. A broker without
an authorizer (the embedded one, or Apache Kafka by default) enforces nothing; then the functions return None.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, SecurityDisabled, for_code
from aiokafka.protocol.admin import CreateAclsRequest, DescribeAclsRequest

from hushstream.agents.errors import AccessDenied
from hushstream.engine.declare.declaration import System
from hushstream.ops.access.acl_rules import (
    AccessDifference,
    Enforced,
    Principals,
    Rule,
    access_differences,
    missing,
    rules_of,
)
from hushstream.ops.connection import BrokerRefused, Connection, guard_code

_ANY, _ALLOW, _LITERAL, _PREFIXED = 1, 3, 3, 4
_KINDS = {2: "topic", 3: "group"}
_OPERATIONS = {
    2: "All", 3: "Read", 4: "Write", 5: "Create", 6: "Delete", 7: "Alter", 8: "Describe", 9: "ClusterAction",
    10: "DescribeConfigs", 11: "AlterConfigs", 12: "IdempotentWrite",
}  # fmt: skip
_KIND_NUMBERS = {name: number for number, name in _KINDS.items()}
_OPERATION_NUMBERS = {name: number for number, name in _OPERATIONS.items()}

_WAIT_SECONDS = 0.05
_HINT = "; run it as an administrator of the cluster, or leave access rules out with --no-acls"


async def enforced_async(connection: Connection) -> tuple[Enforced, ...] | None:
    """Every rule on topics and groups; None when the broker has no authorizer.

    Raises:
        AccessDenied: the broker does not allow this account to list rules.
        BrokerUnreachable, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    async with connection.admin("list access rules") as admin:
        return await _enforced(admin)


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
    async with connection.admin(doing) as admin:
        answers = await asyncio.gather(*(admin._send_request(_creation(rule)) for rule in wanted))
        for rule, answer in zip(wanted, answers, strict=True):
            _guard(f"{doing}: {rule}", *answer.creation_responses[0])
        # The controller has the rules now; a broker enforces them when it has read them from the metadata log.
        deadline = time.monotonic() + connection.timeout_seconds
        while late := missing(wanted, await _enforced(admin) or ()):
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


def plan(connection: Connection, system: System, principals: Principals) -> tuple[Rule, ...] | None:
    """`plan_async`, for code without an event loop."""
    return asyncio.run(plan_async(connection, system, principals))


def apply(connection: Connection, system: System, principals: Principals) -> tuple[Rule, ...] | None:
    """`apply_async`, for code without an event loop."""
    return asyncio.run(apply_async(connection, system, principals))


def check(connection: Connection, system: System, principals: Principals) -> tuple[AccessDifference, ...] | None:
    """`check_async`, for code without an event loop."""
    return asyncio.run(check_async(connection, system, principals))


async def _enforced(admin: AIOKafkaAdminClient) -> tuple[Enforced, ...] | None:
    # Ask for all kinds and patterns: a rule on * or on a prefix applies to the deployment's topics, too.
    request = DescribeAclsRequest(_ANY, None, _ANY, None, None, _ANY, _ANY)
    try:
        answer = await admin._send_request(request)
    except IncompatibleBrokerVersion:
        return None
    if answer.error_code == SecurityDisabled.errno:
        return None
    _guard("list access rules", answer.error_code, answer.error_message)
    return tuple(_rules(answer.resources))


def _rules(resources: Collection[tuple[int, str, int, Collection[tuple[str, str, int, int]]]]) -> list[Enforced]:
    return [
        Enforced(
            principal, _KINDS[kind], name, _OPERATIONS.get(operation, str(operation)), host,
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
