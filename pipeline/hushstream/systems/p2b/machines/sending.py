"""The outputs of a learner besides decisions: padded slots, forwarded phase ends, and interactions of public data."""

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
from hushstream.systems.p2b.edge.terms import Interaction, Slot
from hushstream.systems.p2b.guarantee.deployment import TRACKS, P2BSystem

_RECORD_ROOM = 4096
"""Bytes of an interactions record without its columns."""


class TakenSlot(NamedTuple):
    """A slot whose content is fixed, the report period in which that happened, and the key of its user."""

    slot: Slot
    period: int
    user_key: Key


def slot_outputs(system: P2BSystem, taken: Sequence[TakenSlot], phase: int, encode: Encode) -> Iterator[Output]:
    """The records of slots in the order of their ids. The ids are keyed, so the order does not show who came first.

    The partition also follows from the id, the record key is null, and all records have one size. The driver provides
    the rest (no headers, one client id, one producer). The time of a batch of slots cannot be hidden here: whoever also
    reads contexts knows whose slots were due then, so a slot hides only among the slots of its batch. In the
    non-private arm of an experiment on public data, the same interactions follow in clear.
    """
    ordered = sorted(taken, key=lambda item: item.slot.report_id)
    for item in ordered:
        shuffler = int.from_bytes(item.slot.report_id[:8], "little") % system.config.partitions.shuffler
        yield Output("reports", shuffler, _slot_record(system, item, encode))
    if system.non_private_arm:
        known = [(slot.report_id, slot.interaction) for slot, _, _ in ordered if slot.interaction is not None]
        yield from _interaction_outputs(system, known, phase, encode)


def _slot_record(system: P2BSystem, taken: TakenSlot, encode: Encode) -> bytes:
    """The record of a slot, sealed to the shuffler if the deployment seals slots."""
    slot = taken.slot
    place = SlotPlace(slot.report_id, taken.period.to_bytes(8, "little"), system.digest)
    if system.sealing is None:
        return encode(system.form.slot_record, {**place._asdict(), "content": slot.content})
    sealed = seal(slot.content, place, system.sealing.at(taken.period), taken.user_key)
    return encode("SealedSlot", {**place._asdict(), "sealed": sealed})


def item_rows_outputs(system: P2BSystem, catalogue: Catalogue, encode: Encode) -> Iterator[Output]:
    """The record that says which items the rows of sums stand for, for every shuffler."""
    rows = {"catalogue": catalogue.version, "entries": catalogue.entries.astype("<i4").tobytes()}
    value = encode("ItemRows", {**rows, "config_digest": system.digest})
    for shuffler in range(system.config.partitions.shuffler):
        yield Output("reports", shuffler, value)


def phase_end_outputs(system: P2BSystem, origin: int, phase: int, encode: Encode) -> Iterator[Output]:
    """The phase end of a learner partition, for every shuffler, and for the non-private track if there is one."""
    fields = {"phase": phase, "origin": origin, "config_digest": system.digest, "after_click": -1}
    value = encode("Seal", fields)
    for shuffler in range(system.config.partitions.shuffler):
        yield Output("reports", shuffler, value)
    if system.non_private_arm:
        yield Output("interactions", TRACKS.index("nonprivate"), value)


def _interaction_outputs(
    system: P2BSystem, known: Sequence[tuple[bytes, Interaction]], phase: int, encode: Encode
) -> Iterator[Output]:
    """The interactions in as many records as needed: at a phase end, slots of any number of users leave at once.

    Two batches may hold equal interactions. The digest of the report ids distinguishes a new batch from a repeated one.
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
