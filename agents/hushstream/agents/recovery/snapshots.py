"""Keeps snapshots of a machine's state on disk; they only shorten a recovery, since the journal is the truth.

Snapshots on disk are a cache: any owner of a partition finds its state by `hushstream.agents.recovery.state_topic`.
Everything on disk is sealed under a key of the zone (`hushstream.engine.state.sealed`).

A published state is one stream of bytes: the snapshot's length, the snapshot, then spilled users, if there are any, one
after the other, and zeros.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Protocol

from hushstream.agents.datadir import force_folder
from hushstream.agents.recovery.recovered_machine import HoldsStateKeys
from hushstream.agents.recovery.user_store import UserDatabase, is_sealed_users
from hushstream.agents.sealed_spool import SealedSpool
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.state.published import padded
from hushstream.engine.state.sealed import SALT_BYTES, SEALED_MAGIC, SealBroken, StorageSeal
from hushstream.engine.state.spilled import StoredUser

logger = logging.getLogger(__name__)

_MAGIC = b"hushstream-snapshot-1\n"
_ASIDE = (".other-version", ".damaged")
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_USER = struct.Struct("<qII")
"""Of a user at rest in a stream: when seen, bytes of key and of value."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A machine's packed state and its place in the journal.

    Attributes:
        sequence: the last journal record that the state contains.
        journal_offset: where the journal goes on after that record.
        genesis: the journal's first record: whose state this is, also when retention has removed it.
        state: what `Machine.snapshot` gave.
        folded: how many input records the state contains, over all inputs.
        record: `record_digest` of the last journal record that it contains.
    """

    sequence: int
    journal_offset: int
    genesis: bytes
    state: bytes
    folded: int = 0
    record: bytes = b""

    @property
    def place(self) -> tuple[int, int]:
        """How far the state has come: of two of one journal, the newer one is at the higher place."""
        return self.sequence, self.folded


class Readable(Protocol):
    """A stream of bytes that is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """The next bytes: ``size``, or as many as there are."""


