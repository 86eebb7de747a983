"""Consumer groups, through the libraries and request by request."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.protocol import consumer as messages
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from patience import Patience, patience

UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_METADATA_TOO_LARGE = 12
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
FENCED_INSTANCE_ID = 82

# Brokers may look inside: Apache Kafka 4.1 never answers a join whose subscription it cannot parse.
SUBSCRIPTION = bytes(ConsumerProtocolSubscription(0, topics=["raw"], user_data=None).encode())


def join_request(group: str, member_id: str = "", **fields: Any) -> Any:
    request = messages.JoinGroupRequest
    protocols = [
        request.JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION)
        for name in fields.pop("protocols", ["range"])
    ]
    settings = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
    return request(group_id=group, member_id=member_id, protocols=protocols, **(settings | fields))


def sync_request(
    group: str, generation: int, member_id: str, assignments: dict[str, bytes], instance: str | None = None
) -> Any:
    request = messages.SyncGroupRequest
    parts = [
        request.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
        for member, assignment in assignments.items()
    ]
    fields = {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": instance}
    return request(assignments=parts, **fields)


def heartbeat_request(group: str, generation: int, member_id: str) -> Any:
    return messages.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)


def commit_request(group: str, generation: int, member_id: str, topic: str, offset: int, note: str = "") -> Any:
    request = messages.OffsetCommitRequest
    entry = request.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=note
    )
    return request(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[entry])],
    )


def commit_error(response: Any) -> int:
    code: int = response.topics[0].partitions[0].error_code
    return code


@pytest.fixture
def stable_member(bootstrap, connect, unique) -> Callable[[], tuple[Any, str, int, str]]:
    """A group of one raw member that has joined and synced: (client, group, generation, member id)."""

    def make() -> tuple[Any, str, int, str]:
        client, group = connect(bootstrap), unique("group")
        joined = client.ask(join_request(group), 2)
        assert joined.error_code == 0
        assert joined.leader == joined.member_id
        synced = client.ask(sync_request(group, joined.generation_id, joined.member_id, {joined.member_id: b"all"}), 1)
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
        return client, group, joined.generation_id, joined.member_id

    return make


@pytest.fixture
def stable_pair(bootstrap, connect, unique) -> Callable[[], tuple[Any, Any, str, int]]:
    """A group of two static members, "one" and "two", that have joined and synced.

    Gives (client, member id) of each, the group and its generation.
    """

    def make() -> tuple[Any, Any, str, int]:
        first, second, group = connect(bootstrap), connect(bootstrap), unique("group")
        alone = first.ask(join_request(group, group_instance_id="one"), 5)
        first.ask(sync_request(group, alone.generation_id, alone.member_id, {}, "one"), 3)
        joining = join_request(group, group_instance_id="two")
        second.send(joining, 5)
        waiting = Patience(5)
        while first.ask(heartbeat_request(group, alone.generation_id, alone.member_id), 1).error_code == 0:
            assert not waiting.over
        rejoined = first.ask(join_request(group, member_id=alone.member_id, group_instance_id="one"), 5)
        joined = second.receive(joining)
        generation, parts = joined.generation_id, {rejoined.member_id: b"left", joined.member_id: b"right"}
        followers = [(first, rejoined.member_id, "one"), (second, joined.member_id, "two")]
        followers.sort(key=lambda one: one[1] == rejoined.leader)
        asked = [
            (client, sync_request(group, generation, name, parts, instance)) for client, name, instance in followers
        ]
        for client, request in asked:
            client.send(request, 3)
        assert [client.receive(request).error_code for client, request in asked] == [0, 0]
        return (first, rejoined.member_id), (second, joined.member_id), group, generation

    return make


async def produce_numbers(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for index in range(count):
            await producer.send(topic, b"%d" % index, partition=index % partitions)


def group_consumer(bootstrap: str, topic: str, group: str, **settings: Any) -> AIOKafkaConsumer:
    defaults = {
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
        "enable_auto_commit": False,
    }
    return AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, **(defaults | settings))


async def wait_for_assignments(consumers: list[AIOKafkaConsumer], sizes: list[int], seconds: float) -> None:
    waiting = Patience(seconds)
    while sorted(len(consumer.assignment()) for consumer in consumers) != sorted(sizes):
        assert not waiting.over, [consumer.assignment() for consumer in consumers]
        await asyncio.sleep(0.05)


async def test_a_group_resumes_where_it_committed(bootstrap, make_topic, unique):
    topic, group = make_topic(), unique("group")
    await produce_numbers(bootstrap, topic, 1, 10)
    first = group_consumer(bootstrap, topic, group)
    await first.start()
    for _ in range(4):
        await first.getone()
    await first.commit()
    await first.stop()
    second = group_consumer(bootstrap, topic, group)
    await second.start()
    assert await second.committed(TopicPartition(topic, 0)) == 4
    assert (await second.getone()).offset == 4
    await second.stop()


def test_kafka_python_commits_with_metadata_and_resumes(bootstrap, make_topic, unique):
    topic, group = make_topic(), unique("group")
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for index in range(3):
            producer.send(topic, b"%d" % index)
    for expected in ([0, 1, 2], []):
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            consumer_timeout_ms=1500,
        )
        assert [record.offset for record in consumer] == expected
        consumer.commit()
        assert consumer.committed(KafkaTopicPartition(topic, 0)) == 3
        consumer.close()


async def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(bootstrap, make_topic, unique):
    topic, group = make_topic(partitions=4), unique("group")
    first, second = group_consumer(bootstrap, topic, group), group_consumer(bootstrap, topic, group)
    await first.start()
    await wait_for_assignments([first], [4], 10)
    await second.start()
    await wait_for_assignments([first, second], [2, 2], 10)
    assert not first.assignment() & second.assignment()
    await second.stop()
    await wait_for_assignments([first], [4], 4)
    await first.stop()


async def test_several_members_of_one_application_join(bootstrap, make_topic, unique):
    topic, group = make_topic(partitions=4), unique("group")
    consumers = [group_consumer(bootstrap, topic, group) for _ in range(4)]
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    await wait_for_assignments(consumers, [1, 1, 1, 1], 10)
    await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def test_records_of_a_silent_member_are_taken_over_after_its_session(bootstrap, make_topic, unique, connect):
    topic, group = make_topic(partitions=2), unique("group")
    await produce_numbers(bootstrap, topic, 2, 10)
    silent = connect(bootstrap)
    started = time.monotonic()
    joined = silent.ask(join_request(group, session_timeout_ms=6000, protocols=["roundrobin"]), 2)
    assert joined.error_code == 0
    silent.ask(sync_request(group, joined.generation_id, joined.member_id, {joined.member_id: b""}), 1)
    survivor = group_consumer(bootstrap, topic, group, rebalance_timeout_ms=6000)
    await survivor.start()
    seen = [(await asyncio.wait_for(survivor.getone(), patience(30))).value for _ in range(10)]
    elapsed = time.monotonic() - started
    await survivor.stop()
    assert sorted(seen) == sorted(b"%d" % index for index in range(10))
    assert elapsed > 3, "a member that is silent for a moment keeps what it has"
    stale = silent.ask(heartbeat_request(group, joined.generation_id, joined.member_id), 1)
    assert stale.error_code == UNKNOWN_MEMBER_ID


def test_a_session_below_the_minimum_is_refused(bootstrap, connect, unique):
    answer = connect(bootstrap).ask(join_request(unique("group"), session_timeout_ms=5999), 2)
    assert answer.error_code == INVALID_SESSION_TIMEOUT


def test_a_session_above_the_maximum_is_refused(bootstrap, connect, unique):
    answer = connect(bootstrap).ask(join_request(unique("group"), session_timeout_ms=1_800_001), 2)
    assert answer.error_code == INVALID_SESSION_TIMEOUT


def test_an_empty_group_id_is_refused(bootstrap, connect):
    assert connect(bootstrap).ask(join_request(""), 2).error_code == INVALID_GROUP_ID


def test_a_member_id_that_was_never_given_out_is_refused(bootstrap, connect, unique):
    answer = connect(bootstrap).ask(join_request(unique("group"), member_id="made-up"), 2)
    assert answer.error_code == UNKNOWN_MEMBER_ID


def test_newer_joins_get_their_member_id_first(bootstrap, connect, unique):
    client, group = connect(bootstrap), unique("group")
    refused = client.ask(join_request(group), 4)
    assert refused.error_code == MEMBER_ID_REQUIRED
    assert refused.member_id
    joined = client.ask(join_request(group, member_id=refused.member_id), 4)
    assert (joined.error_code, joined.member_id) == (0, refused.member_id)
    assert [bytes(member.metadata) for member in joined.members] == [SUBSCRIPTION]


def test_members_without_a_common_protocol_are_refused(bootstrap, connect, stable_member):
    _, group, _, _ = stable_member()
    other = connect(bootstrap)
    assert other.ask(join_request(group, protocols=["own"]), 2).error_code == INCONSISTENT_GROUP_PROTOCOL
    assert other.ask(join_request(group, protocol_type="connect"), 2).error_code == INCONSISTENT_GROUP_PROTOCOL


def test_a_stale_generation_is_fenced(stable_member, make_topic):
    topic = make_topic()
    client, group, generation, member = stable_member()
    assert client.ask(heartbeat_request(group, generation, member), 1).error_code == 0
    assert client.ask(heartbeat_request(group, generation - 1, member), 1).error_code == ILLEGAL_GENERATION
    assert client.ask(sync_request(group, generation + 1, member, {}), 1).error_code == ILLEGAL_GENERATION
    assert commit_error(client.ask(commit_request(group, generation - 1, member, topic, 1), 6)) == (ILLEGAL_GENERATION)
    assert commit_error(client.ask(commit_request(group, generation, "made-up", topic, 1), 6)) == (UNKNOWN_MEMBER_ID)
    assert commit_error(client.ask(commit_request(group, generation, member, topic, 1), 6)) == 0


def test_commits_from_outside_are_taken_only_while_the_group_is_empty(
    bootstrap, connect, stable_member, make_topic, unique
):
    topic = make_topic()
    outside = connect(bootstrap)
    assert commit_error(outside.ask(commit_request(unique("group"), -1, "", topic, 3), 6)) == 0
    client, group, _, member = stable_member()
    assert commit_error(outside.ask(commit_request(group, -1, "", topic, 3), 6)) == UNKNOWN_MEMBER_ID
    assert client.ask(messages.LeaveGroupRequest(group_id=group, member_id=member), 1).error_code == 0
    assert commit_error(outside.ask(commit_request(group, -1, "", topic, 3), 6)) == 0


def test_a_commit_for_a_group_that_does_not_exist_needs_no_generation(bootstrap, connect, make_topic, unique):
    answer = connect(bootstrap).ask(commit_request(unique("group"), 1, "made-up", make_topic(), 3), 6)
    assert commit_error(answer) == ILLEGAL_GENERATION


def test_a_commit_for_an_unknown_topic_or_with_long_metadata_is_refused(bootstrap, connect, make_topic, unique):
    client, group = connect(bootstrap), unique("group")
    unknown = client.ask(commit_request(group, -1, "", unique("absent"), 3), 6)
    assert commit_error(unknown) == UNKNOWN_TOPIC_OR_PARTITION
    long = client.ask(commit_request(group, -1, "", make_topic(), 3, note="x" * 5000), 6)
    assert commit_error(long) == OFFSET_METADATA_TOO_LARGE


def test_a_partition_without_commit_has_offset_minus_one(bootstrap, connect, make_topic, unique):
    request = messages.OffsetFetchRequest
    topic = make_topic()
    asked = request(
        group_id=unique("group"), topics=[request.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    )
    partition = connect(bootstrap).ask(asked, 5).topics[0].partitions[0]
    assert (partition.error_code, partition.committed_offset, partition.metadata) == (0, -1, "")


def test_a_rebalance_moves_every_member_to_one_new_generation(bootstrap, connect, stable_member):
    first, group, generation, first_id = stable_member()
    second = connect(bootstrap)
    joining = join_request(group)
    second.send(joining, 2)
    waiting = Patience(5)
    while first.ask(heartbeat_request(group, generation, first_id), 1).error_code != REBALANCE_IN_PROGRESS:
        assert not waiting.over
    rejoined = first.ask(join_request(group, member_id=first_id), 2)
    joined = second.receive(joining)
    assert rejoined.generation_id == joined.generation_id == generation + 1
    leader, follower = (first, second) if rejoined.leader == rejoined.member_id else (second, first)
    told = rejoined if leader is first else joined
    assert {member.member_id for member in told.members} == {rejoined.member_id, joined.member_id}
    leader_id, follower_id = (
        (rejoined.member_id, joined.member_id) if leader is first else (joined.member_id, rejoined.member_id)
    )
    waiting = sync_request(group, generation + 1, follower_id, {})
    follower.send(waiting, 1)
    parts = {leader_id: b"left", follower_id: b"right"}
    assert bytes(leader.ask(sync_request(group, generation + 1, leader_id, parts), 1).assignment) == b"left"
    assert bytes(follower.receive(waiting).assignment) == b"right"


def test_a_repeated_join_of_a_follower_changes_nothing(bootstrap, connect, stable_member):
    client, group, generation, member = stable_member()
    again = client.ask(sync_request(group, generation, member, {}), 1)
    assert (again.error_code, bytes(again.assignment)) == (0, b"all")


def test_a_static_member_comes_back_to_its_assignment_and_no_other_notices(bootstrap, connect, stable_pair):
    (first, first_id), (second, second_id), group, generation = stable_pair()
    again = connect(bootstrap)
    for instance, before, part in (("one", first_id, b"left"), ("two", second_id, b"right")):
        joined = again.ask(join_request(group, group_instance_id=instance), 5)
        assert (joined.error_code, joined.generation_id) == (0, generation)
        assert joined.member_id != before
        # The leader among them is told that another leads, or it would assign anew.
        assert (joined.leader == joined.member_id, list(joined.members)) == (False, [])
        synced = again.ask(sync_request(group, generation, joined.member_id, {}, instance), 3)
        assert (synced.error_code, bytes(synced.assignment)) == (0, part)
        assert again.ask(heartbeat_request(group, generation, joined.member_id), 1).error_code == 0
        assert first.ask(heartbeat_request(group, generation, before), 1).error_code == UNKNOWN_MEMBER_ID
        fenced = second.ask(join_request(group, member_id=before, group_instance_id=instance), 5)
        assert fenced.error_code == FENCED_INSTANCE_ID


def test_a_static_member_that_leaves_is_gone_at_once(stable_pair):
    (first, first_id), (second, second_id), group, generation = stable_pair()
    assert first.ask(messages.LeaveGroupRequest(group_id=group, member_id=first_id), 1).error_code == 0
    assert second.ask(heartbeat_request(group, generation, second_id), 1).error_code == REBALANCE_IN_PROGRESS
    alone = second.ask(join_request(group, member_id=second_id, group_instance_id="two"), 5)
    assert [(told.member_id, told.group_instance_id) for told in alone.members] == [(second_id, "two")]


def test_groups_are_listed_and_described(admin, stable_member):
    client, group, _, member = stable_member()
    assert group in {entry["group_id"] for entry in admin.list_groups()}
    answer = client.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=False), 3)
    described = answer.groups[0]
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    told = described.members[0]
    assert (told.member_id, told.client_id) == (member, "raw")
    assert bytes(told.member_metadata) == SUBSCRIPTION
    assert bytes(told.member_assignment) == b"all"


def test_the_admin_client_reads_committed_offsets(admin, bootstrap, connect, make_topic, unique):
    topic, group = make_topic(), unique("group")
    assert commit_error(connect(bootstrap).ask(commit_request(group, -1, "", topic, 7, "note"), 6)) == 0
    offsets = admin.list_group_offsets({group: None})[group]
    position = offsets[KafkaTopicPartition(topic, 0)]
    assert (position.offset, position.metadata) == (7, "note")
