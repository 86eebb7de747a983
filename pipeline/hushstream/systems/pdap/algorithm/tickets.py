"""Draws tickets: 256 arms for each cell, each the winner of one draw from the beliefs about arms.

Ticket t of a cell is argmax over the pool of mu + temper (sd z + sv z'), z standard normal for each arm and z' for each
vendor, sv the vendor's deviation: this is Thompson sampling, drawn ahead. So a decision is a look-up in a table, and
its propensity is a whole number of 256ths. Without the uncertainty of vendors, a vendor whose first arms were poor
would never be tried again.

Beliefs are rounded to a grid before they are used, in single precision, whose sums and products are the same on every
machine; the draws come from ChaCha20 under a public key made of the cell and its rounded beliefs. So a row's tickets
are a function of the row, and only rows whose beliefs or pool changed are drawn again. The random numbers need not be
secret, because tickets are made from releases.

Source: Thompson 1933; the tempered posterior as in Phan, Abbasi-Yadkori, Domke 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from hushstream.systems.pdap.algorithm.beliefs import Float64
from hushstream.systems.pdap.cells import Int64

TICKETS = 256
DIGEST_BYTES = 32
BELIEF_STEPS = 1 << 14
"""Means and deviations are rounded to multiples of 2^-14: far below the differences between arms."""

_NORMAL_STEPS = 1 << 12
Float32 = NDArray[np.float32]


def rounded(values: Float64) -> Float32:
    """Values on the grid of `BELIEF_STEPS`, exact in single precision below 2^9."""
    return np.asarray(np.rint(values * BELIEF_STEPS) / BELIEF_STEPS, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class CellBeliefs:
    """Beliefs in one cell, rounded.

    Attributes:
        cell: its number.
        pool: (p,) arms.
        owners: (p,) the vendor of each.
        mean: (p,).
        deviation: (p,) of each arm around its vendor's mean.
        vendor_deviation: (vendors,) standard deviation of each vendor's mean.
        temper: multiplies both; 0 gives every ticket to the arm with the largest mean.
    """

    cell: int
    pool: Int64
    owners: Int64
    mean: Float32
    deviation: Float32
    vendor_deviation: Float32
    temper: float

    def digest(self) -> bytes:
        """Digest of all values (32 bytes), which is the key of its draws."""
        sizes = (self.cell, len(self.pool), len(self.vendor_deviation))
        head = b"".join(size.to_bytes(8, "little") for size in sizes) + np.float64(self.temper).tobytes()
        hasher = blake2b(head, digest_size=DIGEST_BYTES, person=b"hush-pdap-cell")
        for whole in (self.pool, self.owners):
            hasher.update(whole.astype("<i8").tobytes())
        for number in (self.mean, self.deviation, self.vendor_deviation):
            hasher.update(number.astype("<f4").tobytes())
        return hasher.digest()


def draw_tickets(beliefs: CellBeliefs, digest: bytes) -> Int64:
    """The arms of one cell's tickets, int64 (256,), sorted.

    Args:
        beliefs: of the cell.
        digest: theirs.
    """
    arms, vendors = len(beliefs.pool), len(beliefs.vendor_deviation)
    words = np.empty((TICKETS, arms + vendors), dtype="<u2")
    # The key stands for this row alone and is used once, so nonce and counter begin at zero.
    Cipher(ChaCha20(digest, bytes(16)), mode=None).encryptor().update_into(bytes(words.nbytes), words.data.cast("B"))
    normals = _normals()
    scores = normals[words[:, :arms]]
    scores *= beliefs.deviation
    scores += (normals[words[:, arms:]] * beliefs.vendor_deviation)[:, beliefs.owners]
    scores *= np.float32(beliefs.temper)
    scores += beliefs.mean
    return np.sort(beliefs.pool[scores.argmax(axis=1)])


@lru_cache(maxsize=1)
def _normals() -> Float32:
    """Normal quantiles at the middles of 2^16 equal parts, in multiples of 2^-12."""
    from scipy.special import ndtri

    middles = (np.arange(1 << 16) + 0.5) / (1 << 16)
    return np.asarray(np.rint(ndtri(middles) * _NORMAL_STEPS) / _NORMAL_STEPS, dtype=np.float32)


def ticket_counts(tickets: Int64) -> Int64:
    """For each ticket the number of tickets of its row with the same arm: int64 (rows, 256), for sorted rows."""
    return np.stack([np.repeat(*_runs(row)) for row in tickets]) if len(tickets) else tickets.copy()


def _runs(row: Int64) -> tuple[Int64, Int64]:
    _, counts = np.unique(row, return_counts=True)
    return counts, counts
