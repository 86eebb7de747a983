"""Carries devices' slots to the collector of a BGTplanner deployment, and rounds and models back to devices.

Ratings stay in a `RatingAgent`, on a device or in an application's process. This client is only the transport: it reads
the published topics `rounds` and `models`, and appends finished, fixed-size reports to `updates`, whose only partition
is the collector's. It holds no key.

A slot is in clear, without a user's name. Whoever runs this client sees where a slot comes from, so run it on the
users' side: in a gateway of the application, or in the application itself. Whoever may write `updates` may also open
and end rounds, as raters do. (Where slots are sealed, only end them: the aggregator's signature opens them.) So give
that right (``--principals devices=...``) to a gateway, never to devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import load
from hushstream.client.published import KafkaSlotLog
from hushstream.engine.declare.topics import STATEMENTS
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.kept import BadModel
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.agent import Sent
from hushstream.systems.bgt.edge.received import ROUNDS_TOPIC, Received
from hushstream.systems.bgt.records import BadSlots, BgtError, Float64, Model, Round, signed_round
from hushstream.systems.bgt.shuffler import Inadmissible, admit

_COLLECTOR = ("updates", 0)

_WHY = {
    Inadmissible.ITEM: "items that the round asks for",
    Inadmissible.ORDER: "items that rise, and values beside items alone",
    Inadmissible.NORM: "a length within the clip",
    Inadmissible.KIND: "the weight and direction of its kind",
}


class RoundOver(HushstreamError):
    """The slot's round is not open, so the collector would ignore the slot."""


