"""What a learner sends beside its decisions: padded slots, forwarded phase ends, and interactions of public data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hushstream.engine.catalogue import Catalogue
from hushstream.engine.devices.sealing import SlotPlace
from hushstream.engine.journal.chain import Encode
from hushstream.engine.records import Output
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.systems.p2b.contribution.sealed import seal
from hushstream.systems.p2b.edge.choosing import Interaction
from hushstream.systems.p2b.edge.terms import Slot
from hushstream.systems.p2b.guarantee.deployment import TRACKS, P2BSystem

_RECORD_ROOM = 4096
"""Bytes of an interactions record beside its columns."""


class TakenSlot(NamedTuple):
    """A slot whose content is fixed, the report period in which that happened, and the key of its user."""

    slot: Slot
    period: int
    user_key: Key


def slot_outputs(system: P2BSystem, taken: Sequence[TakenSlot], phase: int, encode: Encode) -> Iterator[Output]:
    """The records of slots, in the order of their ids, which is keyed: it tells nothing of who came first.

    The partition follows from the id likewise, the log's key is null, and all records have one size; how they travel
    (no headers, one client id, one producer) is the driver's part. What nobody can hide here is when a batch of slots
    came: whoever reads contexts as well knows whose slots were due then, and their part of the answer is the size of
    that group. In the non-private arm of an experiment on public data the same interactions follow in clear.
    """
    ordered = sorted(taken, key=lambda item: item.slot.report_id)
    for item in ordered:
        shuffler = int.from_bytes(item.slot.report_id[:8], "little") % system.config.partitions.shuffler
        yield Output("reports", shuffler, _slot_record(system, item, encode))
    if system.non_private_arm:
        known = [(slot.report_id, slot.interaction) for slot, _, _ in ordered if slot.interaction is not None]
        yield from _interaction_outputs(system, known, phase, encode)


def _slot_record(system: P2BSystem, taken: TakenSlot, encode: Encode) -> bytes:
    """A slot as it travels; sealed to the shuffler where the deployment says so."""
    slot = taken.slot
    place = SlotPlace(slot.report_id, taken.period.to_bytes(8, "little"), system.digest)
    if system.sealing is None:
        return encode(system.form.slot_record, {**place._asdict(), "content": slot.content})
    sealed = seal(slot.content, place, system.sealing.at(taken.period), taken.user_key)
    return encode("SealedSlot", {**place._asdict(), "sealed": sealed})


def item_rows_outputs(system: P2BSystem, catalogue: Catalogue, encode: Encode) -> Iterator[Output]:
    """What the rows of sums stand for, for every shuffler."""
    rows = {"catalogue": catalogue.version, "entries": catalogue.entries.astype("<i4").tobytes()}
    value = encode("ItemRows", {**rows, "config_digest": system.digest})
    for shuffler in range(system.config.partitions.shuffler):
        yield Output("reports", shuffler, value)


def phase_end_outputs(system: P2BSystem, origin: int, phase: int, encode: Encode) -> Iterator[Output]:
    """The phase end of a learner partition, for every shuffler and for the track that reads raw interactions."""
    fields = {"phase": phase, "origin": origin, "config_digest": system.digest, "after_click": -1}
    value = encode("Seal", fields)
    for shuffler in range(system.config.partitions.shuffler):
        yield Output("reports", shuffler, value)
    if system.non_private_arm:
        yield Output("interactions", TRACKS.index("nonprivate"), value)


def _interaction_outputs(
    system: P2BSystem, known: Sequence[tuple[bytes, Interaction]], phase: int, encode: Encode
) -> Iterator[Output]:
    """As many records as it takes: a phase end may owe the slots of any number of users at once.

    Interactions of two batches may be alike; the digest of the report ids tells a repeat of one from another.
    """
    dimension = system.config.context.dimension
    rows = max(1, (codec.MAX_VALUE_BYTES - _RECORD_ROOM) // (4 * dimension + 4 + 8))
    for first in range(0, len(known), rows):
        ids, part = zip(*known[first : first + rows], strict=True)
        fields = {
            "phase": phase,
            "dimension": dimension,
            "contexts": np.array([i.context for i in part], "<f4").tobytes(),
            "arms": np.array([i.arm for i in part], "<i4").tobytes(),
            "rewards": np.array([i.reward for i in part], "<f8").tobytes(),
            "batch_id": hashlib.blake2b(b"".join(ids), digest_size=16, person=b"interactions").digest(),
        }
        yield Output("interactions", TRACKS.index("nonprivate"), encode("Interactions", fields))
