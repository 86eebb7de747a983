"""Epochs of a machine's noise, and how a worker requests one (`ReleasingRole.request_epoch` in `engine.releasing`).

A worker that suspects a rollback of its journal requests an epoch, and gives it a nonce: random bytes. A number alone
would not do: when the records of the first worker are lost, too, a second worker requests an epoch at the same place,
with the same number and the same content. The nonce is part of the name of the epoch's charge. So it is in the journal
record that opens the epoch, every replay of that record opens the same epoch, and the ledger distinguishes the charges
of two branches.

A request is open until the journal holds a record of the requested epoch. The zone's marks say behind which record an
operator accepted the journal. The journal says which record opened the last requested epoch
(`NoiseEpoch.opened_epoch_since`). Releases in between, and the origin of the state, do not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hushstream.engine.noise.spending import ChargeKey, OwnScope
from hushstream.engine.state.declared import own_part
from hushstream.engine.state.parts import record
from hushstream.privacy.encoding import encode
from hushstream.schemas.errors import HushstreamError

EPOCH_NONCE_BYTES = 16
"""Size of the nonce of a requested epoch."""

EPOCH = record(
    "Epoch", number="int", redraws="int", doubt="bytes", due="boolean", pending="bytes", lives="int", opened="long"
)
"""Avro schema of `NoiseEpoch.dump`, for snapshots."""

_ON_DISK = {"last_nonce": "doubt", "incarnations": "lives"}
"""Attributes that have another name in packed states."""


@dataclass(slots=True)
class NoiseEpoch:
    """The current epoch of a machine's noise, and whether the next release opens another.

    Attributes:
        number: number of the epoch; it never falls.
        redraws: number of epochs that draw new noise over units that were released before, which are paid for again. An
            epoch that a key rotation begins is not counted.
        last_nonce: nonce of the last epoch that was requested and opened; empty before the first.
        due: whether the next release opens an epoch, because a release cannot be reproduced, or other data may have
            been released.
        pending: nonce of the epoch that is requested and due; empty if an epoch is due for another reason.
        incarnations: number of this journal's incarnations that have paid before, according to the request; the epoch
            that opens pays for one more.
        opened: number of the journal record that opened the last requested epoch; 0 before the first.
    """

    number: int = 0
    redraws: int = 0
    last_nonce: bytes = b""
    due: bool = False
    pending: bytes = b""
    incarnations: int = 0
    opened: int = 0

    def nonce(self, genesis_nonce: bytes) -> bytes:
        """32 bytes in the address of its noise: genesis nonce, or one derived from the nonce of the last request."""
        if not self.last_nonce:
            return genesis_nonce
        return hashlib.sha256(encode("hushstream epoch", genesis_nonce, self.last_nonce)).digest()

    def charge_key(self, window: int = 0) -> ChargeKey:
        """The charge of releases in this epoch."""
        return ChargeKey(self.number, window, self.redraws, self.last_nonce.hex())

    def next_charge_key(self, window: int = 0) -> ChargeKey:
        """The charge of the next release."""
        if not self.due:
            return self.charge_key(window)
        return ChargeKey(self.number + 1, window, self._redraws_with_next, (self.pending or self.last_nonce).hex())

    @property
    def _redraws_with_next(self) -> int:
        """Number of redraws after the next epoch was opened."""
        return max(self.redraws + 1, self.incarnations)

    def opened_epoch_since(self, sequence: int) -> bool:
        """Whether a requested epoch was opened behind a journal record, also one that the budget refused."""
        return self.opened > sequence

    def request(self, nonce: bytes, incarnations: int = 0) -> None:
        """Let the next release open an epoch under this nonce. Of several requests the last nonce counts.

        A pending nonce is replaced. This branch has released nothing under it; but if the state is from before the
        rollback, another branch may have released under it.

        Args:
            nonce: random bytes.
            incarnations: how many incarnations of the journal have paid before.

        Raises:
            HushstreamError: a nonce of another size.
        """
        if len(nonce) != EPOCH_NONCE_BYTES:
            raise HushstreamError(f"epoch: expected a nonce of {EPOCH_NONCE_BYTES} random bytes, got {len(nonce)}")
        self.due, self.pending, self.incarnations = True, nonce, incarnations

    def follow(self, number: int, scope: str, kind: str) -> None:
        """Follow a journal record in a replay: the next release opens an epoch if the record is of a later one.

        Args:
            number: of the record's epoch.
            scope: of the charge in it.
            kind: of own scopes.
        """
        found = OwnScope.of(scope, kind)
        requested = bytes.fromhex(found.nonce)
        self.due = number > self.number
        self.pending = requested if self.due and requested != self.last_nonce else b""
        self.incarnations = found.redraw if self.due else 0

    def adopt(self, number: int, scope: str, kind: str, sequence: int) -> None:
        """Take over the epoch of a journal record whose release cannot be reproduced.

        The next release opens another epoch.

        An epoch that this machine did not open has drawn new noise over everything, so it counts as a redraw.
        """
        found = OwnScope.of(scope, kind)
        requested = bytes.fromhex(found.nonce)
        self.due, self.pending, self.incarnations = True, b"", 0
        if number > self.number:
            self.number, self.redraws = number, max(self.redraws + 1, found.redraw)
        if requested != self.last_nonce:
            self.last_nonce, self.opened = requested, sequence

    def redraw(self, sequence: int) -> None:
        """Open the epoch that is due; ``sequence`` is the number of the journal record that opens it."""
        self.number, self.redraws = self.number + 1, self._redraws_with_next
        if self.pending:
            self.last_nonce, self.opened = self.pending, sequence
        self.due, self.pending, self.incarnations = False, b"", 0

    def rotate(self) -> None:
        """Begin the epoch after a key rotation. It is not charged again."""
        self.number += 1

    def dump(self) -> dict[str, Any]:
        """The state in packed form."""
        return {_ON_DISK.get(name, name): value for name, value in asdict(self).items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a packed state."""
        for field in fields(self):
            setattr(self, field.name, state[_ON_DISK.get(field.name, field.name)])


EPOCH_FIELD = own_part(EPOCH)
"""A role's epoch, as a field of its state."""
