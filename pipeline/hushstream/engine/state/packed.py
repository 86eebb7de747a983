"""The packed state of a machine: a digest, a fingerprint of its form and one Avro value.

The digest is checked first, so that damage is found.

*Known ids.* Every id that was ever counted in a partition, so that nothing is counted twice.

An id may never be forgotten. An edge that is restored from an older copy may repeat slot numbers at any later time, and
a role that died between its release and its commit sends its records again. So ids are kept for the life of a
deployment, with 8 bytes for each. A snapshot holds 0.8 MB for 100,000 ids and 8 MB for a million; memory holds a
quarter more, and up to four times as much while ids are merged.

**Half an id is enough.** Privacy needs no more: equal ids have equal halves, so a repeat is always found. A new id may
be mistaken for a known one. Ids are digests under a key, so the probability that two halves of n ids agree is at most
n^2 / 2^65 (the union bound over n(n - 1)/2 pairs of 64-bit values): 2.8e-8 in all for a million ids of a partition.
Then one slot or reward is lost, independently of its content, because ids do not depend on content.

*Sealed.* Seals what a worker writes to disk under its zone's storage key: snapshots, spilled users, states to be
published.

Everything is sealed with ChaCha20-Poly1305 (RFC 8439). A new *writer* draws a salt of 16 random bytes. It seals under a
key that is derived from the storage key, the purpose, the home partition and the salt. Its nonces count up from 0.

**No pair of key and nonce is used twice.** Within a writer the count never repeats. No other writer has the same key:
after a restart, also after a crash during a write, a process makes a writer with a new salt and never continues an old
one. Among 2^32 writers of one partition, two draw the same salt with probability 2^-65. The noise of the zone is drawn
under other keys. The storage key is a separate key (`hushstream.privacy.key_files`). If an operator has not made it
yet, each key is a PRF of the zone's key with the purpose ``storage``, which is used nowhere else.

**Only content that was sealed for the same place opens.** A file of another deployment, role, partition, purpose or key
does not open. Neither does altered content, the content of one spilled user in the row of another, or a snapshot
without one of its pieces. An older file of the same partition does open; the journal has all later records. An older
row of the same spilled user in a newer file opens, too. (To bind each row to a snapshot's number, every snapshot would
have to seal every row again.) Only somebody with write access to the worker's disk can put back an older row;
PRIVACY.md says what it costs. A reader of the disk without the key sees sizes and times, the number of spilled users,
the keyed digest of each name, and the log time at which each user was last seen.
"""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice
from typing import Any, NamedTuple, TypeVar

import fastavro
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import encode
from hushstream.schemas.errors import HushstreamError

Packed = TypeVar("Packed")

_DIGEST_BYTES = 16
_FINGERPRINT_BYTES = 4

PORTION_ITEMS = 256
PORTION_BYTES = 1 << 16
"""Bytes of array items that are packed in one step, about: this takes well below a millisecond."""


class OtherForm(HushstreamError):
    """The state is intact, but in the form of another release. The worker must read the journal instead."""


class _Part(NamedTuple):
    """One field of a state: the schema of a record with this field alone, which has the same encoding as the field."""

    name: str
    is_array: bool
    schema: Any


