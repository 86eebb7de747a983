"""Secret keys, one per trust zone, and the values derived from them (PRIVACY rules 6, 9 and 10).

A key is as sensitive as the data that its noise protects, because a holder of the key can subtract the noise. So no
representation, copy, pickle or error contains its bytes, and a key file that others can read is refused.

*Encoding.* One unambiguous byte encoding of mixed values, for keys and noise addresses.

Every value is a type tag of one byte, the length of its payload as 8 bytes little-endian, and the payload. A sequence
of encoded values can be read back in exactly one way, so two different sequences never encode alike, whatever they
contain.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shlex
import stat
import struct
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NoReturn, TypeAlias

from hushstream.privacy.errors import KeyFileError, PrivacyError

Part: TypeAlias = "bytes | str | int | tuple[Part, ...] | None"
"""What can be encoded; tuples nest."""


def encode(*parts: Part) -> bytes:
    """Encode ``parts`` in order; injective over sequences of parts.

    Raises:
        PrivacyError: a part of another type (a bool too: it would encode like 0 or 1).
    """
    pieces: list[bytes] = []
    for part in parts:
        # Text is tested first, because nearly all parts are text: each user's key is derived from it.
        tag, payload = (b"s", part.encode()) if type(part) is str else _tagged(part)
        pieces += (tag, len(payload).to_bytes(8, "little"), payload)
    return b"".join(pieces)


def _tagged(part: Part) -> tuple[bytes, bytes]:
    if isinstance(part, bytes):
        return b"b", part
    if isinstance(part, str):
        return b"s", part.encode()
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i", part.to_bytes(part.bit_length() // 8 + 1, "big", signed=True)
    if part is None:
        return b"n", b""
    if isinstance(part, tuple):
        return b"t", encode(*part)
    raise PrivacyError(f"encode: expected bytes, str, int, None or a tuple of them, got {type(part).__name__}")


KEY_BYTES = 32
DIGEST_BYTES = 16
_HEX_CHARACTERS = 2 * KEY_BYTES
_LARGEST_FILE_BYTES = 1 << 20
_OTHERS_MAY_READ = stat.S_IRWXG | stat.S_IRWXO


class Key:
    """32 secret bytes. Immutable; compares in constant time; prints only its public id.

    Every derived value is an HMAC-SHA256 under a stated purpose, so two purposes never give the same value.
    """

    __slots__ = ("_digest_key", "_key_id", "_material", "_reproducible", "_set_up")

    _material: bytes
    _reproducible: bool
    _key_id: bytes | None
    _digest_key: bytes | None
    _set_up: hmac.HMAC | None

    def __init__(self, material: bytes, reproducible: bool = False) -> None:
        """Hold ``material``.

        Args:
            material: 32 bytes.
            reproducible: True for a key from a public seed; derived keys inherit it.

        Raises:
            PrivacyError: not 32 bytes.
        """
        if not isinstance(material, bytes) or len(material) != KEY_BYTES:
            got = f"{len(material)} bytes" if isinstance(material, bytes) else type(material).__name__
            raise PrivacyError(f"key: expected {KEY_BYTES} bytes, got {got}")
        object.__setattr__(self, "_material", material)
        object.__setattr__(self, "_reproducible", bool(reproducible))
        # Both values are computed at their first use: every user has a key, and most keys need neither.
        object.__setattr__(self, "_key_id", None)
        object.__setattr__(self, "_digest_key", None)
        object.__setattr__(self, "_set_up", None)

    @property
    def key_id(self) -> bytes:
        """8 public bytes that name the key and reveal nothing else about it."""
        if self._key_id is None:
            object.__setattr__(self, "_key_id", self.prf("key-id")[:8])
            assert self._key_id is not None
        return self._key_id

    @property
    def reproducible(self) -> bool:
        """True if the key comes from a seed: nothing under it is private."""
        return self._reproducible

    def prf(self, purpose: str, *parts: Part) -> bytes:
        """32 pseudorandom bytes for ``purpose`` and ``parts``: HMAC-SHA256 over their encoding."""
        return hmac.digest(self._material, _encoded_purpose(purpose) + encode(*parts), "sha256")

    def prf_encoded(self, purpose: str, encoded: bytes) -> bytes:
        """`prf` of parts that are already encoded, for many calls: only the first call sets up the key.

        The encoding of a sequence of parts is the sequence of their encodings.
        """
        if self._set_up is None:
            object.__setattr__(self, "_set_up", hmac.new(self._material, digestmod="sha256"))
            assert self._set_up is not None
        once = self._set_up.copy()
        once.update(_encoded_purpose(purpose) + encoded)
        return once.digest()

    def derive(self, purpose: str, *parts: Part) -> Key:
        """A separate key for ``purpose`` and ``parts``; nobody can derive this key from it."""
        return Key(self.prf("derive", purpose, *parts), self._reproducible)

    def digest(self, purpose: str, *chunks: bytes) -> bytes:
        """Keyed digest of a sequence of chunks (16 bytes); without the key it reveals nothing about them.

        Keyed BLAKE2b over: length of purpose, purpose, number of chunks, all lengths, all chunks. Numbers
        are 8 bytes little-endian, so different sequences never give the same input.

        Args:
            purpose: separates the uses of one key.
            chunks: any number of bytes objects; thousands of small ones are cheap.
        """
        if self._digest_key is None:
            object.__setattr__(self, "_digest_key", self.prf("digest-key"))
            assert self._digest_key is not None
        label = purpose.encode()
        head = struct.pack(f"<{len(chunks) + 2}Q", len(label), len(chunks), *map(len, chunks))
        whole = b"".join((head, label, *chunks))
        return hashlib.blake2b(whole, digest_size=DIGEST_BYTES, key=self._digest_key).digest()

    def __eq__(self, other: object) -> bool:
        """Equal material, compared in constant time."""
        if not isinstance(other, Key):
            return NotImplemented
        return hmac.compare_digest(self._material, other._material) and self._reproducible == other._reproducible

    def __hash__(self) -> int:
        """By the public id."""
        return hash(self.key_id)

    def __repr__(self) -> str:
        """The public id and, for seeded keys, the warning; never material."""
        mark = ", REPRODUCIBLE, NOT PRIVATE" if self._reproducible else ""
        return f"Key(id={self.key_id.hex()}{mark})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: a key never changes."""
        raise PrivacyError(f"key: expected no change, got an assignment to {name}")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: a key never changes."""
        raise PrivacyError(f"key: expected no change, got a deletion of {name}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a pickled key would leave its zone unnoticed."""
        raise PrivacyError("key: expected to stay in this process, got a request to pickle it")

    def __copy__(self) -> Key:
        """A key is immutable; its copy is itself."""
        return self

    def __deepcopy__(self, memo: object) -> Key:
        """A key is immutable; its copy is itself."""
        return self


