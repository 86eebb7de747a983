"""The possible results of a request for a prediction: an answer, a refusal, or a timeout."""

from __future__ import annotations

from dataclasses import dataclass

from hushstream.engine.declare.requests import RequestRefused
from hushstream.schemas.errors import HushstreamError


class PredictionTimeout(HushstreamError):
    """No prediction came in time; the dead letters of the edge zone tell what was refused."""


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


def outcome_of(event_id: str, outcome: Prediction | BaseException) -> Prediction | RefusedRecord:
    """The result for one of many records: its answer, or why it has none. Any other error is raised."""
    if isinstance(outcome, HushstreamError):
        return RefusedRecord(event_id, outcome)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def refused_by_worker() -> RequestRefused:
    """The error for a record that a worker refused."""
    return RequestRefused("predict: the worker refused the record; `hushstream dead-letters list edge` tells why")