@dataclass(frozen=True, slots=True)
class Form:
    """How a state is packed.

    Attributes:
        what: names the state in errors.
        fingerprint: of the schema; a state that was packed under another schema is told by it.
        schema: the parsed Avro schema.
        parts: the same for each field, in order.
    """

    what: str
    fingerprint: bytes
    schema: Any
    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, what: str, schema: dict[str, Any]) -> Form:
        """A form from a schema that is not parsed yet."""
        known: dict[str, Any] = {}
        parts = []
        for field in schema["fields"]:
            alone = {"type": "record", "name": f"{schema['name']}_{field['name']}", "fields": [field]}
            is_array = isinstance(field["type"], dict) and field["type"]["type"] == "array"
            parts.append(_Part(field["name"], is_array, fastavro.parse_schema(alone, known)))
        written = json.dumps(schema, sort_keys=True).encode()
        fingerprint = hashlib.blake2b(written, digest_size=_FINGERPRINT_BYTES, person=b"hush-form").digest()
        return cls(what, fingerprint, fastavro.parse_schema(schema), tuple(parts))

    def write(self, state: dict[str, Any]) -> bytes:
        """Pack a state."""
        stream = BytesIO()
        stream.write(self.fingerprint)
        fastavro.schemaless_writer(stream, self.schema, state)
        value = stream.getvalue()
        return _digest(value) + value

    def portions(self, state: Mapping[str, Any]) -> Generator[None, None, bytes]:
        """Pack a state in steps; the last step returns the packed state, which `read` unpacks.

        Args:
            state: as for `write`; the value of an array may be any iterable, which is consumed while it is packed.
        """
        pieces = [self.fingerprint]
        hasher = _hasher()
        hasher.update(pieces[0])
        for part in self.parts:
            for piece in _pieces(part, state[part.name]):
                hasher.update(piece)
                pieces.append(piece)
                yield
        return b"".join((hasher.digest(), *pieces))

    def read(self, packed: bytes) -> dict[str, Any]:
        """Unpack a state.

        Raises:
            HushstreamError: other or damaged bytes.
            OtherForm: intact, and of another form.
        """
        value = packed[_DIGEST_BYTES:]
        if _digest(value) != packed[:_DIGEST_BYTES]:
            raise HushstreamError(f"snapshot: expected {self.what}, got damaged bytes")
        if value[:_FINGERPRINT_BYTES] != self.fingerprint:
            raise OtherForm(f"snapshot: expected the present form of {self.what}, got a state of another form")
        stream = BytesIO(value[_FINGERPRINT_BYTES:])
        try:
            state: Any = fastavro.schemaless_reader(stream, self.schema, None)
        except (EOFError, IndexError, ValueError, OverflowError, MemoryError) as error:
            raise HushstreamError(f"snapshot: expected {self.what}, got another one ({type(error).__name__})") from None
        if stream.read(1) or not isinstance(state, dict):
            raise HushstreamError(f"snapshot: expected {self.what}, got another one")
        return state


