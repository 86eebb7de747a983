"""Makes the first contact with a cluster: finds whether a broker answers and supports our versions, and if not, why."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from hushstream.agents.errors import BrokerVersionWrong
from hushstream.agents.security import Cluster

Versions = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each request that a broker accepts, by the request's number."""

_NEEDED: tuple[type[Request], ...] = (
    ProduceRequest,
    FetchRequest,
    OffsetRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
    InitProducerIdRequest,
    DescribeConfigsRequest,
)
"""The requests that a worker needs; of these, that for idempotent producers was added to Kafka last."""

_BAD_PASSWORD = (SaslAuthenticationFailed, AuthenticationFailedError)
_NO_MECHANISM = (UnsupportedSaslMechanismError, AuthenticationMethodNotSupported, IllegalSaslStateError)
AT_THE_DOOR = (*_BAD_PASSWORD, *_NO_MECHANISM)
"""Errors of a broker that answers but does not let us log in."""


async def check_version(cluster: Cluster, timeout_seconds: float) -> None:
    """Check that a broker accepts the versions of requests that we need.

    Raises:
        BrokerVersionWrong: the broker accepts no version of a request that we need.
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    versions = await _versions(cluster, timeout_seconds)
    for request in _NEEDED:
        ours = [struct.API_VERSION for struct in request._CLASSES]
        low, high = versions.get(request.API_KEY, (1, 0))
        if not any(low <= version <= high for version in ours):
            theirs = f"versions {low} to {high}" if low <= high else "no version"
            raise BrokerVersionWrong(
                f"broker {cluster.bootstrap}: expected {request.__name__} in one of the versions {min(ours)} to "
                f"{max(ours)}, it accepts {theirs}; run Apache Kafka 4 (4.3 is tested), or an older hushstream"
            )


async def why_unreachable(cluster: Cluster, timeout_seconds: float) -> str:
    """Why no broker answers, as the end of the message "no broker answered"; empty when one answers now.

    The Kafka client itself says only that it was unable to bootstrap, whatever the cause.
    """
    try:
        await _versions(cluster, timeout_seconds)
    except (KafkaError, OSError, TimeoutError) as error:
        return f": {_cause(error, cluster)}"
    return ""


async def _versions(cluster: Cluster, timeout_seconds: float) -> Versions:
    """Ask the brokers in turn until one answers; raises the last broker's error if none does."""
    options = cluster.client_options()
    servers = options.pop("bootstrap_servers")
    failure: Exception = TimeoutError()
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            connection = await create_conn(
                host.strip("[]"), int(port), request_timeout_ms=round(timeout_seconds * 1000), **options
            )
        except (KafkaError, OSError, TimeoutError) as error:
            failure = error
            continue
        try:
            # A listener that requires a password still answers this first request, and closes the connection at the
            # next.
            await connection.send(MetadataRequest([]))
            found: Versions = dict(connection._versions)
            return found
        except (KafkaError, TimeoutError) as error:
            failure = error
        finally:
            connection.close()
    raise failure


def _cause(error: Exception, cluster: Cluster) -> str:
    security = cluster.security
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted ({error.verify_message}); look at ca_file and the host's name"
    if isinstance(error, _BAD_PASSWORD):
        return "the broker refused the user name or the password"
    if isinstance(error, _NO_MECHANISM):
        return f"the broker does not offer {security.sasl_mechanism}"
    if isinstance(error, TimeoutError):
        return "no answer; the address may be wrong, or a firewall in between"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "the broker does not speak TLS on this port"
    if isinstance(error, OSError) and not isinstance(error, (ssl.SSLError, ConnectionError)):
        return error.strerror or type(error).__name__
    return _closed(cluster)


def _closed(cluster: Cluster) -> str:
    """Say why a broker may have closed the connection without an error, by the credentials that we sent."""
    security = cluster.security
    if not security.uses_tls:
        return "the broker closed the connection; it may expect TLS, or a password (name them with --security)"
    if security.certificate_file is None:
        if security.uses_sasl:
            return "the broker closed the connection; it may expect a certificate (certificate_file), or no password"
        return "the broker closed the connection; it may expect a certificate, and none was given (certificate_file)"
    fault = security.certificate_fault()
    return "the broker closed the connection; " + (
        fault or f"it may not trust {security.certificate_file} (another authority), or expect a password"
    )
