"""Asks brokers for a few things at a time: an admin client, our rights, and leaving a group.

*Commits.* What a worker commits to its group: input offsets, and the last journal record whose outputs were all
acknowledged.

The offsets say from where input must be read again; they may be far behind, at the beginning of an open window. So each
commit also carries a mark, ``hushstream/1 <journal> <sequence>``: the outputs of every record of that journal up to
that sequence number were acknowledged. The next owner sends the outputs of all records above it again, byte for byte.

*Broker check.* Makes the first contact with a cluster: finds whether a broker answers and supports our versions, and if
not, why.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from aiokafka import TopicPartition as BrokerPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaError,
    SaslAuthenticationFailed,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.protocol.types import Array, Boolean, Bytes, Int16, Int32, Schema, String

from hushstream.agents.errors import DENIED, AccessDenied, BrokerVersionWrong, LogsMoved
from hushstream.agents.security import Cluster
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.marks import Mark

READ, WRITE, DESCRIBE_CONFIGS = 3, 4, 10
"""Kafka's numbers of operations; bit n of the broker's answer says whether operation n is allowed."""

_NAMES = {READ: "Read", WRITE: "Write", DESCRIBE_CONFIGS: "DescribeConfigs"}
_RIGHTS_UNKNOWN = -(2**31)
_RIGHTS_OF_MISSING = {UnknownTopicOrPartitionError.errno: _RIGHTS_UNKNOWN}
RIGHTS_FIX = (
    "`hushstream topics apply`, run by an administrator, creates the access rules of every role (--principals names "
    "whom they are for, and who has a duty: gateway=User:NAME)"
)


@asynccontextmanager
async def administering(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client, which is closed at the end, also where it could not start.

    Raises:
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    admin = AIOKafkaAdminClient(**cluster.client_options())
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


class Asking:
    """Sends single requests, for which the admin client has no method."""

    def __init__(self, client: AIOKafkaClient) -> None:
        """Ask with this client."""
        self._client = client

    async def anyone(self, request: Any) -> Any:
        """The answer of any broker.

        Raises:
            KafkaError: no broker answers, or none knows the request.
        """
        return await self._client.send(self._client.get_random_node(), request)

    async def coordinator(self, group: str, request: Any) -> Any:
        """The answer of a group's coordinator.

        Raises:
            KafkaError: it does not answer, or does not know the request; or the access rules hide the group.
        """
        node = await self._client.coordinator_lookup(CoordinationType.GROUP, group)
        return await self._client.send(node, request, group=ConnectionGroup.COORDINATION)


@asynccontextmanager
async def asking(cluster: Cluster, timeout_seconds: float = 40.0) -> AsyncIterator[Asking]:
    """A connection for single requests, each of which may take ``timeout_seconds``.

    Raises:
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    client = AIOKafkaClient(**cluster.client_options(), request_timeout_ms=round(timeout_seconds * 1000))
    try:
        await client.bootstrap()
        yield Asking(client)
    finally:
        await client.close()


async def leave_group(cluster: Cluster, group: str, instance: str) -> None:
    """Remove a static member from its group when its process ends, so that the others have its partitions at once.

    aiokafka sends nothing at the end of a static member, so the others would wait for the end of its session.

    Raises:
        KafkaError, OSError, TimeoutError: no broker answers, or it refuses.
    """
    async with asking(cluster) as asked:
        for member, *_ in await members_of(asked, group):
            if member.startswith(f"{instance}-"):  # the broker makes the member's id from its instance id
                answer = await asked.coordinator(group, LeaveGroupRequest(group, member))
                if answer.error_code not in (0, UnknownMemberIdError.errno):
                    raise for_code(answer.error_code)(group)


async def members_of(asked: Asking, group: str) -> list[tuple[Any, ...]]:
    """The members of a group, each with its id first."""
    answer = await asked.coordinator(group, InOneVersion(GroupDescription([group], True)))
    ((_, _, _, _, _, members, _),) = answer.groups
    return list(members)