def _pieces(part: _Part, value: Any) -> Iterator[bytes]:
    """Encode a field in pieces: Avro writes an array as blocks of items, and ends it with an empty block."""
    if not part.is_array:
        yield _written(part, value)
        return
    end = _written(part, [])
    items = iter(value)
    count = 1
    while block := list(islice(items, count)):
        piece = _written(part, block).removesuffix(end)
        yield piece
        count = max(1, min(PORTION_ITEMS, len(block) * PORTION_BYTES // len(piece)))
    yield end


def _written(part: _Part, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, part.schema, {part.name: value})
    return stream.getvalue()


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"hush-state")


def _digest(value: bytes) -> bytes:
    hasher = _hasher()
    hasher.update(value)
    return hasher.digest()


def finished(portions: Generator[None, None, Packed]) -> Packed:
    """Run all portions without a pause, and return the result."""
    while True:
        try:
            next(portions)
        except StopIteration as end:
            packed: Packed = end.value
            return packed


ID_BYTES = 16

_SECOND = ID_BYTES // 2
"""Where the second half of an id begins. The first half also selects the partition, so within a partition it is less
random."""
_COUNT_BYTES = 8
_HALF = np.dtype("u8")
_YOUNG_AT_LEAST = 1024
_YOUNG_SHARE = 16
_RUN_BITS = 3


class KnownIds:
    """A growing set of ids.

    Halves are in one sorted array. New ones are in a set, and are merged into the array when their number reaches 1/16
    of it (and at least 1,024). So each half takes part in about 16 merges. An index holds the beginning of each run of
    equal first bits, so a search looks at about 8 halves.
    """

    __slots__ = ("_merged", "_shift", "_starts", "_view", "_young")

    def __init__(self) -> None:
        """Begin with none."""
        self._young: set[int] = set()
        self._keep(np.empty(0, _HALF))

    def __len__(self) -> int:
        """Number of ids."""
        return len(self._merged) + len(self._young)

    def __contains__(self, report_id: bytes) -> bool:
        """Whether an id of `ID_BYTES` bytes was added."""
        return self._knows(int.from_bytes(report_id[_SECOND:], "little"))

    def add(self, report_id: bytes) -> bool:
        """Add an id; returns whether it is new."""
        half = int.from_bytes(report_id[_SECOND:], "little")
        if self._knows(half):
            return False
        self._young.add(half)
        if len(self._young) >= max(_YOUNG_AT_LEAST, len(self._merged) // _YOUNG_SHARE):
            self._keep(self._all())
            self._young = set()
        return True

    def joined(self, other: KnownIds) -> KnownIds:
        """The ids of both."""
        made = KnownIds()
        made._keep(np.union1d(self._all(), other._all()))
        return made

    def dump(self) -> bytes:
        """The set as bytes; equal sets give equal bytes."""
        return len(self).to_bytes(_COUNT_BYTES, "little") + self._all().tobytes()

    @classmethod
    def load(cls, dumped: bytes) -> KnownIds:
        """Restore the set that `dump` wrote.

        Raises:
            HushstreamError: not such bytes.
        """
        count = int.from_bytes(dumped[:_COUNT_BYTES], "little")
        if len(dumped) != _COUNT_BYTES + count * _HALF.itemsize:
            raise HushstreamError(f"ids: expected {count} of {_HALF.itemsize} bytes, got {len(dumped)} bytes")
        merged = np.frombuffer(dumped, _HALF, offset=_COUNT_BYTES)
        if (merged[1:] <= merged[:-1]).any():
            raise HushstreamError("ids: expected them in ascending order, got another one")
        known = cls()
        known._keep(merged)
        return known

    def _knows(self, half: int) -> bool:
        if half in self._young:
            return True
        run = half >> self._shift
        end = self._starts[run + 1]
        place = bisect_left(self._view, half, self._starts[run], end)
        return place < end and self._view[place] == half

    def _keep(self, merged: NDArray[np.uint64]) -> None:
        bits = max(1, len(merged).bit_length() - _RUN_BITS)
        self._merged = merged
        # Python takes single numbers from a view and an array faster than from numpy.
        self._view = merged.data
        self._shift = 8 * _HALF.itemsize - bits
        firsts = np.arange(1 << bits, dtype=_HALF) << np.uint64(self._shift)
        self._starts = array("q", [*np.searchsorted(merged, firsts).tolist(), len(merged)])

    def _all(self) -> NDArray[np.uint64]:
        young = np.sort(np.fromiter(self._young, _HALF, len(self._young)))
        # Stable sorting finds the two runs and merges them.
        return np.sort(np.concatenate([self._merged, young]), kind="stable")


SALT_BYTES = 16
"""Size of a writer's random salt."""

SEALED_MAGIC = b"hushstream-sealed-1\n"
"""First bytes of a sealed file."""

PIECE_BYTES = 16 * 1024 * 1024
"""Size of the pieces in which a file is sealed, so that its sealed form is never in memory as a whole."""

_KEY_ID_BYTES = 8
_NUMBER_BYTES = 8
_NONCE_BYTES = 12
_HEAD_BYTES = _KEY_ID_BYTES + SALT_BYTES
_FRAME = struct.Struct("<I")
_WRITERS_KNOWN = 256


class SealBroken(HushstreamError):
    """A file was altered, belongs to another partition, or its key is not available."""


class Writer:
    """Seals any number of contents for one purpose. Threads may share it: each call takes its own nonce."""

    def __init__(self, cipher: ChaCha20Poly1305, head: bytes) -> None:
        """Begin at nonce 0, under a key that no other writer has."""
        self._cipher = cipher
        self._head = head
        self._numbers = count()

    def seal(self, content: bytes, bound: bytes = b"") -> bytes:
        """Seal content.

        Args:
            content: at most 2 GiB.
            bound: associated data, which is needed to open it; it is not part of the result.
        """
        number = next(self._numbers).to_bytes(_NUMBER_BYTES, "little")
        return self._head + number + self._cipher.encrypt(_nonce(number), content, bound)


class StorageSeal:
    """Seals and opens the files of one home partition of a role."""

    def __init__(self, deployment: str, role: str, partition: int, ring: KeyRing) -> None:
        """Seal under the current key of the zone; open under any key that the zone keeps."""
        self._place = (deployment, role, partition)
        self._ring = ring
        self._ciphers: dict[tuple[str, bytes], ChaCha20Poly1305] = {}

    def writer(self, purpose: str, salt: bytes) -> Writer:
        """A writer for one purpose.

        Args:
            purpose: what is sealed; content of one purpose does not open under another.
            salt: `SALT_BYTES` random bytes for this writer alone.
        """
        if len(salt) != SALT_BYTES:
            raise HushstreamError(f"salt of a writer: expected {SALT_BYTES} bytes, got {len(salt)}")
        head = self._ring.of(self._ring.current).key_id + salt
        return Writer(self._cipher(purpose, head), head)

    def open(self, purpose: str, sealed: bytes, bound: bytes = b"") -> bytes:
        """Open what `Writer.seal` sealed.

        Raises:
            SealBroken: it was altered, it belongs to another place, purpose or ``bound``, or its key is not available.
        """
        head, number = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES : _HEAD_BYTES + _NUMBER_BYTES]
        if len(number) != _NUMBER_BYTES:
            raise SealBroken(f"expected sealed content, got {len(sealed)} bytes")
        try:
            return self._known(purpose, head).decrypt(_nonce(number), sealed[_HEAD_BYTES + _NUMBER_BYTES :], bound)
        except KeyFileError as error:
            raise SealBroken(f"expected content under a key of this zone's key file: {error}") from None
        except InvalidTag:
            raise SealBroken("expected content as it was sealed for this partition, got altered content") from None

    def pack_file(self, salt: bytes, content: bytes) -> Iterator[bytes]:
        """Seal a file, in pieces to be written in order."""
        writer, total = self.writer("file", salt), max(1, -(-len(content) // PIECE_BYTES))
        yield SEALED_MAGIC
        for index in range(total):
            piece = content[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
            sealed = writer.seal(piece, _place_of(index, total))
            yield _FRAME.pack(len(sealed)) + sealed

    def unpack_file(self, content: bytes) -> bytes:
        """Open a sealed file.

        Raises:
            SealBroken: as `open`; or pieces are missing.
        """
        pieces = _framed(content)
        return b"".join(self.open("file", piece, _place_of(index, len(pieces))) for index, piece in enumerate(pieces))

    def is_other_key(self, content: bytes) -> bool:
        """Whether a sealed file is under another key than the zone's current one."""
        place = len(SEALED_MAGIC) + _FRAME.size
        return content[place : place + _KEY_ID_BYTES] != self._ring.of(self._ring.current).key_id

    def _known(self, purpose: str, head: bytes) -> ChaCha20Poly1305:
        """The cipher of a writer, cached for its next content."""
        found = self._ciphers.get((purpose, head))
        if found is None:
            if len(self._ciphers) >= _WRITERS_KNOWN:
                self._ciphers = {}
            found = self._ciphers[purpose, head] = self._cipher(purpose, head)
        return found

    def _cipher(self, purpose: str, head: bytes) -> ChaCha20Poly1305:
        key_id, salt = head[:_KEY_ID_BYTES], head[_KEY_ID_BYTES:]
        return ChaCha20Poly1305(self._ring.named(key_id).prf("storage", purpose, *self._place, salt))


def _framed(content: bytes) -> list[bytes]:
    if not content.startswith(SEALED_MAGIC):
        raise SealBroken("expected a sealed file, got something else")
    pieces, place = [], len(SEALED_MAGIC)
    while place + _FRAME.size <= len(content):
        (size,) = _FRAME.unpack_from(content, place)
        place += _FRAME.size
        pieces.append(content[place : place + size])
        place += size
    if not pieces or place != len(content):
        raise SealBroken("expected a whole sealed file, got part of one")
    return pieces


def _place_of(index: int, total: int) -> bytes:
    """Index of a piece and number of pieces, so that a file with missing or exchanged pieces does not open."""
    return encode(index, total)


def _nonce(number: bytes) -> bytes:
    return number.ljust(_NONCE_BYTES, b"\0")
