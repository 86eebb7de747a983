"""Opens an admin client for a few requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient

from hushstream.agents.security import Cluster


@asynccontextmanager
async def administering(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client, which is closed at the end, also where it could not start.

    Raises:
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    admin = AIOKafkaAdminClient(**cluster.client_options())
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()
