"""Answers about the cluster: metadata, coordinator, producer ids, access control."""

from typing import Any

from kafka.protocol import admin
from kafka.protocol import metadata as messages
from kafka.protocol import producer as producer_messages

from hushstream.broker.errors import ErrorCode, RequestRefused
from hushstream.broker.node import LEADER_EPOCH, NODE_ID, Client, Node
from hushstream.broker.store import Topic, valid_topic_name
from hushstream.broker.wire import Request, api_versions_response

_NO_TRANSACTIONS = "transactions are not supported by the embedded broker"
_NO_ACCESS_CONTROL = "the embedded broker has no access control"
_GROUP_COORDINATOR = 0


async def api_versions(node: Node, client: Client, request: Request) -> Any:
    """Tell which requests are served, in which versions."""
    code = ErrorCode.UNSUPPORTED_VERSION if request.body is None else ErrorCode.NONE
    return api_versions_response(code, node.closed)


async def metadata(node: Node, client: Client, request: Request) -> Any:
    """Describe topics with their partitions; an unknown topic is an error, and is never created."""
    response = messages.MetadataResponse
    asked = request.body.topics
    if asked is None or (request.version == 0 and not asked):
        topics = [_described(topic) for topic in node.store.topics.values()]
    else:
        topics = [_look_up(node, entry) for entry in asked]
    broker = response.MetadataResponseBroker(node_id=NODE_ID, host=client.broker_host, port=client.broker_port)
    return response(brokers=[broker], cluster_id=node.cluster_id, controller_id=NODE_ID, topics=topics)


def _look_up(node: Node, entry: Any) -> Any:
    name = entry.name
    try:
        if name is None and entry.topic_id is not None:
            return _described(node.store.topic_by_id(entry.topic_id))
        if name is None or not valid_topic_name(name):
            raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, "not a topic name")
        return _described(node.store.topic(name))
    except RequestRefused as refused:
        return messages.MetadataResponse.MetadataResponseTopic(
            error_code=int(refused.code), name=name, topic_id=entry.topic_id, partitions=[]
        )


def _described(topic: Topic) -> Any:
    response = messages.MetadataResponse.MetadataResponseTopic
    partitions = [
        response.MetadataResponsePartition(
            partition_index=index,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=[NODE_ID],
            isr_nodes=[NODE_ID],
            offline_replicas=[],
        )
        for index in range(len(topic.partitions))
    ]
    return response(name=topic.name, topic_id=topic.id, partitions=partitions)


async def find_coordinator(node: Node, client: Client, request: Request) -> Any:
    """Name this node as the coordinator of every group; there are no transactions."""
    response = messages.FindCoordinatorResponse
    if request.body.key_type != _GROUP_COORDINATOR:
        return response(
            error_code=int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            error_message=_NO_TRANSACTIONS,
            node_id=-1,
            host="",
            port=-1,
        )
    return response(node_id=NODE_ID, host=client.broker_host, port=client.broker_port)


async def init_producer_id(node: Node, client: Client, request: Request) -> Any:
    """Give an id to an idempotent producer.

    A transactional producer is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, because every client treats this
    code as final. Other codes describe the case better, but some clients retry them for ever.
    """
    response = producer_messages.InitProducerIdResponse
    if request.body.transactional_id is not None:
        refused = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return response(error_code=refused, producer_id=-1, producer_epoch=-1)
    return response(producer_id=node.new_producer_id(), producer_epoch=0)


async def describe_acls(node: Node, client: Client, request: Request) -> Any:
    """Refuse, as a Kafka without authorizer does."""
    code = int(ErrorCode.SECURITY_DISABLED)
    return admin.DescribeAclsResponse(error_code=code, error_message=_NO_ACCESS_CONTROL, resources=[])


async def create_acls(node: Node, client: Client, request: Request) -> Any:
    """Refuse, as a Kafka without authorizer does."""
    response = admin.CreateAclsResponse
    code = int(ErrorCode.SECURITY_DISABLED)
    results = [
        response.AclCreationResult(error_code=code, error_message=_NO_ACCESS_CONTROL) for _ in request.body.creations
    ]
    return response(results=results)


async def delete_acls(node: Node, client: Client, request: Request) -> Any:
    """Refuse, as a Kafka without authorizer does."""
    response = admin.DeleteAclsResponse
    code = int(ErrorCode.SECURITY_DISABLED)
    results = [
        response.DeleteAclsFilterResult(error_code=code, error_message=_NO_ACCESS_CONTROL, matching_acls=[])
        for _ in request.body.filters
    ]
    return response(filter_results=results)
