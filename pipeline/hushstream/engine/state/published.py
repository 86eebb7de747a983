"""A role's state as it is published for the next owner of the partition: in parts, sealed to its zone.

A worker's disk stays with the worker, and inputs are deleted after days. So without a published state no other worker
could take up the partition. The published state is a copy of a snapshot, which is taken only after a journal record was
acknowledged. So it is never ahead of the journal, and a worker can safely go on from an older one. Its head holds a
digest of its last journal record, so that readers recognise a state of a lost branch (`Head.record`).

The parts of a publication are sealed under a key of their own (ChaCha20-Poly1305; from the zone's key, the place and a
random name of the publication), numbered, and bound to their place: without a key of the zone nobody can read them, or
combine parts of several publications. An observer sees the padded size (`padded`) and the time. Anybody with write
access to the topic can put back an older, complete publication; the journal has all later records, so this only costs
time. Beside the head is a *checkpoint*, at which a check may begin (`hushstream.engine.journal.notes`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hushstream.engine.state.declared import array, record
from hushstream.engine.state.packed import Form
from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import encode, seeded_key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError

PART_BYTES = 256 * 1024
"""Size of a part. While it is sent, other records of the producer wait for a few milliseconds."""

SLOTS = 3
"""Publications of one partition that a broker keeps: the newest, the one before, and the one that is being written.

