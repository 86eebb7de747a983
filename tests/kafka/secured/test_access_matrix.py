"""Role by topic by operation, asked of a secured broker in its own protocol: what is allowed, and every denial.

What must come out is read from what the systems declare, as the rules are; `tests/ops/test_acl_rules.py` holds those to
the trust zones by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from hushstream.agents.errors import AccessDenied, TopicMissing
from hushstream.agents.settings import group_of
from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.engine.batch import DeadLetters
from hushstream.engine.declare.declaration import System, readers, writers
from hushstream.ops import access as acls
from hushstream.ops import dead_letters
from hushstream.ops.access import Principals, account_names, duty_names, rules_of
from hushstream.ops.dead_letters import plan
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.schemas import codec
from hushstream.schemas.topics import OPERATOR, of_party, physical
from hushstream.systems.catalogue import builtin

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

KEYS = KeySource(seed=1)
NODE = 1
DENIED = 29
PARTIES = ("one", "two")
"""Who has accounts of their own, see `deploy/kafka/nodes.py`: the vendors of the deployment of P-DAP."""

OWN = ("client", "learner", "letters-edge", "requeue-edge", "verify-learner")
WHO = (
    *account_names(),
    *duty_names(),
    *(of_party(name, party) for name in OWN for party in PARTIES),
    "stranger",
)


class Duty(NamedTuple):
    """The topics that somebody may write and read who is named for it."""

    written: Set[str]
    read: Set[str]


@dataclass(frozen=True)
class Shape:
    """A deployment and the names that it has on the broker."""

    system: System

    @property
    def deployment(self) -> str:
        return self.system.config.deployment

    @property
    def prefix(self) -> str:
        return f"{self.deployment}."

    @property
    def duties(self) -> dict[str, Duty]:
        """What somebody who is named for a duty of this deployment is there for, by the declarations."""
        system = self.system
        found = {"export": Duty(set(), system.partitions.keys())}
        for role in system.roles:
            checked = {*role.inputs, *role.broadcasts, *role.own, *role.writes}
            found[f"verify-{role.name}"] = Duty(set(), checked & system.partitions.keys())
        for letters in system.topics:
            if letters.holds_dead_letters:
                refused = {name for role in system.roles if letters.name in role.writes for name in role.inputs}
                inputs = refused & system.partitions.keys()
                found[f"requeue-{letters.zone}"] = Duty(inputs, inputs | {letters.name})
        return found

    @property
    def principals(self) -> Principals:
        """With somebody for each duty that the deployment has."""
        return Principals.of([f"{name}=User:{name}" for name in self.duties])

    @property
    def topics(self) -> dict[str, str]:
        """Logical names by the broker's names."""
        return {physical(self.prefix, name): name for name in self.system.partitions}


SHAPES: Mapping[str, Mapping[str, Any]] = {
    "p2b": {
        "items": {"capacity": 3},
        "features": {"dimension": 3},
        "expected_slots": 20,
        "encoder": {"codes": 2},
        "partitions": {"learner": 1, "shuffler": 1},
    },
    "colin": {"items": {"capacity": 3}, "features": {"dimension": 3}, "partitions": {"learner": 1}},
    "pdap": {
        "vendors": [{"name": "one", "items": {"capacity": 2}}, {"name": "two", "items": {"capacity": 2}}],
        "features": {"dimension": 2},
    },
    "pdol": {"nodes": 2, "features": {"dimension": 3}},
    "bgt": {"items": {"capacity": 9}},
}
"""A small deployment of each system."""

INPUTS: Mapping[str, Mapping[str, tuple[str, str]]] = {"colin": {"graph": ("graph", "ann,bob\n")}}
"""The files that its preparation takes."""


def shape_of(system: str, deployment: str) -> Shape:
    """A small public deployment of a system."""
    config = parse_config({"system": system, "deployment": deployment, **SHAPES[system]})
    with TemporaryDirectory() as folder:
        return Shape(prepare(Path(folder), config, INPUTS.get(system), public_dataset="synthetic"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SHAPES)
async def shape(request: pytest.FixtureRequest, kafka: Any, fresh_name: Callable[[], str]) -> Shape:
    """A deployment with its topics and rules, made by the administrator."""
    made = shape_of(request.param, fresh_name())
    admin = kafka.connection("admin", made.prefix)
    await apply_async(admin, made.system)
    assert await acls.check_async(admin, made.system, made.principals) != ()
    assert await acls.apply_async(admin, made.system, made.principals)
    assert await acls.apply_async(admin, made.system, made.principals) == ()
    assert await acls.check_async(admin, made.system, made.principals) == ()
    return made


def record() -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1000)
    builder.append(0, timestamp=1, key=b"k", value=b"x", headers=[])  # a compacted topic takes none without a key
    return bytes(builder.build())


