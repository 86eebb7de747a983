"""A zone's key file: a one-way ratchet over key epochs, key rotation, and keys that are destroyed for ever (rule 9).

The key of epoch e+1 is derived from that of epoch e, and nobody can derive the other direction. So the key of the
oldest kept epoch gives all later ones. After the keys up to epoch N were destroyed, nobody can derive them, or their
noise, again.

The file is readable by its owner alone. Each line has one fact::

    64 hexadecimal digits       the key of the oldest epoch that is kept
    epochs OLDEST CURRENT       left out as long as both are 0
    retired EPOCH KEYID         one line for each destroyed key, with its public id

So the file that `keys.write_key` makes is the file of epoch 0.

A zone has a second file, with its storage key. Workers seal under it what they write to disk, and their published
states (`StorageRing`). It is an independent random key, because the two keys are destroyed at different times. A zone's
key is destroyed so that nobody can derive old releases again. If states were sealed under a key derived from it, they
would be lost with it. If the storage key were derived once for ever, everything that was ever sealed would stay
readable while the zone exists. So a storage key has its own epochs. After its rotation, workers seal their files again.
After its old key was retired, no old disk, backup or published state opens any more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.keys import Key, key_from_line, key_line, key_path, read_key_file

LARGEST_EPOCH = 1 << 20
"""Each step is one HMAC. A key that rotates once a minute reaches this epoch after two years."""

_KEY_ID_HEX = 16


def next_key(key: Key, epoch: int) -> Key:
    """Derive the key of ``epoch`` from the key of the epoch before it; nobody can derive the other direction."""
    return key.derive("epoch-ratchet", epoch)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The content of a zone's key file.

    Attributes:
        oldest: first epoch whose key is kept.
        current: epoch of the key in use.
        retired: public ids of destroyed keys, by epoch.
        key: the key of epoch ``oldest``.
    """

    oldest: int
    current: int
    retired: tuple[tuple[int, bytes], ...]
    key: Key

    def of(self, epoch: int) -> Key:
        """The key of one epoch.

        Raises:
            RetiredKey: it was destroyed.
            KeyFileError: the zone has not reached this epoch yet.
        """
        if epoch < self.oldest:
            raise RetiredKey(
                f"key of epoch {epoch}: expected one that is kept ({self.oldest} to {self.current}), got one that"
                " was retired; what was released under it can no longer be derived again by anyone"
            )
        if epoch > self.current:
            raise KeyFileError(f"key of epoch {epoch}: expected an epoch up to the current one ({self.current})")
        return self.kept()[epoch - self.oldest]

    def kept(self) -> tuple[Key, ...]:
        """The keys of all epochs that are kept, oldest first."""
        keys = [self.key]
        for step in range(self.oldest + 1, self.current + 1):
            keys.append(next_key(keys[-1], step))
        return tuple(keys)

    def named(self, key_id: bytes) -> Key:
        """The key with a public id, for instance the first key of a journal, or the key of sealed content.

        Raises:
            RetiredKey: it was destroyed.
            KeyFileError: it is no key of this zone.
        """
        for epoch, retired in self.retired:
            if retired == key_id:
                return self.of(epoch)
        for key in self.kept():
            if key.key_id == key_id:
                return key
        raise KeyFileError(
            f"key {key_id.hex()}: expected a key of epochs {self.oldest} to {self.current} of this file, got another;"
            " use the keys that the journal was begun with"
        )


@dataclass(frozen=True, slots=True)
class StorageRing(KeyRing):
    """A zone's storage keys, and the keys of content that was sealed before there were any.

    Attributes:
        before: the keys under which this zone sealed its states before it had storage keys. They open such states until
            the first storage key is retired; after that only content under a storage key is accepted.
    """

    before: KeyRing

    @classmethod
    def of_zone(cls, storage: KeyRing, before: KeyRing) -> StorageRing:
        """The keys of a storage key file, and the earlier ones."""
        return cls(storage.oldest, storage.current, storage.retired, storage.key, before)

    def named(self, key_id: bytes) -> Key:
        """See `KeyRing.named`."""
        known = {key.key_id for key in self.before.kept()}
        if not self.retired and key_id in known:
            return self.before.named(key_id)
        return KeyRing.named(self, key_id)


def storage_zone(zone: str) -> str:
    """Name of the file of a zone's storage key: ``storage-edge``, ``storage-edge.alpha``."""
    return f"storage-{zone}"


def load_ring(path: str | Path) -> KeyRing:
    """Read a zone's key file.

    Raises:
        KeyFileError: missing, readable by group or others, or not in the form of the module's docstring. The message
            never repeats the file's content.
    """
    lines = read_key_file(path)
    key = key_from_line(path, lines[0])
    oldest = current = 0
    retired: list[tuple[int, bytes]] = []
    for number, line in enumerate(lines[1:], 2):
        words = line.split()
        if number == 2 and words[:1] == ["epochs"] and len(words) == 3:
            oldest, current = _epoch(path, words[1]), _epoch(path, words[2])
        elif number > 2 and words[:1] == ["retired"] and len(words) == 3 and len(words[2]) == _KEY_ID_HEX:
            retired.append((_epoch(path, words[1]), _key_id(path, words[2])))
        else:
            raise KeyFileError(f"key file {path}, line {number}: expected epochs or a retired key, got another line")
    if oldest > current or [epoch for epoch, _ in retired] != list(range(oldest)):
        raise KeyFileError(f"key file {path}: expected the epochs before the oldest one retired, each once, in order")
    return KeyRing(oldest, current, tuple(retired), key)


