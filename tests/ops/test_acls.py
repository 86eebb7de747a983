"""On a broker that enforces nothing, access rules are said to be absent, never to be in order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hushstream.broker import EmbeddedBroker
from hushstream.ops import access as acls
from hushstream.ops.access import Principals
from hushstream.ops.connection import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as made:
        yield made


@pytest.mark.parametrize("call", [acls.plan_async, acls.apply_async, acls.check_async])
async def test_the_embedded_broker_is_known_to_have_no_authorizer(broker, deployment, call):
    assert await call(Connection(broker.bootstrap, "small."), deployment.system, Principals.of()) is None
