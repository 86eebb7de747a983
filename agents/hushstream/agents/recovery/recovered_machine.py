"""A machine that was recovered from its journal, and the factory that makes machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hushstream.agents.kafka.commits import journal_label, journal_name
from hushstream.engine.machine import Machine
from hushstream.engine.records import TopicPartition
from hushstream.privacy.key_files import KeyRing


class HoldsStateKeys(Protocol):
    """A machine factory that can give the state keys of its zone."""

    def state_keys(self) -> KeyRing:
        """The keys under which states are sealed, on disk and where they are published."""


class MachineFactory(HoldsStateKeys, Protocol):
    """Makes the machines of a role, and knows the key file of its zone."""

    def __call__(self, partition: int) -> Machine:
        """The machine of a home partition that has no journal yet, or whose journal is not known."""

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Machine:
        """The machine of a home partition whose journal begins with this record; ``resumed`` from a snapshot."""

    def mark_keys(self) -> KeyRing:
        """The keys under which marks are sealed; not called for a role without marks."""


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
