"""The call that names items which visits like as they like another one, by the newest released model.

It is post-processing of a release, as ``hushstream model similar``: it costs nothing, and moves with no click before a
release does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hushstream.client.items import Items
from hushstream.client.logs import EventLog
from hushstream.engine.catalogue import Catalogue
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.gateway.conversation.calls import Answered, Asked, Call
from hushstream.gateway.conversation.translation import Item
from hushstream.gateway.problems import Problem
from hushstream.schemas.errors import HushstreamError

MOST_SIMILAR = 100


class SimilarAsked(Asked):
    """Which item others are compared with."""

    item: Item
    most: Annotated[int, Field(ge=1, le=MOST_SIMILAR, description="How many to name.")] = 5

    @property
    def counted_for(self) -> str:
        """See `Asked.counted_for`: no user asks, so requests are counted for the item."""
        return f"similar to {self.item}"


class SimilarItem(Answered):
    """An item beside the one that was asked for."""

    item: Item
    distance: Annotated[
        float, Field(description="Root mean square difference of what visits prefer, in rewards a decision.")
    ]
    noise: Annotated[float, Field(description="The distance that two equal items have by the uncertainty of both.")]
    told_apart: Annotated[bool, Field(description="Whether they differ by more (95 %); else the noise hides it.")]


class SimilarAnswered(Answered):
    """The items that are most like it, the nearest first."""

    item: Item
    similar: tuple[SimilarItem, ...]
    version: Annotated[int, Field(description="Of the released model.")]
    private_as_stated: Annotated[bool, Field(description="False if a release was made under a seeded key.")]
    about: Annotated[str, Field(description="The same in words.")]


SIMILAR = Call(
    "similar",
    "Name items that visits like as they like another one",
    "By the newest released model of declared features (p2b): post-processing, which costs no privacy.",
    SimilarAsked,
    SimilarAnswered,
    ("no-model", "unknown-item", "log-unavailable"),
)


class Similar:
    """Reads released models, each record once, and keeps those of the newest version alone."""

    def __init__(self, log: EventLog, system: System) -> None:
        """Over a client's log; nothing is read yet."""
        self._log, self._view = log, system.models
        self._kept: dict[TopicPartition, list[InputRecord]] = {
            (topic, partition): [] for topic in system.similar_topics for partition in range(system.partitions[topic])
        }
        self._reading = asyncio.Lock()
        self._source: tuple[list[int], list[int]] = ([], [])
        """The last records and the versions of the catalogues from which the newest version was read."""
        self._table: Any = None
        """That version; None if none was read."""

    async def find(self, asked: SimilarAsked, items: Items) -> SimilarAnswered:
        """Answer `SIMILAR`.

        Args:
            asked: the body.
            items: of the gateway's client; read on where a model is new, as its rows may be of new items.

        Raises:
            Problem: no model of declared features was released, or it has no such item.
            HushstreamError: a topic cannot be read.
        """
        if self._view is None or self._view.similar is None:
            raise Problem("no-model", "model: expected declared features (p2b, `features`), got a deployment without")
        async with self._reading:
            for place, records in self._kept.items():
                records += await self._log.read(*place, records[-1].offset + 1 if records else 0)
            if items.named and self._ends() != self._source[0]:
                await items.refresh_all()
            table = self._newest(items.catalogues)
        try:
            found: Any = self._view.similar(table, str(asked.item), asked.most)
        except HushstreamError as error:
            raise Problem("unknown-item", str(error)) from None
        named = str if items.named else int
        similar = [SimilarItem(**{**one, "item": named(one["item"])}) for one in found.as_json()["similar"]]
        return SimilarAnswered(**{**found.as_json(), "item": asked.item, "similar": similar}, about=found.as_text())

    def _newest(self, catalogues: Mapping[str, Catalogue]) -> Any:
        """The newest version, from as few of the last records as hold it; earlier ones are dropped."""
        assert self._view is not None, "asked of a system whose models can be shown"
        source = (self._ends(), [one.version for one in catalogues.values()])
        if self._table is not None and source == self._source:
            return self._table
        last, longest = 1, max(len(records) for records in self._kept.values())
        while True:
            some = {place: records[-last:] for place, records in self._kept.items()}
            try:
                table = self._view.read((one.value for records in some.values() for one in records), None, catalogues)
            except HushstreamError as error:
                if last >= longest:
                    raise Problem("no-model", str(error)) from None
                last *= 2
            else:
                self._kept, self._source, self._table = some, source, table
                return table

    def _ends(self) -> list[int]:
        return [records[-1].offset for records in self._kept.values() if records]
