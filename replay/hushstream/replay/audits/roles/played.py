"""Drives one machine of a role on a log in memory as a worker does, and stops it where a worker may be stopped.

It writes the journal record first, then publishes its outputs. A restart begins at the genesis record or at a snapshot,
replays the journal and publishes again what each record stands for. Everything that was ever published stays in the
log, and the attacker sees all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hushstream.engine.machine import Machine, releasing, reopening
from hushstream.engine.records import InputSlice, ReplayMismatch, Step
from hushstream.replay.audits.draws import fresh_nonce
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec


class PlayedRole:
    """A role on one home partition, from its genesis on."""

    def __init__(
        self,
        make: Callable[[], Machine],
        log: MemoryLog | None = None,
        nonce: bytes | None = None,
        epoch_nonce: bytes = b"",
    ) -> None:
        """Begin a journal with a nonce of its own, unless one is given.

        Args:
            make: makes a machine that is not started.
            log: a log to continue that holds records already.
            nonce: the journal's nonce; None: a new one.
            epoch_nonce: nonce of an epoch to request, as after a suspected rollback; empty for none.
        """
        self._make = make
        self.log = MemoryLog() if log is None else log
        self.machine = make()
        self._genesis = self.machine.genesis(fresh_nonce() if nonce is None else nonce)
        self.machine.start(self._genesis)
        releases = releasing(self.machine)
        if epoch_nonce and releases is not None:
            releases.request_epoch(epoch_nonce)
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
                reopens = reopening(self.machine)
                if reopens is None:
                    raise
                step = reopens.reopen(value, slices)
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