class InOneVersion:
    """Wraps a request so that the client sends it in the only version that we know."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """Choose the version; the client calls this with the versions that the broker accepts."""
        low, high = versions.get(self._request.API_KEY, (1, 0))
        if not low <= self._request.API_VERSION <= high:
            raise IncompatibleBrokerVersion(f"{type(self._request).__name__}: expected a newer broker")
        return self._request


_TEXT = String("utf-8")


def _array(**fields: Any) -> Array:
    return Array(*fields.items())


_PARTITIONS = _array(
    error_code=Int16, partition=Int32, leader=Int32, leader_epoch=Int32,
    replicas=Array(Int32), isr=Array(Int32), offline_replicas=Array(Int32),
)  # fmt: skip
_MEMBERS = _array(member_id=_TEXT, client_id=_TEXT, client_host=_TEXT, member_metadata=Bytes, member_assignment=Bytes)


# aiokafka's classes of these two requests stop before the version that contains the rights, or do not read the rights.
class _TopicRightsResponse(Response):  # type: ignore[misc] # aiokafka is untyped here
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _array(node_id=Int32, host=_TEXT, port=Int32, rack=_TEXT)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            _array(
                error_code=Int16, topic=_TEXT, is_internal=Boolean, partitions=_PARTITIONS, authorized_operations=Int32
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class TopicRights(RequestStruct):  # type: ignore[misc] # aiokafka is untyped here
    """Asks for topics, with the rights that we have on them."""

    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _TopicRightsResponse
    SCHEMA = Schema(
        ("topics", Array(_TEXT)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _GroupDescriptionResponse(Response):  # type: ignore[misc] # aiokafka is untyped here
    API_KEY = 15
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            _array(
                error_code=Int16, group=_TEXT, state=_TEXT, protocol_type=_TEXT, protocol=_TEXT, members=_MEMBERS,
                authorized_operations=Int32,
            ),
        ),
    )  # fmt: skip


class GroupDescription(RequestStruct):  # type: ignore[misc] # aiokafka is untyped here
    """Asks for groups, with their members and the rights that we have on them."""

    API_KEY = 15
    API_VERSION = 3
    RESPONSE_TYPE = _GroupDescriptionResponse
    SCHEMA = Schema(("groups", Array(_TEXT)), ("include_authorized_operations", Boolean))


async def check_rights(cluster: Cluster, needed: Mapping[str, Collection[int]], group: str | None = None) -> None:
    """Check that the broker's access rules allow what is needed; a broker without rules allows everything.

    Args:
        cluster: the broker, and the user name with which we connect.
        needed: operations by the broker's name of a topic; a topic that does not exist is skipped.
        group: the consumer group that must be readable.

    Raises:
        AccessDenied: names topic or group, the operation, and how to allow it.
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    for name, missing in (await missing_rights(cluster, needed)).items():
        raise lacking(cluster, f"topic {name}", missing)
    if group is None:
        return
    with contextlib.suppress(IncompatibleBrokerVersion):
        async with asking(cluster) as asked:
            if missing := _missing((READ,), await _group_rights(asked, group)):
                raise lacking(cluster, f"group {group}", missing)


def lacking(cluster: Cluster, what: str, rights: str) -> AccessDenied:
    """The refusal of an account that lacks rights on a topic or group."""
    return AccessDenied(
        f"{what}: expected the right to {rights} for {cluster.security.account}, got none; {RIGHTS_FIX}"
    )


async def missing_rights(cluster: Cluster, needed: Mapping[str, Collection[int]]) -> Mapping[str, str]:
    """Which of the needed operations are not allowed, in words, by topic; arguments and errors as of `check_rights`.

    A broker that has no access rules, or cannot list them, allows everything: a missing right then fails the operation
    itself.
    """
    try:
        async with asking(cluster) as asked:
            allowed = await _topic_rights(asked, needed)
    except IncompatibleBrokerVersion:
        return {}
    missing = {name: _missing(wanted, allowed[name]) for name, wanted in sorted(needed.items())}
    return {name: rights for name, rights in missing.items() if rights}


def _missing(wanted: Collection[int], allowed: int) -> str:
    missing = [] if allowed == _RIGHTS_UNKNOWN else [_NAMES[one] for one in sorted(wanted) if not allowed >> one & 1]
    return " and ".join(missing)


async def _topic_rights(asked: Asking, names: Collection[str]) -> dict[str, int]:
    answer = await asked.anyone(InOneVersion(TopicRights(list(names), False, False, True)))
    return {name: _RIGHTS_OF_MISSING.get(code, 0) if code else allowed for code, name, _, _, allowed in answer.topics}


async def _group_rights(asked: Asking, group: str) -> int:
    try:
        answer = await asked.coordinator(group, InOneVersion(GroupDescription([group], True)))
    except DENIED:
        return 0
    ((code, *_, allowed),) = answer.groups
    if code and issubclass(for_code(code), DENIED):
        return 0
    if code:
        error: KafkaError = for_code(code)(group)
        raise error
    return int(allowed)


_FORM = "hushstream/1"
_ATTEMPTS = 10


def journal_name(genesis: bytes) -> str:
    """A short name of a journal, made from its first record, so that the marks of another journal are ignored."""
    return blake2b(genesis, digest_size=8).hexdigest()


