"""Epochs of a machine's noise, and how a suspected rollback opens one (`hushstream.engine.machine.ReleasingMachine.request_epoch`).

An epoch that a suspected rollback opens has a nonce: random bytes of whoever suspects the rollback, since a second worker may come to suspect one at the
same place of the same journal, when what the first one wrote is lost too, and number and content are the same then. The
nonce is in the name of the charge that the epoch pays, so it is in the journal record that opens the epoch, whoever
replays that opens the same, and the ledger tells the charges of two branches apart.

A suspected rollback is open until a record of the epoch that answers it is in the journal. Whether it is follows from the zone's
marks, which say behind which record an operator went on, and from the journal, which says with which record the last
suspected rollback's epoch was opened (`NoiseEpoch.opened_epoch_since`): whatever was sent meanwhile, and wherever the state comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hushstream.engine.noise.budget import OwnScope, ChargeKey
from hushstream.engine.state.declared import own_part
from hushstream.engine.state.parts import record
from hushstream.privacy.encoding import encode
from hushstream.schemas.errors import HushstreamError

EPOCH_NONCE_BYTES = 16
"""Of the nonce of a suspected rollback."""

EPOCH = record(
    "Epoch",
    number="int",
    redraws="int",
    doubt="bytes",
    due="boolean",
    pending="bytes",
    lives="int",
    opened="long",
)
"""Avro schema of `NoiseEpoch.dump`, for snapshots."""


def nonce_of(genesis_nonce: bytes, requested: bytes) -> bytes:
    """32 bytes that name the noise of an epoch: the journal's genesis nonce, or one of the last suspected rollback's own."""
    if not requested:
        return genesis_nonce
    return hashlib.sha256(encode("hushstream epoch", genesis_nonce, requested)).digest()


@dataclass(slots=True)
class NoiseEpoch:
    """Where a machine stands among its epochs.

    Attributes:
        number: of the epoch; it never falls.
        redraws: how many of them are paid for by all whom they noised again: not those that a key rotation began.
        doubt: nonce of the last one that a suspected rollback opened; empty before.
        due: whether the next release opens an epoch, since what was released can no longer be released again, or
            something else may have been.
        pending: nonce of the suspected rollback that it answers; empty where it answers none.
        lives: how many lives have been paid for before it at least, as far as the suspected rollback knows of them.
        opened: the journal record that opened the last suspected rollback's epoch; 0 before.
    """

    number: int = 0
    redraws: int = 0
    doubt: bytes = b""
    due: bool = False
    pending: bytes = b""
    lives: int = 0
    opened: int = 0

    def nonce(self, genesis_nonce: bytes) -> bytes:
        return nonce_of(genesis_nonce, self.doubt)

    def charge_key(self, window: int = 0) -> ChargeKey:
        """The charge of what is released in this epoch."""
        return ChargeKey(self.number, window, self.redraws, self.doubt.hex())

    def next_charge_key(self, window: int = 0) -> ChargeKey:
        """The charge of the next release."""
        if not self.due:
            return self.charge_key(window)
        return ChargeKey(self.number + 1, window, self._redraws_with_next, (self.pending or self.doubt).hex())

    @property
    def _redraws_with_next(self) -> int:
        """How many redraws the next epoch makes."""
        return max(self.redraws + 1, self.lives)

    def opened_epoch_since(self, sequence: int) -> bool:
        """Whether a suspected rollback that arose behind a journal record has had its epoch: opened, or refused by the budget."""
        return self.opened > sequence

    def ask(self, nonce: bytes, incarnations: int = 0) -> None:
        """Let the next release open an epoch for a suspected rollback; the last of several names it.

        Nothing has been released under the name of one that is not answered, in this branch; a state that was kept
        from before may hold one under which another branch has released.

        Raises:
            HushstreamError: a nonce of another size.
        """
        if len(nonce) != EPOCH_NONCE_BYTES:
            raise HushstreamError(f"epoch: expected a nonce of {EPOCH_NONCE_BYTES} random bytes, got {len(nonce)}")
        self.due, self.pending, self.lives = True, nonce, incarnations

    def follow(self, number: int, scope: str, kind: str) -> None:
        """Let the next release open an epoch if its record in the journal is of a later one; a replay follows it.

        Args:
            number: of the record's epoch.
            scope: of the charge in it.
            kind: of own scopes.
        """
        found = OwnScope.of(scope, kind)
        requested = bytes.fromhex(found.nonce)
        self.due = number > self.number
        self.pending = requested if self.due and requested != self.doubt else b""
        self.lives = found.redraw if self.due else 0

    def adopt(self, number: int, scope: str, kind: str, sequence: int) -> None:
        """Stand where the journal says that an epoch was begun; one that was not begun here noised all again.

        What it released cannot be released again, so the next release opens an epoch.
        """
        found = OwnScope.of(scope, kind)
        requested = bytes.fromhex(found.nonce)
        self.due, self.pending, self.lives = True, b"", 0
        if number > self.number:
            self.number, self.redraws = number, max(self.redraws + 1, found.redraw)
        if requested != self.doubt:
            self.doubt, self.opened = requested, sequence

    def redraw(self, sequence: int) -> None:
        """Open the epoch that is due, with the journal record ``sequence``."""
        self.number, self.redraws = self.number + 1, self._redraws_with_next
        if self.pending:
            self.doubt, self.opened = self.pending, sequence
        self.due, self.pending, self.lives = False, b"", 0

    def rotate(self) -> None:
        """Open the epoch that a key rotation begins."""
        self.number += 1

    def dump(self) -> dict[str, Any]:
        """The state in packed form."""
        return asdict(self)

    def load(self, state: Mapping[str, Any]) -> None:
        """Stand where a state says."""
        for name, value in state.items():
            setattr(self, name, value)


EPOCH_FIELD = own_part(EPOCH)
"""A role's epoch, as a field of its state."""
