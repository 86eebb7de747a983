"""The functions that a worker gives to the driver of a home partition."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hushstream.agents.observe.metrics import Metrics
from hushstream.agents.partition.input_ends import EndOffsets
from hushstream.agents.recovery.foreign import ForeignRecords
from hushstream.agents.recovery.journal import Sender
from hushstream.agents.recovery.marks import ReleaseMarks
from hushstream.agents.recovery.recovery import Observe
from hushstream.agents.recovery.snapshots import SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Tools:
    """What a driver needs from its worker.

    Attributes:
        marks: how far journals have released; None for a role that needs none.
        states: where snapshots are published; None where there is nowhere.
        observe: called as ``observe(stage, partition, sequence)`` at each step of the protocol.
        end_offsets: where input logs end now.
        fetched_end: where an input log ended when it was last fetched; None where that is not known.
        read_journal: reads (offset, value) of a journal from an offset to its end.
        notify_capacity: tells the fetcher that a buffer was emptied.
        foreign: told of records of the journal that no chain holds.
        lost: told when the partition cannot go on, with the reason.
        saved: when the state of a partition was saved last, by `clock`: it outlasts the drivers of the partition.
        clock: in seconds, from any time on; it only goes forward.
    """

    settings: WorkerSettings
    sender: Sender
    snapshots: SnapshotStore
    marks: ReleaseMarks | None
    states: PublishedStates | None
    metrics: Metrics
    observe: Observe
    end_offsets: EndOffsets
    fetched_end: Callable[[TopicPartition], int | None]
    read_journal: Callable[[TopicPartition, int], Awaitable[list[tuple[int, bytes]]]]
    notify_capacity: Callable[[], None]
    lost: Callable[[int, BaseException], None]
    foreign: ForeignRecords = field(default_factory=ForeignRecords)
    saved: dict[int, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
