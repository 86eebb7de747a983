"""The client of a PDOL deployment: sends a record, receives its prediction, and sends its label.

It puts records on the lattice in the application: a record that breaks a bound is refused with a reason, and not sent.
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
from hushstream.client.decisions import require_id
from hushstream.client.kafka import KafkaEventLog, read_deployment
from hushstream.client.logs import EventLog
from hushstream.client.waiting import AwaitedAnswers, Question
from hushstream.engine.declare.declaration import Conversation
from hushstream.engine.declare.requests import BadContext, RequestRefused
from hushstream.features.schema import FeatureSchema
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_label_batch, encode_record_batch
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.algorithm.rows import Refusal, Rows, quantise
from hushstream.systems.pdol.system import RecordRules

PREDICTIONS = Conversation("records", (), "predictions")
"""The topics that an application writes to and reads from in a PDOL deployment."""

_WHY = {
    Refusal.NOT_FINITE: "finite values",
    Refusal.INDEX: "indices from 0 to below the dimension",
    Refusal.ORDER: "no index twice",
    Refusal.LENGTH: "an L2 norm of at most 1",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer.

    Attributes:
        event_id: the application's name for the record.
        label: 1 or -1; 0 if the node's worker found that the record breaks a bound.
        model_version: of the published model; 0 for none.
    """

    event_id: str
    label: int
    model_version: int


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record or label that was refused; it takes the place of the answer when a call sends many at once.

    Attributes:
        event_id: the application's name for the record.
        error: the error that `RecordClient.predict` or `RecordClient.label` would raise for this record alone.
    """

    event_id: str
    error: HushstreamError


class RecordClient:
    """Asks for predictions and sends labels. One instance serves many nodes concurrently.

    Use as an async context manager; `connect_records` makes one on a Kafka.
    """

    def __init__(
        self,
        log: EventLog,
        nodes: int,
        dimension: int,
        features: FeatureSchema | None = None,
    ) -> None:
        """Work over a log.

        Args:
            log: the log to write records to and to read predictions from.
            nodes: of the deployment.
            dimension: of its records.
            features: that it declares, if any.
        """
        self._log = log
        self._rules = RecordRules(nodes, dimension, features)
        self._awaited = AwaitedAnswers("records", "Predictions", _answers, "the node's worker")

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

    async def predict(
        self,
        event_id: str,
        user: str,
        node: int,
        indices: Sequence[int] | Mapping[str, Any],
        values: ArrayLike | None = None,
        *,
        after_phase: int = -1,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> Prediction:
        """Ask for the label of a record.

        Args:
            event_id: names the record (1 to 128 bytes of UTF-8); the same id always gets the same answer.
            user: whose record it is; any name that stays the same.
            node: number of the node that holds it, from 0.
            indices: the coordinates that are not zero, each once. If features are declared: their values by name; a
                value that is absent or None counts as missing.
            values: real numbers with an L2 norm of at most 1; empty if ``indices`` has values by name.
            after_phase: answer from a model that was made after this phase had ended everywhere; -1 for any model.
            timeout: seconds; None waits for ever.

        Raises:
            BadContext: the record breaks a bound; it was not sent.
            RequestRefused: there is no such node, or the node's worker refused the record.
            UnknownEvent: the event id is another user's.
            PredictionTimeout: no answer in time.
            HushstreamError: an argument is impossible, or the log refused the record.
        """
        if isinstance(indices, Mapping):
            if values is not None:
                raise BadContext("record: expected values by name alone, got numbers beside them")
            coordinates, real = self._rules.coordinates_of(indices)
        elif self._rules.features is not None or values is None:
            raise BadContext("record: expected values of the declared features by name, or coordinates and numbers")
        else:
            coordinates, real = np.asarray(indices, dtype=np.int64), np.asarray(values, dtype=np.float64)
        ends = np.array([0, len(real)], dtype=np.int64)
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
        """`predict` of a record that is on the lattice: one row, whose label is not sent.

        If the log refuses the record, all calls that wait for it get the error; a repeated call sends it again.
        """
        self._require(event_id, user, node)
        fields = {
            "event_id": event_id,
            "user": user,
            "node": node,
            "indices": rows.indices.astype("<i4").tobytes(),
            "values": rows.values.astype("<i4").tobytes(),
            "after_phase": after_phase,
        }
        home, value = self._home(node), codec.encode("Record", fields)
        return await self._awaited.answer(
            event_id, user, home, lambda: self._log.append("records", home, value), timeout
        )

    async def predict_many(
        self,
        event_ids: Sequence[str],
        users: Sequence[str],
        nodes: Sequence[int],
        rows: Rows,
        *,
        after_phase: int = -1,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> list[Prediction | RefusedRecord]:
        """`predict` for many records at once; they are sent in columnar records.

        If this client or a node's worker refuses one record, the others still get their answers.

        Args:
            event_ids, users, nodes: one for each record, as in `predict`; the records of a domain are processed in this
                order.
            rows: records on the lattice (`hushstream.systems.pdol.algorithm.rows.quantise` puts them there); their
                labels are not sent.
            after_phase, timeout: for all records together, as in `predict`.

        Returns:
            The outcomes, in the same order.

        Raises:
            PredictionTimeout: not all came in time. If the same call is repeated, each record gets the same answer.
            HushstreamError: the arguments differ in length, or the log refused the records.
        """
        _require_texts("predict_many", event_ids, users)
        if not len(event_ids) == len(users) == len(nodes) == len(rows) == len(set(event_ids)):
            raise HushstreamError("predict_many: expected one event id (each once), user and node for each record")
        found: dict[int, Prediction | RefusedRecord] = {}
        waits: dict[int, Question[Prediction]] = {}
        asked: list[int] = []
        try:
            for place, (event_id, user, node) in enumerate(zip(event_ids, users, nodes, strict=True)):
                try:
                    self._require(event_id, user, node)
                    waits[place], fresh = self._awaited.ask(event_id, user, self._home(node))
                except HushstreamError as error:
                    found[place] = RefusedRecord(event_id, error)
                    continue
                asked += [place] if fresh else []
            with self._awaited.sending([waits[place] for place in asked]):
                await self._send(np.array(asked, dtype=np.int64), event_ids, users, nodes, rows, after_phase)
            outcomes = await self._awaited.outcomes(list(waits.values()), timeout)
        finally:
            self._awaited.give_up(waits.values())
        for place, outcome in zip(waits, outcomes, strict=True):
            if not isinstance(outcome, Prediction | HushstreamError):
                raise outcome
            found[place] = RefusedRecord(event_ids[place], outcome) if isinstance(outcome, HushstreamError) else outcome
        return [found[place] for place in range(len(event_ids))]

    async def _send(
        self,
        asked: NDArray[np.int64],
        event_ids: Sequence[str],
        users: Sequence[str],
        nodes: Sequence[int],
        rows: Rows,
        after_phase: int,
    ) -> None:
        """Write the records at these places of the arguments, in columnar records."""
        for home, places in self._by_home([nodes[place] for place in asked.tolist()]):
            for part in parts(asked[places], rows.lengths):
                value = self._batch(part, event_ids, users, nodes, rows.take(part), after_phase)
                offset = await self._log.append("records", home, value)
                for place in part.tolist():
                    self._awaited.sent(event_ids[place], offset)

    def _batch(
        self,
        part: NDArray[np.int64],
        event_ids: Sequence[str],
        users: Sequence[str],
        nodes: Sequence[int],
        rows: Rows,
        after_phase: int,
    ) -> bytes:
        return encode_record_batch(
            [event_ids[place] for place in part],
            [users[place] for place in part],
            [nodes[place] for place in part],
            rows.lengths,
            rows.indices,
            rows.values,
            after_phase=after_phase,
        )

    def _by_home(self, nodes: Sequence[int]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """For each home partition, the places at which its nodes stand, in order."""
        homes = np.array([self._home(node) for node in nodes], dtype=np.int64)
        for home in np.unique(homes).tolist():
            yield home, np.flatnonzero(homes == home)

    async def label(self, event_id: str, user: str, node: int, label: int) -> None:
        """Send the label of a record that was predicted; returns when the log holds it.

        Raises:
            RequestRefused: it is neither 1 nor -1, or there is no such node.
            HushstreamError: a name is impossible, or the log refused the label.
        """
        self._require_label(event_id, user, node, label)
        fields = {"event_id": event_id, "user": user, "label": label}
        await self._log.append("records", self._home(node), codec.encode("Label", fields))

    async def label_many(
        self, event_ids: Sequence[str], users: Sequence[str], nodes: Sequence[int], labels: Sequence[int]
    ) -> list[RefusedRecord]:
        """`label` of many records at once, in columnar records; returns when the log holds them.

        Returns:
            The labels that this client refused; all others were sent.

        Raises:
            HushstreamError: the arguments differ in length, a name is not text, or the log refused the records.
        """
        _require_texts("label_many", event_ids, users)
        if not len(event_ids) == len(users) == len(nodes) == len(labels):
            raise HushstreamError("label_many: expected one event id, user, node and label for each record")
        refused: list[RefusedRecord] = []
        taken = []
        for place, one in enumerate(zip(event_ids, users, nodes, labels, strict=True)):
            try:
                self._require_label(*one)
            except HushstreamError as error:
                refused.append(RefusedRecord(event_ids[place], error))
            else:
                taken.append(place)
        for home, places in self._by_home([nodes[place] for place in taken]):
            for low in range(0, len(places), BATCH_ROWS):
                part = [taken[place] for place in places[low : low + BATCH_ROWS].tolist()]
                told = [event_ids[place] for place in part], [users[place] for place in part]
                value = encode_label_batch(*told, [labels[place] for place in part])
                await self._log.append("records", home, value)
        return refused

    async def end_phase(self, phase: int) -> None:
        """End a phase (a public event): all open slots are counted, and a version of the model follows."""
        fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": -1}
        value = codec.encode("Seal", fields)
        for partition in range(self._log.partitions()):
            await self._log.append("records", partition, value)

    async def join(self, node: int) -> None:
        """Let a node take part again from here on (a public event). At the start all nodes take part."""
        await self._membership(node, present=True)

    async def leave(self, node: int) -> None:
        """Exclude a node from here on (a public event): its records are refused, and model versions do not wait for it.

        What it has released stays in the model. Records that it sent before count as all others.
        """
        await self._membership(node, present=False)

    async def _membership(self, node: int, *, present: bool) -> None:
        self._rules.check_node(node)
        fields = {"node": node, "present": present, "config_digest": bytes(16)}
        await self._log.append("records", self._home(node), codec.encode("Membership", fields))

    def _home(self, node: int) -> int:
        return node * self._log.partitions() // self._rules.nodes

    def _require(self, event_id: str, user: str, node: int) -> None:
        for name, text in (("event_id", event_id), ("user", user)):
            require_id(name, text)
        self._rules.check_node(node)

    def _require_label(self, event_id: str, user: str, node: int, label: int) -> None:
        self._require(event_id, user, node)
        if label not in (1, -1):
            raise RequestRefused("label: expected 1 or -1, got another value")


def _answers(fields: Mapping[str, Any]) -> Iterator[tuple[str, Prediction]]:
    labels = np.frombuffer(fields["predicted"], np.int8).tolist()
    for event_id, label in zip(fields["event_ids"], labels, strict=True):
        yield event_id, Prediction(event_id, label, fields["model_version"])


def _require_texts(what: str, event_ids: Sequence[str], users: Sequence[str]) -> None:
    """Refuse event ids and users that are not text, before anything is sent."""
    if not all(isinstance(text, str) for column in (event_ids, users) for text in column):
        raise HushstreamError(f"{what}: expected texts as event ids and users, got another type")


def connect_records(
    bootstrap: str,
    deployment: str | Path,
    nodes: int | None = None,
    dimension: int | None = None,
    *,
    prefix: str | None = None,
    security: Security | None = None,
) -> RecordClient:
    """A client of one PDOL deployment on a Kafka cluster; use it with ``async with``.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        deployment: the deployment's folder (only the configuration is read, and it is public); or its name, and then
            also ``nodes`` and ``dimension``.
        nodes: of the deployment, if that is given by its name.
        dimension: of its records, if the deployment is given by its name.
        prefix: what its topic names begin with; by default the deployment's name and a dot.
        security: SASL and TLS.

    Raises:
        HushstreamError: the folder's system takes no records, or a name was given without nodes and dimension.
    """
    name, digest, features = str(deployment), None, None
    if isinstance(deployment, Path):
        system = read_deployment(deployment, PREDICTIONS)
        name, digest = system.config.deployment, system.digest
        nodes, dimension, features = system.requests
    if nodes is None or dimension is None:
        raise HushstreamError("connect_records: expected the deployment's folder, or nodes and dimension, got neither")
    own = f"{name}." if prefix is None else prefix
    log = KafkaEventLog(bootstrap, own, security=security, topics=PREDICTIONS, digest=digest)
    return RecordClient(log, nodes, dimension, features)


BATCH_ROWS = 256
"""Largest number of records in one columnar record."""

_BATCH_FEATURES = 1 << 16
"""Largest number of features in one columnar record: half a megabyte."""


def parts(places: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut the records of one home partition into columnar records of bounded size."""
    low = features = 0
    for number, place in enumerate(places.tolist()):
        features += int(lengths[place])
        if number > low and (number - low >= BATCH_ROWS or features > _BATCH_FEATURES):
            yield places[low:number]
            low, features = number, int(lengths[place])
    if len(places):
        yield places[low:]
