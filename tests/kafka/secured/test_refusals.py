"""Who is not let in, and who may not do what it must, is told in one line why, before anything is released."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.protocol.admin import DeleteAclsRequest

from hushstream.agents.errors import AccessDenied
from hushstream.agents.security import Security
from hushstream.agents.settings import WorkerSettings, group_of
from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.preflight import check_topics
from hushstream.agents.worker.roles import role_topics
from hushstream.client.kafka import KafkaEventLog
from hushstream.engine.declare.declaration import System, role_of
from hushstream.ops import access as acls
from hushstream.ops.access import Principals, Rule, rules_of
from hushstream.ops.check.follow import Auditor
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.logs import foreign
from hushstream.ops.logs.inputs import look
from hushstream.ops.logs.losses import accepted_losses
from hushstream.ops.topics import apply_async, check_async
from hushstream.schemas.errors import HushstreamError

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

NUMBERS = {"topic": 2, "group": 3, "Read": 3, "Write": 4, "DescribeConfigs": 10}
WORKERS = ("learner", "shuffler", "aggregator")


@dataclass(frozen=True)
class Deployed:
    """A deployment with topics and rules."""

    system: System
    folder: Path

    @property
    def name(self) -> str:
        return self.system.config.deployment

    def settings(self, kafka: Any, role: str, **changes: Any) -> WorkerSettings:
        values = {
            "bootstrap": kafka.passwords,
            "role": role,
            "group": group_of(self.name, role),
            "topic_prefix": f"{self.name}.",
            "datadir": self.folder,
            "security": kafka.security(role),
            "connect_timeout_seconds": 1.0,
        }
        return WorkerSettings(**{**values, **changes})

    async def start(self, settings: WorkerSettings) -> int:
        """As far as a worker goes before it joins its group."""
        return await check_topics(settings, role_topics(role_of(self.system, settings.role), self.system))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployed(kafka: Any, fresh_name: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    name = fresh_name()
    folder = tmp_path_factory.mktemp("deployed")
    config = parse_config(
        {
            "deployment": name,
            "items": {"capacity": 3},
            "features": {"dimension": 3},
            "expected_slots": 20,
            "encoder": {"codes": 2},
        }
    )
    system = prepare(folder, config, public_dataset="synthetic")
    admin = kafka.connection("admin", f"{name}.")
    await apply_async(admin, system)
    await acls.apply_async(admin, system, Principals.of())
    return Deployed(system, folder)


def knocks(kafka: Any, folder: Path) -> dict[str, tuple[str, Security, str]]:
    """What somebody may come with: at which door, with what, and what they are told."""
    by_name, by_certificate = kafka.security("learner"), kafka.security("learner-certificate")

    def holding(name: str, **options: Any) -> Security:
        pem = kafka.certificate(folder, name, **options)
        return kafka.security("learner-certificate", certificate_file=pem, key_file=pem)

    (folder / "others").mkdir()
    kafka.certificate(folder / "others", "stranger", trusted=False)
    other_ca = folder / "others" / "stranger.pem"
    expired = datetime.now(UTC) - timedelta(days=3)
    return {
        "wrong password": (
            kafka.passwords, kafka.security("learner", password="wrong"), "refused the user name or the password"),
        "unknown user": (
            kafka.passwords, kafka.security("learner", username="nobody"), "refused the user name or the password"),
        "another mechanism": (
            kafka.passwords, kafka.security("learner", sasl_mechanism="PLAIN"), "does not offer PLAIN"),
        "a password where certificates are asked for": (kafka.certificates, by_name, "it may expect a certificate"),
        "a certificate where passwords are asked for": (kafka.passwords, by_certificate, "or expect a password"),
        "no certificate": (
            kafka.certificates,
            kafka.security("learner-certificate", certificate_file=None, key_file=None),
            "it may expect a certificate, and none was given (certificate_file)"),
        "an expired certificate": (
            kafka.certificates, holding("expired", ends=expired), f"expired.pem expired on {expired:%Y-%m-%d}"),
        "a certificate of another authority": (
            kafka.certificates, holding("foreign", trusted=False), "it may not trust"),
        "a broker that is not trusted": (
            kafka.passwords, kafka.security("learner", ca_file=other_ca), "the broker's certificate is not trusted"),
        "a plain connection": (kafka.passwords, Security(), "it may expect TLS, or a password"),
    }  # fmt: skip


CASES = (
    "wrong password",
    "unknown user",
    "another mechanism",
    "a password where certificates are asked for",
    "a certificate where passwords are asked for",
    "no certificate",
    "an expired certificate",
    "a certificate of another authority",
    "a broker that is not trusted",
    "a plain connection",
)


@pytest.mark.parametrize("case", CASES)
async def test_whoever_is_not_let_in_is_told_why_by_every_kind_of_client(kafka, deployed, tmp_path, case):
    found = knocks(kafka, tmp_path)
    assert set(found) == set(CASES)
    address, security, says = found[case]
    prefix = f"{deployed.name}."
    connection = Connection(address, prefix, security, timeout_seconds=3)
    log = KafkaEventLog(address, prefix, security=security)
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "worker": lambda: deployed.start(deployed.settings(kafka, "learner", bootstrap=address, security=security)),
        "client": lambda: log.start(lambda *_: None),
        "topics": lambda: check_async(connection, deployed.system),
        "logs": lambda: copy_async(connection, deployed.system.partitions),
    }
    for way, knock in ways.items():
        with pytest.raises(HushstreamError) as caught:
            await asyncio.wait_for(knock(), 10)
        assert says in str(caught.value), way
        assert "\n" not in str(caught.value)
        if security.password is not None:
            assert security.password.get_secret_value() not in str(caught.value)


@pytest.mark.parametrize("role", WORKERS)
async def test_a_worker_that_lacks_any_right_that_it_needs_says_which_and_how_to_give_it(kafka, deployed, role):
    settings = deployed.settings(kafka, role)
    used = role_topics(role_of(deployed.system, role), deployed.system).all
    assert await deployed.start(settings) >= 1
    admin = kafka.connection("admin", f"{deployed.name}.")
    rules = [
        rule for rule in rules_of(deployed.system, admin.prefix, Principals.of()) if rule.principal == f"User:{role}"
    ]
    tried = 0
    for rule in rules:
        if rule.kind == "topic" and rule.name.removeprefix(admin.prefix) not in used:
            continue
        await _remove(admin, rule)
        says = await _until_denied(deployed, settings)
        await acls.create_async(admin, [rule])
        tried += 1
        assert f"{rule.kind} {rule.name}" in says, rule
        assert "`hushstream topics apply`" in says, rule
        assert rule.operation in says, rule
    assert tried >= 8
    assert await deployed.start(settings) >= 1


async def _remove(admin: Connection, rule: Rule) -> None:
    async with admin.admin("remove a rule") as client:
        answer = await client._send_request(
            DeleteAclsRequest(NUMBERS[rule.kind], rule.name, 3, rule.principal, "*", NUMBERS[rule.operation], 3)
        )
    assert len(answer.filter_responses[0][2]) == 1


async def _until_denied(deployed: Deployed, settings: WorkerSettings) -> str:
    """The refusal; a broker goes on to enforce a removed rule for a moment."""
    for _ in range(100):
        try:
            await deployed.start(settings)
        except HushstreamError as error:
            return str(error)
        await asyncio.sleep(0.03)
    pytest.fail("the worker would have started")


async def test_a_worker_process_without_a_right_ends_with_one_line_and_releases_nothing(kafka, deployed):
    admin = kafka.connection("admin", f"{deployed.name}.")
    rule = Rule("User:shuffler", "topic", f"{deployed.name}.ledger", "Write")
    await _remove(admin, rule)
    arguments = ["worker", "shuffler", "--deployment", str(deployed.folder), "--bootstrap", kafka.passwords]
    arguments += ["--security", str(kafka.file("shuffler")), "--seed", "1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hushstream.cli", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output = (await asyncio.wait_for(process.communicate(), 40))[0].decode()
    await acls.create_async(admin, [rule])
    assert process.returncode == 1, output
    began, *said = output.splitlines()
    assert began.endswith("no metrics are served"), "its metrics are there before it can be refused"
    assert said == [
        f"hushstream worker shuffler: topic {deployed.name}.ledger: expected the right to Write and "
        f"DescribeConfigs for User:shuffler, got none; `hushstream topics apply --principals shuffler=User:shuffler "
        f"--deployment {deployed.folder} --bootstrap {kafka.passwords} --security ADMINISTRATOR.yaml`, run by an "
        f"administrator, creates the access rules of every role (--principals names whom they are for, and who has a "
        f"duty: gateway=User:NAME)"
    ]
    logs = await copy_async(admin, deployed.system.partitions, {"journal-shuffler", "window-sums"})
    assert not any(part.records for part in logs.parts.values())


async def test_a_worker_whose_group_is_taken_away_names_it_and_its_account(kafka, deployed):
    """It ended with a traceback of the client."""
    admin = kafka.connection("admin", f"{deployed.name}.")
    rule = Rule("User:aggregator", "group", f"{deployed.name}.aggregator", "Read")
    arguments = ["worker", "aggregator", "--deployment", str(deployed.folder), "--bootstrap", kafka.passwords]
    arguments += ["--security", str(kafka.file("aggregator")), "--seed", "1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hushstream.cli", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while b"at journal record" not in (line := await process.stdout.readline()):
            assert line, "the worker has ended"
        await _remove(admin, rule)
        said = (await process.stdout.read()).decode()
    await acls.create_async(admin, [rule])
    assert "Traceback" not in said
    assert f"group {rule.name}: expected the right to Read for User:aggregator, got none" in said


async def test_a_client_without_its_rules_is_told_how_to_get_them(kafka, deployed):
    log = KafkaEventLog(kafka.passwords, f"{deployed.name}.", security=kafka.security("aggregator"))
    with pytest.raises(HushstreamError, match=r"clicks: expected the right to Write for User:aggregator, got none"):
        await log.start(lambda *_: None)
    # What is read besides the answers: a gateway could not read `items`, and no message named the right.
    with pytest.raises(HushstreamError, match=r"reports: expected the right to Read for User:aggregator, got none"):
        await asyncio.wait_for(log.read("reports", 0, 0), 10)
    admin = kafka.connection("admin", f"{deployed.name}.")
    for topic, operation in (("decisions", "Read"), ("contexts", "Write")):
        rule = Rule("User:client", "topic", f"{deployed.name}.{topic}", operation)
        await _remove(admin, rule)
        assert topic in await _until_told(kafka, deployed)
        await acls.create_async(admin, [rule])


async def test_a_client_that_was_refused_for_a_while_writes_again_with_no_restart(kafka, deployed):
    admin = kafka.connection("admin", f"{deployed.name}.")
    rule = Rule("User:client", "topic", f"{deployed.name}.contexts", "Write")
    log = KafkaEventLog(kafka.passwords, f"{deployed.name}.", security=kafka.security("client"))
    await log.start(lambda *_: None)
    try:
        first = await log.append("contexts", 0, b"x")
        await _remove(admin, rule)
        accepted, refused = await _until_refused(log)
        assert refused == "AccessDenied"
        await acls.create_async(admin, [rule])
        # A batch that was refused has used up a sequence number; the same producer would be out of order for ever.
        assert await _until_accepted(log) > first + accepted
    finally:
        await log.stop()


async def _until_refused(log: KafkaEventLog) -> tuple[int, str]:
    """How many more are accepted, and what the refusal is."""
    for accepted in range(300):
        try:
            await asyncio.wait_for(log.append("contexts", 0, b"x"), 60)
        except HushstreamError as error:
            return accepted, type(error).__name__
        await asyncio.sleep(0.1)
    pytest.fail("the client was never refused")


async def _until_accepted(log: KafkaEventLog) -> int:
    for _ in range(300):
        try:
            return await asyncio.wait_for(log.append("contexts", 0, b"y"), 60)
        except AccessDenied:  # the rule takes a moment
            await asyncio.sleep(0.1)
    pytest.fail("the client was never heard again")


async def _until_told(kafka: Any, deployed: Deployed) -> str:
    """What a client without a rule is told; a broker goes on to grant a removed one for a moment."""
    for _ in range(100):
        log = KafkaEventLog(kafka.passwords, f"{deployed.name}.", security=kafka.security("client"))
        try:
            await asyncio.wait_for(_write(log), 60)
        except HushstreamError as error:
            return str(error)
        await asyncio.sleep(0.1)
    pytest.fail("the client was never refused")


async def _write(log: KafkaEventLog) -> None:
    try:
        await log.start(lambda *_: None)
        await log.append("contexts", 0, b"x")
    finally:
        await log.stop()


async def test_the_operator_may_check_topics_and_not_rules(kafka, deployed):
    operator = kafka.connection("operator", f"{deployed.name}.")
    assert await check_async(operator, deployed.system) == ()
    with pytest.raises(AccessDenied, match="--no-acls"):
        await acls.check_async(operator, deployed.system, Principals.of())


READINGS: dict[str, Callable[[Connection, System, KeySource], Awaitable[Any]]] = {
    "budget": lambda at, system, _: copy_async(at, system.partitions, {"dead-letters-edge"}),
    "logs check": lambda at, system, keys: foreign.check(at, system, keys, ["learner"]),
    "accepted losses": lambda at, system, keys: accepted_losses(at, system, keys, ["learner"]),
    "logs repair input": lambda at, _, __: look(at, ("contexts", 0), 1),
}


@pytest.mark.parametrize("reading", READINGS)
async def test_who_may_describe_a_topic_and_not_read_it_is_not_told_that_it_is_empty(kafka, deployed, reading):
    """A topic without a record was never fetched: `budget` said "Entries: 0", exit 0, without its right."""
    operator = kafka.connection("operator", f"{deployed.name}.")
    with pytest.raises(AccessDenied, match=r"expected the right to Read for User:operator, got none; `hushstream"):
        await READINGS[reading](operator, deployed.system, KeySource(seed=1))


async def test_an_auditor_that_may_not_read_a_topic_does_not_say_that_nothing_differs(kafka, deployed, tmp_path):
    settings = deployed.settings(kafka, "operator", datadir=tmp_path)
    auditor = Auditor(settings, deployed.system, "learner", KeySource(seed=1))
    with pytest.raises(AccessDenied, match="expected the right to Read for User:operator, got none"):
        await asyncio.wait_for(auditor.run(asyncio.Event(), once=True), 30)
