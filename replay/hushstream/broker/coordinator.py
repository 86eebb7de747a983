"""Keeps all consumer groups of a broker, and the offsets that they have committed."""

from collections.abc import Iterator
from dataclasses import dataclass

from hushstream.broker.errors import ErrorCode, RequestRefused
from hushstream.broker.groups import Group
from hushstream.broker.members import Joined, Joiner
from hushstream.broker.settings import BrokerSettings

# Kafka's offset.metadata.max.bytes.
_MAX_OFFSET_METADATA_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position; `leader_epoch` is -1 if the client did not send one."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupCoordinator:
    """Groups by id, created by their first join or commit."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    def groups(self) -> Iterator[Group]:
        """Every group that ever joined or committed."""
        return iter(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        """The group, if it exists."""
        return self._groups.get(group_id)

    async def join(self, group_id: str, joiner: Joiner, id_required: bool) -> Joined:
        """Join a group and wait until the generation begins.

        Raises:
            RequestRefused: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, MEMBER_ID_REQUIRED (its message is the
                id to join with), or what `Group.join` refuses.
        """
        settings = self._settings
        shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not group_id:
            raise RequestRefused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if not shortest <= joiner.session_timeout_ms <= longest:
            raise RequestRefused(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"expected {shortest} to {longest} ms, got {joiner.session_timeout_ms}",
            )
        group = self._group(group_id)
        if id_required and not joiner.member_id and joiner.instance_id is None:
            member_id = group.promise_member_id(joiner.client_id, joiner.session_timeout_ms)
            raise RequestRefused(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return await group.join(joiner)

    async def sync(self, group_id: str, generation: int, member_id: str, assignments: dict[str, bytes]) -> bytes:
        """Wait for the leader's assignment. Raises: as `Group.sync`."""
        return await self._existing(group_id).sync(generation, member_id, assignments)

    def heartbeat(self, group_id: str, generation: int, member_id: str) -> None:
        """Raises: as `Group.heartbeat`."""
        self._existing(group_id).heartbeat(generation, member_id)

    def leave(self, group_id: str, member_id: str) -> None:
        """Raises: as `Group.leave`."""
        self._existing(group_id).leave(member_id)

    def check_commit(self, group_id: str, generation: int, member_id: str) -> None:
        """Check that this member may commit now.

        Raises:
            RequestRefused: INVALID_GROUP_ID, ILLEGAL_GENERATION for a group that does not exist, or what
                `Group.check_commit` refuses.
        """
        if not group_id:
            raise RequestRefused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if generation >= 0 and group_id not in self._groups:
            raise RequestRefused(ErrorCode.ILLEGAL_GENERATION, "no such group")
        self._group(group_id).check_commit(generation, member_id)

    def commit(self, group_id: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Store one position of a group; call `check_commit` before.

        Raises:
            RequestRefused: OFFSET_METADATA_TOO_LARGE.
        """
        if len(committed.metadata.encode()) > _MAX_OFFSET_METADATA_BYTES:
            raise RequestRefused(ErrorCode.OFFSET_METADATA_TOO_LARGE, "the commit's metadata is too large")
        self._offsets.setdefault(group_id, {})[topic, partition] = committed

    def committed(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """The committed positions of a group, by (topic, partition)."""
        return self._offsets.get(group_id, {})

    def forget_topic(self, topic: str) -> None:
        """Drop the positions of all groups in a topic that was deleted."""
        for offsets in self._offsets.values():
            for key in [key for key in offsets if key[0] == topic]:
                del offsets[key]

    def close(self) -> None:
        """Cancel all timers: the broker stops."""
        for group in self._groups.values():
            group.close()

    def _existing(self, group_id: str) -> Group:
        if not group_id:
            raise RequestRefused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self._groups.get(group_id)
        if group is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, "no such group")
        return group

    def _group(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._settings.group_initial_rebalance_delay_ms)
        return group