async def codes(kafka: Any, who: str, shape: Shape) -> dict[str, dict[str, int]]:
    """The broker's answer, by operation and logical topic: 0, or an error's number."""
    topics = shape.topics
    async with kafka.connection(who, shape.prefix).admin("ask") as admin:
        produced = await admin._send_request(
            ProduceRequest(None, 1, 5000, [(name, [(0, record())]) for name in topics]), NODE
        )
        fetched = await admin._send_request(
            FetchRequest(0, 0, 1 << 20, 0, [(name, [(0, 0, 1 << 20)]) for name in topics]), NODE
        )
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
        described = (await admin.describe_configs(resources))[0].resources
        altered = (await admin.alter_configs([_kept(resource) for resource in resources]))[0].resources
        deleted = await admin.delete_topics(list(topics)) if who != "admin" else None
    assert deleted is not None
    return {
        "Write": {topics[name]: parts[0][1] for name, parts in produced.topics},
        "Read": {topics[name]: parts[0][1] for name, parts in fetched.topics},
        "DescribeConfigs": {topics[found[3]]: found[0] for found in described},
        "AlterConfigs": {topics[found[3]]: found[0] for found in altered},
        "Delete": {topics[name]: code for name, code in deleted.topic_error_codes},
    }


def _kept(resource: ConfigResource) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.name, configs={"retention.ms": "1"})


def declared(who: str, shape: Shape) -> dict[str, dict[str, bool]]:
    """The same from the declarations."""
    system = shape.system
    duty = shape.duties.get(who, Duty(set(), set()))
    worker = who in system.role_names
    written = {topic.name for topic in system.topics if who in writers(topic, system.roles)} | duty.written
    read = {topic.name for topic in system.topics if who in readers(topic, system.roles)} | duty.read
    described = (written | read) if worker else system.partitions.keys() if who == OPERATOR else set()
    return {
        "Write": {name: name in written for name in system.partitions},
        "Read": {name: name in read for name in system.partitions},
        "DescribeConfigs": {name: name in described for name in system.partitions},
        "AlterConfigs": dict.fromkeys(system.partitions, False),
        "Delete": dict.fromkeys(system.partitions, False),
    }


async def test_every_built_in_system_is_asked():
    assert SHAPES.keys() == {kind.name for kind in builtin()}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("system", SHAPES)
async def test_the_rules_that_are_made_give_what_is_declared_and_nothing_else(system, who):
    shape = shape_of(system, "asked")
    rules = rules_of(shape.system, shape.prefix, shape.principals)
    given = {(rule.name, rule.operation) for rule in rules if (rule.principal, rule.kind) == (f"User:{who}", "topic")}
    wanted = {
        (physical(shape.prefix, name), operation)
        for operation, allowed in declared(who, shape).items()
        for name, yes in allowed.items()
        if yes
    }
    assert {one for one in given if one[1] != "Describe"} == wanted


@pytest.mark.parametrize("who", WHO)
async def test_each_role_may_do_with_each_topic_what_is_declared_and_nothing_else(kafka, shape, who):
    found = await codes(kafka, who, shape)
    for operation, allowed in declared(who, shape).items():
        expected = {topic: 0 if yes else DENIED for topic, yes in allowed.items()}
        assert found[operation] == expected, (who, operation)


@pytest.mark.parametrize("who", WHO)
async def test_each_role_may_use_its_own_consumer_group_alone(kafka, shape, who):
    async with kafka.connection(who, shape.prefix).admin("ask") as admin:
        for owner in (*shape.system.role_names, "somebody"):
            group = group_of(shape.deployment, owner)
            if owner == who:
                assert await admin.list_consumer_group_offsets(group) == {}
            else:
                with pytest.raises(GroupAuthorizationFailedError):
                    await admin.find_coordinator(group)


@pytest.mark.parametrize("who", WHO)
async def test_no_role_may_create_topics_or_see_or_make_rules(kafka, shape, who):
    connection = kafka.connection(who, shape.prefix)
    async with connection.admin("ask") as admin:
        answer = await admin.create_topics([NewTopic(f"{shape.prefix}mine", 1, 1)])
        assert [code for _, code, _ in answer.topic_errors] == [DENIED]
    for call in (acls.check_async, acls.apply_async):
        with pytest.raises(AccessDenied, match="run it as an administrator of the cluster"):
            await call(connection, shape.system, Principals.of())


async def test_every_writer_is_idempotent_without_a_right_of_its_own_for_that(kafka, shape):
    for who in (*shape.system.role_names, *(of_party("client", party) for party in shape.system.parties or ("",))):
        topic = next(shape.prefix + name for name, yes in declared(who, shape)["Write"].items() if yes)
        options = kafka.connection(who, shape.prefix).cluster.client_options()
        async with AIOKafkaProducer(**options, enable_idempotence=True, acks="all") as producer:
            await asyncio.wait_for(producer.send_and_wait(topic, b"x", partition=0), 10)


