"""The client of a PDOL deployment: a record goes out, its prediction comes back, its label follows.

Records are put on the lattice here, in the application: what breaks a bound is refused with a reason, and never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hushstream.agents.security import Security
from hushstream.client.client import EventLog
from hushstream.client.journals import JournalReader
from hushstream.client.kafka import KafkaEventLog, read_deployment
from hushstream.client.waiting import PassedOver
from hushstream.engine.conversation import Conversation
from hushstream.engine.requests import BadContext, RequestRefused, UnknownEvent
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_EDITION
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault
from hushstream.systems.pdol.edge import Refusal, quantise
from hushstream.systems.pdol.requests import RecordRules
from hushstream.systems.pdol.rows import Rows

PREDICTIONS = Conversation("records", (), "predictions")
"""What an application writes and reads of a PDOL deployment."""

_WHY = {
    Refusal.NOT_FINITE: "finite values",
    Refusal.INDEX: "indices from 0 to below the dimension",
    Refusal.ORDER: "no index twice",
    Refusal.LENGTH: "an L2 norm of at most 1",
}


class PredictionTimeout(HushstreamError):
    """No prediction came in time; the dead letters of the edge zone tell what was refused."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer.

    Attributes:
        event_id: the application's name for the record.
        label: 1 or -1; 0 where the node found that the record breaks a bound.
        model_version: of the published model; 0 for none.
    """

    event_id: str
    label: int
    model_version: int


class _Question(NamedTuple):
    user: str
    answer: asyncio.Future[Prediction]


class RecordClient:
    """Ask for predictions and tell labels. One instance serves many nodes concurrently.

    Use as an async context manager; `connect_records` makes one on a Kafka.
    """

    def __init__(self, log: EventLog, nodes: int, dimension: int, *, edition: int = FIRST_EDITION) -> None:
        """Work over a log.

        Args:
            log: where records go, and predictions come from.
            nodes: of the deployment.
            dimension: of its records.
            edition: in which records are written (`hushstream.schemas.catalogue`).

        Raises:
            HushstreamError: this release does not know the edition.
        """
        self._log = log
        self._rules = RecordRules(nodes, dimension)
        self._edition = codec.require_edition(edition)
        self._readers: dict[int, JournalReader] = {}
        self._passed: dict[int, PassedOver] = {}
        self._waiting: dict[str, _Question] = {}

    async def __aenter__(self) -> Self:
        """Start reading predictions."""
        await self._log.start(self._on_predictions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; predictions that are still awaited are cancelled."""
        for question in self._waiting.values():
            question.answer.cancel()
        self._waiting.clear()
        await self._log.stop()

    async def predict(
        self,
        event_id: str,
        user: str,
        node: int,
        indices: Sequence[int],
        values: ArrayLike,
        *,
        after_phase: int = -1,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> Prediction:
        """Ask for the label of a record.

        Args:
            event_id: names the record (1 to 128 bytes of UTF-8); the same id always gets the same answer.
            user: whose record it is, by any name that stays the same.
            node: where it came, from 0.
            indices: which coordinates, each once.
            values: real numbers, with an L2 norm of at most 1 together.
            after_phase: wait for a model that was made when this phase had ended everywhere; -1 for none.
            timeout: seconds; None waits for ever.

        Raises:
            BadContext: the record breaks a bound; it was not sent.
            RequestRefused: there is no such node, or the node's worker refused the record.
            UnknownEvent: the event id is another user's.
            PredictionTimeout: no answer in time.
            HushstreamError: an argument is impossible, or the log refused the record.
        """
        real = np.asarray(values, dtype=np.float64)
        ends = np.array([0, len(real)], dtype=np.int64)
        coordinates = np.asarray(indices, dtype=np.int64)
        rows, why = quantise(ends, coordinates, real, np.ones(1, dtype=np.int64), self._rules.dimension)
        if why[0]:
            raise BadContext(f"record: expected {_WHY[Refusal(int(why[0]))]}, got others; it was not sent")
        return await self.predict_slot(event_id, user, node, rows, after_phase=after_phase, timeout=timeout)

    async def predict_slot(
        self,
        event_id: str,
        user: str,
        node: int,
        rows: Rows,
        *,
        after_phase: int = -1,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> Prediction:
        """`predict` of a record that is on the lattice: one row, whose label is not sent."""
        self._require(event_id, user, node)
        fields = {
            "event_id": event_id,
            "user": user,
            "node": node,
            "indices": rows.indices.astype("<i4").tobytes(),
            "values": rows.values.astype("<i4").tobytes(),
            "after_phase": after_phase,
        }
        question = self._waiting.get(event_id)
        if question is None:
            question = self._waiting[event_id] = _Question(user, asyncio.get_running_loop().create_future())
            home = self._home(node)
            offset = await self._log.append("records", home, codec.encode("Record", fields, self._edition))
            if not question.answer.done() and self._passed_over(home).sent(event_id, offset):
                question.answer.set_exception(_refused())
        if question.user != user:
            raise UnknownEvent("event_id: expected one of this user's or a new one, got another user's")
        try:
            return await asyncio.wait_for(asyncio.shield(question.answer), timeout)
        except TimeoutError:
            raise PredictionTimeout(f"predict: expected an answer within {timeout} s, got none") from None
        finally:
            self._waiting.pop(event_id, None)
            self._passed_over(self._home(node)).settled(event_id)

    async def label(self, event_id: str, user: str, node: int, label: int) -> None:
        """Tell the label of a record that was predicted; returns when the log holds it.

        Raises:
            RequestRefused: it is neither 1 nor -1, or there is no such node.
        """
        self._require(event_id, user, node)
        if label not in (1, -1):
            raise RequestRefused("label: expected 1 or -1, got another value")
        fields = {"event_id": event_id, "user": user, "label": label}
        await self._log.append("records", self._home(node), codec.encode("Label", fields, self._edition))

    async def seal(self, phase: int) -> None:
        """End a phase (a public event): all open slots are counted, and a version of the model follows."""
        fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": -1}
        value = codec.encode("Seal", fields, self._edition)
        for partition in range(self._log.partitions()):
            await self._log.append("records", partition, value)

    def _home(self, node: int) -> int:
        return node * self._log.partitions() // self._rules.nodes

    def _passed_over(self, home: int) -> PassedOver:
        return self._passed.setdefault(home, PassedOver("records"))

    def _require(self, event_id: str, user: str, node: int) -> None:
        for name, text in (("event_id", event_id), ("user", user)):
            if id_fault(text) is not None:
                raise HushstreamError(f"{name}: expected 1 to {MAX_ID_BYTES} bytes, got {len(text.encode())}")
        self._rules.check_node(node)

    def _on_predictions(self, partition: int, offset: int, value: bytes) -> None:
        reader = self._readers.setdefault(partition, JournalReader("Predictions"))
        for fields in reader.read(offset, value):
            labels = np.frombuffer(fields["predicted"], np.int8).tolist()
            for event_id, label in zip(fields["event_ids"], labels, strict=True):
                question = self._waiting.get(event_id)
                if question is not None and not question.answer.done():
                    question.answer.set_result(Prediction(event_id, label, fields["model_version"]))
            passed = self._passed_over(partition)
            passed.covered(fields["head"])
            for event_id in passed.refused():
                question = self._waiting.get(event_id)
                if question is not None and not question.answer.done():
                    question.answer.set_exception(_refused())


def _refused() -> RequestRefused:
    return RequestRefused("predict: the worker refused the record; `hushstream dead-letters list edge` tells why")


def connect_records(
    bootstrap: str,
    deployment: str | Path,
    nodes: int | None = None,
    dimension: int | None = None,
    *,
    prefix: str | None = None,
    security: Security | None = None,
    edition: int = FIRST_EDITION,
) -> RecordClient:
    """A client of one PDOL deployment on a Kafka cluster; use it with ``async with``.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        deployment: the deployment's folder, which says the rest (its configuration alone is read, which is public);
            or its name.
        nodes: of the deployment, by name.
        dimension: of its records, by name.
        prefix: what its topic names begin with; by default the deployment's name and a dot.
        security: SASL and TLS.
        edition: in which records are written (`hushstream.schemas.catalogue`).

    Raises:
        HushstreamError: the folder is of a system that takes no records, or a name was given without its numbers.
    """
    name, digest = str(deployment), None
    if isinstance(deployment, Path):
        system = read_deployment(deployment, PREDICTIONS)
        name, digest = system.config.deployment, system.digest
        nodes, dimension = system.requests
    if nodes is None or dimension is None:
        raise HushstreamError("connect_records: expected the deployment's folder, or nodes and dimension, got neither")
    own = f"{name}." if prefix is None else prefix
    log = KafkaEventLog(bootstrap, own, security=security, topics=PREDICTIONS, digest=digest)
    return RecordClient(log, nodes, dimension, edition=edition)
