"""The members of a consumer group."""

import asyncio
from dataclasses import dataclass

from hushstream.broker.errors import ErrorCode, RequestRefused

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Joiner:
    """The fields of a member's request to join; protocols are in the order of its preference.

    A static member has an instance id, under which it returns after its process has ended (KIP-345).
    """

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """The outcome of a join; only the leader gets the members: member id, instance id, metadata."""

    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...]


@dataclass(slots=True)
class Member:
    """A member of the group; it waits for an answer while one of its futures is set."""

    member_id: str
    joiner: Joiner
    assignment: bytes = b""
    join: asyncio.Future[Joined] | None = None
    sync: asyncio.Future[bytes] | None = None
    session: asyncio.TimerHandle | None = None

    def metadata_for(self, protocol: str) -> bytes:
        """The metadata that the member gave for `protocol`."""
        return dict(self.joiner.protocols).get(protocol, b"")

    def release(self, code: ErrorCode, message: str) -> None:
        """Answer the requests for which the member waits, with an error."""
        for future in (self.join, self.sync):
            if future is not None and not future.done():
                future.set_exception(RequestRefused(code, message))
        self.join = self.sync = None
