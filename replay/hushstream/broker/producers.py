"""Sequence numbers of idempotent producers in one partition (KIP-98, KIP-360)."""

from collections import deque
from dataclasses import dataclass, field

from hushstream.broker.batches import NO_PRODUCER_ID, BatchHeader
from hushstream.broker.errors import ErrorCode, RequestRefused

# Kafka remembers as many batches a producer; a client keeps at most five requests in flight.
_REMEMBERED_BATCHES = 5
_SEQUENCE_MODULUS = 1 << 31


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch was stored; `append_time_ms` is -1 unless the topic stamps LogAppendTime."""

    base_offset: int
    append_time_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int = 0
    recent: deque[tuple[int, int, Appended]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))


class ProducerSequences:
    """Tells a new batch from a repeated one and from one out of order."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def check(self, header: BatchHeader) -> Appended | None:
        """The earlier result if this batch was already stored, None if it is to be stored now.

        A producer that the partition does not know may begin at any sequence number, as with Kafka: its
        earlier batches may have been deleted.

        Raises:
            RequestRefused: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise RequestRefused(ErrorCode.INVALID_RECORD, "a producer id without epoch or sequence number")
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the producer's epoch is {producer.epoch}, got {header.producer_epoch}",
            )
        expected = producer.next_sequence if header.producer_epoch == producer.epoch else 0
        if header.producer_epoch == producer.epoch:
            for base_sequence, count, appended in producer.recent:
                if base_sequence == header.base_sequence and count == header.record_count:
                    return appended
        if header.base_sequence != expected:
            raise RequestRefused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"expected sequence number {expected}, got {header.base_sequence}",
            )
        return None

    def record(self, header: BatchHeader, appended: Appended) -> None:
        """Remember a batch that was stored."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        producer.next_sequence = (header.base_sequence + header.record_count) % _SEQUENCE_MODULUS
        producer.recent.append((header.base_sequence, header.record_count, appended))
