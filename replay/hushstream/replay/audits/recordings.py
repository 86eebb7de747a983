"""Recordings of a role: drives its machine on a log in memory as a worker does, stopped where a worker may be stopped.

It writes the journal record first, then publishes its outputs. A restart begins at the genesis record or at a snapshot,
replays the journal and publishes again what each record stands for. Everything that was ever published stays in the
log, and the attacker sees all of it.

The studies of a system compute, for every release, the mean of all its published copies. The product publishes equal
copies; a product that drew again on a replay would let the attacker average.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.machine import Machine
from hushstream.engine.records import InputSlice, ReplayMismatch, Step
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES, KeyedStream, NoiseAddress
from hushstream.replay.runners.direct import MemoryLog
from hushstream.schemas import codec


def fresh_key() -> Key:
    """A new key."""
    return Key(os.urandom(KEY_BYTES))


def fresh_nonce() -> bytes:
    """The nonce of a new journal."""
    return os.urandom(NONCE_BYTES)


def fresh_address(mechanism: str) -> NoiseAddress:
    """The address of a release in a new journal."""
    return NoiseAddress(
        purpose="release-noise",
        deployment="audit",
        genesis_nonce=fresh_nonce(),
        system="audit",
        mechanism=mechanism,
        parameters={},
        config_digest=b"audit",
        epoch=0,
    )


def fresh_stream(key: Key, mechanism: str) -> KeyedStream:
    """A noise stream that was not read yet."""
    return KeyedStream(key, fresh_address(mechanism))


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation of a journal.

    Attributes:
        name: name of the branch.
        other_contents: whether an event holds another content than in the original branch.
        other_ids: whether an event has another id.
        epoch_nonce: nonce of the epoch that it requests at its beginning; empty for none.
    """

    name: str
    other_contents: bool = False
    other_ids: bool = False
    epoch_nonce: bytes = b""

    def number(self, event: int) -> int:
        """The number in an event's id; ``other_ids`` changes that of the first event, and keeps the order of ids."""
        return 2 * event + (self.other_ids and not event)


AS_IT_WAS = Branch("as it was")
BRANCHES = (AS_IT_WAS, Branch("other contents", other_contents=True), Branch("other ids", other_ids=True))


class PlayedRole:
    """A role on one home partition, from its genesis on."""

    def __init__(self, make: Callable[[], Machine], nonce: bytes | None = None, branch: Branch = AS_IT_WAS) -> None:
        """Begin a journal with a nonce of its own, unless one is given.

        Args:
            make: makes a machine that is not started.
            nonce: the journal's nonce; None: a new one.
            branch: which branch of a rolled-back journal to play; it may request an epoch first.
        """
        self._make, self.log, self.machine = make, MemoryLog(), make()
        self._genesis = self.machine.genesis(fresh_nonce() if nonce is None else nonce)
        self.machine.start(self._genesis)
        if branch.epoch_nonce:
            self.machine.request_epoch(branch.epoch_nonce)
        self.journal: list[bytes] = []
        self.kept = b"", 0
        """The last saved snapshot, and how many journal records it covers."""

    def put(self, topic: str, schema: str, fields: dict[str, Any], partition: int = 0) -> None:
        """Append one record to an input."""
        self.log.append(topic, partition, codec.encode(schema, fields))

    def replace(self, topic: str, offset: int, schema: str, fields: dict[str, Any], partition: int = 0) -> None:
        """Replace a record of an input, as after a restore from an older copy."""
        records = list(self.log.slice(topic, partition, 0).records)
        records[offset] = records[offset]._replace(value=codec.encode(schema, fields))
        self.log.load(topic, partition, records)

    def work(self) -> None:
        """Fold the records that have arrived, and publish what follows."""
        while slices := list(self.machine.ready(self._arrived())):
            for step in self.machine.fold(slices):
                if step.journal is not None:
                    self.journal.append(step.journal)
                self._publish(step)

    def keep(self) -> None:
        """Save a snapshot of the machine in its present state."""
        self.kept = self.machine.snapshot(), len(self.journal)

    def restart(self, snapshot: bytes = b"", covered: int = 0) -> None:
        """Let another worker take over, from the journal alone or from a snapshot of its first ``covered`` records.

        If the inputs no longer give a journaled release, a role that can do so adopts it.

        Raises:
            ReplayMismatch: the inputs give other releases, and this role then stops.
        """
        self.machine = self._make()
        self.machine.start(self._genesis)
        if snapshot:
            self.machine.restore(snapshot)
        for value in self.journal[covered:]:
            slices = [self.log.slice(*part) for part in self.machine.recovery_ranges(value)]
            try:
                step = self.machine.replay(value, slices)
            except ReplayMismatch:
                if not self.machine.reopens:
                    raise
                step = self.machine.reopen(value, slices)
            self._publish(step)

    def published(self, topic: str, schema: str, partition: int = 0) -> list[dict[str, Any]]:
        """Every published record of a schema, with repeated ones."""
        found = (codec.decode(record.value) for record in self.log.slice(topic, partition, 0).records)
        return [fields for name, fields in found if name == schema]

    def _arrived(self) -> list[InputSlice]:
        found = []
        for (topic, partition), position in self.machine.positions().items():
            if self.log.end(topic, partition) > position:
                found.append(self.log.slice(topic, partition, position))
        return found

    def _publish(self, step: Step) -> None:
        for output in step.releases:
            self.log.append(output.topic, output.partition, output.value)


def restart_between(role: PlayedRole, number: int, steps: int) -> None:
    """Restart a role: after the first step from the journal alone, after the last from a snapshot of half the steps."""
    if number == steps // 2:
        role.keep()
    if number == 0:
        role.restart()
    elif number == steps - 1:
        role.restart(*role.kept)


def phase_end_fields(digest: bytes, phase: int) -> dict[str, Any]:
    """The fields of a phase end."""
    return {"phase": phase, "origin": -1, "config_digest": digest, "after_click": -1}


def means(found: Iterable[tuple[bytes, NDArray[np.int64]]], releases: int) -> NDArray[np.float64]:
    """The mean of the copies of each release, in the order in which the first copies came.

    Raises:
        ValueError: the number of published releases is not the expected one.
    """
    copies: dict[bytes, list[NDArray[np.int64]]] = {}
    for name, sums in found:
        copies.setdefault(name, []).append(sums)
    if len(copies) != releases:
        raise ValueError(f"audit: expected {releases} releases of a role, got {len(copies)}")
    return np.array([np.mean(sums, axis=0) for sums in copies.values()])