def rotate(path: str | Path) -> KeyRing:
    """Rotate a zone's key to the next epoch. Journals use the next key after their workers have read the file.

    Keys of earlier epochs are kept until `retire` destroys them, so releases stay verifiable.

    Raises:
        KeyFileError: the file cannot be used, or has reached the last epoch.
    """
    ring = load_ring(path)
    if ring.current >= LARGEST_EPOCH:
        raise KeyFileError(f"key file {path}: expected an epoch below {LARGEST_EPOCH}; make a new key")
    rotated = KeyRing(ring.oldest, ring.current + 1, ring.retired, ring.key)
    _replace(path, rotated)
    return rotated


def retire(path: str | Path, epoch: int) -> KeyRing:
    """Destroy the keys of an ended epoch and of all before it.

    Later keys are derived from earlier ones, so the earlier ones must be destroyed, too. The old file's content is
    overwritten in place after the new file was written. This does not reach copies elsewhere (backups, snapshots, spare
    blocks of flash storage).

    Raises:
        KeyFileError: the file cannot be used, the epoch has not ended (it is the current one or a later one), or it was
            retired before.
    """
    ring = load_ring(path)
    if not ring.oldest <= epoch < ring.current:
        ended = f"{ring.oldest} to {ring.current - 1}" if ring.oldest < ring.current else "none"
        raise KeyFileError(
            f"key file {path}: expected an ended epoch that is kept ({ended}), got {epoch}; "
            "`hushstream keys rotate` ends the current one"
        )
    gone = tuple((old, ring.of(old).key_id) for old in range(ring.oldest, epoch + 1))
    left = KeyRing(epoch + 1, ring.current, ring.retired + gone, ring.of(epoch + 1))
    _replace(path, left)
    return left


def _replace(path: str | Path, ring: KeyRing) -> None:
    """Replace the old file by a new one in one step, then overwrite the old file's content."""
    target = Path(path)
    lines = [key_line(ring.key), f"epochs {ring.oldest} {ring.current}"]
    lines += [f"retired {epoch} {key_id.hex()}" for epoch, key_id in ring.retired]
    fresh = target.with_name(f"{target.name}.new")
    try:
        # A file that a crash left there is a copy of a key that was never in use.
        with contextlib.suppress(FileNotFoundError):
            with fresh.open("r+b") as left:
                _overwrite(left)
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write("\n".join([*lines, ""]).encode())
            file.flush()
            os.fsync(file.fileno())
        with target.open("r+b") as old:
            fresh.replace(target)
            sync_folder(target.parent)
            _overwrite(old)
    except OSError as error:
        raise KeyFileError(f"key file {target}: expected to replace it, got: {error.strerror}") from None


def _overwrite(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    file.write(bytes(size))
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a renamed file's name durable; Windows has no such call and needs none."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _epoch(path: str | Path, word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 7 and int(word) <= LARGEST_EPOCH):
        raise KeyFileError(f"key file {path}: expected epochs from 0 to {LARGEST_EPOCH}, got another word")
    return int(word)


def _key_id(path: str | Path, word: str) -> bytes:
    try:
        return bytes.fromhex(word)
    except ValueError:
        raise KeyFileError(f"key file {path}: expected the public id of a retired key, got another word") from None


def load_key(path: str | Path) -> Key:
    """The key of a zone's current epoch; raises as `load_ring` does."""
    ring = load_ring(path)
    return ring.of(ring.current)


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """The result of `check` for one zone: the current key's public id in hexadecimal, or a problem.

    Attributes:
        zone: zone of the key file.
        path: the file.
        key_id: of the current epoch's key.
        problem: the problem.
        epochs: the oldest kept epoch, and the current one.
    """

    zone: str
    path: Path
    key_id: str | None
    problem: str | None
    epochs: tuple[int, int] | None = None


_AHEAD = 64
"""How many epochs beyond the newest one are compared: a zone can derive later keys before it has rotated to them."""


def check(directory: str | Path, zones: Iterable[str]) -> tuple[KeyCheck, ...]:
    """Check the key files of a directory as workers do, and compare them.

    Two zones with the same key are a problem, because each could then remove the other's protection. So are two of
    which one has a key that the other had before or can still derive: a file that was copied, and rotated afterwards;
    or a later key alone, beside a file that was restored from before its rotation.
    """
    rings: dict[str, KeyRing | KeyFileError] = {}
    for zone in zones:
        try:
            rings[zone] = load_ring(key_path(directory, zone))
        except KeyFileError as error:
            rings[zone] = error
    newest = _AHEAD + max((ring.current for ring in rings.values() if isinstance(ring, KeyRing)), default=0)
    results: list[KeyCheck] = []
    seen: dict[bytes, str] = {}
    for zone, ring in rings.items():
        path = key_path(directory, zone)
        if isinstance(ring, KeyFileError):
            results.append(KeyCheck(zone, path, None, str(ring)))
            continue
        reach = {key.key_id for key in replace(ring, current=newest).kept()} | {one for _, one in ring.retired}
        shared = sorted({seen[one] for one in reach & seen.keys()})
        seen |= dict.fromkeys(reach - seen.keys(), zone)
        problem = f"expected a key of its own, got a key of zone {shared[0]}" if shared else None
        key_id = ring.of(ring.current).key_id.hex()
        results.append(KeyCheck(zone, path, key_id, problem, (ring.oldest, ring.current)))
    return tuple(results)
