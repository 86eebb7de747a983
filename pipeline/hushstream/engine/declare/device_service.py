"""What a system declares for a gateway for users' devices: topic and record of slots, and the models for devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Served(Protocol):
    """A signed model in the form that devices fetch."""

    @property
    def tag(self) -> str:
        """The entity tag, a digest of the bytes."""

    def as_bytes(self) -> bytes:
        """The body of the answer."""


class DeviceService(Protocol):
    """What a gateway for devices needs of its deployment.

    Attributes:
        topic, partitions: topic of slots, and its number of partitions.
        digest: digest of the deployment.
        body_bytes: size of every slot's body.
        agreement: the agreement for devices.
        opening: a record that must be in the topic before any slot; None if no such record is needed.
    """

    topic: str
    partitions: int
    digest: bytes
    body_bytes: int
    agreement: bytes
    opening: bytes | None

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        """Whether a slot comes too late, or too early, to count."""

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The record of a slot: name of its schema, and its fields."""

    def follow(self, fields: Mapping[str, Any]) -> Served:
        """Take the model in a record of `statements`, if the deployment has signed it: anybody may have written it.

        Raises:
            BadModel: the aggregator of this deployment has not signed it.
        """
