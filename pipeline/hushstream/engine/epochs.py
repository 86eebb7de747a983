"""Epochs of a machine's noise, and how a doubt opens one (`hushstream.engine.machine.Distrusts`).

An epoch that a doubt opens has a nonce: random bytes of whoever doubts, since a second worker may come to doubt at the
same place of the same journal, when what the first one wrote is lost too, and number and content are the same then. The
nonce is in the name of the charge that the epoch pays, so it is in the journal record that opens the epoch, whoever
replays that opens the same, and the ledger tells the charges of two branches apart.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from hushstream.engine.budget import OwnScope, Place
from hushstream.engine.state_parts import record
from hushstream.privacy.encoding import encode
from hushstream.schemas.errors import HushstreamError

DOUBT_BYTES = 16
"""Of the nonce of a doubt."""

EPOCH = record("Epoch", number="int", renewals="int", doubt="bytes", due="boolean", pending="bytes")
"""Avro schema of `NoiseEpoch.dump`, for snapshots."""


def nonce_of(genesis_nonce: bytes, doubt: bytes) -> bytes:
    """32 bytes that name the noise of an epoch: the journal's genesis nonce, or one of the last doubt's own."""
    if not doubt:
        return genesis_nonce
    return hashlib.sha256(encode("hushstream epoch", genesis_nonce, doubt)).digest()


def doubt_in(scope: str, kind: str) -> bytes:
    """The nonce in the name of a charge; empty where no doubt opened its epoch."""
    return bytes.fromhex(OwnScope.of(scope, kind).doubt)


@dataclass(slots=True)
class NoiseEpoch:
    """Where a machine stands among its epochs.

    Attributes:
        number: of the epoch; it never falls.
        renewals: how many of them are paid for by all whom they noised again: not those that a turned key began.
        doubt: nonce of the last one that a doubt opened; empty before.
        due: whether the next release opens an epoch, since what was released can no longer be released again, or
            something else may have been.
        pending: nonce of the doubt that it answers; empty where it answers none.
    """

    number: int = 0
    renewals: int = 0
    doubt: bytes = b""
    due: bool = False
    pending: bytes = b""

    def nonce(self, genesis_nonce: bytes) -> bytes:
        """See `nonce_of`."""
        return nonce_of(genesis_nonce, self.doubt)

    def place(self, window: int = 0) -> Place:
        """The charge of what is released in this epoch."""
        return Place(self.number, window, self.renewals, self.doubt.hex())

    def next_place(self, window: int = 0) -> Place:
        """The charge of the next release."""
        if not self.due:
            return self.place(window)
        return Place(self.number + 1, window, self.renewals + 1, (self.pending or self.doubt).hex())

    def ask(self, nonce: bytes) -> None:
        """Let the next release open an epoch for a doubt; the first of several names it.

        Raises:
            HushstreamError: a nonce of another size.
        """
        if len(nonce) != DOUBT_BYTES:
            raise HushstreamError(f"doubt: expected a nonce of {DOUBT_BYTES} random bytes, got {len(nonce)}")
        self.due, self.pending = True, self.pending or nonce

    def follow(self, number: int, scope: str, kind: str) -> None:
        """Let the next release open an epoch if its record in the journal is of a later one; a replay follows it.

        Args:
            number: of the record's epoch.
            scope: of the charge in it.
            kind: of own scopes.
        """
        found = doubt_in(scope, kind)
        self.due = number > self.number
        self.pending = found if self.due and found != self.doubt else b""

    def adopt(self, number: int, scope: str, kind: str) -> None:
        """Stand where the journal says that an epoch was begun; one that was not begun here noised all again.

        What it released cannot be released again, so the next release opens an epoch.
        """
        self.due = True
        if number > self.number:
            self.number, self.renewals = number, self.renewals + 1
        self.doubt = doubt_in(scope, kind)

    def renew(self) -> None:
        """Open the epoch that is due."""
        self.number, self.renewals = self.number + 1, self.renewals + 1
        self.doubt, self.due, self.pending = self.pending or self.doubt, False, b""

    def turn(self) -> None:
        """Open the epoch that a turned key begins."""
        self.number += 1

    def dump(self) -> dict[str, Any]:
        """The state in packed form."""
        return asdict(self)