def journal_label(journal: str, generation: int) -> str:
    """The name of a journal in commits. It changes when an operator accepts a journal that is behind its marks."""
    return f"{journal}.{generation}" if generation else journal


def pack_mark(journal: str, sequence: int) -> str:
    """The metadata of a commit; ``journal`` is a label."""
    return f"{_FORM} {journal} {sequence}"


def committed_mark(metadata: str | None) -> Mark | None:
    """The journal and the record up to which all outputs were sent, from a commit's metadata; None without a mark."""
    parts = (metadata or "").split(" ")
    if len(parts) != 3 or parts[0] != _FORM or not parts[2].isdecimal():
        return None
    name, _, generation = parts[1].partition(".")
    return Mark(name, int(parts[2]), int(generation) if generation.isdecimal() else 0)


def read_mark(metadata: str | None, journal: str) -> int:
    """The sequence number in a mark of the journal with this label; 0 if the metadata has no such mark."""
    mark = committed_mark(metadata)
    return mark.sequence if mark is not None and journal_label(mark.journal, mark.generation) == journal else 0


async def committed_marks(
    settings: WorkerSettings, sources: Iterable[tuple[str, int]]
) -> Mapping[tuple[str, int], str]:
    """The metadata that the group last committed, for logical topic partitions.

    Raises:
        KafkaError: the coordinator did not answer after several attempts.
    """
    wanted = list(sources)
    async with administering(settings.cluster) as admin:
        places = [BrokerPartition(settings.physical(topic), partition) for topic, partition in wanted]
        for attempt in range(_ATTEMPTS):
            try:
                found = await admin.list_consumer_group_offsets(settings.group, partitions=places)
                break
            except KafkaError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.2 * (attempt + 1))
        return {
            source: found[place].metadata
            for source, place in zip(wanted, places, strict=True)
            if place in found and found[place].offset >= 0
        }


Versions = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each request that a broker accepts, by the request's number."""

_NEEDED: Mapping[type[Request], tuple[int, int]] = {
    ProduceRequest: (0, 7),
    FetchRequest: (1, 11),
    OffsetRequest: (0, 3),
    MetadataRequest: (0, 5),
    OffsetCommitRequest: (2, 3),
    OffsetFetchRequest: (1, 3),
    FindCoordinatorRequest: (0, 1),
    JoinGroupRequest: (0, 5),
    HeartbeatRequest: (0, 1),
    LeaveGroupRequest: (0, 1),
    SyncGroupRequest: (0, 3),
    InitProducerIdRequest: (0, 0),
    DescribeConfigsRequest: (0, 2),
}
"""The requests that a worker needs, with the lowest and the highest version that the client can send; that for
idempotent producers was added to Kafka last."""

_BAD_PASSWORD = (SaslAuthenticationFailed, AuthenticationFailedError)
_NO_MECHANISM = (UnsupportedSaslMechanismError, AuthenticationMethodNotSupported, IllegalSaslStateError)
AT_THE_DOOR = (*_BAD_PASSWORD, *_NO_MECHANISM)
"""Errors of a broker that answers but does not let us log in."""


async def check_version(cluster: Cluster, timeout_seconds: float) -> str:
    """Check that a broker accepts the versions of requests that we need.

    Returns:
        The name of the cluster.

    Raises:
        BrokerVersionWrong: the broker accepts no version of a request that we need.
        LogsMoved: it takes no records any more.
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    versions, name = await _versions(cluster, timeout_seconds)
    if ProduceRequest.API_KEY not in versions:
        raise moved(cluster)
    for request, (lowest, highest) in _NEEDED.items():
        low, high = versions.get(request.API_KEY, (1, 0))
        if max(low, lowest) > min(high, highest):
            theirs = f"versions {low} to {high}" if low <= high else "no version"
            raise BrokerVersionWrong(
                f"broker {cluster.bootstrap}: expected {request.__name__} in one of the versions {lowest} to "
                f"{highest}, it accepts {theirs}; run Apache Kafka 4 (4.3 is tested), or an older hushstream"
            )
    return name


def moved(cluster: Cluster) -> LogsMoved:
    """The refusal of a broker whose topics were moved to another one."""
    return LogsMoved(
        f"broker {cluster.bootstrap}: its topics were moved and it is closed for ever; go on with --bootstrap of the "
        "broker to which `topics import` brings them"
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


async def _versions(cluster: Cluster, timeout_seconds: float) -> tuple[Versions, str]:
    """Ask the brokers in turn until one answers, with the cluster's name; raises the last one's error if none does."""
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
            answer = await connection.send(MetadataRequest([]))
            return dict(connection._versions), str(answer.to_object().get("cluster_id"))
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
