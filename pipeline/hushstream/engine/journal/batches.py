"""One journal record for one batch: which input it covers, its head, and whether a replay gives it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hushstream.engine.journal.chain import Chain, head_fields, ranges_of
from hushstream.engine.journal.digests import Digester, digest_outputs, digest_records
from hushstream.engine.records import InputSlice, Output, ReplayMismatch, TopicPartition


def covered(positions: Mapping[TopicPartition, int], slices: Sequence[InputSlice]) -> list[InputSlice]:
    """One slice for every input in one order, empty ones included.

    A journal record so names the whole watermark: a reader without the key sees from the lows alone whether
    it continues what they have read.
    """
    given = {(part.topic, part.partition): part for part in slices}
    return [
        given.get(place, InputSlice(*place, low=position, high=position, records=()))
        for place, position in sorted(positions.items())
    ]


def head_of(
    chain: Chain,
    digester: Digester,
    sequence: int,
    epoch: int,
    covered: Sequence[InputSlice],
    releases: Sequence[Output],
) -> dict[str, Any]:
    """The head of the journal record ``sequence``, which covers these slices and stands for these releases."""
    inputs, outputs = digest_records(digester, covered), digest_outputs(digester, releases)
    return head_fields(sequence, epoch, ranges_of(covered), inputs, outputs, chain.schema_generation)


def require_same(chain: Chain, again: Mapping[str, Any], journaled: Mapping[str, Any]) -> None:
    """Compare what a replay gives with the fields of the journal record that it follows.

    Raises:
        ReplayMismatch: a field is another.
    """
    ours, theirs = chain.written(again), chain.written(journaled)
    for name in ours:
        if ours[name] != theirs[name]:
            topic, partition = chain.identity.journal
            raise ReplayMismatch(f"{topic}/{partition} record {chain.sequence}: its inputs give another {name}")
