"""One journaled batch: which input a journal record covers, how it is written, and how a replay compares.

Every role writes its journal here, and every replay is compared here: the record that was read must follow from the
inputs that it names, but for floats that another processor rounds in another way, where a role allows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushstream.engine.journal.chain import Chain
from hushstream.engine.journal.digests import digest_outputs
from hushstream.engine.journal.generations import generation_of
from hushstream.engine.records import InputRange, InputSlice, Output, ReplayMismatch, TopicPartition


@dataclass(frozen=True, slots=True)
class Batch:
    """A range of input, and what a role made of it.

    Attributes:
        inputs: what the journal record covers.
        input_digest: of the records in it (16 bytes).
        fields: of the journal record, beside its head.
        outputs: what is sent once the record stands.
        epoch: of the noise.
    """

    inputs: Sequence[InputRange]
    input_digest: bytes
    fields: Mapping[str, Any]
    outputs: tuple[Output, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Rounding:
    """Which fields of a record may differ by a rounding; what the journal holds stands then.

    Attributes:
        floats: numbers and packed arrays of them, by field, with their numpy types.
        margin: relative, and absolute, difference that they may have.
        digests: fields that are digests of such arrays, so that they differ where those do.
    """

    floats: Mapping[str, str] = field(default_factory=dict)
    margin: float = 0.0
    digests: tuple[str, ...] = ()

    def allows(self, name: str, again: Any, journaled: Any) -> bool:
        """Whether two values of a field count as equal."""
        if name in self.digests:
            return True
        if name not in self.floats:
            return False
        ours, theirs = (_array(value, self.floats[name]) for value in (again, journaled))
        return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=self.margin, atol=self.margin)


EXACT = Rounding()
"""Nothing may differ."""


def ranges_of(slices: Iterable[InputSlice]) -> tuple[InputRange, ...]:
    """The ranges that slices cover."""
    return tuple(InputRange(s.topic, s.partition, s.low, s.high) for s in slices)


def covered(positions: Mapping[TopicPartition, int], slices: Sequence[InputSlice]) -> dict[TopicPartition, InputSlice]:
    """One slice for every input in one order, empty ones included.

    A journal record so names the whole watermark: a reader without the key sees from the lows alone whether
    it continues what they have read.
    """
    given = {(part.topic, part.partition): part for part in slices}
    return {
        place: given.get(place) or InputSlice(*place, low=position, high=position, records=())
        for place, position in sorted(positions.items())
    }


def record_of(chain: Chain, batch: Batch, sequence: int) -> dict[str, Any]:
    """The fields of the journal record ``sequence``, which covers a batch."""
    head = {
        "sequence": sequence,
        "epoch": batch.epoch,
        "inputs": [part._asdict() for part in batch.inputs],
        "input_digest": batch.input_digest,
        "release_digest": digest_outputs(chain.digester, batch.outputs),
        "edition": chain.schema_generation,
    }
    return {"head": head, **batch.fields}


def append(chain: Chain, batch: Batch) -> bytes:
    """Write the journal record of a batch, and advance by it."""
    return chain.append(record_of(chain, batch, chain.sequence + 1))


class Replayed:
    """A journal record that is replayed.

    Attributes:
        fields: what it holds.
    """

    def __init__(self, chain: Chain, value: bytes, positions: Mapping[TopicPartition, int]) -> None:
        """See `replaying`."""
        self.fields = chain.check(value, positions)
        self._chain = chain
        self._positions = positions
        self._value: bytes | None = value

    def follow(self, batch: Batch, rounding: Rounding = EXACT) -> bytes:
        """Advance by the record, which is given back, if a batch gives it again.

        Raises:
            ReplayMismatch: it does not, or the record has been followed before; the chain is unchanged.
        """
        value = self._value
        if value is None:
            raise _mismatch(self._chain, self.fields, "end")
        again = record_of(self._chain, batch, self._chain.sequence + 1)
        require_same(self._chain, again, self.fields, rounding)
        self._chain.accept(value, self._positions)
        self._value = None
        return value

    def require_followed(self) -> None:
        """Refuse the end of a replay that did not give the record.

        Raises:
            ReplayMismatch: it did not.
        """
        if self._value is not None:
            raise _mismatch(self._chain, self.fields, "end")


def require_same(
    chain: Chain, again: Mapping[str, Any], journaled: Mapping[str, Any], rounding: Rounding = EXACT
) -> None:
    """Compare what a replay gives with the fields of the journal record that it follows.

    Raises:
        ReplayMismatch: a field is another one, and not by a rounding that is allowed.
    """
    ours, theirs = (_flat(chain.written(one)) for one in (again, journaled))
    for name in ours:
        if ours[name] != theirs[name] and not rounding.allows(name, ours[name], theirs[name]):
            raise _mismatch(chain, journaled, name)


def _mismatch(chain: Chain, journaled: Mapping[str, Any], name: str) -> ReplayMismatch:
    topic, partition = chain.identity.journal
    sequence = journaled["head"]["sequence"]
    return ReplayMismatch(
        f"{topic}/{partition} record {sequence}: its inputs give another record ({name} differs); nothing is sent"
    )


@contextmanager
def replaying(chain: Chain, value: bytes, positions: Mapping[TopicPartition, int]) -> Iterator[Replayed]:
    """Replay a journal record: all that is written meanwhile is in its schema generation, as it was when it was sent.

    Args:
        chain: of the journal.
        value: the record.
        positions: the journaled watermark: where the lows of the record must begin.

    Raises:
        OffChain: the record does not continue the chain.
    """
    with generation_of(chain, value):
        yield Replayed(chain, value, positions)


def _flat(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**fields["head"], **{name: value for name, value in fields.items() if name != "head"}}


def _array(value: Any, kind: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(value, kind) if isinstance(value, bytes) else np.array([value], kind)
