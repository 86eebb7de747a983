"""The settings of an embedded broker."""

import ipaddress
from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits and addresses; the defaults follow Apache Kafka where it has the same setting.

    Args:
        host: address to listen on; anything but loopback needs `allow_non_loopback`.
        port: 0 lets the system choose.
        max_bytes_per_partition: stored record bytes after which produce requests to a partition are refused.
        max_bytes_total: the same over all partitions.
        max_message_bytes: default of the topic setting `max.message.bytes` (one record batch).
        max_request_bytes: larger requests close their connection.
        max_partitions_total: topics that would exceed it are refused.
        default_partitions: for topics created with -1 partitions.
        group_min_session_timeout_ms: shorter sessions get INVALID_SESSION_TIMEOUT.
        group_max_session_timeout_ms: longer ones too.
        group_initial_rebalance_delay_ms: how long an empty group waits for more members.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_non_loopback: bool = False
    max_bytes_per_partition: int = 512 * _MIB
    max_bytes_total: int = 1024 * _MIB
    max_message_bytes: int = 1_048_588
    max_request_bytes: int = 32 * _MIB
    max_partitions_total: int = 4096
    default_partitions: int = 1
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0

    def is_loopback(self) -> bool:
        """Whether `host` can be reached from this machine alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
