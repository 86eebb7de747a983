"""What a system declares for a gateway for users' devices: where slots go, in which record, and what devices take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Served(Protocol):
    """A signed model as devices fetch it."""

    @property
    def tag(self) -> str:
        """The entity tag, which follows from the bytes."""

    def as_bytes(self) -> bytes:
        """As it travels."""


class Desk(Protocol):
    """One deployment, as its gateway for devices knows it.

    Attributes:
        topic, partitions: where slots go.
        digest: of the deployment.
        body_bytes: of every slot.
        agreement: what devices agree to.
        opening: a record that has to lie in the topic before a slot does; None for none.
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
        """The record that a slot becomes: its name and fields."""

    def follow(self, fields: Mapping[str, Any]) -> Served:
        """Take note of the model in a record of `statements`, which may be anybody's.

        Raises:
            BadModel: the aggregator of this deployment has not signed it.
        """
