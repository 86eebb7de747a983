"""Snapshots of a machine's state on disk: they only shorten a recovery, the journal stays the truth."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from hushstream.agents.settings import WorkerSettings

logger = logging.getLogger(__name__)

_MAGIC = b"hushstream-snapshot-1\n"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A machine's packed state and its place in the journal.

    Attributes:
        sequence: the last journal record that the state contains.
        journal_offset: where the journal goes on after that record.
        genesis: the journal's first record: whose state this is, also when retention has removed it.
        state: what `Machine.snapshot` gave.
    """

    sequence: int
    journal_offset: int
    genesis: bytes
    state: bytes


class SnapshotStore:
    """One file for each partition: ``<datadir>/<deployment>/<role>/<partition>.snapshot``, mode 0600."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Keep the snapshots of this deployment and role."""
        self._directory = Path(settings.datadir) / settings.deployment / settings.role

    def path(self, partition: int) -> Path:
        """Where the snapshot of a partition is kept."""
        return self._directory / f"{partition}.snapshot"

    def save(self, partition: int, snapshot: Snapshot) -> None:
        """Write the whole file beside the old one, force it to disk, then put it in its place."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._directory / f".{partition}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_pack(snapshot))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path(partition))
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def load(self, partition: int) -> Snapshot | None:
        """The last snapshot; None when there is none, or when it is damaged (which is logged)."""
        path = self.path(partition)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        snapshot = _unpack(content)
        if snapshot is None:
            logger.warning("snapshot %s is damaged and was ignored; the journal is read instead", path)
        return snapshot


def _pack(snapshot: Snapshot) -> bytes:
    head = json.dumps(
        {
            "sequence": snapshot.sequence,
            "journal_offset": snapshot.journal_offset,
            "genesis_bytes": len(snapshot.genesis),
        }
    ).encode()
    body = head + b"\n" + snapshot.genesis + snapshot.state
    return _MAGIC + blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def _unpack(content: bytes) -> Snapshot | None:
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
    return Snapshot(fields["sequence"], fields["journal_offset"], rest[:cut], rest[cut:])
