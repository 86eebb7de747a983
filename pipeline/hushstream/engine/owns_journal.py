"""The part that all machines with one journal share: genesis record, entries, and the test for the last record."""

from __future__ import annotations

from hushstream.engine.journal.chain import Chain
from hushstream.engine.records import InputRange, JournalEntry


class OwnsJournal:
    """The methods of `Machine` that depend on the journal alone, for roles whose records cover whole batches.

    Attributes:
        chain: of the journal.
    """

    chain: Chain

    def is_last(self, value: bytes) -> bool:
        return self.chain.is_last(value)

    def genesis(self, nonce: bytes) -> bytes:
        return self.chain.genesis(nonce)

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis)

    def entry(self, value: bytes) -> JournalEntry:
        return self.chain.read(value)[0]

    def continues(self, value: bytes, last: bytes) -> bool:
        return self.chain.continued_by(value, last)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        return tuple(part for part in self.entry(value).inputs if part.high > part.low)
