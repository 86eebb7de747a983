"""Topic administration: create, delete, grow, shorten, describe."""

from collections import Counter
from typing import Any

from kafka.protocol import admin as messages

from hushstream.broker.errors import ErrorCode, RequestRefused, refusal_of
from hushstream.broker.node import NODE_ID, Client, Node
from hushstream.broker.wire import Request

_TOPIC = 2
_BROKER = 4
# The protocol's numbers for the source of a described value.
_SOURCE_TOPIC = 1
_SOURCE_STATIC_BROKER = 4
_SOURCE_DEFAULT = 5


async def create_topics(node: Node, client: Client, request: Request) -> Any:
    """Create topics, each independently: a refused one does not stop the others."""
    response = messages.CreateTopicsResponse
    times_named = Counter(topic.name for topic in request.body.topics)
    results = []
    for topic in {topic.name: topic for topic in request.body.topics}.values():
        code, message = await refusal_of(_create(node, topic, times_named[topic.name], request.body.validate_only))
        results.append(response.CreatableTopicResult(name=topic.name, error_code=code, error_message=message))
    return response(throttle_time_ms=0, topics=results)


async def _create(node: Node, topic: Any, times_named: int, validate_only: bool) -> None:
    if times_named > 1:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "the topic is named twice in one request")
    if topic.assignments:
        partitions = _partitions_of(topic)
    else:
        if topic.replication_factor not in (-1, 1):
            raise RequestRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR, f"there is 1 broker, asked for {topic.replication_factor}"
            )
        partitions = node.settings.default_partitions if topic.num_partitions == -1 else topic.num_partitions
    given = {config.name: config.value for config in topic.configs}
    await node.store.create(topic.name, partitions, given, validate_only)


def _partitions_of(topic: Any) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "an assignment stands in for counts, both were given")
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    here = all(assignment.broker_ids == [NODE_ID] for assignment in topic.assignments)
    if indexes != list(range(len(indexes))) or not here:
        raise RequestRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every partition from 0 on is to be on broker {NODE_ID}"
        )
    return len(indexes)


async def delete_topics(node: Node, client: Client, request: Request) -> Any:
    """Delete topics, with their records and the positions that groups have committed in them."""
    response = messages.DeleteTopicsResponse
    results = []
    for name in request.body.topic_names:
        code, _ = await refusal_of(node.store.delete(name))
        if not code:
            node.coordinator.forget_topic(name)
        results.append(response.DeletableTopicResult(name=name, error_code=code))
    return response(throttle_time_ms=0, responses=results)


async def create_partitions(node: Node, client: Client, request: Request) -> Any:
    """Raise partition counts."""
    response = messages.CreatePartitionsResponse
    results = []
    for topic in request.body.topics:
        code, message = await refusal_of(_grow(node, topic, request.body.validate_only))
        results.append(response.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message))
    return response(throttle_time_ms=0, results=results)


async def _grow(node: Node, topic: Any, validate_only: bool) -> None:
    if any(assignment.broker_ids != [NODE_ID] for assignment in topic.assignments or ()):
        raise RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partitions are on broker {NODE_ID} alone")
    await node.store.grow(topic.name, topic.count, validate_only)


async def alter_configs(node: Node, client: Client, request: Request) -> Any:
    """Replace the settings of topics: as in Apache Kafka, what is not named gets its default."""
    response = messages.AlterConfigsResponse
    results = []
    for one in request.body.resources:
        code, message = await refusal_of(_alter(node, one, request.body.validate_only))
        results.append(
            response.AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=one.resource_type, resource_name=one.resource_name
            )
        )
    return response(throttle_time_ms=0, responses=results)


async def _alter(node: Node, resource: Any, validate_only: bool) -> None:
    if resource.resource_type != _TOPIC:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "only settings of topics can be changed")
    given = {config.name: config.value for config in resource.configs}
    await node.store.configure(resource.resource_name, given, validate_only)


async def delete_records(node: Node, client: Client, request: Request) -> Any:
    """Delete the first records of partitions, as retention does in Apache Kafka."""
    response = messages.DeleteRecordsResponse
    topics = []
    for topic in request.body.topics:
        results = []
        for partition in topic.partitions:
            code, low = ErrorCode.NONE, -1
            try:
                low = await node.store.delete_before(topic.name, partition.partition_index, partition.offset)
            except RequestRefused as refused:
                code = refused.code
            results.append(
                response.DeleteRecordsTopicResult.DeleteRecordsPartitionResult(
                    partition_index=partition.partition_index, low_watermark=low, error_code=int(code)
                )
            )
        topics.append(response.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return response(throttle_time_ms=0, topics=topics)


async def describe_configs(node: Node, client: Client, request: Request) -> Any:
    """Describe settings of topics and of this broker."""
    results = [_describe_one(node, resource) for resource in request.body.resources]
    return messages.DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe_one(node: Node, resource: Any) -> Any:
    response = messages.DescribeConfigsResponse.DescribeConfigsResult
    code, message, settings = ErrorCode.NONE, None, []
    try:
        settings = _settings_of(node, resource.resource_type, resource.resource_name)
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    wanted = resource.configuration_keys
    configs = [
        response.DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=resource.resource_type == _BROKER,
            config_source=source,
            is_sensitive=False,
            synonyms=[],
        )
        for name, value, source in settings
        if wanted is None or name in wanted
    ]
    return response(
        error_code=int(code),
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _settings_of(node: Node, resource_type: int, name: str) -> list[tuple[str, str, int]]:
    if resource_type == _TOPIC:
        described = node.store.topic(name).config.described()
        return [
            (setting, value, _SOURCE_DEFAULT if is_default else _SOURCE_TOPIC)
            for setting, value, is_default in described
        ]
    if resource_type == _BROKER and name == str(NODE_ID):
        settings = node.settings
        values = {
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": str(settings.group_initial_rebalance_delay_ms),
            "group.max.session.timeout.ms": str(settings.group_max_session_timeout_ms),
            "group.min.session.timeout.ms": str(settings.group_min_session_timeout_ms),
            "message.max.bytes": str(settings.max_message_bytes),
            "num.partitions": str(settings.default_partitions),
            "socket.request.max.bytes": str(settings.max_request_bytes),
        }
        return [(setting, value, _SOURCE_STATIC_BROKER) for setting, value in values.items()]
    raise RequestRefused(
        ErrorCode.INVALID_REQUEST, f"topics and broker {NODE_ID} have settings, not type {resource_type}"
    )
