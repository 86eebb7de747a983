"""Tickets: 256 arms for each cell, each the winner of one draw from what is believed of the arms.

Ticket t of a cell is argmax over the pool of mu + temper sd z, z standard normal: Thompson sampling, drawn ahead, so
a decision is a look into a table and its propensity is a whole number of 256ths. Beliefs are rounded to a grid before
they are used, in single precision, whose sums and products are the same on every machine; the draws come from
ChaCha20 under a public key made of the cell and its rounded beliefs. So a row's tickets are a function of the row,
and only rows whose beliefs or pool changed are drawn again. The coins need not be secret: tickets are made of what
was released.

Source: Thompson 1933; the tempered posterior as in Phan, Abbasi-Yadkori, Domke 2019.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from scipy.special import ndtri

from hushstream.systems.pdap.beliefs import Float64
from hushstream.systems.pdap.cells import Int64

TICKETS = 256
BELIEF_STEPS = 1 << 14
"""Means and deviations are rounded to multiples of 2^-14: far below what tells two arms apart."""

_NORMAL_STEPS = 1 << 12
Float32 = NDArray[np.float32]


def rounded(values: Float64) -> Float32:
    """Values on the grid of `BELIEF_STEPS`, exact in single precision below 2^9."""
    return np.asarray(np.rint(values * BELIEF_STEPS) / BELIEF_STEPS, dtype=np.float32)


def row_digest(cell: int, pool: Int64, mu: Float32, sd: Float32, temper: float) -> bytes:
    """32 bytes that stand for a cell, its pool, what is believed of it and how it is drawn; they key its draws."""
    head = cell.to_bytes(8, "little") + len(pool).to_bytes(8, "little") + np.float64(temper).tobytes()
    hasher = blake2b(head, digest_size=32, person=b"hush-pdap-cell")
    hasher.update(pool.astype("<i8").tobytes() + mu.astype("<f4").tobytes() + sd.astype("<f4").tobytes())
    return hasher.digest()


def draw_tickets(digest: bytes, pool: Int64, mu: Float32, sd: Float32, temper: float) -> Int64:
    """The arms of one cell's tickets, int64 (256,), sorted.

    Args:
        digest: of the row, see `row_digest`.
        pool: (p,) arms.
        mu: (p,) their rounded means.
        sd: (p,) their rounded deviations.
        temper: multiplies the deviations; 0 gives every ticket to the arm with the largest mean.
    """
    words = np.empty((TICKETS, len(pool)), dtype="<u2")
    # The key stands for this row alone and is used once, so nonce and counter begin at zero.
    Cipher(ChaCha20(digest, bytes(16)), mode=None).encryptor().update_into(bytes(words.nbytes), words.data.cast("B"))
    scores = _normals()[words]
    scores *= sd * np.float32(temper)
    scores += mu
    return np.sort(pool[scores.argmax(axis=1)])


@lru_cache(maxsize=1)
def _normals() -> Float32:
    """Normal quantiles at the middles of 2^16 equal parts, in multiples of 2^-12."""
    middles = (np.arange(1 << 16) + 0.5) / (1 << 16)
    return np.asarray(np.rint(ndtri(middles) * _NORMAL_STEPS) / _NORMAL_STEPS, dtype=np.float32)


def ticket_counts(tickets: Int64) -> Int64:
    """For each ticket how many of its row's tickets have its arm: int64 (rows, 256), for sorted rows."""
    return np.stack([np.repeat(*_runs(row)) for row in tickets]) if len(tickets) else tickets.copy()


def _runs(row: Int64) -> tuple[Int64, Int64]:
    _, counts = np.unique(row, return_counts=True)
    return counts, counts
