"""A role's state as it is published for whoever owns the partition next: cut into parts, sealed to its zone.

A worker's disk stays with the worker, and inputs are deleted after days: so a partition whose state lies on one disk
alone could not be taken up anywhere else. What is published is a copy of a snapshot, which is taken only behind an
acknowledged journal record: it is never ahead of the journal, and an older one is always safe to go on from. Its head
names the very record that it ends with, so that a state of a lost branch is known for what it is (`Head.record`).

The parts of a publication are sealed under a key of their own (ChaCha20-Poly1305; from the zone's key, the place and a
random name of the publication), numbered, and bound to their place: whoever has no key of the zone can read none, and
can make no publication out of parts of several. What they see is the size, filled up (`padded`), and the time. Who can
write the topic can put an older, whole publication back; the journal says what follows on it, so that costs time alone.
Beside the head lies a *checkpoint*, which says where a check may begin (`hushstream.engine.journal.checkpoints`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hushstream.engine.state.packed import Form
from hushstream.engine.state.parts import array, record
from hushstream.privacy.encoding import encode
from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError

PART_BYTES = 256 * 1024
"""Of a part: what else waits for the producer meanwhile waits a few milliseconds."""

SLOTS = 3
"""Publications of one partition that a broker keeps: the newest, the one before, and the one that is being written.

Each goes over the oldest. An owner that slept in the midst of a publication, and goes on with it, damages one slot: the
newest whole one of its successor, or an older one.
"""

HEAD = -1
"""In the place of a part's number: the head, which is sent when all parts are acknowledged."""

CHECKPOINT = -2
"""In the place of a part's number: what a check may begin with (`hushstream.engine.journal.checkpoints`)."""

PUBLIC_RING = KeyRing(0, 0, (), seeded_key(0, "published state"))
"""Of a role without a key, which holds public values alone: damage is found, and nothing is hidden."""

NAME_BYTES = 16
"""Of a publication: random, so that no two share one."""

_NAMED = {HEAD: "head", CHECKPOINT: "checkpoint"}
_RECORD_BYTES = 16
_DIGEST_BYTES = 32
_LEAST_STEP_BYTES = 4096
_FORM = Form.of(
    "the head of a published state",
    1,
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
    """Part of a published state was altered, is another's, or is under a key that is not at hand."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a published state is, and where its parts lie.

    Attributes:
        slot: which of the `SLOTS` it was written to.
        sequence: the last journal record that the state contains.
        folded: how many input records it contains, over all its inputs: a window may be open behind that record.
        journal_offset: where the journal goes on after that record.
        genesis: the journal's first record.
        record: `record_digest` of the last journal record.
        parts: how many.
        size: of all parts, in bytes.
        digest: of what the parts come to.
        first_offset: of the first part.
        slots: how many parts each slot may hold now, this one among them: what a smaller state has to put out.
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
        """How far the state has come: of two of one journal, the newer one is at the higher place."""
        return self.sequence, self.folded


@dataclass(frozen=True, slots=True)
class Part:
    """An opened part of a publication."""

    publication: bytes
    number: int
    content: bytes

    def head(self) -> Head:
        """What a head says.

        Raises:
            HushstreamError: it is not of this release.
        """
        return Head(**_FORM.read(self.content))


class Assembly:
    """The parts of one publication, taken in the order in which they were sent; whatever else comes is passed over."""

    def __init__(self, publication: bytes, head: Head) -> None:
        """Expect what a head says of the publication of this name."""
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
        """Whether as many parts came as the head names."""
        return self._number == self._head.parts

    @property
    def flaw(self) -> str:
        """Why what came is not the state that the head names; empty where it is."""
        if self.full and self._hasher.digest() == self._head.digest:
            return ""
        return f"expected {self._head.parts} parts of a state, got {self._number} that belong together"


def state_hasher() -> blake2b:
    """Of all parts of a published state, one after the other: `Head.digest`."""
    return blake2b(digest_size=_DIGEST_BYTES, person=b"hush-published")


def padded(size: int) -> int:
    """What a state of so many bytes is filled up to: its size follows from content, and the broker sees it.

    To whole eighths of the power of two below, and 4 KiB at least.
    """
    step = max(_LEAST_STEP_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def slot_key(slot: int, number: int) -> bytes:
    """The record key of a part in a slot."""
    return f"{slot}/{_NAMED.get(number, number)}".encode()


def record_digest(value: bytes) -> bytes:
    """16 bytes that stand for a journal record."""
    return blake2b(value, digest_size=_RECORD_BYTES, person=b"hush-state-rec").digest()


class StateSeal:
    """Packs and opens the published states of one home partition of a role."""

    def __init__(self, deployment: str, role: str, partition: int, ring: KeyRing) -> None:
        """Under the current key of the zone's key file; what is under any key that is kept is opened."""
        self._place = (deployment, role, partition)
        self._ring = ring

    def pack(self, publication: bytes, number: int, content: bytes) -> bytes:
        """The record of a part.

        Args:
            publication: its name, `NAME_BYTES` at random; a part of one number is packed once under it.
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
            StateUnreadable: it is none, one of another place, was altered, or its key is not at hand.
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
    """One part of each number is sealed under the key of a publication."""
    return number.to_bytes(12, "little", signed=True)
