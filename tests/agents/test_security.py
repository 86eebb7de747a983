"""Settings of connection and worker: from file and environment, strict, masked, never plain beyond this machine."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvloop
import yaml
from cryptography.hazmat.primitives import serialization
from modules import module_at
from pydantic import ValidationError

from hushstream.agents.security import ENVIRONMENT_PREFIX, Cluster, PlaintextRefused, Security, read_security
from hushstream.agents.settings import WorkerSettings
from hushstream.client.kafka import KafkaEventLog
from hushstream.ops.connection import Connection
from hushstream.schemas.errors import HushstreamError

CANARY = "canary-7f3a"
PLACE = Path(__file__).parents[2] / "deploy" / "kafka" / "certificates.py"


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.Loop,
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(**values: Any) -> Path:
        path = tmp_path / "broker.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def certificates() -> ModuleType:
    return module_at(PLACE, "hushstream_test_certificates")


@pytest.fixture(scope="module")
def pems(certificates: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and what it signed."""
    folder = tmp_path_factory.mktemp("pems")
    authority = certificates.Authority.new()
    authority.write(folder)
    authority.issue(folder, "learner")
    authority.issue(folder, "expired", datetime.now(UTC) - timedelta(days=2))
    return folder


@pytest.fixture
def mute(pems: Path) -> Iterator[int]:
    """The port of a TLS server that never answers the end of a connection."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pems / "learner.pem")
    held, over = list[ssl.SSLSocket](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            held.append(context.wrap_socket(listening.accept()[0], server_side=True))
            over.wait()
            held[0].close()

        serving = threading.Thread(target=serve)
        serving.start()
        yield listening.getsockname()[1]
        over.set()
        serving.join()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_ends_though_the_broker_does_not_answer_the_end_of_its_connection(pems, mute, loop):
    """Each client that was closed took half a minute, and workers ended with "no broker answered"."""
    context = Security(protocol="SSL", ca_file=pems / "ca.pem").ssl_context()

    async def ends() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", mute, ssl=context)
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), 5.0)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(ends())


def environment(**values: object) -> dict[str, str]:
    return {f"{ENVIRONMENT_PREFIX}{key.upper()}": str(value) for key, value in values.items()}


def test_without_any_settings_the_connection_is_plain():
    assert read_security(None, {}) == Security()


def test_the_environment_alone_is_enough(tmp_path):
    (tmp_path / "password").write_text(f"{CANARY}\n", encoding="utf-8")
    (tmp_path / "user").write_text("shop\n", encoding="utf-8")
    found = read_security(
        None,
        environment(
            protocol="SASL_SSL", username_file=tmp_path / "user", password_file=tmp_path / "password",
            sasl_mechanism="SCRAM-SHA-256",
        ),
    )  # fmt: skip
    assert (found.protocol, found.username, found.sasl_mechanism) == ("SASL_SSL", "shop", "SCRAM-SHA-256")
    assert found.password is not None
    assert found.password.get_secret_value() == CANARY


def test_the_environment_takes_the_place_of_the_files_values_in_either_form(written, tmp_path):
    (tmp_path / "old").write_text("old", encoding="utf-8")
    (tmp_path / "new").write_text("new", encoding="utf-8")
    with_value = written(protocol="SASL_SSL", username="a", password="old")
    for path, over in (
        (with_value, environment(password_file=tmp_path / "new")),
        (with_value, environment(password="new")),
        (written(protocol="SASL_SSL", username="a", password_file=str(tmp_path / "old")), environment(password="new")),
    ):
        found = read_security(path, over)
        assert found.password is not None
        assert found.password.get_secret_value() == "new"


@pytest.mark.parametrize(
    ("values", "over", "says"),
    [
        ({"pasword": CANARY}, {}, r"broker.yaml: pasword: .*known are allow_plaintext, ca_file"),
        ({}, {"pasword": CANARY}, r"HUSHSTREAM_SECURITY__PASWORD: pasword: .*known are"),
        ({"protocol": "TLS"}, {}, "protocol: expected 'PLAINTEXT', 'SSL'"),
        ({"protocol": "SASL_SSL", "username": "a", "password": CANARY, "password_file": "x"}, {}, "got both"),
        (
            {"protocol": "SASL_SSL", "username": "a", "password": ""},
            {},
            "yaml: security protocol SASL_SSL needs username and password",
        ),
        ({"protocol": "SASL_SSL", "username": "a"}, {"password_file": "/nowhere"}, "PASSWORD_FILE: password_file: exp"),
        ({"protocol": "PLAINTEXT", "ca_file": "x"}, {}, "takes no certificates"),
        ({"protocol": "SSL", "key_file": "x"}, {}, "need a certificate_file"),
        (
            {"protocol": "SSL", "ca_file": "/nowhere/ca.pem"},
            {},
            "ca_file: expected PEM that fits together, got No such",
        ),
    ],
)
def test_a_typo_or_what_does_not_fit_is_refused_by_name_and_no_value_is_repeated(written, values, over, says):
    with pytest.raises(HushstreamError, match=says) as caught:
        read_security(written(**values), environment(**over))
    assert CANARY not in str(caught.value)


def test_a_certificate_with_another_key_is_refused_before_anything_connects(written, pems):
    path = written(
        protocol="SSL", ca_file=str(pems / "ca.pem"), certificate_file=str(pems / "learner.pem"),
        key_file=str(pems / "expired.pem"),
    )  # fmt: skip
    with pytest.raises(HushstreamError, match="expected PEM that fits together, got KEY_VALUES_MISMATCH"):
        read_security(path, {})


def test_a_key_under_a_password_that_is_not_given_is_refused_and_nobody_is_asked(written, pems, tmp_path):
    key = serialization.load_pem_private_key((pems / "learner.pem").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(CANARY.encode()),
    )
    (tmp_path / "locked.key").write_bytes(locked)
    (tmp_path / "word").write_text(CANARY, encoding="utf-8")
    values = {
        "protocol": "SSL",
        "certificate_file": str(pems / "learner.pem"),
        "key_file": str(tmp_path / "locked.key"),
    }
    with pytest.raises(HushstreamError, match="expected PEM that fits together"):
        read_security(written(**values), {})
    found = read_security(written(**values, key_password_file=str(tmp_path / "word")), {})
    assert isinstance(found.ssl_context(), ssl.SSLContext)
    assert CANARY not in repr(found) + found.model_dump_json()


@pytest.mark.parametrize(
    ("values", "account"),
    [
        ({}, "User:ANONYMOUS"),
        ({"protocol": "SASL_SSL", "username": "shop", "password": CANARY}, "User:shop"),
        ({"protocol": "SSL", "certificate_file": "learner.pem", "key_file": "learner.pem"}, "User:CN=learner"),
    ],
)
def test_an_account_has_the_brokers_name_and_printed_commands_give_it_its_rights(pems, values, account):
    """An administrator runs `topics apply`: with the account of the worker that lacks a right it was denied."""
    security = Security(**{key: str(pems / one) if key.endswith("_file") else one for key, one in values.items()})
    assert security.account == account
    settings = WorkerSettings(
        bootstrap="kafka:9093", role="learner", group="g", datadir=Path(), place="--deployment shop",
        account="--security learner.yaml", security=security.model_copy(update={"allow_plaintext": True}),
    )  # fmt: skip
    given = f" --principals learner={account}" if values else ""
    # The file of a role gives no right to create a topic; where all accounts are one, it may name that broker.
    who = "--security ADMINISTRATOR.yaml" if values else "--security learner.yaml"
    told = settings.located("run `hushstream topics apply`")
    assert told == f"run `hushstream topics apply{given} --deployment shop {who}`"
    models = "logs repair models --write"
    assert settings.command(models) == f"hushstream {models} --deployment shop {who}"
    check = settings.command("logs check --role learner")
    assert check == "hushstream logs check --role learner --deployment shop --security learner.yaml"
    assert settings.located("`kafka-configs.sh --bootstrap-server HOST:PORT`").endswith("server kafka:9093`")


def test_an_expired_certificate_is_known_by_this_machines_clock(pems):
    expired = Security(protocol="SSL", certificate_file=pems / "expired.pem")
    ended = datetime.now(UTC) - timedelta(days=2)
    assert expired.certificate_fault() == f"{pems / 'expired.pem'} expired on {ended:%Y-%m-%d}"
    assert Security(protocol="SSL", certificate_file=pems / "learner.pem").certificate_fault() is None
    assert Security(protocol="SSL").certificate_fault() is None


REMOTE = "10.1.2.3:9092"
WAYS = {
    "cluster": lambda address, security: Cluster(address, security).client_options(),
    "worker": lambda address, security: WorkerSettings(
        bootstrap=address, role="learner", group="g", datadir=Path("data"), security=security
    ),
    "client": lambda address, security: KafkaEventLog(address, "shop.", security=security),
    "operator": lambda address, security: Connection(address, "shop.", security),
}
SASL = {"username": "a", "password": "b"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("security", [Security(), Security(protocol="SASL_PLAINTEXT", **SASL)], ids=["plain", "sasl"])
@pytest.mark.parametrize("address", [REMOTE, "kafka:9092", f"127.0.0.1:9092,{REMOTE}", "[2001:db8::1]:9092"])
def test_nothing_leaves_this_machine_unencrypted_unless_asked_for(way, security, address):
    with pytest.raises(PlaintextRefused, match="ALLOW_PLAINTEXT=true"):
        WAYS[way](address, security)
    WAYS[way](address, security.model_copy(update={"allow_plaintext": True}))


@pytest.mark.parametrize("way", WAYS)
def test_loopback_may_be_plain_and_any_machine_encrypted(way):
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "127.5.5.5:1, localhost:2"):
        WAYS[way](address, Security())
    WAYS[way](REMOTE, Security(protocol="SASL_SSL", **SASL))


def test_plaintext_is_asked_for_by_file_or_environment(written):
    assert read_security(written(allow_plaintext=True), {}).allow_plaintext
    assert read_security(None, environment(allow_plaintext="true")).allow_plaintext


REQUIRED = {"bootstrap": "127.0.0.1:9092", "role": "learner", "group": "g", "datadir": Path("data")}


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError, match="sesion"):
        WorkerSettings(**REQUIRED, sesion_timeout_seconds=3)


def test_a_password_is_never_printed():
    security = Security(protocol="SASL_SSL", username="learner", password="canary-secret")
    settings = WorkerSettings(**REQUIRED, security=security)
    assert "canary-secret" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.client_options()["sasl_plain_password"] == "canary-secret"


def test_credentials_on_a_plain_connection_are_refused():
    with pytest.raises(ValidationError, match="takes no username"):
        Security(username="learner", password="x")


def test_a_heartbeat_that_cannot_keep_the_session_is_refused():
    with pytest.raises(ValidationError, match="heartbeat_seconds"):
        WorkerSettings(**REQUIRED, session_timeout_seconds=3, heartbeat_seconds=2)


def test_a_dead_worker_is_missed_after_three_heartbeats():
    settings = WorkerSettings(**REQUIRED)
    assert settings.session_timeout_seconds == 6.0
    assert settings.heartbeat_seconds == 1.0


def test_topics_are_prefixed_and_bootstrap_servers_split():
    settings = WorkerSettings(**{**REQUIRED, "bootstrap": "127.0.0.1:1, localhost:2"}, topic_prefix="dep.")
    assert settings.physical("contexts") == "dep.contexts"
    assert settings.client_options()["bootstrap_servers"] == ["127.0.0.1:1", "localhost:2"]
