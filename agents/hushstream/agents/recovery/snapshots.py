"""Keeps snapshots of a machine's state on disk. They only shorten a recovery: the journal decides what the state is.

Snapshots on disk are a cache: any owner of a partition finds its state by `hushstream.agents.recovery.state_topic`.
Everything on disk is sealed under a key of the zone (`hushstream.engine.state.packed`).

A published state is one stream of bytes: the snapshot's length, the snapshot, the spilled users one after the other,
and zeros as padding.

*Recovered machine.* A machine that was recovered from its journal, and the factory that makes machines.

*Sealed spool.* A temporary file that nobody else can read: its content is sealed under a key that exists only in this
process.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, cast

from hushstream.agents.kafka.administration import journal_label, journal_name
from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.machine import Machine, StoredUser
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.records import TopicPartition
from hushstream.engine.state.packed import SALT_BYTES, SealBroken, StorageSeal
from hushstream.engine.state.published import padded
from hushstream.privacy.key_files import KeyRing, sync_folder
from hushstream.privacy.keys import KEY_BYTES, Key

_FRAME = struct.Struct("<I")
_PURPOSE = "spool"


class SealedSpool:
    """Holds bytes, more than fit into memory, that are written once and then read from the beginning.

    The file has no name, and its key is drawn here and written nowhere: nobody can open what a crash leaves on disk.
    """

    def __init__(self, folder: Path) -> None:
        """Open an empty spool in a folder.

        Raises:
            OSError: no file can be made there.
        """
        self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - closed by __exit__
        self._seal = StorageSeal("", "", 0, KeyRing(0, 0, (), Key(os.urandom(KEY_BYTES))))
        self._writer = self._seal.writer(_PURPOSE, os.urandom(SALT_BYTES))
        self._piece = BytesIO()

    def write(self, content: bytes) -> None:
        """Append bytes; raises OSError if the disk is full."""
        if content:
            sealed = self._writer.seal(content)
            self._file.write(_FRAME.pack(len(sealed)) + sealed)

    def rewind(self) -> None:
        """Go back to the beginning, to read; nothing may be written after this."""
        self._file.seek(0)
        self._piece = BytesIO()

    def read(self, size: int) -> bytes:
        """Read the next ``size`` bytes, or fewer at the end."""
        found = [self._piece.read(size)]
        missing = size - len(found[0])
        while missing > 0 and (head := self._file.read(_FRAME.size)):
            self._piece = BytesIO(self._seal.open(_PURPOSE, self._file.read(*_FRAME.unpack(head))))
            found.append(self._piece.read(missing))
            missing -= len(found[-1])
        return b"".join(found)

    def __enter__(self) -> SealedSpool:
        """Keep the spool open until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file, which removes it."""
        self._file.close()


class HoldsStateKeys(Protocol):
    """A machine factory that can give the state keys of its zone."""

    def state_keys(self) -> KeyRing:
        """The keys under which states are sealed, on disk and where they are published."""


class HoldsMarkKeys(Protocol):
    """A machine factory that can give the mark keys of its zone, and knows what its role's releases cost."""

    def mark_keys(self) -> KeyRing:
        """The keys under which marks are sealed; not called for a role without marks."""

    @property
    def irreplaceable(self) -> str:
        """Why no operator may go on without the role's journal; empty if one may."""

    @property
    def spending_terms(self) -> SpendingTerms | None:
        """Prices and limit of the role's releases; None if it charges nothing."""


class MachineFactory(HoldsMarkKeys, HoldsStateKeys, Protocol):
    """Makes the machines of a role, and knows the key file of its zone."""

    def __call__(self, partition: int) -> Machine:
        """The machine of a home partition that has no journal yet, or whose journal is not known."""

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Machine:
        """The machine of a home partition whose journal begins with this record; ``resumed`` from a snapshot."""


@dataclass(slots=True)
class RecoveredMachine:
    """A machine whose state contains its journal up to record ``sequence``.

    Attributes:
        genesis: the journal's first record.
        journal_offset: the journal's next offset after record ``sequence``.
        generation: the generation of its marks (`hushstream.engine.journal.marks`).
        released: the last record whose outputs are all known to be acknowledged.
        rotated_at: the last record that rotated the key and is not known to be marked; 0 for none.
        record: `record_digest` of record ``sequence``.
        begins: the first offsets of inputs that begin too late, if an operator has accepted the loss.
        replayed, resent: how many records the last recovery replayed, and how many outputs it sent again.
    """

    machine: Machine
    genesis: bytes
    sequence: int
    journal_offset: int
    record: bytes = b""
    generation: int = 0
    released: int = 0
    rotated_at: int = 0
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    replayed: int = 0
    resent: int = 0

    @property
    def journal(self) -> str:
        """The journal's name."""
        return journal_name(self.genesis)

    @property
    def label(self) -> str:
        """The name of the journal in commits."""
        return journal_label(self.journal, self.generation)


logger = logging.getLogger(__name__)

