"""The way of a device's slots to the collector of a BGTplanner deployment, and of rounds and models back.

Ratings stay in a `RatingAgent`, on a device or in an application's process. This client is the transport beside it: it
reads what is published, `rounds` and `models`, and appends slots that are finished and padded to `updates`, whose one
partition is the collector's. It holds no key.

A slot is in clear, without a name. Whoever runs this client sees where a slot comes from, so it belongs to the users'
side: a gateway of the application's, or the application itself. Whoever may write `updates` may also open and end
rounds, as raters do (where slots are sealed, end them; the aggregator's signature opens them): give that right
(``--principals devices=...``) to a gateway, never to devices.
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
from hushstream.engine.devices.errors import BadModel
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.edge.agent import Sent
from hushstream.systems.bgt.edge.received import ROUNDS_TOPIC, Received
from hushstream.systems.bgt.errors import BadSlots, BgtError
from hushstream.systems.bgt.rounds import Model, Round
from hushstream.systems.bgt.shuffler.admission import Refusal, admit
from hushstream.systems.bgt.slots import Float64
from hushstream.systems.bgt.stated import signed_round

_COLLECTOR = ("updates", 0)

_WHY = {
    Refusal.ITEM: "items that the round asks for",
    Refusal.ORDER: "items that rise, and values beside items alone",
    Refusal.NORM: "a length within the clip",
    Refusal.KIND: "the weight and direction of its kind",
}


class RoundOver(HushstreamError):
    """A slot of a round that is not open: it would count for nothing."""


class SlotLog(Protocol):
    """What the client needs of a log."""

    async def start(self, on_record: Callable[[str, InputRecord], None]) -> None:
        """Deliver what `models` and `rounds` hold, where devices make slots `statements` too, in log order of each.

        Then return, and go on with what comes.
        """

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append and return the offset once the log has acknowledged it."""

    async def stop(self) -> None:
        """Flush and close."""


class SlotClient:
    """Read rounds and models, and hand in slots. One instance serves many devices concurrently.

    Use as an async context manager; `connect_slots` makes one on a Kafka.
    """

    def __init__(self, log: SlotLog, system: BgtSystem, *, schema_generation: int = FIRST_GENERATION) -> None:
        """Work over a log.

        Args:
            log: where slots go, and rounds and models come from.
            system: the deployment.
            schema_generation: in which records are written (`hushstream.schemas.catalogue`).

        Raises:
            HushstreamError: this release does not know the schema generation.
        """
        self._log = log
        self._system = system
        self._generation = codec.require_generation(schema_generation)
        self._received = Received(system)
        self._opened: set[int] = set()
        self._signed: dict[int, bytes] = {}
        """What opens a round where devices make slots."""
        self._unsigned: dict[int, BadModel] = {}
        """Why a record that says it does, does not."""
        self._news = asyncio.Event()
        self._failed: HushstreamError | None = None

    async def __aenter__(self) -> Self:
        """Read all that is published so far.

        Raises:
            HushstreamError: it is another deployment's, or of a later release.
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
        """What a user agrees to."""
        return self._system.config

    @property
    def digest(self) -> bytes:
        """Of configuration and features; slots name it."""
        return self._system.digest

    @property
    def features(self) -> Float64:
        """(I, f) public features of items."""
        return self._system.features

    @property
    def model(self) -> Model:
        """The newest one that is published; of zeros before the first."""
        return self._received.model

    async def rounds(self) -> AsyncIterator[Round]:
        """The round that is open, then each that is opened; ends once no more will be asked for and its model is here.

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
            # No slot can come before its round: whoever comes first puts it there, and the others agree.
            await self._log.append(*_COLLECTOR, opening)
            self._opened.add(sent.round)
        await self._log.append(*_COLLECTOR, codec.encode("RatingSlot", sent.fields(), self._generation))

    async def end_round(self, number: int) -> None:
        """End a round where there are no raters: what its slots hold is released, and no later one counts.

        It is the application's to call, after so many slots or days: when a round ends is public, and no content may
        decide it. It waits for the round as the aggregator has signed it, under the keys of this deployment's folder.

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
            # No slot may have come.
            await self._log.append(*_COLLECTOR, self._signed[number])
        end = {"phase": number, "origin": 0, "config_digest": self._system.digest, "after_click": -1}
        await self._log.append(*_COLLECTOR, codec.encode("Seal", end, self._generation))

    def _require_taken(self, sent: Sent, asked: Round) -> None:
        """Refuse what the collector would count as null, by the collector's own rule."""
        if len(sent.slot) != 1:
            raise BadSlots(f"slot: expected one, got {len(sent.slot)}; it was not sent")
        (why,) = admit(sent.slot, asked, self._system.config).tolist()
        if why:
            raise BadSlots(f"slot: expected {_WHY[Refusal(why)]}, got others; it was not sent")

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
            self._failed = error  # raised to whoever waits, or sends
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _fold_record(self, topic: str, record: InputRecord) -> None:
        if topic == ROUNDS_TOPIC[0]:
            try:
                self._received.read_round(record)
            except (CodecError, BgtError):
                return  # no round of this deployment: raters write it to their dead letters
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
            self._unsigned[fields["version"]] = error  # Devices and gateways pass it over, too.
            return
        if asked is not None:
            self._signed[asked.number] = codec.encode(STATEMENT_RECORD, fields, self._generation)


def connect_slots(
    bootstrap: str,
    deployment: Path,
    *,
    prefix: str | None = None,
    security: Security | None = None,
    schema_generation: int = FIRST_GENERATION,
) -> SlotClient:
    """A client for the slots of devices on a Kafka cluster; use it with ``async with``.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        deployment: its folder; configuration and public features are read, and no key.
        prefix: what its topic names begin with; by default the deployment's name and a dot.
        security: SASL and TLS.
        schema_generation: in which records are written (`hushstream.schemas.catalogue`).

    Raises:
        HushstreamError: the folder is of a system that takes no ratings.
    """
    system = load(deployment)
    if _COLLECTOR[0] not in system.devices:
        raise HushstreamError(f"client: expected a deployment that takes ratings, got {system.config.deployment}")
    own = f"{system.config.deployment}." if prefix is None else prefix
    published = tuple(topic for topic, right in system.devices.items() if right == "Read")
    log = KafkaSlotLog(bootstrap, own, security, published=published)
    return SlotClient(log, system.core, schema_generation=schema_generation)
