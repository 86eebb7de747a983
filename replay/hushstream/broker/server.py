"""The broker's sockets: one task for each connection, which answers its requests in their order."""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from hushstream.broker.errors import BrokerStartError, MalformedRequest
from hushstream.broker.handlers import cluster as cluster_handlers
from hushstream.broker.handlers import group as group_handlers
from hushstream.broker.handlers import log as log_handlers
from hushstream.broker.handlers import topic as topic_handlers
from hushstream.broker.node import Client, Node
from hushstream.broker.store import BrokerSettings, clean_repeatedly
from hushstream.broker.wire import FRAME_HEAD_BYTES, READS, Request, encode_response, parse_frame_head, parse_request

log = logging.getLogger(__name__)

_Handler = Callable[[Node, Client, Request], Awaitable[Any]]

_HANDLERS: dict[int, _Handler] = {
    0: log_handlers.produce,
    1: log_handlers.fetch,
    2: log_handlers.list_offsets,
    3: cluster_handlers.metadata,
    8: group_handlers.offset_commit,
    9: group_handlers.offset_fetch,
    10: cluster_handlers.find_coordinator,
    11: group_handlers.join_group,
    12: group_handlers.heartbeat,
    13: group_handlers.leave_group,
    14: group_handlers.sync_group,
    15: group_handlers.describe_groups,
    16: group_handlers.list_groups,
    18: cluster_handlers.api_versions,
    19: topic_handlers.create_topics,
    20: topic_handlers.delete_topics,
    21: topic_handlers.delete_records,
    22: cluster_handlers.init_producer_id,
    29: cluster_handlers.describe_acls,
    30: cluster_handlers.create_acls,
    31: cluster_handlers.delete_acls,
    32: topic_handlers.describe_configs,
    33: topic_handlers.alter_configs,
    37: topic_handlers.create_partitions,
}

_READ_BUFFER_BYTES = 1 << 20


class EmbeddedBroker:
    """A Kafka broker for one machine. Use it as `async with EmbeddedBroker() as broker`.

    With a folder for its data (`BrokerSettings.data`) it keeps what it has acknowledged, whatever ends it, and applies
    the topics' retention and compaction. Without one it is for demos and tests: everything is lost when it stops; until
    then it keeps every record unless a client deletes it, and refuses records for which it has no room.

    Args:
        settings: see `BrokerSettings`.
    """

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self._settings = settings or BrokerSettings()
        self._node = Node(self._settings)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._cleaning: asyncio.Task[None] | None = None
        self._address = ("", 0)

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients, once started."""
        host, port = self._address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def port(self) -> int:
        """The port in use, once started."""
        return self._address[1]

    async def start(self) -> None:
        """Listen.

        Raises:
            BrokerStartError: the address is in use or unknown, or is not loopback and the settings do not allow that;
                or the data cannot be used.
        """
        settings = self._settings
        if not (settings.allow_non_loopback or settings.is_loopback()):
            raise BrokerStartError(
                f"{settings.host} is not a loopback address: the embedded broker has no authentication; "
                "allow it explicitly if other machines are to reach it"
            )
        if not 0 <= settings.port <= 65535:
            # Checked here: resolvers would take the number modulo 65536.
            raise BrokerStartError(f"port: expected 0 to 65535, got {settings.port}")
        # Only one address: with port 0, each address of the name would get a different port.
        host = "127.0.0.1" if settings.host == "localhost" else settings.host
        await self._node.open()
        try:
            self._server = await asyncio.start_server(self._accept, host, settings.port, limit=_READ_BUFFER_BYTES)
        except (OSError, OverflowError) as error:
            await self._node.storage.close()
            raise BrokerStartError(_start_failure(error, settings)) from error
        name = self._server.sockets[0].getsockname()
        self._address = (str(name[0]), int(name[1]))
        if self._node.storage.durable and not self._node.closed:
            self._cleaning = asyncio.create_task(clean_repeatedly(self._node.store))

    @property
    def cluster_id(self) -> str:
        """The name that only this broker's data has, and copies of it."""
        return self._node.cluster_id

    @property
    def closed(self) -> bool:
        """Whether it was closed for ever."""
        return self._node.closed

    async def close_for_ever(self) -> None:
        """Take nothing more, also after a restart; see `Node.close`."""
        if self._cleaning is not None:
            self._cleaning.cancel()
        await self._node.close()

    async def stop(self) -> None:
        """Close all connections, then the data; without a folder, records and groups are gone."""
        if self._server is None:
            return
        self._server.close()
        tasks = [*self._connections, *([self._cleaning] if self._cleaning else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._node.coordinator.close()
        await self._node.storage.close()
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            # Only stop() cancels. The task must not end as cancelled: asyncio would report that as an error.
            log.debug("connection closed by the broker's stop")
            # Not close(): it would wait for a client that does not read its answers.
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        local = writer.get_extra_info("sockname")
        if not peer or not local:
            return
        client = Client(str(local[0]), int(local[1]), f"/{peer[0]}")
        try:
            while True:
                await self._answer_one(reader, writer, client)
        except MalformedRequest as malformed:
            log.warning("closing the connection from %s:%s: %s", peer[0], peer[1], malformed)
        except asyncio.IncompleteReadError as cut:
            if cut.partial:
                log.warning("the connection from %s:%s ended within a request", peer[0], peer[1])
        except ConnectionError:
            log.debug("connection from %s:%s lost", peer[0], peer[1])

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: Client) -> None:
        head = parse_frame_head(await reader.readexactly(FRAME_HEAD_BYTES), self._settings.max_request_bytes)
        request = parse_request(head, await reader.readexactly(head.rest_bytes))
        if self._node.closed and request.api_key not in READS:
            raise MalformedRequest(f"API key {request.api_key} is not served: this broker was closed")
        response = await _HANDLERS[request.api_key](self._node, client, request)
        if response is not None:
            writer.write(encode_response(request, response))
            await writer.drain()


def _start_failure(error: Exception, settings: BrokerSettings) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {settings.port} on {settings.host} is in use by another process; name another one (--port)"
    return f"cannot listen on {settings.host} port {settings.port}: {error}"
