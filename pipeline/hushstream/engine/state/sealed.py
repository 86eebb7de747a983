"""Seals what a worker writes to disk under its zone's storage key: snapshots, spilled users, states to be published.

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
