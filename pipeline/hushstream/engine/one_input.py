"""What all machines with one input and running digests have in common: the shuffler, the counter, the aggregators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from hushstream.engine.journal.chain import Chain
from hushstream.engine.journal.digests import Digester, running_digest
from hushstream.engine.journal.ownership import owner
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputRange, InputSlice, TopicPartition
from hushstream.engine.state.declared import FIXED, Declared, Field, integer, raw

START = bytes(16)
"""A running digest before its first record."""

PLACE: Mapping[str, Field] = {"chain": owner(), "position": integer(), "journaled": integer(), "running": raw()}
"""Fields of a state: whose it is, and how far it has come."""


class OneInput(OwnsJournal, Declared):
    """The part of `Machine` that follows from one input log, a journal, and how far each has come.

    Attributes:
        chain: of the journal.
        position: the next offset to feed.
        journaled: up to which offset journal records cover the input; below it the open window or step begins.
        running: digest of what was fed since.
    """

    derived: ClassVar[Mapping[str, str]] = {
        "_digester": "the key in force, or none",
        "_journal": FIXED,
        "_source": FIXED,
        "_retired": FIXED,
    }

    def __init__(self, chain: Chain, digester: Digester, journal: TopicPartition, source: TopicPartition) -> None:
        """Begin before the first record of ``source``."""
        self.chain = chain
        self.position = 0
        self.journaled = 0
        self.running = START
        self._digester = digester
        self._journal = journal
        self._source = source
        self._retired: frozenset[bytes] = frozenset()

    @property
    def journal(self) -> TopicPartition:
        return self._journal

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        return (self._source,)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """See `Machine.broadcasts`: none."""
        return ()

    @property
    def float_ties(self) -> int:
        """See `Machine.float_ties`: none, no decisions are made here."""
        return 0

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: a running one."""
        return running_digest(self._digester, slices)

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis, self._retired)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {self._source: self.position}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: what is open is read again by whoever has only the journal."""
        return {self._source: self.journaled}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: nothing waits here."""
        return slices

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`; it may be taken while something is gathered."""
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """See `Machine.recovery_ranges`: from where this machine stands, which may be inside what is open."""
        return tuple(part._replace(low=max(part.low, self.position)) for part in self.entry(value).inputs)

    def _covered(self, high: int) -> InputRange:
        """The input that the next journal record covers."""
        return InputRange(*self._source, self.journaled, high)

    def _turn_digests(self, digester: Digester) -> None:
        """Digest and close under another key from now on; nothing is open."""
        self._digester = digester
        self.chain.turn_to(digester)

    def _close(self, high: int) -> None:
        """Note that the journal covers the input up to ``high``."""
        self.journaled, self.running = high, START
