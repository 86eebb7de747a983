"""What a worker does through its Faust app: it sends, commits, and asks for its assignment and the ends of logs."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from hushstream.agents.errors import JournalLost
from hushstream.agents.kafka.faust_types import TP, ProducerSendError
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import Output, TopicPartition


class Stream:
    """Wraps a running app, and takes logical topic names."""

    def __init__(self, app: Any, settings: WorkerSettings) -> None:
        """Use the producer and the consumer of ``app``."""
        self._app = app
        self._settings = settings
        self._prefix = settings.topic_prefix

    @property
    def generation(self) -> int:
        """The group's generation that the current assignment belongs to."""
        return int(self._app.consumer_generation_id)

    def assigned(self, topic: str) -> set[int]:
        """The partitions of a topic that the group has given to this worker."""
        name = self._settings.physical(topic)
        return {place.partition for place in self._app.consumer.assignment() if place.topic == name}

    async def send(self, output: Output) -> Awaitable[Any]:
        """Hand one record to the producer; the returned future is done when the broker has acknowledged it.

        Raises:
            JournalLost: the producer accepts no more records.
        """
        try:
            future: Awaitable[Any] = await self._app.producer.send(
                self._prefix + output.topic, output.key, output.value, output.partition, None, None
            )
        except ProducerSendError as error:
            raise JournalLost(f"{output.topic}/{output.partition}: {error}") from error
        return future

    async def commit(self, places: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """Commit (offset, metadata); False if the commit failed and is to be tried again."""
        thread = self._app.consumer._thread
        return bool(await thread.commit_marked({self._at(source): place for source, place in places.items()}))

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

    def _at(self, source: TopicPartition) -> Any:
        return TP(self._prefix + source[0], source[1])
