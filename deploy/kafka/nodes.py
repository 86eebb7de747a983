"""The settings of a broker on loopback: plain, or secured with passwords, certificates and access rules."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from certificates import Authority

from hushstream.ops.access import account_names, duty_names
from hushstream.schemas.topics import of_party

ADMINISTRATOR = "admin"
STRANGER = "stranger"
"""An account that the broker knows, but that has no rights."""

PARTIES = ("one", "two")
"""Parties with accounts of their own; all other accounts are shared by the parties of a deployment."""

_NAMES = (*account_names(), *duty_names())
USERS = (ADMINISTRATOR, STRANGER, *_NAMES, *(of_party(name, party) for name in _NAMES for party in PARTIES))
_BROKER = "broker"

_COMMON = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms={session}
broker.session.timeout.ms={broker_session}
broker.heartbeat.interval.ms={broker_heartbeat}
offsets.topic.num.partitions=4
default.replication.factor={copies}
min.insync.replicas={least}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={least}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={least}
"""

_PLAIN = """\
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
"""

# Brokers and controllers identify one another by certificate; nobody connects without a name, not even on loopback.
_SECURED = """\
listeners=SASL://127.0.0.1:{port},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=SASL://127.0.0.1:{port},TLS://127.0.0.1:{tls}
listener.security.protocol.map=SASL:SASL_SSL,TLS:SSL,CONTROLLER:SSL
inter.broker.listener.name=TLS
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={security}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={security}/ca.pem
listener.name.tls.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:CN=broker;User:admin;User:CN=admin
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker: its number from 1 on, and its ports on loopback (``tls`` only where it is secured)."""

    number: int
    port: int
    controller: int
    tls: int


def properties(
    node: Node, nodes: Sequence[Node], folder: Path, security: Path | None, min_session_ms: int, broker_session_ms: int
) -> str:
    """The text of one broker's ``server.properties``.

    Args:
        node: the broker.
        nodes: all brokers.
        folder: the broker's own folder; its data goes below it.
        security: folder of the files of `write_security`; None for a plain broker.
        min_session_ms: shorter group sessions are refused.
        broker_session_ms: a broker that is silent for this long counts as dead.
    """
    return (_COMMON + (_PLAIN if security is None else _SECURED)).format(
        number=node.number,
        port=node.port,
        controller=node.controller,
        tls=node.tls,
        voters=",".join(f"{other.number}@127.0.0.1:{other.controller}" for other in nodes),
        data=folder / "data",
        session=min_session_ms,
        broker_session=broker_session_ms,
        broker_heartbeat=min(2000, broker_session_ms // 4),
        copies=len(nodes),
        least=min(2, len(nodes)),
        security=security,
    )


def write_security(folder: Path) -> list[str]:
    """Make an authority, certificates, passwords and, for each user, the two settings files of a client.

    ``NAME.yaml`` is for the listener with passwords, ``NAME-certificate.yaml`` for that with certificates.

    Returns:
        Arguments for the storage tool, so that the broker knows the passwords.
    """
    folder.mkdir(mode=0o700)
    authority = Authority.new()
    authority.write(folder)
    authority.issue(folder, _BROKER)
    credentials = []
    for user in USERS:
        password = secrets.token_urlsafe(24)
        held = folder / f"{user}.password"
        held.touch(mode=0o600)
        held.write_text(password, encoding="utf-8")
        pem = str(authority.issue(folder, user))
        by_password = {"protocol": "SASL_SSL", "username": user, "password_file": str(held)}
        by_certificate = {"protocol": "SSL", "certificate_file": pem, "key_file": pem}
        for name, values in ((user, by_password), (f"{user}-certificate", by_certificate)):
            (folder / f"{name}.yaml").write_text(
                yaml.safe_dump({**values, "ca_file": str(folder / "ca.pem")}), encoding="utf-8"
            )
        credentials += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]"]
    return credentials