async def test_a_role_known_by_certificate_has_the_rights_of_its_principal(kafka, fresh_name):
    shape = shape_of("p2b", fresh_name())
    admin = kafka.connection("admin-certificate", shape.prefix)
    await apply_async(admin, shape.system)
    await acls.apply_async(admin, shape.system, Principals.of([f"{role}=User:CN={role}" for role in account_names()]))
    found = await codes(kafka, "shuffler-certificate", shape)
    allowed = declared("shuffler", shape)
    for operation in ("Write", "Read"):
        assert found[operation] == {topic: 0 if yes else DENIED for topic, yes in allowed[operation].items()}
    # The same role by password is another principal, which was given nothing.
    other = await codes(kafka, "shuffler", shape)
    assert set(other["Read"].values()) | set(other["Write"].values()) == {DENIED}


async def _until_two_differ(connection: Any, shape: Any) -> set[tuple[str, str]]:
    """What differs from the declaration; a broker tells of a changed rule a moment later."""
    found: set[tuple[str, str]] = set()
    for _ in range(100):
        differing = await acls.check_async(connection, shape.system, Principals.of())
        found = {(one.what, str(one)) for one in differing or ()}
        if len(found) == 2:
            break
        await asyncio.sleep(0.1)
    return found


async def test_a_rule_too_many_or_too_few_is_named_with_its_remedy(kafka, fresh_name):
    shape = shape_of("p2b", fresh_name())
    connection = kafka.connection("admin", shape.prefix)
    await apply_async(connection, shape.system)
    await acls.apply_async(connection, shape.system, Principals.of())
    async with connection.admin("change rules") as admin:
        await _change(admin, "create", shape, "User:aggregator", 3, "contexts")
        await _change(admin, "delete", shape, "User:shuffler", 4, "ledger")
    found = await _until_two_differ(connection, shape)
    assert found == {
        (
            "missing",
            f"access: expected Write on topic {shape.prefix}ledger for User:shuffler, there is no such rule; "
            f"`hushstream topics apply` creates it",
        ),
        (
            "excess",
            f"access: a rule allows User:aggregator Read on topic {shape.prefix}contexts, which the declaration does "
            f"not; remove it with Kafka's own `kafka-acls.sh --bootstrap-server HOST:PORT --remove --force "
            f"--allow-principal User:aggregator --allow-host '*' --operation Read --topic {shape.prefix}contexts "
            f"--resource-pattern-type literal` (and --command-config of an administrator), or name its owner with "
            f"--principals administrator=PRINCIPAL",
        ),
    }
    assert [str(rule) for rule in await acls.apply_async(connection, shape.system, Principals.of()) or ()] == [
        f"Write on topic {shape.prefix}ledger for User:shuffler"
    ]


async def _change(
    admin: AIOKafkaAdminClient, how: str, shape: Shape, principal: str, operation: int, topic: str
) -> None:
    from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

    kind = CreateAclsRequest if how == "create" else DeleteAclsRequest
    await admin._send_request(kind(2, physical(shape.prefix, topic), 3, principal, "*", operation, 3))


async def test_a_refused_record_is_put_again_by_who_requeues_in_its_zone_and_by_no_other(kafka, fresh_name):
    shape = shape_of("p2b", fresh_name())
    await apply_async(kafka.connection("admin", shape.prefix), shape.system)
    await acls.apply_async(kafka.connection("admin", shape.prefix), shape.system, shape.principals)
    refused = codec.encode("Context", {"event_id": "e", "user": "u", "context": bytes(12)})
    zone_key = KEYS.key("edge")
    letter = DeadLetters("edge", "learner", 0, zone_key).letter("bad_line", "contexts", 0, 0, 0, refused)
    for who, topic, value in (("client", "contexts", refused), ("learner", letter.topic, letter.value)):
        options = kafka.connection(who, shape.prefix).cluster.client_options()
        async with AIOKafkaProducer(**options) as producer:
            await producer.send_and_wait(shape.prefix + topic, value, partition=0)
    desk, counts = kafka.connection("requeue-edge", shape.prefix), shape.system.partitions
    (found,) = dead_letters.read(await copy_async(desk, counts, {letter.topic}), {letter.topic}, counts)
    for zone in ("edge", "shuffler", "server"):
        reader = kafka.connection(f"letters-{zone}", shape.prefix)
        if zone == "edge":
            assert dead_letters.read(await copy_async(reader, counts, {letter.topic}), {letter.topic}, counts) == (
                found,
            )
        else:
            with pytest.raises((AccessDenied, TopicMissing)):
                await copy_async(reader, counts, {letter.topic})
    for who in ("operator", "learner", "client", "requeue-shuffler", "requeue-server", "letters-edge"):
        with pytest.raises((AccessDenied, TopicMissing)):
            await (await plan(kafka.connection(who, shape.prefix), shape.system, [found], KEYS)).act()
    planned = await plan(desk, shape.system, [found], KEYS)
    assert len(planned.rows) == 1
    await planned.act()
    assert (await plan(desk, shape.system, [found], KEYS)).rows == ()