@lru_cache(maxsize=64)
def _encoded_purpose(purpose: str) -> bytes:
    return encode(purpose)


def seeded_key(seed: int, zone: str) -> Key:
    """A key that anybody with the seed can make, for experiments only. All releases under it are marked as such."""
    return Key(hashlib.sha256(encode("hushstream seeded key", seed, str(zone))).digest(), reproducible=True)


def key_path(directory: str | Path, zone: str) -> Path:
    """Path of a zone's key in a key directory."""
    return Path(directory) / f"{zone}.key"


def write_key(path: str | Path) -> Key:
    """Make a new random key and write it as 64 hexadecimal digits, readable by the owner alone.

    Raises:
        KeyFileError: a file exists at ``path`` (it is never overwritten), or it cannot be written.
    """
    target = Path(path)
    material = secrets.token_bytes(KEY_BYTES)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyFileError(
            f"key file {target}: expected nothing there, got a file; keys are never overwritten"
        ) from None
    except OSError as error:
        raise KeyFileError(f"key file {target}: expected to create it, got: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(material.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # Otherwise the next attempt would find a file that is no key, and would not overwrite it.
        target.unlink()
        raise KeyFileError(f"key file {target}: expected to write it, got: {error.strerror}") from None
    return Key(material)


def read_key_file(path: str | Path) -> list[str]:
    """The lines of a key file that its owner alone can read; `hushstream.privacy.key_files` interprets them.

    Raises:
        KeyFileError: missing, no regular file, readable by group or others, or no text. The message never repeats the
            file's content.
    """
    source = Path(path)
    try:
        with source.open("rb") as file:
            _require_private(source, os.fstat(file.fileno()))
            return file.read(_LARGEST_FILE_BYTES).decode("ascii", "replace").strip().splitlines() or [""]
    except FileNotFoundError:
        command = f"hushstream keys generate {shlex.quote(str(source.parent))} --zone {source.stem}"
        raise KeyFileError(
            f"key file {source}: expected a file, got none; `{command}` makes one for a deployment that has not begun, "
            "the key of any other deployment has to be restored from its backup"
        ) from None
    except OSError as error:
        raise KeyFileError(f"key file {source}: expected to read it, got: {error.strerror}") from None


def key_from_line(source: str | Path, line: str) -> Key:
    """The key from 64 hexadecimal digits of a key file.

    Raises:
        KeyFileError: another number of characters, no such digits, or one byte repeated; never repeats them.
    """
    if len(line) != _HEX_CHARACTERS:
        raise KeyFileError(
            f"key file {source}: expected {_HEX_CHARACTERS} hexadecimal digits, got {len(line)} characters"
        )
    if not all(character in "0123456789abcdefABCDEF" for character in line):
        raise KeyFileError(f"key file {source}: expected hexadecimal digits only, got another character")
    material = bytes.fromhex(line)
    if len(set(material)) == 1:
        raise KeyFileError(f"key file {source}: expected random bytes, got one byte repeated")
    return Key(material)


def key_line(key: Key) -> str:
    """The line of a key file with ``key``. It is the only text with the key's material, and must go only into the file.

    Raises:
        KeyFileError: a key from a seed, which has no file.
    """
    if key.reproducible:
        raise KeyFileError("key file: expected a random key, got one from a seed")
    return key._material.hex()


def _require_private(source: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"key file {source}: expected a regular file, got something else")
    # Windows has no such mode bits: there the folder's access list must protect the file.
    if os.name == "posix" and status.st_mode & _OTHERS_MAY_READ:
        mode = stat.S_IMODE(status.st_mode)
        raise KeyFileError(f"key file {source}: expected mode 600 (its owner alone), got {mode:03o}; `chmod 600` it")


def generate_keys(directory: str | Path, zones: Iterable[str]) -> dict[str, Key]:
    """Write one new key per zone into ``directory`` (created for its owner alone if it is missing).

    Raises:
        KeyFileError: one of the files exists, or cannot be written, or the directory cannot be used; no key is left.
    """
    wanted = tuple(zones)
    folder = Path(directory)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFileError(f"key directory {folder}: expected a directory, got: {error.strerror}") from None
    present = [str(zone) for zone in wanted if key_path(folder, zone).exists()]
    if present:
        raise KeyFileError(
            f"key directory {folder}: expected no key of these zones, got {', '.join(present)};"
            " keys are never overwritten"
        )
    made: dict[str, Key] = {}
    try:
        for zone in wanted:
            made[zone] = write_key(key_path(folder, zone))
    except KeyFileError:
        for zone in made:
            key_path(folder, zone).unlink()
        raise
    return made
