"""Release marks say how far a journal has released, so that an older copy of it is recognised (PRIVACY rule 7).

If a journal was rolled back, or replaced by a new one, its role would release other data although the budget is spent,
and users would have their allowances again. So before the outputs of a journal record are sent, the worker writes a
*mark* with the record's number, which all workers of the zone can read. A worker that takes up a partition compares its
journal with the mark.

A mark has a *generation*: the number of times that an operator has accepted a refused journal. Only marks of the newest
generation count, and they name one journal. So marks of a lost history do not count against an accepted journal, even
if a suspended worker of that history appends more of them.

A mark is sealed to its zone by a synthetic initialisation vector (Rogaway and Shrimpton 2006, deterministic
authenticated encryption): the tag is a PRF of all fields, and the number is hidden under a PRF of the tag. Without a
key of the zone nobody can make a mark, or learn how many records a zone has journaled. Whether a journal has released,
and whether it has paid, is in clear, because the ledger is checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError

NEW = "new"
"""Value in place of the name of a journal that has no record yet."""

_OLDER = "the topics are an older copy"
_TAG_BYTES = 16
_NUMBER_BYTES = 8


class MarkUnreadable(HushstreamError):
    """A mark was altered, belongs to another place, or its key is not available."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a journal has released.

    Attributes:
        journal: its name.
        sequence: the last record whose outputs may have been sent; 0 if the journal has only begun.
        generation: number of times that an operator had accepted a refused journal.
        accepted: whether it is the mark of such a decision.
        paid: whether the journal has sent an entry of a ledger.
    """

    journal: str
    sequence: int
    generation: int = 0
    accepted: bool = False
    paid: bool = False


class MarkSeal:
    """Packs and opens the marks of one home partition of a role."""

    def __init__(self, deployment: str, role: str, partition: int, ring: KeyRing) -> None:
        """Seal under the current key of the zone's key file; open marks under any of its keys."""
        self._place = (deployment, role, partition)
        self._ring = ring

    def pack(self, mark: Mark) -> bytes:
        """The record of a mark."""
        key = self._ring.of(self._ring.current)
        tag = self._tag(key, mark)
        fields = {
            **_public_fields(mark, *self._place),
            "key_id": key.key_id,
            "sealed": _hidden(key, tag, mark.sequence.to_bytes(_NUMBER_BYTES, "little")),
            "tag": tag,
        }
        return codec.encode("ReleaseMark", fields)

    def unpack(self, value: bytes) -> Mark | None:
        """Open the record of a mark; None for one under a key that was destroyed.

        A key is destroyed only after its journals have rotated to the next one (`hushstream keys retire`). Every
        rotation is marked, also one without a release. So there is a higher mark under a later key for every mark under
        a destroyed key.

        Raises:
            MarkUnreadable: it is no mark, it was altered, it belongs to another place, or its key is not available.
        """
        fields = _fields(value, self._place)
        try:
            key = self._ring.named(fields["key_id"])
        except RetiredKey:
            return None
        except KeyFileError as error:
            raise MarkUnreadable(f"expected a mark under a key of this zone's key file: {error}") from None
        number = int.from_bytes(_hidden(key, fields["tag"], fields["sealed"]), "little")
        mark = Mark(fields["journal"], number, fields["generation"], fields["accepted"], fields["paid"])
        if not compare_digest(self._tag(key, mark), fields["tag"]):
            raise MarkUnreadable("expected a mark as it was sealed, got altered content")
        return mark

    def _tag(self, key: Key, mark: Mark) -> bytes:
        flags = (int(mark.accepted), int(mark.paid))
        made = key.prf("release-mark", *self._place, mark.journal, mark.generation, *flags, mark.sequence)
        return made[:_TAG_BYTES]


