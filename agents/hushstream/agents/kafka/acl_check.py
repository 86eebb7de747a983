"""Asks the broker for our rights before any work begins, so that no write is denied in the middle of the work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Bytes, Int16, Int32, Schema, String

from hushstream.agents.errors import DENIED, AccessDenied
from hushstream.agents.kafka.administration import administering
from hushstream.agents.security import Cluster

READ, WRITE, DESCRIBE_CONFIGS = 3, 4, 10
"""Kafka's numbers of operations; bit n of the broker's answer says whether operation n is allowed."""

_NAMES = {READ: "Read", WRITE: "Write", DESCRIBE_CONFIGS: "DescribeConfigs"}
_RIGHTS_UNKNOWN = -(2**31)
_RIGHTS_OF_MISSING = {UnknownTopicOrPartitionError.errno: _RIGHTS_UNKNOWN}
_FIX = (
    "`hushstream topics apply`, run by an administrator, creates the access rules of every role "
    "(--principals names whom they are for)"
)


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
    try:
        async with administering(cluster) as admin:
            allowed = await _topic_rights(admin, needed)
            for name, wanted in sorted(needed.items()):
                _require(f"topic {name}", wanted, allowed[name])
            if group is not None:
                _require(f"group {group}", (READ,), await _group_rights(admin, group))
    except IncompatibleBrokerVersion:
        return  # the broker has no access rules or cannot list them: a missing right then fails the operation itself


def _require(place: str, wanted: Collection[int], allowed: int) -> None:
    missing = [] if allowed == _RIGHTS_UNKNOWN else [_NAMES[one] for one in sorted(wanted) if not allowed >> one & 1]
    if missing:
        raise AccessDenied(f"{place}: expected the right to {' and '.join(missing)}, got none; {_FIX}")


async def _topic_rights(admin: AIOKafkaAdminClient, names: Collection[str]) -> dict[str, int]:
    answer = await admin._send_request(_InOneVersion(_TopicRights(list(names), False, False, True)))
    return {name: _RIGHTS_OF_MISSING.get(code, 0) if code else allowed for code, name, _, _, allowed in answer.topics}


async def _group_rights(admin: AIOKafkaAdminClient, group: str) -> int:
    try:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request(_InOneVersion(_GroupRights([group], True)), coordinator)
    except DENIED:
        return 0
    ((code, *_, allowed),) = answer.groups
    if code and issubclass(for_code(code), DENIED):
        return 0
    if code:
        error: KafkaError = for_code(code)(group)
        raise error
    return int(allowed)


class _InOneVersion:
    """Wraps a request so that the client sends it in the only version that we know."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """Choose the version; the client calls this with the versions that the broker accepts."""
        low, high = versions.get(self._request.API_KEY, (1, 0))
        if not low <= self._request.API_VERSION <= high:
            raise IncompatibleBrokerVersion(f"{type(self._request).__name__}: expected a newer broker")
        return self._request


# aiokafka's classes of these two requests stop before the version that contains the rights, or do not read the rights.
class _TopicRightsResponse(Response):  # type: ignore[misc] # aiokafka is untyped here
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(
                ("node_id", Int32),
                ("host", String("utf-8")),
                ("port", Int32),
                ("rack", String("utf-8")),
            ),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _TopicRights(RequestStruct):  # type: ignore[misc] # aiokafka is untyped here
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _TopicRightsResponse
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _GroupRightsResponse(Response):  # type: ignore[misc] # aiokafka is untyped here
    API_KEY = 15
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", String("utf-8")),
                ("state", String("utf-8")),
                ("protocol_type", String("utf-8")),
                ("protocol", String("utf-8")),
                (
                    "members",
                    Array(
                        ("member_id", String("utf-8")),
                        ("client_id", String("utf-8")),
                        ("client_host", String("utf-8")),
                        ("member_metadata", Bytes),
                        ("member_assignment", Bytes),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class _GroupRights(RequestStruct):  # type: ignore[misc] # aiokafka is untyped here
    API_KEY = 15
    API_VERSION = 3
    RESPONSE_TYPE = _GroupRightsResponse
    SCHEMA = Schema(("groups", Array(String("utf-8"))), ("include_authorized_operations", Boolean))