Each one overwrites the oldest. A former owner that was suspended during a publication and continues it damages one
slot, at worst the newest complete one of its successor.
"""

HEAD = -1
"""Part number of the head, which is sent after all parts were acknowledged."""

CHECKPOINT = -2
"""Part number of the checkpoint (`hushstream.engine.journal.notes`)."""

PUBLIC_RING = KeyRing(0, 0, (), seeded_key(0, "published state"))
"""Keys of a role without a key, whose values are all public. Damage is found, and nothing is encrypted."""

NAME_BYTES = 16
"""Size of the random name of a publication, so that no two have the same."""

_NAMED = {HEAD: "head", CHECKPOINT: "checkpoint"}
_RECORD_BYTES = 16
_DIGEST_BYTES = 32
_LEAST_STEP_BYTES = 4096
_FORM = Form.of(
    "the head of a published state",
    record(
        "StateHead",
        slot="int",
        sequence="long",
        folded="long",
        journal_offset="long",
        genesis="bytes",
        record="bytes",
        parts="int",
        size="long",
        digest="bytes",
        first_offset="long",
        slots=array("int"),
    ),
)


class StateUnreadable(HushstreamError):
    """Part of a published state was altered, belongs to another place, or its key is not available."""


@dataclass(frozen=True, slots=True)
class Head:
    """The description of a published state, and the position of its parts.

    Attributes:
        slot: which of the `SLOTS` it was written to.
        sequence: the last journal record that the state contains.
        folded: number of folded input records, over all its inputs; a window may be open behind the last journal
            record.
        journal_offset: offset of the journal behind that record.
        genesis: the journal's first record.
        record: `record_digest` of the last journal record.
        parts: number of parts.
        size: of all parts, in bytes.
        digest: of the joined parts.
        first_offset: of the first part.
        slots: largest number of parts that each slot may hold now, also this one: a smaller state must delete the rest.
    """

    slot: int
    sequence: int
    folded: int
    journal_offset: int
    genesis: bytes
    record: bytes
    parts: int
    size: int
    digest: bytes
    first_offset: int
    slots: list[int]

    @property
    def place(self) -> tuple[int, int]:
        """The position of the state: of two states of one journal, the newer one is higher."""
        return self.sequence, self.folded


@dataclass(frozen=True, slots=True)
class Part:
    """An opened part of a publication."""

    publication: bytes
    number: int
    content: bytes

    def head(self) -> Head:
        """Decode a head.

        Raises:
            HushstreamError: it is not of this release.
        """
        return Head(**_FORM.read(self.content))


class Assembly:
    """Joins the parts of one publication in the order in which they were sent; other records are skipped."""

    def __init__(self, publication: bytes, head: Head) -> None:
        """Expect the publication of this name, with the parts that its head describes."""
        self._publication = publication
        self._head = head
        self._hasher = state_hasher()
        self._number = 0

    def take(self, part: Part) -> bytes:
        """The content of the next part; empty for every other."""
        if (part.publication, part.number) != (self._publication, self._number):
            return b""
        self._number += 1
        self._hasher.update(part.content)
        return part.content

    @property
    def full(self) -> bool:
        """Whether all parts have come."""
        return self._number == self._head.parts

    @property
    def flaw(self) -> str:
        """Why the joined parts are not the state of the head, in words; empty if they are."""
        if self.full and self._hasher.digest() == self._head.digest:
            return ""
        return f"expected {self._head.parts} parts of a state, got {self._number} that belong together"


def state_hasher() -> blake2b:
    """Hasher of all parts of a published state, in order, for `Head.digest`."""
    return blake2b(digest_size=_DIGEST_BYTES, person=b"hush-published")


def padded(size: int) -> int:
    """The size to which a state is padded.

    Its own size depends on content, and the broker sees the size of records. Sizes are whole eighths of the power of
    two below, and at least 4 KiB.
    """
    step = max(_LEAST_STEP_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def slot_key(slot: int, number: int) -> bytes:
    """The record key of a part in a slot."""
    return f"{slot}/{_NAMED.get(number, number)}".encode()


def record_digest(value: bytes) -> bytes:
    """Digest of a journal record (16 bytes)."""
    return blake2b(value, digest_size=_RECORD_BYTES, person=b"hush-state-rec").digest()


class StateSeal:
    """Packs and opens the published states of one home partition of a role."""

    def __init__(self, deployment: str, role: str, partition: int, ring: KeyRing) -> None:
        """Seal under the current key of the zone's key file; open under any of its keys."""
        self._place = (deployment, role, partition)
        self._ring = ring

    def pack(self, publication: bytes, number: int, content: bytes) -> bytes:
        """The record of a part.

        Args:
            publication: its random name of `NAME_BYTES` bytes; each part number is packed once under it.
            number: of the part, or `HEAD`.
            content: at most `PART_BYTES`.
        """
        key = self._ring.of(self._ring.current)
        deployment, role, partition = self._place
        sealed = self._cipher(key.key_id, publication).encrypt(_nonce(number), content, self._bound(number))
        fields = {
            "deployment": deployment, "role": role, "partition": partition, "publication": publication,
            "number": number, "key_id": key.key_id, "sealed": sealed,
        }  # fmt: skip
        return codec.encode("StatePart", fields)

    def pack_head(self, publication: bytes, head: Head) -> bytes:
        """The record of a head."""
        return self.pack(publication, HEAD, _FORM.write(asdict(head)))

    def unpack(self, value: bytes) -> Part:
        """Open the record of a part.

        Raises:
            StateUnreadable: it is no such record, it belongs to another place, it was altered, or its key is not
                available.
        """
        try:
            _, fields = codec.decode(value, frozenset({"StatePart"}))
        except CodecError as error:
            raise StateUnreadable(f"expected part of a state, got something else ({error.reason})") from None
        found = (fields["deployment"], fields["role"], fields["partition"])
        if found != self._place:
            raise StateUnreadable(
                "expected part of a state of {}/{}/{}, got one of {}/{}/{}".format(*self._place, *found)
            )
        number = fields["number"]
        try:
            cipher = self._cipher(fields["key_id"], fields["publication"])
            content = cipher.decrypt(_nonce(number), fields["sealed"], self._bound(number))
        except KeyFileError as error:
            raise StateUnreadable(f"expected a state under a key of this zone's key file: {error}") from None
        except InvalidTag:
            raise StateUnreadable("expected part of a state as it was sealed, got altered content") from None
        return Part(fields["publication"], number, content)

    def _cipher(self, key_id: bytes, publication: bytes) -> ChaCha20Poly1305:
        key = self._ring.named(key_id)
        return ChaCha20Poly1305(key.prf("published-state", *self._place, publication))

    def _bound(self, number: int) -> bytes:
        return encode(*self._place, number)


def _nonce(number: int) -> bytes:
    """The nonce of a part. Each part number is sealed once under the key of a publication."""
    return number.to_bytes(12, "little", signed=True)