class SlotLog(Protocol):
    """The operations that the client needs on a log."""

    async def start(self, on_record: Callable[[str, InputRecord], None]) -> None:
        """Deliver all records of `models`, `rounds` and, if devices make slots, `statements`, in log order of each.

        Returns when all present records are delivered, and then goes on with new ones.
        """

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append and return the offset once the log has acknowledged it."""

    async def stop(self) -> None:
        """Flush and close."""


class SlotClient:
    """Reads rounds and models, and hands in slots. One instance serves many devices concurrently.

    Use as an async context manager; `connect_slots` makes one on a Kafka.
    """

    def __init__(self, log: SlotLog, system: BgtSystem) -> None:
        """Work over a log.

        Args:
            log: the log to write slots to and to read rounds and models from.
            system: the deployment.
        """
        self._log = log
        self._system = system
        self._received = Received(system)
        self._opened: set[int] = set()
        self._signed: dict[int, bytes] = {}
        """By round: the aggregator's signed statement that opens it, if devices make slots."""
        self._unsigned: dict[int, BadModel] = {}
        """By round: why a record that claims to open it does not count."""
        self._news = asyncio.Event()
        self._failed: HushstreamError | None = None

    async def __aenter__(self) -> Self:
        """Read all that is published so far.

        Raises:
            HushstreamError: the log is another deployment's, or of a later release.
        """
        await self._log.start(self._on_record)
        try:
            self._require_received()
        except BaseException:
            await self._log.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        await self._log.stop()

    @property
    def config(self) -> BgtConfig:
        """The configuration, to which a user agrees."""
        return self._system.config

    @property
    def digest(self) -> bytes:
        """Digest of configuration and features; each slot carries it."""
        return self._system.digest

    @property
    def features(self) -> Float64:
        """(I, f) public features of items."""
        return self._system.features

    @property
    def model(self) -> Model:
        """The newest published model; all zeros before the first."""
        return self._received.model

    async def rounds(self) -> AsyncIterator[Round]:
        """Yield the open round, then each round that opens; ends when the last round's model has come.

        Raises:
            HushstreamError: see `__aenter__`.
        """
        number = -1
        while True:
            while self._received.number <= number:
                await self._next_news()
            number = self._received.number
            asked = self._received.round(number)
            if asked is None:
                return
            yield asked

    async def send_slot(self, sent: Sent) -> None:
        """Hand in one slot (`RatingAgent.answer`); returns when the log holds it.

        A slot counts once, however often it is sent, and only until its round ends.

        Raises:
            BadSlots: the collector would not take it; it was not sent.
            RoundOver: its round is not open; it was not sent.
            BgtError: it was made for another configuration; it was not sent.
            HushstreamError: see `__aenter__`; or the log refused the record.
        """
        self._require_received()
        if self._system.sealing is not None:
            raise BgtError("slot: expected a sealed one (`hushstream.edge.ratings`), got one in clear; it was not sent")
        if sent.digest != self._system.digest:
            raise BgtError("slot: expected one of this deployment, got another configuration's")
        asked = self._received.round(sent.round) if sent.round == self._received.number else None
        if asked is None:
            raise RoundOver(f"slot: expected one of the open round, got round {sent.round}; it was not sent")
        self._require_taken(sent, asked)
        opening = self._received.opening(sent.round)
        if opening is not None and sent.round not in self._opened:
            # Write the round before its first slot. Other clients may write it too: the collector ignores an equal
            # record.
            await self._log.append(*_COLLECTOR, opening)
            self._opened.add(sent.round)
        await self._log.append(*_COLLECTOR, codec.encode("RatingSlot", sent.fields()))

    async def end_round(self, number: int) -> None:
        """End a round in a deployment without raters: the sums of its slots are released, and no later slot counts.

        The application calls this after a number of slots or days. When a round ends is public, so no content may
        decide it. The call waits for the round as the aggregator has signed it, under the keys of this deployment's
        folder.

        Raises:
            RoundOver: it is not open.
            BgtError: raters end rounds here (`RatingClient.end_round`); or what opens it is signed by no key of the
                folder, as where that has an older ``signing.json``.
            HushstreamError: see `__aenter__`; or the log refused the record.
        """
        self._require_received()
        if self._system.sealing is None:
            raise BgtError("round: expected to be ended by raters (`RatingClient.end_round`), as there are some")
        if number != self._received.number or self._received.round(number) is None:
            raise RoundOver(f"round: expected the open one, {self._received.number}, got {number}")
        while number and number not in self._signed:
            if number in self._unsigned:
                raise BgtError(f"round {number}: expected what the aggregator signed, got {self._unsigned[number]}")
            await self._next_news()
        if number:
            # Write the round first: perhaps no slot has come, and then the collector does not know it yet.
            await self._log.append(*_COLLECTOR, self._signed[number])
        end = {"phase": number, "origin": 0, "config_digest": self._system.digest, "after_click": -1}
        await self._log.append(*_COLLECTOR, codec.encode("Seal", end))

    def _require_taken(self, sent: Sent, asked: Round) -> None:
        """Refuse what the collector would count as null, by the collector's own rule."""
        if len(sent.slot) != 1:
            raise BadSlots(f"slot: expected one, got {len(sent.slot)}; it was not sent")
        (why,) = admit(sent.slot, asked, self._system.config).tolist()
        if why:
            raise BadSlots(f"slot: expected {_WHY[Inadmissible(why)]}, got others; it was not sent")

    def _require_received(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def _next_news(self) -> None:
        await self._news.wait()
        self._require_received()

    def _on_record(self, topic: str, record: InputRecord) -> None:
        try:
            self._fold_record(topic, record)
        except HushstreamError as error:
            self._failed = error  # raised in every later or waiting call
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _fold_record(self, topic: str, record: InputRecord) -> None:
        if topic == ROUNDS_TOPIC[0]:
            try:
                self._received.read_round(record)
            except (CodecError, BgtError):
                return  # not a round of this deployment: raters write it to their dead letters
        elif topic == STATEMENTS:
            self._read_signed(record)
        else:
            self._received.read_models(InputSlice(topic, 0, record.offset, record.offset + 1, (record,)))

    def _read_signed(self, record: InputRecord) -> None:
        system, known = self._system, frozenset({STATEMENT_RECORD})
        assert system.signing is not None, "statements are read where they are signed"
        try:
            fields = codec.decode(record.value, known)[1]
            asked = signed_round(fields, system.config, system.digest, system.signing)[0]
        except CodecError:
            return
        except BadModel as error:
            self._unsigned[fields["version"]] = error  # Devices and gateways skip it, too.
            return
        if asked is not None:
            self._signed[asked.number] = codec.encode(STATEMENT_RECORD, fields)


def connect_slots(
    bootstrap: str,
    deployment: Path,
    *,
    prefix: str | None = None,
    security: Security | None = None,
) -> SlotClient:
    """A client for the slots of devices on a Kafka cluster; use it with ``async with``.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        deployment: its folder; configuration and public features are read, and no key.
        prefix: what its topic names begin with; by default the deployment's name and a dot.
        security: SASL and TLS.

    Raises:
        HushstreamError: the folder's system takes no ratings.
    """
    system = load(deployment)
    if _COLLECTOR[0] not in system.devices:
        raise HushstreamError(f"client: expected a deployment that takes ratings, got {system.config.deployment}")
    own = f"{system.config.deployment}." if prefix is None else prefix
    published = tuple(topic for topic, right in system.devices.items() if right == "Read")
    log = KafkaSlotLog(bootstrap, own, security, published=published)
    return SlotClient(log, system.core)
