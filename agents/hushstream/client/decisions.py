"""Reading the decisions journal from outside, by the chain rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from hushstream.schemas import codec
from hushstream.schemas.records import JournalHead

_POLICIES: tuple[Literal["model", "baseline", "repeated"], ...] = ("model", "baseline", "repeated")


class Answer(NamedTuple):
    """One row of a decisions record."""

    event_id: str
    arm: int
    propensity: int
    policy: Literal["model", "baseline", "repeated"]
    model_version: int


class DecisionReader:
    """Follows one partition's decisions: a record counts only if it continues the chain.

    A reader that starts in the middle of the log takes the first record as its place. A record with a higher
    sequence number than expected moves it on (retention may have taken what lies between); one with a lower
    number, or with other lows, was written by a worker that no longer owned the partition.
    """

    def __init__(self) -> None:
        """Start without a place."""
        self._sequence = -1
        self._highs: dict[tuple[str, int], int] = {}

    def read(self, value: bytes) -> Iterator[Answer]:
        """Yield the answers of one record; nothing when it is off the chain or is the genesis record."""
        name, record = codec.decode(value, frozenset({"Decisions", "Genesis"}))
        if name == "Genesis":
            self._sequence = max(self._sequence, 0)
            return
        if not self._continues(record["head"]):
            return
        arms = np.frombuffer(record["arms"], "<i4")
        propensities = np.frombuffer(record["propensities"], "<u4")
        versions = np.frombuffer(record["model_versions"], "<i4")
        for row, event_id in enumerate(record["event_ids"]):
            yield Answer(
                event_id,
                int(arms[row]),
                int(propensities[row]),
                _POLICIES[record["policies"][row]],
                int(versions[row]),
            )

    def _continues(self, head: JournalHead) -> bool:
        sequence = head["sequence"]
        ranges = head["inputs"]
        if self._sequence >= 0 and sequence <= self._sequence:
            return False
        if sequence == self._sequence + 1:
            for part in ranges:
                high = self._highs.get((part["topic"], part["partition"]))
                if high is not None and high != part["low"]:
                    return False
        self._sequence = sequence
        for part in ranges:
            self._highs[part["topic"], part["partition"]] = part["high"]
        return True