_MAGIC = b"hushstream-snapshot-1\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_USER = struct.Struct("<qII")
"""The header of a spilled user in a stream: when last seen, and the lengths of key and value."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A machine's packed state and its place in the journal.

    Attributes:
        sequence: the last journal record that the state contains.
        journal_offset: the journal's next offset after that record.
        genesis: the journal's first record. It says which journal the state belongs to, even after retention has
            removed the record.
        state: the bytes of `Machine.snapshot`.
        folded: how many input records the state contains, over all inputs.
        record: `record_digest` of the last journal record that the state contains.
    """

    sequence: int
    journal_offset: int
    genesis: bytes
    state: bytes
    folded: int = 0
    record: bytes = b""

    @property
    def place(self) -> tuple[int, int]:
        """The state's position: of two states of one journal, the newer one has the higher position."""
        return self.sequence, self.folded


class Readable(Protocol):
    """A stream of bytes that is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """Read the next ``size`` bytes, or fewer at the end."""


class SnapshotStore:
    """Keeps one file for each partition: ``<datadir>/<deployment>/<role>/<partition>.snapshot``, mode 0600, sealed.

    If a partition keeps users on disk, its snapshot is in the same file as the users, ``<partition>.users``.

    A snapshot is written in a thread while folds go on, and the thread finishes even if its caller is cancelled. So a
    recovery of the partition first awaits `settled`.
    """

    def __init__(self, settings: WorkerSettings, keys: HoldsStateKeys) -> None:
        """Keep the snapshots of this deployment and role, sealed under the keys of its zone."""
        self._settings = settings
        self._keys = keys
        self._directory = Path(settings.datadir) / settings.deployment / settings.role
        self._users: dict[int, UserDatabase] = {}
        self._saving: dict[int, asyncio.Future[None]] = {}

    def users(self, partition: int) -> UserDatabase:
        """The spilled users of a partition as of its last snapshot; its snapshots go into the same file from now on."""
        path = self._directory / f"{partition}.users"
        if partition in self._users and not path.exists():
            self._users.pop(partition).close()
        if partition in self._users:
            self._users[partition].rewind(self._seal(partition))
        else:
            self._users[partition] = UserDatabase(path, self._seal(partition))
        return self._users[partition]

    def behind(self, partition: int) -> bool:
        """Whether a machine that is still in memory has lost its spilled users to a newer owner's snapshot."""
        return partition in self._users and self._users[partition].behind

    def path(self, partition: int) -> Path:
        """The file of a partition's snapshot."""
        return self._directory / f"{partition}.snapshot"

    def save(self, partition: int, snapshot: Snapshot) -> None:
        """Write a new file, force it to disk, then replace the old one by it.

        Raises:
            OSError: the file could not be written; the old one is unchanged.
            UsersLost: the partition keeps users on disk, and another owner has written their file in the meantime.
        """
        if partition in self._users:
            self._users[partition].save(_pack(snapshot))
        else:
            self._write(partition, _pack(snapshot))

    async def save_beside(self, partition: int, snapshot: Snapshot) -> None:
        """Save in a thread; raises as `save` does. The thread finishes even if the caller is cancelled."""
        saving = asyncio.get_running_loop().run_in_executor(None, self.save, partition, snapshot)
        self._saving[partition] = saving
        await asyncio.shield(saving)

    async def settled(self, partition: int) -> None:
        """Wait until no thread writes a snapshot of the partition."""
        saving = self._saving.pop(partition, None)
        if saving is not None:
            await asyncio.wait({saving})

    def load(self, partition: int) -> Snapshot | None:
        """The last snapshot; None if there is none, or if it cannot be used (which is logged).

        A snapshot cannot be used if it is damaged, or sealed under a key that the zone no longer has. Then a published
        state and the journal are read instead, and the users in the same file are removed.
        """
        path, users = self.path(partition), self._users.get(partition)
        try:
            kept = None if users is None else users.snapshot()
            if kept is None:
                if not path.exists():
                    return None
                kept = self._opened(partition, path)
            else:
                # This file is from a time when no users were kept on disk: the snapshot in the users' file is newer.
                path.unlink(missing_ok=True)
            snapshot = unpack(kept)
            why = "" if snapshot is not None else "expected a snapshot, got something else"
        except SealBroken as error:
            snapshot, why = None, str(error)
        if snapshot is None:
            logger.warning("snapshot %s is damaged and was ignored; the journal is read instead: %s", path, why)
            if users is not None:
                users.clear()
        return snapshot

    def _opened(self, partition: int, path: Path) -> bytes:
        """Read a snapshot's file; if it is under an earlier key, first seal it under the current key.

        Raises:
            SealBroken: the file cannot be opened.
        """
        seal, content = self._seal(partition), path.read_bytes()
        opened = seal.unpack_file(content)
        if seal.is_other_key(content):
            self._write(partition, opened)
        return opened

    def _seal(self, partition: int) -> StorageSeal:
        return StorageSeal(self._settings.deployment, self._settings.role, partition, self._keys.state_keys())

    def pieces(self, partition: int, snapshot: Snapshot, at_most: int) -> Iterator[bytes]:
        """Yield the saved snapshot, as one stream of bytes, in pieces; other threads may iterate.

        Raises:
            UsersLost: the partition keeps users on disk, and another owner, or a later snapshot, has written their file
                in the meantime.
        """
        content = _pack(snapshot)
        users = self._users[partition].saved_with(content) if partition in self._users else iter(())
        return _cut(chain((len(content).to_bytes(_LENGTH_BYTES, "little"), content), map(_pack_user, users)), at_most)

    def incoming(self) -> SealedSpool:
        """A file without a name to collect a fetched state in; it vanishes with the process."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SealedSpool(self._directory)

    def install(self, partition: int, file: SealedSpool) -> None:
        """Replace the snapshot by a collected stream of bytes, which the caller knows to be complete.

        Raises:
            OSError: the snapshot could not be written; the old one is unchanged.
            UsersLost: the partition keeps users on disk, and another owner has written their file in the meantime.
        """
        file.rewind()
        content, users = read_stream(file)
        if partition in self._users:
            self._users[partition].install(content, users)
        else:
            self._write(partition, content)

    def drop(self, partition: int) -> None:
        """Remove the snapshot of a partition, and its users; use this only if there is a copy elsewhere."""
        users = self._users.get(partition)
        if users is not None:
            users.clear()
        self.path(partition).unlink(missing_ok=True)

    def put_aside(self, partition: int) -> Path:
        """Rename the snapshot of a partition, and its users, so that they are not used but kept.

        Returns:
            The new path; the release that wrote the file can go on from it.
        """
        users = self._users.get(partition)
        if users is not None:
            return users.put_aside()
        aside = self.path(partition).with_suffix(".other-version")
        os.replace(self.path(partition), aside)
        return aside

    def _write(self, partition: int, content: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._directory / f".{partition}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for piece in self._seal(partition).pack_file(os.urandom(SALT_BYTES), content):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, self.path(partition))
        sync_folder(self._directory)
        self._remove_half_written(partition)

    def _remove_half_written(self, partition: int) -> None:
        """Remove temporary files of killed processes: they would keep users for ever, even forgotten ones."""
        for path in self._directory.glob(f".{partition}.*.tmp"):
            with suppress(BlockingIOError, FileNotFoundError), path.open("rb") as file:
                # A process that still writes the file holds the lock.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def read_stream(file: Readable) -> tuple[bytes, Iterator[StoredUser]]:
    """Read a published state: the packed snapshot, and an iterator of its users; read the file by no other call."""
    content = file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))
    return content, _read_users(file)


def _cut(chunks: Iterable[bytes], at_most: int) -> Iterator[bytes]:
    """Pad the bytes with zeros to the size of `padded`, and yield pieces of ``at_most``, the last one shorter."""
    waiting, size = bytearray(), 0
    for chunk in chunks:
        waiting += chunk
        size += len(chunk)
        while len(waiting) >= at_most:
            yield bytes(waiting[:at_most])
            del waiting[:at_most]
    waiting += bytes(padded(size) - size)
    for start in range(0, len(waiting), at_most):
        yield bytes(waiting[start : start + at_most])


def _pack_user(user: StoredUser) -> bytes:
    return _USER.pack(user.seen_ms, len(user.key), len(user.value)) + user.key + user.value


def _read_users(file: Readable) -> Iterator[StoredUser]:
    while len(head := file.read(_USER.size)) == _USER.size:
        seen_ms, key_bytes, value_bytes = _USER.unpack(head)
        if not key_bytes:
            return  # the padding begins
        yield StoredUser(file.read(key_bytes), seen_ms, file.read(value_bytes))


def _pack(snapshot: Snapshot) -> bytes:
    head = json.dumps(
        {
            "sequence": snapshot.sequence,
            "journal_offset": snapshot.journal_offset,
            "genesis_bytes": len(snapshot.genesis),
            "folded": snapshot.folded,
            "record": snapshot.record.hex(),
        }
    ).encode()
    body = head + b"\n" + snapshot.genesis + snapshot.state
    return _MAGIC + blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def unpack(content: bytes) -> Snapshot | None:
    """Unpack the opened content of a snapshot's file; None if it is damaged."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = content[start:]
    intact = content.startswith(_MAGIC) and (
        content[len(_MAGIC) : start] == blake2b(body, digest_size=_DIGEST_BYTES).digest()
    )
    if not intact:
        return None
    head, _, rest = body.partition(b"\n")
    fields = json.loads(head)
    cut = fields["genesis_bytes"]
    # Earlier releases, which published no states, wrote neither of these fields.
    newer = fields.get("folded", 0), bytes.fromhex(fields.get("record", ""))
    return Snapshot(fields["sequence"], fields["journal_offset"], rest[:cut], rest[cut:], *newer)
