"""A client says in time what it cannot work with, in place of waiting for partitions that are not there."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from hushstream.broker import EmbeddedBroker
from hushstream.client import connect
from hushstream.schemas.errors import HushstreamError


async def _connect_where_contexts_have_more_partitions() -> None:
    async with EmbeddedBroker() as broker:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        counts = {"contexts": 4, "clicks": 2, "decisions": 2}
        await admin.create_topics([NewTopic(f"shop.{name}", count, 1) for name, count in counts.items()])
        await admin.close()
        async with asyncio.timeout(20), connect(broker.bootstrap, "shop"):
            pass


def test_partitions_that_were_added_to_one_topic_are_named_when_the_client_connects() -> None:
    with pytest.raises(HushstreamError, match="as many partitions of clicks as of contexts, found 2 and 4"):
        asyncio.run(_connect_where_contexts_have_more_partitions())
