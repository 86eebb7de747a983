"""Creating, describing and deleting topics."""

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol import admin as messages

from patience import Patience


def create_request(name: str, partitions: int = 1, validate_only: bool = False, **configs: str):
    request = messages.CreateTopicsRequest
    settings = [
        request.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    topic = request.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=settings
    )
    return request(topics=[topic], timeout_ms=5000, validate_only=validate_only)


def test_a_created_topic_is_listed_with_its_partitions(admin, make_topic):
    topic = make_topic(partitions=3)
    assert topic in admin.list_topics()
    described = admin.describe_topics([topic])[0]
    assert sorted(part["partition_index"] for part in described["partitions"]) == [0, 1, 2]
    leaders = {part["leader_id"] for part in described["partitions"]}
    assert leaders <= {node["broker_id"] for node in admin.describe_cluster()["brokers"]}


def test_librdkafka_lists_all_topics(bootstrap, make_topic):
    rdkafka = pytest.importorskip("confluent_kafka.admin", reason="it has no wheels for this Python")
    topic = make_topic(partitions=3)
    found = rdkafka.AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
    assert set(found[topic].partitions) == {0, 1, 2}


def test_a_topic_that_exists_is_not_created_again(admin, make_topic):
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(make_topic(), 1, 1)])


def test_validate_only_creates_nothing(admin, unique):
    name = unique("validated")
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)
    assert name not in admin.list_topics()
    with pytest.raises(InvalidPartitionsError):
        admin.create_topics([NewTopic(name, 0, 1)], validate_only=True)


@pytest.mark.parametrize("name", ["with space", "..", "x" * 250, "umlaut-ä"])
def test_a_wrong_name_is_refused(admin, name):
    with pytest.raises(InvalidTopicError):
        admin.create_topics([NewTopic(name, 1, 1)])


def test_more_replicas_than_brokers_are_refused(admin, unique):
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics([NewTopic(unique("replicated"), 1, 3)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no.such.setting", "1"),
        ("retention.ms", "soon"),
        ("max.message.bytes", "-1"),
        ("message.timestamp.type", "Never"),
    ],
)
def test_a_wrong_setting_is_refused(admin, unique, key, value):
    with pytest.raises(InvalidConfigurationError):
        admin.create_topics([NewTopic(unique("configured"), 1, 1, topic_configs={key: value})])


def test_settings_are_described_as_they_were_given(admin, make_topic):
    topic = make_topic(retention_ms="86400000", message_timestamp_type="LogAppendTime")
    asked = ConfigResource(ConfigResourceType.TOPIC, topic)
    described = admin.describe_configs([asked], config_filter="all")["topic"][topic]
    assert described["retention.ms"]["value"] == "86400000"
    assert described["message.timestamp.type"]["value"] == "LogAppendTime"
    assert described["cleanup.policy"]["value"] == "delete"
    changed = admin.describe_configs([asked])["topic"][topic]
    assert {"retention.ms", "message.timestamp.type"} <= set(changed)
    assert "cleanup.policy" not in changed


async def test_settings_that_are_altered_replace_those_of_before(bootstrap, admin, make_topic):
    topic = make_topic(retention_ms="86400000", message_timestamp_type="LogAppendTime")
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        wanted = AioConfigResource(AioConfigResourceType.TOPIC, topic, {"cleanup.policy": "compact"})
        wrong = AioConfigResource(AioConfigResourceType.TOPIC, topic, {"cleanup.policy": "sometimes"})
        codes = [(await client.alter_configs([one]))[0].resources[0][0] for one in (wanted, wrong)]
    finally:
        await client.close()
    assert codes == [0, InvalidConfigurationError.errno]
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])["topic"][topic]
    assert described["cleanup.policy"]["value"] == "compact"
    assert not {"retention.ms", "message.timestamp.type"} & set(described)


def test_the_brokers_session_minimum_can_be_read(admin):
    broker = admin.describe_cluster()["brokers"][0]["broker_id"]
    asked = ConfigResource(ConfigResourceType.BROKER, str(broker))
    described = admin.describe_configs([asked], config_filter="all")["broker"][str(broker)]
    assert described["group.min.session.timeout.ms"]["value"] == "6000"


def test_settings_of_an_unknown_topic_are_an_error(bootstrap, connect, unique):
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=2, resource_name=unique("absent"), configuration_keys=None)
    answer = connect(bootstrap).ask(request(resources=[resource], include_synonyms=False), 1)
    assert answer.results[0].error_code == UnknownTopicOrPartitionError.errno


def test_a_deleted_topic_is_gone_and_its_successor_is_empty_with_another_id(admin, bootstrap, make_topic):
    topic = make_topic()
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"old").get(10)
    before = admin.describe_topics([topic])[0]["topic_id"]
    admin.delete_topics([topic])
    while topic in admin.list_topics():
        pass
    admin.create_topics([NewTopic(topic, 1, 1)], wait_for_metadata=True)
    after = admin.describe_topics([topic])[0]["topic_id"]
    assert before != after
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        assert producer.send(topic, b"new").get(10).offset == 0


def test_deleting_an_unknown_topic_is_an_error(admin, unique):
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([unique("absent")])


def test_partitions_can_be_added_but_not_removed(admin, make_topic):
    topic = make_topic(partitions=2)
    admin.create_partitions({topic: NewPartitions(4)})
    assert len(admin.describe_topics([topic])[0]["partitions"]) == 4
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions({topic: NewPartitions(3)})


def test_one_refused_topic_does_not_stop_the_others(bootstrap, connect, admin, unique):
    good, bad = unique("good"), "not a name"
    request = create_request(good)
    request.topics.append(create_request(bad).topics[0])
    answer = connect(bootstrap).ask(request, 4)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == {good: 0, bad: InvalidTopicError.errno}
    admin.delete_topics([good])


async def test_aiokafka_administers_topics(bootstrap, unique):
    name = unique("aio")
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    settings = {"retention.ms": "1000"}
    await client.create_topics([AioNewTopic(name, 2, 1, topic_configs=settings)])
    waiting = Patience(10.0)  # a broker answers before its own metadata have the topic
    while name not in await client.list_topics():
        assert not waiting.over
        await asyncio.sleep(0.05)
    answers = await client.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, name)])
    described = {entry[0]: entry[1] for entry in answers[0].resources[0][4]}
    assert described["retention.ms"] == "1000"
    await client.delete_topics([name])
    await client.close()
