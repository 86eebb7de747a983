"""The members of a consumer group."""

import asyncio
from dataclasses import dataclass

from hushstream.broker.errors import ErrorCode, RequestRefused

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Joiner:
    """What a member says of itself when it joins; protocols in the order it prefers them.

    A static member has an instance id, under which it comes back after its process has ended (KIP-345).
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
    """The outcome of a join; only the leader is told the members: member id, instance id, metadata."""

    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...]


@dataclass(slots=True)
class Member:
    """A member of the group; it is waiting while one of its futures is set."""

    member_id: str
    joiner: Joiner
    assignment: bytes = b""
    join: asyncio.Future[Joined] | None = None
    sync: asyncio.Future[bytes] | None = None
    session: asyncio.TimerHandle | None = None

    def metadata_for(self, protocol: str) -> bytes:
        """What the member says under `protocol`."""
        return dict(self.joiner.protocols).get(protocol, b"")

    def release(self, code: ErrorCode, message: str) -> None:
        """Answer whatever the member waits for with an error."""
        for future in (self.join, self.sync):
            if future is not None and not future.done():
                future.set_exception(RequestRefused(code, message))
        self.join = self.sync = None
