"""The error codes of the Kafka protocol that this broker answers with, and its own exceptions."""

from collections.abc import Awaitable, Callable
from enum import IntEnum


class ErrorCode(IntEnum):
    """Numbers of the Kafka protocol guide, section "Error Codes"."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100


class BrokerStartError(Exception):
    """The broker cannot start; the message is one line for the person who started it."""


class MalformedRequest(Exception):
    """The bytes are not a request that this broker can answer; their connection is closed."""


class RequestRefused(Exception):
    """One topic, partition or resource of a request is refused with an error code of the protocol."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def refusal(act: Callable[[], None]) -> tuple[int, str | None]:
    """Error code and message of what may be refused; 0 and None if it was done."""
    try:
        act()
    except RequestRefused as refused:
        return int(refused.code), refused.message
    return int(ErrorCode.NONE), None


async def refusal_of(doing: Awaitable[object]) -> tuple[int, str | None]:
    """As `refusal`, for what waits for a disk."""
    try:
        await doing
    except RequestRefused as refused:
        return int(refused.code), refused.message
    return int(ErrorCode.NONE), None