@dataclass(frozen=True, slots=True)
class ReleaseEvidence:
    """What marks, commits and other signs say about the releases of a home partition, without its journal.

    Attributes:
        shared: the marks in the zone's topic.
        noted: those on this worker's disk.
        committed: what was sent according to the group's commits: up to which record of which journal, in which
            generation.
        signs: other signs that something was released or folded, in words; they count only if there is no mark.
    """

    shared: tuple[Mark, ...] = ()
    noted: tuple[Mark, ...] = ()
    signs: tuple[str, ...] = ()
    committed: tuple[Mark, ...] = ()

    @property
    def generation(self) -> int:
        """The newest known generation."""
        return max((mark.generation for mark in self.shared), default=0)

    @property
    def next_generation(self) -> int:
        """The generation of a journal that an operator accepts now. No mark of it exists yet."""
        return max((mark.generation for mark in (*self.shared, *self.noted, *self.committed)), default=0) + 1

    def knows(self, journal: str) -> bool:
        """Whether a journal is the one that marks name."""
        return any(mark.journal == journal for mark in self._newest(self.shared))

    def highest(self, journal: str) -> int:
        """The last record whose outputs a journal may have sent; 0 if none is known."""
        return _highest(journal, self._newest((*self.shared, *self.noted, *self.committed)))

    def highest_shared(self, journal: str) -> int:
        """The same from the zone's topic alone."""
        return _highest(journal, self._newest(self.shared))

    def paid(self, journal: str) -> bool:
        """Whether a journal has sent an entry of a ledger."""
        return any(mark.paid for mark in self.shared if mark.journal == journal)

    def accepted_at(self, journal: str) -> int | None:
        """The record behind which an operator last accepted a journal; None if nobody did.

        An epoch that was requested there stays requested until the journal holds the record that opens it
        (`hushstream.engine.noise.epoch_budget`), whatever is released before.
        """
        accepted = [m.sequence for m in self._newest(self.shared) if m.accepted and m.journal == journal]
        return max(accepted, default=None)

    def incarnations(self, before: int) -> int:
        """Number of generations before ``before`` that have paid.

        Each is an incarnation that may be lost with its journal.

        A generation without a readable mark counts: its marks are lost, or under a destroyed key.
        """
        return sum(self._has_paid(generation) for generation in range(before))

    def _has_paid(self, generation: int) -> bool:
        marks = [mark for mark in self.shared if mark.generation == generation]
        begun = {mark.journal: mark.sequence for mark in marks if mark.accepted}
        return not marks or any(mark.paid and mark.sequence > begun.get(mark.journal, 0) for mark in marks)

    def suspicion(self, journal: str | None, sequence: int) -> str:
        """Why a worker must refuse to continue a journal, in words; empty if it may continue it.

        Args:
            journal: its name; None for a journal without a record.
            sequence: its last record; 0 if it has only begun.
        """
        if any(not self.shared or mark.generation > self.generation for mark in self.noted):
            return "this worker's disk holds marks that the topic lacks: the topics are an older copy, or were emptied"
        if any(mark.generation > self.generation for mark in self.committed):
            return f"the group has committed work of a generation that the topic of marks lacks: {_OLDER}"
        others = {mark.journal for mark in (*self._newest(self.shared), *self._newest(self.noted))} - {journal}
        if others:
            return f"another journal has released here ({', '.join(sorted(others))}), so this one is not the newest"
        if journal is not None and self.knows(journal):
            return self._behind(journal, sequence)
        if sequence:
            return "it has records, but the topic of marks holds none of it, so the topic was emptied or replaced"
        return "; ".join(self.signs)

    def _behind(self, journal: str, sequence: int) -> str:
        marked = _highest(journal, self._newest((*self.shared, *self.noted)))
        if marked > sequence:
            return f"it ends at record {sequence}, but a release was sent with record {marked}: {_OLDER}"
        committed = _highest(journal, self._newest(self.committed))
        if committed > sequence:
            return f"it ends at record {sequence}, but the group has committed all up to record {committed}: {_OLDER}"
        return ""

    def _newest(self, marks: Iterable[Mark]) -> list[Mark]:
        return [mark for mark in marks if mark.generation == self.generation]


def _highest(journal: str, marks: Iterable[Mark]) -> int:
    return max((mark.sequence for mark in marks if mark.journal == journal), default=0)


def read_public(value: bytes, deployment: str, role: str, partition: int) -> Mark:
    """The public part of a mark, for readers without the zone's key. The number of the record is 0 in it.

    Raises:
        MarkUnreadable: it is no mark, or says that it belongs to another place.
    """
    fields = _fields(value, (deployment, role, partition))
    return Mark(fields["journal"], 0, fields["generation"], fields["accepted"], fields["paid"])


def _fields(value: bytes, place: tuple[str, str, int]) -> dict[str, Any]:
    try:
        _, fields = codec.decode(value, frozenset({"ReleaseMark"}))
    except CodecError as error:
        raise MarkUnreadable(f"expected a release mark, got something else ({error.reason})") from None
    found = (fields["deployment"], fields["role"], fields["partition"])
    if found != place:
        raise MarkUnreadable(f"expected a mark of {_named(place)}, got one of {_named(found)}")
    return fields


def _public_fields(mark: Mark, deployment: str, role: str, partition: int) -> dict[str, object]:
    return {
        "deployment": deployment,
        "role": role,
        "partition": partition,
        "journal": mark.journal,
        "generation": mark.generation,
        "accepted": mark.accepted,
        "paid": mark.paid,
    }


def _hidden(key: Key, tag: bytes, number: bytes) -> bytes:
    """Encrypt a number, or decrypt it."""
    pad = key.prf("release-mark-number", tag)
    return bytes(one ^ other for one, other in zip(number, pad, strict=False))


def _named(place: tuple[str, str, int]) -> str:
    deployment, role, partition = place
    return f"deployment {deployment!r}, role {role}, partition {partition}"
