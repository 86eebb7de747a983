"""A learner's slots on their way into the log, with each rule of unlinkability as a switch.

The learner is the real machine, the batches are made by the client library that the worker uses and stamped by the
embedded broker's own code; in between stands what `hushstream.agents.kafka.stream.Stream.send` does (whose real output
`test_raw_log` reads from real segments). A rule that is switched off is one named change to that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from hushstream.broker.batches import stamp
from hushstream.engine.records import Output
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of

Rule = Literal["key", "headers", "partition", "timestamp", "order", "client", "producer"]

CLIENT_ID = "hushstream"
ONE_PRODUCER = 4000
TOPIC = "reports"


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose slot it is, which the relay knows and must not tell."""

    user: str
    number: int
    due_ms: int


@dataclass(slots=True)
class Relay:
    """Writes slots as the worker does, but for the rule that is off.

    Attributes:
        sender_of: by report id.
        partitions: of the slots' topic.
        off: the rule that is broken.
    """

    sender_of: Callable[[bytes], Sender]
    partitions: int
    off: Rule | None = None
    segments: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    clients: dict[bytes, str] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _sequences: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def send(self, outputs: Iterable[Output], now_ms: int) -> None:
        """Append one step's slots: as many records a batch as one producer has for one partition."""
        slots = [(output, codec.decode(output.value)[1]["report_id"]) for output in outputs]
        if self.off == "order":
            slots.sort(key=lambda item: self.sender_of(item[1]).due_ms)
        batches: dict[tuple[int, int], list[tuple[int, Output, bytes]]] = defaultdict(list)
        for place, (output, report_id) in enumerate(slots):
            sender = self.sender_of(report_id)
            partition = output.partition
            if self.off == "partition":
                partition = partition_of(sender.user, self.partitions)
            producer = ONE_PRODUCER + sender.number if self.off == "producer" else ONE_PRODUCER
            # Records are handed to the producer one after the other, some twenty in a millisecond.
            batches[producer, partition].append((now_ms + place // 20, output, report_id))
        for (producer, partition), rows in batches.items():
            self._append(producer, partition, rows, now_ms)

    def _append(self, producer: int, partition: int, rows: Sequence[tuple[int, Output, bytes]], now_ms: int) -> None:
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=False, producer_id=producer, producer_epoch=0,
            base_sequence=self._sequences[producer, partition], batch_size=1 << 20,
        )  # fmt: skip
        for offset, (sent_ms, output, report_id) in enumerate(rows):
            sender = self.sender_of(report_id)
            key = sender.user.encode() if self.off == "key" else output.key
            headers = [("user", sender.user.encode())] if self.off == "headers" else []
            created_ms = sender.due_ms if self.off == "timestamp" else sent_ms
            assert builder.append(offset, created_ms, key, output.value, headers) is not None
            self.clients[report_id] = f"{CLIENT_ID}-{sender.user}" if self.off == "client" else CLIENT_ID
        end = self._ends[partition]
        self.segments[TOPIC, partition].append(stamp(bytes(builder.build()), end, now_ms + 1))
        self._ends[partition] += len(rows)
        self._sequences[producer, partition] += len(rows)
