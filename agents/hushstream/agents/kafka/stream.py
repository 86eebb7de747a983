"""What a worker does on the broker besides fetching: it sends, commits, and asks for its assignment and the ends of
logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as BrokerPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
)
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from hushstream.agents.errors import DENIED, JournalLost, SessionRefused, WorkerError, from_client
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.settings import BATCH_BYTES, RECORD_BYTES_LIMIT, WorkerSettings
from hushstream.engine.records import Output, TopicPartition

logger = logging.getLogger(__name__)

_SEND_SECONDS = 1200
"""How long a record waits for brokers that do not answer, before it counts as lost."""

_ASK_SECONDS = 0.5
_NOTHING = BrokerPartition("", 0)
"""A partition that nobody has: of it nothing is fetched."""


class Stream:
    """Wraps an app and a producer, and takes logical topic names."""

    def __init__(self, app: Any, settings: WorkerSettings) -> None:
        """Use the consumer of ``app``; `start` makes the producer.

        The producer is not Faust's, which cannot be idempotent. So a retry writes no record twice, and records keep
        their order.
        """
        self._app = app
        self._settings = settings
        self._prefix = settings.topic_prefix
        self._producer: AIOKafkaProducer | None = None
        self._committed = time.monotonic()

    async def start(self) -> None:
        """Start the producer.

        Raises:
            KafkaError: no broker answers.
        """
        settings = self._settings
        self._producer = AIOKafkaProducer(
            **settings.client_options(),
            acks="all",
            enable_idempotence=True,
            linger_ms=settings.linger_milliseconds,
            max_batch_size=BATCH_BYTES,
            max_request_size=RECORD_BYTES_LIMIT,
            request_timeout_ms=_SEND_SECONDS * 1000,
        )
        await self._producer.start()

    async def stop(self) -> None:
        """Send what is left, and close the producer."""
        if self._producer is not None:
            await self._producer.stop()

    @property
    def generation(self) -> int:
        """The group's generation that the current assignment belongs to."""
        return int(self._app.consumer_generation_id)

    @property
    def commit_age(self) -> float:
        """Seconds since the group's coordinator last took a commit."""
        return time.monotonic() - self._committed

    def assigned(self, topic: str) -> set[int]:
        """The partitions of a topic that the group has given to this worker."""
        name = self._settings.physical(topic)
        return {place.partition for place in self._app.consumer.assignment() if place.topic == name}

    async def send(self, output: Output) -> Awaitable[Any]:
        """Hand one record to the producer; the returned future is done when the broker has acknowledged it.

        Raises:
            JournalLost: the producer accepts no more records.
        """
        assert self._producer is not None
        try:
            future: Awaitable[Any] = await self._producer.send(
                self._prefix + output.topic, output.value, output.key, output.partition
            )
        except KafkaError as error:
            raise JournalLost(f"{output.topic}/{output.partition}: {type(error).__name__}: {error}") from error
        return future

    async def commit(self, places: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """Commit (offset, metadata); False if the commit failed and is to be tried again.

        The consumer belongs to Faust's fetch thread, so the commit runs there, beside a fetch that may be waiting.
        """
        thread = self._app.consumer.thread
        offsets = {BrokerPartition(*self._at(source)): OffsetAndMetadata(*place) for source, place in places.items()}
        try:
            await self._in(thread, thread.kafka.commit(offsets))
        except (CommitFailedError, IllegalStateError):
            return False  # a rebalance came first: the next owner commits
        except DENIED:
            raise
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning("commit failed (%s), trying again", type(error).__name__)
            return False
        self._committed = time.monotonic()
        return True

    async def raise_refusal(self) -> None:
        """Raise if the group's coordinator refuses this worker.

        aiokafka keeps such an error for whoever asks the consumer next, and joins no more until then. Faust never asks.

        Raises:
            SessionRefused: the broker does not accept the length of the session.
            AccessDenied: the access rules forbid the group.
            WorkerError: the other members work by another protocol.
        """
        thread = self._app.consumer.thread
        if thread.kafka is None or not thread.kafka.subscription():
            return  # it has not begun
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await self._in(thread, thread.kafka.getmany(_NOTHING))
        except TimeoutError:
            return  # it is joining
        except InvalidSessionTimeoutError:
            raise SessionRefused(
                f"expected the broker to accept a session of {self._settings.session_timeout_seconds:g} s, it does not "
                f"(group.min.session.timeout.ms and group.max.session.timeout.ms of the broker); set another with "
                f"--session-timeout"
            ) from None
        except InconsistentGroupProtocolError:
            raise WorkerError(
                f"group {self._settings.group}: expected members that assign ranges, got others"
            ) from None
        except DENIED as error:
            raise from_client(error, "joining") from None
        except (KafkaError, ConnectionError) as error:
            logger.warning("the group: %s, trying again", type(error).__name__)

    async def end_offsets(self, sources: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The offset that the next record of each log will get."""
        places = {source: self._at(source) for source in sources}
        found = await self._app.consumer.highwaters(*places.values())
        return {source: found[place] for source, place in places.items()}

    async def read_journal(self, journal: TopicPartition, offset: int) -> list[tuple[int, bytes]]:
        """Read a journal from an offset to its end, as (offset, value)."""
        async with LogReader(self._settings) as reader:
            end = (await reader.end_offsets([journal]))[journal]
            reader.open({journal: offset})
            return [(record.offset, record.value) for record in await reader.read(journal, offset, end)]

    def fetched_end(self, source: TopicPartition) -> int | None:
        """The end of an input log at the last fetch; None before the first fetch, or if it is no longer assigned."""
        place = self._at(source)
        found = self._app.consumer.highwater(place) if place in self._app.consumer.assignment() else None
        return None if found is None else int(found)

    @staticmethod
    async def _in(thread: Any, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something of the fetch thread's consumer in that thread."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, thread.thread_loop))

    def _at(self, source: TopicPartition) -> TP:
        return TP(self._prefix + source[0], source[1])
