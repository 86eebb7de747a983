"""What drivers move in and out of machines: records of logs, ranges of them, and results of a fold."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hushstream.schemas.errors import HushstreamError

TopicPartition = tuple[str, int]
"""A logical topic name (without the deployment's prefix) and a partition number."""

PART = "ReleasePart"
"""The schema of a part."""

MODEL_PARTS = "model-parts"
"""The topic of parts of models. Parts of other releases are on the topic of the release itself."""


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
    """The fields of a journal record that a driver needs to apply the chain rule and to find its inputs."""

    sequence: int
    """0 for the genesis record, then 1, 2, ... without a gap."""
    inputs: tuple[InputRange, ...]
    """Empty for the genesis record."""
    input_digest: bytes = b""
    """Digest of the records in these ranges; empty for the genesis record."""
    key_rotated: bool = False
    """Whether the record rotates the key: later digests are under another one."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one fold.

    ``journal`` is None if no journal record is due (for instance while a shuffler's window fills). Such a step has no
    releases, but may have dead letters.
    """

    journal: bytes | None
    releases: tuple[Output, ...] = ()
    """Sent only after ``journal`` was acknowledged at the expected offset; deterministic bytes and order."""
    dead_letters: tuple[Output, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of events by outcome, with names from a fixed list (`hushstream.engine.declare.outcomes`)."""
    key_rotated: bool = False
    """Whether the journal record rotates the key. It is then marked as a release is, even if nothing was released."""


class ReplayMismatch(HushstreamError):
    """The inputs give other releases than the journal says; nothing may be sent."""


class FollowsModels(Protocol):
    """What a driver uses of a reader of published models (`hushstream.engine.learner.model_parts.ModelReader`).

    Attributes:
        position: next offset to read.
        published_ms: log time of the newest version, if known.
        foreign: (offset, bytes) of the last records that were skipped because they are on no chain.
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
    """Offset of the waiting record, in the first input."""
    source: TopicPartition
    offset: int
    """Offset of the record of ``source`` that must come first."""
    until_ms: int
    """A record of ``source`` of a later log time shows that this one never comes."""
