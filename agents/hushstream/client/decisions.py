"""Reading the decisions journal from outside, by the chain rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, cast

import numpy as np

from hushstream.client.journals import JournalReader
from hushstream.schemas.records import Decisions

_POLICIES: tuple[Literal["model", "baseline", "repeated"], ...] = ("model", "baseline", "repeated")


class Answer(NamedTuple):
    """One row of a decisions record."""

    event_id: str
    arm: int
    propensity: int
    policy: Literal["model", "baseline", "repeated"]
    model_version: int


class DecisionReader:
    """Follows one partition's decisions: a record counts only if it continues the chain (`JournalReader`)."""

    def __init__(self) -> None:
        """Start without a place."""
        self._journal = JournalReader("Decisions")

    def read(self, offset: int, value: bytes) -> Iterator[Answer]:
        """Yield the answers of the record at ``offset``; nothing when it is off the chain or no decisions."""
        for counted in self._journal.read(offset, value):
            yield from _answers(cast(Decisions, counted))


_COLUMNS: tuple[tuple[Literal["arms", "propensities", "model_versions"], str], ...] = (
    ("arms", "<i4"),
    ("propensities", "<u4"),
    ("model_versions", "<i4"),
)


def _answers(record: Decisions) -> Iterator[Answer]:
    if not _sound(record):
        return
    columns = [np.frombuffer(record[name], kind).tolist() for name, kind in _COLUMNS]
    for event_id, policy, arm, propensity, version in zip(
        record["event_ids"], record["policies"], *columns, strict=True
    ):
        yield Answer(event_id, arm, propensity, _POLICIES[policy], version)


def _sound(record: Decisions) -> bool:
    """Whether the columns agree."""
    rows = len(record["event_ids"])
    lengths = (len(record["policies"]), *(len(record[name]) for name, _ in _COLUMNS))
    return lengths == (rows, 4 * rows, 4 * rows, 4 * rows) and max(record["policies"], default=0) < len(_POLICIES)
