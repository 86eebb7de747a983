"""Consumer groups: membership, committed offsets, descriptions."""

from functools import partial
from typing import Any

from kafka.protocol import admin
from kafka.protocol import consumer as messages

from hushstream.broker.errors import ErrorCode, RequestRefused, refusal, refusal_of
from hushstream.broker.groups import CommittedOffset, Group, GroupState, Joiner
from hushstream.broker.node import Client, Node
from hushstream.broker.wire import Request

# From this version on a member joins twice: first for its id, then with it (KIP-394).
_JOIN_VERSION_WITH_MEMBER_ID = 4
# From this version on a member may be static (KIP-345).
_JOIN_VERSION_WITH_INSTANCE_ID = 5


async def join_group(node: Node, client: Client, request: Request) -> Any:
    """Answer when all members have joined, or the rebalance timeout has passed."""
    response = messages.JoinGroupResponse
    body = request.body
    rebalance_ms = body.rebalance_timeout_ms if request.version >= 1 else body.session_timeout_ms
    joiner = Joiner(
        member_id=body.member_id,
        client_id=request.client_id,
        client_host=client.client_host,
        session_timeout_ms=body.session_timeout_ms,
        rebalance_timeout_ms=max(0, rebalance_ms),
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        instance_id=body.group_instance_id if request.version >= _JOIN_VERSION_WITH_INSTANCE_ID else None,
    )
    try:
        joined = await node.coordinator.join(
            body.group_id, joiner, id_required=request.version >= _JOIN_VERSION_WITH_MEMBER_ID
        )
    except RequestRefused as refused:
        member_id = refused.message if refused.code is ErrorCode.MEMBER_ID_REQUIRED else body.member_id
        return response(
            error_code=int(refused.code), generation_id=-1, protocol_name="", leader="", member_id=member_id, members=[]
        )
    return response(
        error_code=0,
        generation_id=joined.generation,
        protocol_name=joined.protocol,
        leader=joined.leader_id,
        member_id=joined.member_id,
        members=[
            response.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in joined.members
        ],
    )


async def sync_group(node: Node, client: Client, request: Request) -> Any:
    """Answer when the leader has sent the assignment."""
    body = request.body
    assignments = {entry.member_id: entry.assignment for entry in body.assignments}
    try:
        assignment = await node.coordinator.sync(body.group_id, body.generation_id, body.member_id, assignments)
    except RequestRefused as refused:
        return messages.SyncGroupResponse(error_code=int(refused.code), assignment=b"")
    return messages.SyncGroupResponse(error_code=0, assignment=assignment)


async def heartbeat(node: Node, client: Client, request: Request) -> Any:
    """Keep the session alive; the answer tells of a rebalance."""
    body = request.body
    code, _ = refusal(lambda: node.coordinator.heartbeat(body.group_id, body.generation_id, body.member_id))
    return messages.HeartbeatResponse(error_code=code)


async def leave_group(node: Node, client: Client, request: Request) -> Any:
    """Remove a member at once instead of after its session timeout."""
    code, _ = refusal(lambda: node.coordinator.leave(request.body.group_id, request.body.member_id))
    return messages.LeaveGroupResponse(error_code=code)


async def offset_commit(node: Node, client: Client, request: Request) -> Any:
    """Store positions of a group."""
    response = messages.OffsetCommitResponse
    body = request.body
    member = (body.group_id, body.generation_id_or_member_epoch, body.member_id)
    refused, _ = refusal(lambda: node.coordinator.check_commit(*member))
    positions, codes = {}, {}
    for topic in body.topics:
        for entry in topic.partitions:
            place = (topic.name, entry.partition_index)
            codes[place], _ = (refused, "") if refused else refusal(partial(_check_position, node, place, entry))
            if not codes[place]:
                positions[place] = CommittedOffset(
                    entry.committed_offset, entry.committed_leader_epoch, entry.committed_metadata or ""
                )
    if positions:
        code, _ = await refusal_of(node.coordinator.commit(body.group_id, positions))
        codes |= dict.fromkeys(positions, code)
    topics = []
    for topic in body.topics:
        partitions = [
            response.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
                partition_index=entry.partition_index, error_code=codes[topic.name, entry.partition_index]
            )
            for entry in topic.partitions
        ]
        topics.append(response.OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return response(throttle_time_ms=0, topics=topics)


def _check_position(node: Node, place: tuple[str, int], entry: Any) -> None:
    node.store.partition(*place)
    node.coordinator.check_metadata(entry.committed_metadata or "")


async def offset_fetch(node: Node, client: Client, request: Request) -> Any:
    """Give positions of a group: those of the requested partitions, or all. Offset -1 means that there is none."""
    response = messages.OffsetFetchResponse
    committed = node.coordinator.committed(request.body.group_id)
    if request.body.topics is None:
        asked: dict[str, list[int]] = {}
        for name, partition in committed:
            asked.setdefault(name, []).append(partition)
    else:
        asked = {topic.name: topic.partition_indexes for topic in request.body.topics}
    none = CommittedOffset(-1, -1, "")
    topics = []
    for name, indexes in asked.items():
        partitions = []
        for index in indexes:
            found = committed.get((name, index), none)
            partitions.append(
                response.OffsetFetchResponseTopic.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                    error_code=0,
                )
            )
        topics.append(response.OffsetFetchResponseTopic(name=name, partitions=partitions))
    return response(throttle_time_ms=0, topics=topics, error_code=0)


async def list_groups(node: Node, client: Client, request: Request) -> Any:
    """List every group, or those in the given states."""
    response = admin.ListGroupsResponse
    states = {state.casefold() for state in request.body.states_filter}
    found = dict.fromkeys(node.coordinator.committing(), ("", "Empty"))
    found |= {group.group_id: (group.protocol_type, group.state.value) for group in node.coordinator.groups()}
    groups = [
        response.ListedGroup(group_id=name, protocol_type=protocol, group_state=state)
        for name, (protocol, state) in found.items()
        if not states or state.casefold() in states
    ]
    return response(throttle_time_ms=0, error_code=0, groups=groups)


async def describe_groups(node: Node, client: Client, request: Request) -> Any:
    """Describe state and members of groups; a group that does not exist is Dead, as in Kafka."""
    described = [_described(group_id, node.coordinator.find(group_id)) for group_id in request.body.groups]
    return admin.DescribeGroupsResponse(throttle_time_ms=0, groups=described)


def _described(group_id: str, group: Group | None) -> Any:
    response = admin.DescribeGroupsResponse.DescribedGroup
    if group is None:
        return response(
            error_code=0, group_id=group_id, group_state="Dead", protocol_type="", protocol_data="", members=[]
        )
    stable = group.state is GroupState.STABLE
    members = [
        response.DescribedGroupMember(
            member_id=member_id,
            client_id=member.joiner.client_id,
            client_host=member.joiner.client_host,
            member_metadata=member.metadata_for(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member_id, member in group.members.items()
    ]
    return response(
        error_code=0,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol if stable else "",
        members=members,
    )
