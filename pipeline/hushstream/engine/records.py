"""What drivers move in and out of machines: records of logs, ranges of them, and what a fold gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.schemas.errors import HushstreamError

TopicPartition = tuple[str, int]
"""A logical topic name (without the deployment's prefix) and a partition number."""

PART = "ReleasePart"
"""The schema of a part."""

MODEL_PARTS = "model-parts"
"""The topic of parts of models, whose journal is a topic of their own; parts of other releases lie where these lie."""


class InputRecord(NamedTuple):
    """One record of an input log, as the broker stored it."""

    offset: int
    timestamp_ms: int
    value: bytes


class InputSlice(NamedTuple):
    """All records of one input partition with ``low <= offset < high``, in offset order.

    Offsets may have holes (a broker may use offsets for its own control records): ``high`` is the next
    offset to read, not ``low + len(records)``.
    """

    topic: str
    partition: int
    low: int
    high: int
    records: Sequence[InputRecord]


class Output(NamedTuple):
    """One record to send. ``partition`` is always chosen by the machine; ``key`` is None or public."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None = None


class InputRange(NamedTuple):
    """The part of one input log that a journal record covers: ``low <= offset < high``."""

    topic: str
    partition: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What a driver must know of a journal record to apply the chain rule and to find its inputs."""

    sequence: int
    """0 for the genesis record, then 1, 2, ... without a gap."""
    inputs: tuple[InputRange, ...]
    """Empty for the genesis record."""
    schema_generation: int = FIRST_GENERATION
    """In which it and what follows from it are written (`hushstream.schemas.catalogue`)."""
    input_digest: bytes = b""
    """Of the records in these ranges; empty for the genesis record."""
    key_rotated: bool = False
    """Whether the machine is under another key behind it than that of its digests."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one fold produced.

    ``journal`` is None when nothing has to be written ahead (a shuffler that only filled its window); such
    a step has no releases, but it may have dead letters.
    """

    journal: bytes | None
    releases: tuple[Output, ...] = ()
    """Sent only after ``journal`` was acknowledged at the expected offset; deterministic bytes and order."""
    dead_letters: tuple[Output, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many events had which outcome, by names from a fixed list (`hushstream.engine.declare.outcomes`)."""
    key_rotated: bool = False
    """Whether the journal record rotates the key. It is then marked as a release is, even if nothing was released."""


class ReplayMismatch(HushstreamError):
    """The inputs do not give again what the journal says was released; nothing may be sent."""


class FollowsModels(Protocol):
    """What a driver asks of a reader of published models (`hushstream.engine.learner.models.ModelReader`).

    Attributes:
        position: where it reads on.
        published_ms: log time of the newest version, as far as it is known.
        foreign: (offset, bytes) of the last records that were skipped as no chain holds them.
    """

    topic: TopicPartition
    position: int
    published_ms: int
    foreign: deque[tuple[int, int]]

    def is_last(self, value: bytes) -> bool:
        """Whether a record is the last one on the chain that was read."""


class OffChain(HushstreamError):
    """A journal record does not continue the chain (a foreign or repeated append); readers skip it."""


class Awaited(NamedTuple):
    """What a record that is held back waits for."""

    at: int
    """Its own offset, in the first of the inputs."""
    source: TopicPartition
    offset: int
    """Of the record of ``source`` that must come first."""
    until_ms: int
    """A record of ``source`` of a later log time shows that this one never comes."""
