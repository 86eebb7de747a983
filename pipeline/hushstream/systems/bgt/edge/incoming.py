"""The input of a rater: decodes a slice of ratings once, and decides how much of it may be folded now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hushstream.engine.learner.arrivals import cut
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

KINDS = frozenset({"Ratings", "RatingQuery", "Seal", "Forget"})

MAX_RECORDS = 4096
MAX_PREDICTED = 1 << 15
"""Largest number of items to predict in one fold, or for one question, so that the journal record fits the broker's
record size."""


class Incoming(NamedTuple):
    """One record of the log: its kind and fields, or why it is invalid."""

    record: InputRecord
    name: str
    fields: dict[str, Any]

    @property
    def predicted(self) -> int:
        """How many items it asks a prediction of."""
        return len(self.fields["items"]) // 4 if self.name == "RatingQuery" else 0


def decode_slice(part: InputSlice) -> list[Incoming]:
    """Decode a slice. A record that cannot be decoded has the reason as its name, and no fields."""
    decoded = []
    for record in part.records:
        try:
            decoded.append(Incoming(record, *codec.decode(record.value, KINDS)))
        except CodecError as error:
            decoded.append(Incoming(record, str(error.reason), {}))
    return decoded


def ready_slice(
    part: InputSlice, decoded: Sequence[Incoming], newest: int, ended_rounds: int, ended: bool
) -> InputSlice:
    """The beginning of a slice that may be folded.

    The end of a round waits until the round itself was received, and later records wait with it. A question waits for
    the model after the last round that ended before it in this log, and not for later models, which may never come.

    Args:
        part: the input that has arrived.
        decoded: the same, decoded.
        newest: number of the newest round that was received with its model.
        ended_rounds: number of rounds that ended in this log before the slice.
        ended: whether there will be no further round.
    """
    predicted = 0
    for number, one in enumerate(decoded):
        predicted += min(one.predicted, MAX_PREDICTED)
        if number and (number >= MAX_RECORDS or predicted > MAX_PREDICTED):
            return cut(part, one.record.offset)
        if one.name == "Seal" and one.fields["phase"] == ended_rounds:
            if newest < ended_rounds and not ended:
                return cut(part, one.record.offset)
            ended_rounds += 1
        if one.name == "RatingQuery" and newest <= one.fields["after_round"] < ended_rounds and not ended:
            return cut(part, one.record.offset)
    return part
