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
        marks: the store of release marks; None for a role without marks.
        states: the store of published states; None for a role that publishes none.
        observe: called as ``observe(stage, partition, sequence)`` at each step of the protocol.
        end_offsets: asks the broker for the current ends of input logs.
        fetched_end: gives the end of an input log at its last fetch; None if it is not known.
        read_journal: reads (offset, value) of a journal from an offset to its end.
        notify_capacity: tells the fetcher that a buffer was emptied.
        foreign: counts the records of the journal that belong to no chain.
        lost: called when the partition cannot go on, with the reason.
        saved: when the state of each partition was last saved, by `clock`; it outlives the partition's drivers.
        clock: gives seconds, which may begin at any time and only go forward.
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
