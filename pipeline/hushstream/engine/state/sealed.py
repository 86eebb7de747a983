"""What a worker writes to disk is sealed under its zone's storage key: snapshots, spilled users, states on their way.

Everything is sealed with ChaCha20-Poly1305 (RFC 8439). A *writer* draws 16 random bytes, its salt, when it is made, and
seals under a key that follows from the storage key, the purpose, the home partition and that salt. Its nonces count up
from 0.

**No key and nonce serve two contents.** Within a writer the count never repeats. No other writer has its key: a
process that is started again, also after a crash in the middle of a write, makes a writer with another salt, and never
goes on with an old one. Two of 2^32 writers of one partition draw the same salt with a chance of 2^-65. The noise of
the zone is drawn under other keys: the storage key is one of its own (`hushstream.privacy.key_files`), and where an
operator has not made it yet, each key is a PRF of the zone's key, whose purpose ``storage`` is used nowhere else.

**What is opened is what was sealed there.** A file of another deployment, role, partition, purpose or key does not
open. Neither does content that was altered, a spilled user's content in another's row, or a snapshot that lacks a
piece. An older file of the same partition does open: the journal says what follows on it. So does an older row of
the same spilled user in a newer file, whatever follows on that: to bind each row to a snapshot's number would seal
every row anew with every snapshot. Who can put one back can write to the worker's disk (PRIVACY.md says what it costs).

Who reads the disk without the key sees sizes and times, and of spilled users how many they are, the keyed digest of
each one's name, and the log time at which each was last seen.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hushstream.privacy.encoding import encode
from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.schemas.errors import HushstreamError

SALT_BYTES = 16
"""Of a writer: random."""

SEALED_MAGIC = b"hushstream-sealed-1\n"
"""A sealed file begins with it."""

PIECE_BYTES = 16 * 1024 * 1024
"""Of a file, sealed at a time: its sealed form never lies in memory whole."""

_KEY_ID_BYTES = 8
_NUMBER_BYTES = 8
_NONCE_BYTES = 12
_HEAD_BYTES = _KEY_ID_BYTES + SALT_BYTES
_FRAME = struct.Struct("<I")
_WRITERS_KNOWN = 256


class SealBroken(HushstreamError):
    """Something on disk was altered, is another partition's, or is under a key that is not at hand."""


class Writer:
    """Seals any number of contents for one purpose. Threads may share it: each call takes a number of its own."""

    def __init__(self, cipher: ChaCha20Poly1305, head: bytes) -> None:
        """Count from 0, under a key that no other writer has."""
        self._cipher = cipher
        self._head = head
        self._numbers = count()

    def seal(self, content: bytes, bound: bytes = b"") -> bytes:
        """The content, sealed.

        Args:
            content: at most 2 GiB.
            bound: must be given again to open it; it is not in what is returned.
        """
        number = next(self._numbers).to_bytes(_NUMBER_BYTES, "little")
        return self._head + number + self._cipher.encrypt(_nonce(number), content, bound)


class StorageSeal:
    """Seals and opens what one home partition of a role has on disk."""

    def __init__(self, deployment: str, role: str, partition: int, ring: KeyRing) -> None:
        """Seal under the current key of the zone; open under any key that the zone keeps."""
        self._place = (deployment, role, partition)
        self._ring = ring
        self._ciphers: dict[tuple[str, bytes], ChaCha20Poly1305] = {}

    def writer(self, purpose: str, salt: bytes) -> Writer:
        """A writer for one purpose.

        Args:
            purpose: what is sealed; what one purpose sealed, another does not open.
            salt: `SALT_BYTES` at random, drawn for this writer alone.
        """
        if len(salt) != SALT_BYTES:
            raise HushstreamError(f"salt of a writer: expected {SALT_BYTES} bytes, got {len(salt)}")
        head = self._ring.of(self._ring.current).key_id + salt
        return Writer(self._cipher(purpose, head), head)

    def open(self, purpose: str, sealed: bytes, bound: bytes = b"") -> bytes:
        """What `Writer.seal` was given.

        Raises:
            SealBroken: it was altered, is of another place, purpose or ``bound``, or its key is not at hand.
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
        """A sealed file, in pieces to be written one after the other."""
        writer, total = self.writer("file", salt), max(1, -(-len(content) // PIECE_BYTES))
        yield SEALED_MAGIC
        for index in range(total):
            piece = content[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
            sealed = writer.seal(piece, _place_of(index, total))
            yield _FRAME.pack(len(sealed)) + sealed

    def unpack_file(self, content: bytes) -> bytes:
        """What a sealed file holds.

        Raises:
            SealBroken: as `open`; or it is not whole.
        """
        pieces = _framed(content)
        return b"".join(self.open("file", piece, _place_of(index, len(pieces))) for index, piece in enumerate(pieces))

    def is_other_key(self, content: bytes) -> bool:
        """Whether a sealed file is under another key than the zone's current one."""
        place = len(SEALED_MAGIC) + _FRAME.size
        return content[place : place + _KEY_ID_BYTES] != self._ring.of(self._ring.current).key_id

    def _known(self, purpose: str, head: bytes) -> ChaCha20Poly1305:
        """The cipher of a writer, kept for the next of its contents."""
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
    """Which piece of how many: a file that lacks one, or has two in each other's place, does not open."""
    return encode(index, total)


def _nonce(number: bytes) -> bytes:
    return number.ljust(_NONCE_BYTES, b"\0")
