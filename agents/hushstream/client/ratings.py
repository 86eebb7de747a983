"""The clients of a BGTplanner deployment: one sends ratings, ends rounds, and asks for predictions.

It checks ratings in the application: a rating off the scale or of an unknown item is refused with a reason, and not
sent. Where users' devices hold the ratings, the application only ends rounds (`DeviceRounds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import load
from hushstream.client.decisions import require_id
from hushstream.client.kafka import KafkaEventLog, read_deployment
from hushstream.client.logs import EventLog
from hushstream.client.published import KafkaSlotLog, SlotLog
from hushstream.client.waiting import AwaitedAnswers
from hushstream.engine.declare.declaration import Conversation, System
from hushstream.engine.declare.topics import STATEMENTS
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.kept import BadModel
from hushstream.engine.records import InputRecord
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.agent import ratings_of
from hushstream.systems.bgt.records import MAX_PREDICTED, ROUNDS
from hushstream.systems.bgt.system import rounds_of

PREDICTIONS = Conversation("ratings", (), "predictions")
"""The topics that an application writes to and reads from in a BGTplanner deployment."""


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """An answer.

    Attributes:
        event_id: the application's name for the question.
        values: float64 (n,), the predicted rating of each item, on the configured scale.
        model_version: number of rounds that the model is made of, including a withheld one; 0 if the values are only
            the user's own mean.
    """

    event_id: str
    values: NDArray[np.float64]
    model_version: int


class RatingClient:
    """Sends ratings, ends rounds, and asks for predictions. One instance serves many users concurrently.

    Use as an async context manager; `connect_ratings` makes one on a Kafka.
    """

    def __init__(self, log: EventLog, config: BgtConfig) -> None:
        """Work over a log.

        Args:
            log: the log to write ratings to and to read predictions from.
            config: of the deployment.
        """
        self._log = log
        self._config = config
        self._awaited = AwaitedAnswers("ratings", "RatingPredictions", _answers, "the rater")

    async def __aenter__(self) -> Self:
        """Start reading predictions."""
        await self._log.start(self._awaited.on_record)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; predictions that are still awaited are cancelled."""
        self._awaited.cancel()
        await self._log.stop()

    async def rate(self, user: str, items: Sequence[int], ratings: ArrayLike) -> None:
        """Send ratings of a user, who takes part in every round from now on; returns when the log holds them.

        Args:
            user: any name that stays the same.
            items: numbers from 0, one for each rating; empty for a user who takes part without ratings.
            ratings: on the configured scale; if there are several for one item, the last one counts.

        Raises:
            BadRatings: an unknown item, or a rating off the scale; nothing was sent.
            HushstreamError: an impossible name, or the log refused the record.
        """
        require_id("user", user)
        numbers, values = np.asarray(items), np.asarray(ratings, dtype=np.float64)
        ratings_of(np.zeros(len(numbers), dtype=np.int64), numbers, values, self._config, 1)
        fields = {
            "user": user,
            "items": numbers.astype("<i4").tobytes(),
            "values": values.astype("<f8").tobytes(),
        }
        await self._log.append("ratings", self._home(user), codec.encode("Ratings", fields))

    async def end_round(self, number: int) -> None:
        """End a round (a public event): everybody who takes part sends one slot, and a version of the model follows.

        Raises:
            HushstreamError: there is no such round.
        """
        if not 0 <= number < ROUNDS:
            raise HushstreamError(f"round: expected a number from 0 to {ROUNDS - 1}, got {number}")
        fields = {"phase": number, "origin": -1, "config_digest": bytes(16), "after_click": -1}
        value = codec.encode("Seal", fields)
        for partition in range(self._log.partitions()):
            await self._log.append("ratings", partition, value)

    async def predict(
        self,
        event_id: str,
        user: str,
        items: Sequence[int],
        *,
        after_round: int = -1,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> Predicted:
        """Ask for predicted ratings of a user for items.

        Args:
            event_id: names the question (1 to 128 bytes of UTF-8). It must be unique over all users, as answers name
                questions, not users. Calls with equal questions under one id share its answer.
            user: the user whose ratings are predicted.
            items: numbers from 0, at least one.
            after_round: answer from the model that follows this round, which must have been ended before; -1 for any
                model.
            timeout: seconds; None waits for ever.

        Raises:
            PredictionTimeout: no answer in time.
            BadRatings: an unknown item; nothing was sent.
            UnknownEvent: another question waits under this id.
            RequestRefused: the rater refused the question, for example because the event id is another user's.
            HushstreamError: an impossible argument, or the log refused the record.
        """
        for name, text in (("event_id", event_id), ("user", user)):
            require_id(name, text)
        numbers = np.asarray(items)
        if not 0 < len(numbers) <= MAX_PREDICTED:
            raise HushstreamError(f"items: expected 1 to {MAX_PREDICTED}, got {len(numbers)}")
        lowest = np.full(len(numbers), self._config.scale.lowest)
        ratings_of(np.zeros(len(numbers), dtype=np.int64), numbers, lowest, self._config, 1)
        home, packed = self._home(user), numbers.astype("<i4").tobytes()
        fields = {"event_id": event_id, "user": user, "items": packed, "after_round": after_round}
        value = codec.encode("RatingQuery", fields)
        return await self._awaited.answer(
            event_id, (user, packed, after_round), home, lambda: self._log.append("ratings", home, value), timeout
        )

    def _home(self, user: str) -> int:
        return partition_of(user, self._log.partitions())


def _answers(fields: Mapping[str, Any]) -> Iterator[tuple[str, Predicted]]:
    counts = np.frombuffer(fields["counts"], "<i4")
    parts = np.split(np.frombuffer(fields["values"], "<f8"), np.cumsum(counts)[:-1])
    for event_id, values in zip(fields["event_ids"], parts, strict=False):
        yield event_id, Predicted(event_id, values, fields["model_version"])


def connect_ratings(
    bootstrap: str,
    deployment: BgtConfig | Path,
    *,
    prefix: str | None = None,
    security: Security | None = None,
) -> RatingClient:
    """A client of one BGTplanner deployment on a Kafka cluster; use it with ``async with``.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        deployment: its folder (only the configuration is read, and it is public), or its configuration.
        prefix: what its topic names begin with; by default the deployment's name and a dot.
        security: SASL and TLS.

    Raises:
        HushstreamError: the folder's system takes no ratings.
    """
    digest = None
    if isinstance(deployment, Path):
        system = read_deployment(deployment, PREDICTIONS)
        config, digest = system.requests, system.digest
    else:
        config = deployment
    own = f"{config.deployment}." if prefix is None else prefix
    log = KafkaEventLog(bootstrap, own, security=security, topics=PREDICTIONS, digest=digest)
    return RatingClient(log, config)


class RoundOver(HushstreamError):
    """The round is not open."""


class DeviceRounds:
    """Ends the rounds of a deployment whose slots come from devices; use it as an async context manager."""

    def __init__(self, log: SlotLog, system: System) -> None:
        """Work over a log.

        Raises:
            HushstreamError: no devices of this deployment make slots of ratings.
        """
        self._log, self._service = log, rounds_of(system)
        self._unsigned: BadModel | None = None

    async def __aenter__(self) -> Self:
        """Read which round is open."""
        await self._log.start(self._on_record)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        await self._log.stop()

    async def end_round(self, number: int) -> None:
        """End a round: the sums of its slots are released, and no later slot counts.

        The application calls this after a number of slots or days. When a round ends is public, so no content may
        decide it.

        Raises:
            RoundOver: the aggregator has signed another round, or what opens this one is signed by no key of the
                folder, as where that has an older ``signing.json``.
            HushstreamError: the log refused the record.
        """
        service = self._service
        if service.asked is None or service.asked.number != number:
            came = "" if self._unsigned is None else f" (a statement was refused: {self._unsigned})"
            opened = "none" if service.asked is None else service.asked.number
            raise RoundOver(f"round: expected the open one, {opened}, got {number}{came}")
        if service.opening is not None:
            # Write the round first: perhaps no slot has come, and then the collector does not know it yet.
            await self._log.append(service.topic, 0, service.opening)
        end = {"phase": number, "origin": 0, "config_digest": service.digest, "after_click": -1}
        await self._log.append(service.topic, 0, codec.encode("Seal", end))

    def _on_record(self, topic: str, record: InputRecord) -> None:
        try:
            _, fields = codec.decode(record.value, frozenset({STATEMENT_RECORD}))
            if fields["config_digest"] == self._service.digest:
                self._service.follow(fields)
        except CodecError:
            return
        except BadModel as error:
            self._unsigned = error


def connect_rounds(
    bootstrap: str, deployment: Path, *, prefix: str | None = None, security: Security | None = None
) -> DeviceRounds:
    """The rounds of a deployment with devices on a Kafka cluster; arguments as those of `connect_ratings`.

    Raises:
        HushstreamError: no devices of this deployment make slots of ratings.
    """
    system = load(deployment)
    own = f"{system.config.deployment}." if prefix is None else prefix
    return DeviceRounds(KafkaSlotLog(bootstrap, own, security, published=(STATEMENTS,), newest=True), system)