class SnapshotStore:
    """One file for each partition: ``<datadir>/<deployment>/<role>/<partition>.snapshot``, mode 0600, sealed.

    A snapshot that an earlier release has left in clear is sealed when it is first read, in the place of the other.

    The snapshot of a partition whose users are kept on disk lies with them, in ``<partition>.users``.

    A snapshot may be written beside the folds, and its writing outlives whoever asked for it: before anything else is
    done with a partition that is taken up, `settled` is awaited.
    """

    def __init__(self, settings: WorkerSettings, keys: HoldsStateKeys) -> None:
        """Keep the snapshots of this deployment and role, sealed under the keys of its zone."""
        self._settings = settings
        self._keys = keys
        self._directory = Path(settings.datadir) / settings.deployment / settings.role
        self._users: dict[int, UserDatabase] = {}
        self._saving: dict[int, asyncio.Future[None]] = {}

    def users(self, partition: int) -> UserDatabase:
        """The spilled users of a partition, as its last snapshot knows them; its snapshots lie there from now on."""
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
        """Where the snapshot of a partition is kept."""
        return self._directory / f"{partition}.snapshot"

    def save(self, partition: int, snapshot: Snapshot) -> None:
        """Write the whole file beside the old one, force it to disk, then put it in its place.

        Raises:
            OSError: it could not be written; the old one is as it was.
            UsersLost: users lie with it, and another owner has written them meanwhile.
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
        """Wait until no snapshot of a partition is being written any more."""
        saving = self._saving.pop(partition, None)
        if saving is not None:
            await asyncio.wait({saving})

    def load(self, partition: int) -> Snapshot | None:
        """The last snapshot; None when there is none, or none that can be used (which is logged).

        It cannot be used when it is damaged, or under a key that the zone does not keep: then a published state and
        the journal are read instead, and the users that lie with it are forgotten.
        """
        self._remove_clear_copies(partition)
        path, users = self.path(partition), self._users.get(partition)
        try:
            kept = None if users is None else users.snapshot()
            if kept is None:
                if not path.exists():
                    return None
                kept = self._opened(partition, path)
            else:
                # Of a time when no users were kept on disk: what lies with the users is newer.
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
        """What a snapshot's file holds; one in clear, or under an earlier key, is sealed under the current one first.

        Raises:
            SealBroken: it cannot be opened.
        """
        seal, content = self._seal(partition), path.read_bytes()
        if content.startswith(_MAGIC):
            logger.warning("snapshot %s was left in clear by an earlier release; it is sealed now", path)
            self._write(partition, content)
            return content
        opened = seal.unpack_file(content)
        if seal.is_other_key(content):
            self._write(partition, opened)
        return opened

    def _remove_clear_copies(self, partition: int) -> None:
        """Of what was put aside and may be in clear: it would hold for ever what is sealed everywhere else."""
        for path in self._directory.glob(f"{partition}.*"):
            if path.suffix in _ASIDE and _may_be_clear(path):
                logger.warning("%s was put aside and may hold users in clear; it is removed", path)
                path.unlink(missing_ok=True)

    def _seal(self, partition: int) -> StorageSeal:
        return StorageSeal(self._settings.deployment, self._settings.role, partition, self._keys.state_keys())

    def pieces(self, partition: int, snapshot: Snapshot, at_most: int) -> Iterator[bytes]:
        """What was just saved as one stream of bytes, cut into pieces; it may be gone through in other threads.

        Raises:
            UsersLost: users lie with it, and another owner, or a later snapshot, has written them meanwhile.
        """
        content = _pack(snapshot)
        users = self._users[partition].saved_with(content) if partition in self._users else iter(())
        return _cut(chain((len(content).to_bytes(_LENGTH_BYTES, "little"), content), map(_pack_user, users)), at_most)

    def incoming(self) -> SealedSpool:
        """Where a state that comes from somewhere else is gathered: a file without a name, gone with the process."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SealedSpool(self._directory)

    def install(self, partition: int, file: SealedSpool) -> None:
        """Put a gathered stream of bytes, which is known to be whole, in the place of the snapshot.

        Raises:
            OSError: it could not be written; the old one is as it was.
            UsersLost: users lie with it, and another owner has written them meanwhile.
        """
        file.rewind()
        content, users = read_stream(file)
        if partition in self._users:
            self._users[partition].install(content, users)
        else:
            self._write(partition, content)

    def drop(self, partition: int) -> None:
        """Begin without the snapshot of a partition, and the users with it, of which there is a copy elsewhere."""
        users = self._users.get(partition)
        if users is not None:
            users.clear()
        self.path(partition).unlink(missing_ok=True)

    def put_aside(self, partition: int) -> Path:
        """Keep the snapshot of a partition, and the users with it, under another name, and begin without one.

        Returns:
            Where it is now: a release of the other version can go on from it.
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
        force_folder(self._directory)
        self._remove_half_written(partition)

    def _remove_half_written(self, partition: int) -> None:
        """Of processes that were killed: it would hold users for ever who are forgotten since."""
        for path in self._directory.glob(f".{partition}.*.tmp"):
            with suppress(BlockingIOError, FileNotFoundError), path.open("rb") as file:
                # Who still writes holds the lock.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _may_be_clear(path: Path) -> bool:
    """Whether a file that was put aside does not say that it is sealed: one whose beginning is lost cannot."""
    with path.open("rb") as file:
        sealed = file.read(len(SEALED_MAGIC)) == SEALED_MAGIC
    return not sealed and not is_sealed_users(path)


def read_stream(file: Readable) -> tuple[bytes, Iterator[StoredUser]]:
    """What a snapshot's file holds, and the users that lie with it, of which no other call may read meanwhile."""
    content = file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))
    return content, _read_users(file)


def _cut(chunks: Iterable[bytes], at_most: int) -> Iterator[bytes]:
    """The same bytes, filled up with zeros to what `padded` says, in pieces of ``at_most``, the last one shorter."""
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
            return  # what the state was filled up with
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
    """What a snapshot's file holds when it is opened; None where it is damaged."""
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
    # A release that published no states named neither.
    newer = fields.get("folded", 0), bytes.fromhex(fields.get("record", ""))
    return Snapshot(fields["sequence"], fields["journal_offset"], rest[:cut], rest[cut:], *newer)
