"""Consumer groups of the classic protocol: join, sync, heartbeat, leave, and the timers between them; their offsets.

States and answers follow Apache Kafka's group coordinator. The class never blocks: joins and syncs are
futures, resolved when the group is complete.

*Members.* The members of a consumer group.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import partial

from hushstream.broker.disk import Change, Statement, Storage
from hushstream.broker.errors import ErrorCode, RequestRefused
from hushstream.broker.store import BrokerSettings

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


log = logging.getLogger(__name__)


class GroupState(Enum):
    """The values are the names that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class Group:
    """A consumer group: `generation` grows with each completed rebalance; `changed` is called after each."""

    group_id: str
    initial_delay_ms: int = 0
    changed: Callable[["Group"], None] = lambda group: None
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    _promised: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _rebalance_timer: asyncio.TimerHandle | None = None
    _held_for_more: bool = False

    # Requests

    def promise_member_id(self, client_id: str, session_timeout_ms: int) -> str:
        """Make a member id, which the client must give in a second join (KIP-394); it expires like a session."""
        member_id = _new_member_id(client_id)
        self._promised[member_id] = _later(session_timeout_ms, self._forget_promise, member_id)
        return member_id

    def join(self, joiner: Joiner) -> asyncio.Future[Joined]:
        """Add or update a member; the future is resolved when the generation begins.

        Raises:
            RequestRefused: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or INCONSISTENT_GROUP_PROTOCOL.
        """
        before = self._of_instance(joiner)
        self._check_protocols(joiner, before)
        if before is not None:
            return self._replace(before, joiner)
        member = self.members.get(joiner.member_id)
        if member is None:
            member = self._admit(joiner)
        elif self._needs_no_rebalance(member, joiner):
            return self._at_once(member, self._joined(member))
        return self._wait_for_all(member, joiner)

    def _at_once(self, member: Member, joined: Joined) -> asyncio.Future[Joined]:
        self._touch(member)
        future: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        future.set_result(joined)
        return future

    def _wait_for_all(self, member: Member, joiner: Joiner) -> asyncio.Future[Joined]:
        member.joiner = joiner
        if member.join is not None and not member.join.done():
            member.join.set_exception(RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the member joined again"))
        member.join = asyncio.get_running_loop().create_future()
        waiting = member.join
        self._prepare_rebalance()
        return waiting

    def sync(self, generation: int, member_id: str, assignments: dict[str, bytes]) -> asyncio.Future[bytes]:
        """Give the member's part of the leader's assignment, as soon as the leader has sent it.

        Raises:
            RequestRefused: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION or REBALANCE_IN_PROGRESS.
        """
        member = self.check_member(generation, member_id)
        if self.state is GroupState.PREPARING:
            raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")
        self._touch(member)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.state is GroupState.STABLE:
            future.set_result(member.assignment)
            return future
        if member.sync is not None and not member.sync.done():
            member.sync.set_exception(RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the member synced again"))
        member.sync = future
        if member_id == self.leader_id:
            self._become_stable(assignments)
        return future

    def heartbeat(self, generation: int, member_id: str) -> None:
        """Keep a member's session alive.

        Raises:
            RequestRefused: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION or REBALANCE_IN_PROGRESS.
        """
        self._touch(self.check_member(generation, member_id))
        if self.state is GroupState.PREPARING:
            raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")

    def leave(self, member_id: str) -> None:
        """Remove a member.

        Raises:
            RequestRefused: UNKNOWN_MEMBER_ID.
        """
        if member_id in self._promised:
            self._forget_promise(member_id)
            return
        if member_id not in self.members:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        self._remove(member_id, "left")

    def check_commit(self, generation: int, member_id: str) -> None:
        """Check that an offset commit may be accepted; it also keeps the session alive.

        Raises:
            RequestRefused: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION or REBALANCE_IN_PROGRESS.
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        self._touch(self.check_member(generation, member_id))
        if self.state is GroupState.COMPLETING:
            raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")

    def check_member(self, generation: int, member_id: str) -> Member:
        """The member, if the request is of its current generation.

        Raises:
            RequestRefused: UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION.
        """
        member = self.members.get(member_id)
        if member is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        if generation != self.generation:
            raise RequestRefused(ErrorCode.ILLEGAL_GENERATION, f"the generation is {self.generation}, got {generation}")
        return member

    def close(self) -> None:
        """Cancel all timers: the broker stops."""
        for handle in (*self._promised.values(), *(member.session for member in self.members.values())):
            if handle is not None:
                handle.cancel()
        self._stop_rebalance_timer()

    # What outlives the broker

    def described(self) -> str:
        """The group between two rebalances, as text: `restore` reads it."""
        members = [asdict(member.joiner) | _texts(member) for member in self.members.values()]
        fields = ("generation", "protocol_type", "protocol", "leader_id")
        return json.dumps({"members": members, **{name: getattr(self, name) for name in fields}})

    def restore(self, described: str) -> None:
        """Take the state up that `described` gave; sessions begin now."""
        found = json.loads(described)
        self.generation, self.protocol_type = found["generation"], found["protocol_type"]
        self.protocol, self.leader_id = found["protocol"], found["leader_id"]
        for fields in found["members"]:
            assignment = fields.pop("assignment").encode("latin-1")
            protocols = tuple((name, metadata.encode("latin-1")) for name, metadata in fields.pop("protocols"))
            joiner = Joiner(**fields, protocols=protocols)
            member = self.members[joiner.member_id] = Member(joiner.member_id, joiner, assignment)
            self._touch(member)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    # Membership

    def _of_instance(self, joiner: Joiner) -> Member | None:
        """The former member whose place a returning static member takes; None for any other joiner.

        Raises:
            RequestRefused: FENCED_INSTANCE_ID: another process has taken this one's place in the meantime.
        """
        if joiner.instance_id is None:
            return None
        known = next((m for m in self.members.values() if m.joiner.instance_id == joiner.instance_id), None)
        if known is None or known.member_id == joiner.member_id:
            return None
        if joiner.member_id:
            raise RequestRefused(ErrorCode.FENCED_INSTANCE_ID, "another member has come in its place")
        return known

    def _replace(self, before: Member, joiner: Joiner) -> asyncio.Future[Joined]:
        """Let a static member return. If nothing changes, it gets its assignment again, and no member must rejoin."""
        unchanged = self.state is GroupState.STABLE and before.joiner.protocols == joiner.protocols
        member_id, leader_id = _new_member_id(joiner.instance_id or joiner.client_id), self.leader_id
        member = Member(member_id, joiner, before.assignment)
        self.members = {
            member_id if known is before else key: member if known is before else known
            for key, known in self.members.items()
        }
        if before.session is not None:
            before.session.cancel()
        before.release(ErrorCode.FENCED_INSTANCE_ID, "another member has come in its place")
        if leader_id == before.member_id:
            self.leader_id = member_id
        if not unchanged:
            return self._wait_for_all(member, joiner)
        self.changed(self)
        # Name its former id as the leader's: as leader it would assign anew, and the other members would not learn of
        # it.
        return self._at_once(member, Joined(self.generation, self.protocol, leader_id, member_id, ()))

    def _check_protocols(self, joiner: Joiner, before: Member | None) -> None:
        own = joiner.member_id if before is None else before.member_id
        others = [member for member_id, member in self.members.items() if member_id != own]
        common = {name for name, _ in joiner.protocols}
        for other in others:
            common &= {name for name, _ in other.joiner.protocols}
        if not joiner.protocol_type or not common or (others and joiner.protocol_type != self.protocol_type):
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the members have no common protocol with this one"
            )

    def _admit(self, joiner: Joiner) -> Member:
        promise = self._promised.pop(joiner.member_id, None)
        if promise is not None:
            promise.cancel()
        elif joiner.member_id:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        member_id = joiner.member_id or _new_member_id(joiner.instance_id or joiner.client_id)
        self.protocol_type = joiner.protocol_type
        member = self.members[member_id] = Member(member_id, joiner)
        return member

    def _needs_no_rebalance(self, member: Member, joiner: Joiner) -> bool:
        """Whether a repeated join changes nothing, so that the current generation is its answer."""
        if member.joiner.protocols != joiner.protocols:
            return False
        if self.state is GroupState.COMPLETING:
            return True
        return self.state is GroupState.STABLE and member.member_id != self.leader_id

    def _remove(self, member_id: str, why: str) -> None:
        member = self.members.pop(member_id)
        log.info("group %s: member %s %s, %d remain", self.group_id, member_id, why, len(self.members))
        if member.session is not None:
            member.session.cancel()
        member.release(ErrorCode.UNKNOWN_MEMBER_ID, f"the member {why}")
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_came()
        elif self.state is not GroupState.EMPTY:
            self._prepare_rebalance()

    def _forget_promise(self, member_id: str) -> None:
        handle = self._promised.pop(member_id, None)
        if handle is not None:
            handle.cancel()
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_came()

    def _touch(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
        member.session = _later(member.joiner.session_timeout_ms, self._expire, member.member_id)

    def _expire(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        if member.join is not None or member.sync is not None:
            # A member that waits for our answer cannot send heartbeats.
            self._touch(member)
            return
        self._remove(member_id, "was silent for its session timeout")

    # Rebalance

    def _prepare_rebalance(self) -> None:
        if self.state is not GroupState.PREPARING:
            self._held_for_more = self.state is GroupState.EMPTY and self.initial_delay_ms > 0
            for member in self.members.values():
                if member.sync is not None and not member.sync.done():
                    member.sync.set_exception(RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances"))
                member.sync = None
            self.state = GroupState.PREPARING
            self._stop_rebalance_timer()
            timeout_ms = max((m.joiner.rebalance_timeout_ms for m in self.members.values()), default=0)
            wait_ms = self.initial_delay_ms if self._held_for_more else timeout_ms
            self._rebalance_timer = _later(wait_ms, self._complete_join)
        self._complete_join_if_all_came()

    def _complete_join_if_all_came(self) -> None:
        if self._held_for_more or self._promised:
            return
        if all(member.join is not None for member in self.members.values()):
            self._complete_join()

    def _complete_join(self) -> None:
        self._stop_rebalance_timer()
        self._held_for_more = False
        for member_id in [member_id for member_id, member in self.members.items() if member.join is None]:
            late = self.members.pop(member_id)
            if late.session is not None:
                late.session.cancel()
            log.info("group %s: member %s did not rejoin in time", self.group_id, member_id)
        self.generation += 1
        if not self.members:
            self.state, self.leader_id, self.protocol = GroupState.EMPTY, "", ""
            self.changed(self)
            return
        self.state = GroupState.COMPLETING
        self.protocol = self._vote()
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members))
        log.info("group %s: generation %d with %d members", self.group_id, self.generation, len(self.members))
        for member in self.members.values():
            waiting, member.join, member.assignment = member.join, None, b""
            if waiting is not None and not waiting.done():
                waiting.set_result(self._joined(member))
            self._touch(member)
        timeout_ms = max(member.joiner.rebalance_timeout_ms for member in self.members.values())
        self._rebalance_timer = _later(timeout_ms, self._expire_sync)

    def _expire_sync(self) -> None:
        """Remove members that did not sync within the rebalance timeout, as Kafka does since version 3."""
        self._rebalance_timer = None
        if self.state is GroupState.COMPLETING:
            for member_id in [member_id for member_id, member in self.members.items() if member.sync is None]:
                if member_id in self.members:
                    self._remove(member_id, "did not sync in time")

    def _become_stable(self, assignments: dict[str, bytes]) -> None:
        self._stop_rebalance_timer()
        self.state = GroupState.STABLE
        for member_id, member in self.members.items():
            member.assignment = assignments.get(member_id, b"")
            waiting, member.sync = member.sync, None
            if waiting is not None and not waiting.done():
                waiting.set_result(member.assignment)
            self._touch(member)
        self.changed(self)

    def _vote(self) -> str:
        """The protocol that most members prefer, among those that all of them know."""
        common = set.intersection(*({name for name, _ in m.joiner.protocols} for m in self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.joiner.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: Member) -> Joined:
        members = (
            tuple(
                (other_id, other.joiner.instance_id, other.metadata_for(self.protocol))
                for other_id, other in self.members.items()
            )
            if member.member_id == self.leader_id
            else ()
        )
        return Joined(self.generation, self.protocol, self.leader_id, member.member_id, members)

    def _stop_rebalance_timer(self) -> None:
        if self._rebalance_timer is not None:
            self._rebalance_timer.cancel()
            self._rebalance_timer = None


def _texts(member: Member) -> dict[str, object]:
    """The fields of a member that are bytes, as text of one character each."""
    protocols = [(name, metadata.decode("latin-1")) for name, metadata in member.joiner.protocols]
    return {"member_id": member.member_id, "protocols": protocols, "assignment": member.assignment.decode("latin-1")}


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{uuid.uuid4()}"


def _later(milliseconds: int, call: Callable[..., None], *args: object) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(milliseconds / 1000, call, *args)


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

    def __init__(self, settings: BrokerSettings, storage: Storage) -> None:
        self._settings = settings
        self._storage = storage
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    def load(self) -> None:
        """Read what the storage keeps: a member whose session has not ended goes on as if nothing had happened."""
        for group_id, topic, number, *committed in self._storage.rows("SELECT * FROM offsets"):
            self._offsets.setdefault(group_id, {})[topic, number] = CommittedOffset(*committed)
        for group_id, described in self._storage.rows("SELECT group_id, described FROM groups"):
            self._group(group_id).restore(described)

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

    def check_metadata(self, metadata: str) -> None:
        """Check what comes with a position. Raises: RequestRefused, OFFSET_METADATA_TOO_LARGE."""
        if len(metadata.encode()) > _MAX_OFFSET_METADATA_BYTES:
            raise RequestRefused(ErrorCode.OFFSET_METADATA_TOO_LARGE, "the commit's metadata is too large")

    async def commit(self, group_id: str, positions: Mapping[tuple[str, int], CommittedOffset]) -> None:
        """Store positions of a group by (topic, partition); call `check_commit` before.

        Raises:
            RequestRefused: COORDINATOR_NOT_AVAILABLE, as the disk does not take them.
        """
        sql = "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?)"
        statements: list[Statement] = [
            (sql, (group_id, *place, one.offset, one.leader_epoch, one.metadata)) for place, one in positions.items()
        ]
        kept = partial(self._offsets.setdefault(group_id, {}).update, positions)
        refused = await self._storage.put(Change(statements, kept))
        if refused:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused)

    def committing(self) -> Collection[str]:
        """Groups that have committed, with or without members."""
        return self._offsets.keys()

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
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group = self._groups[group_id] = Group(group_id, delay_ms, changed=self._changed)
        return group

    def _changed(self, group: Group) -> None:
        """Keep a group's generation. Nobody waits for it: members of a generation that was lost join again."""
        change = ("INSERT OR REPLACE INTO groups VALUES (?, ?)", (group.group_id, group.described()))
        self._storage.put(Change([change]))
