"""Random numbers addressed by (seed, purpose, user, round): any order of calls gives the same values.

The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC
2011), written on numpy arrays so that many users are drawn at once. It makes the data of simulated worlds and protects
no one: noise that protects people comes from `hushstream.privacy.mechanisms.noise`.

*Histograms.* Normalised histograms on the grid of q decimal digits, the contexts that an encoder of codes expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt


def on_grid(weights: npt.NDArray[np.floating], digits: int) -> npt.NDArray[np.float32]:
    """Turn non-negative weights into histograms of 10**digits units, by largest remainder.

    Rows sum to one exactly in units; a row without weight becomes the even histogram. Equal remainders go to
    the lower bin first, so the result is a function of the row alone.

    Args:
        weights: (n, d), finite and >= 0.
        digits: q, decimal digits of each entry.

    Returns:
        (n, d) float32.
    """
    units = 10**digits
    shares = np.asarray(weights, dtype=np.float64).copy()
    totals = shares.sum(axis=1, keepdims=True)
    shares[totals[:, 0] == 0.0] = 1.0
    totals = shares.sum(axis=1, keepdims=True)
    # Rounded to 1e-9 units, so that remainders that are equal on paper are equal in binary too.
    exact = np.round(shares / totals * units, 9)
    counts = np.floor(exact)
    left = (units - counts.sum(axis=1)).astype(np.int64)
    order = np.argsort(counts - exact, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(shares.shape[1])[None, :], axis=1)
    counts += rank < left[:, None]
    return np.asarray(counts / units, dtype=np.float32)


IntArray = npt.NDArray[np.integer]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_ROUNDS = 10
# Philox keeps six temporaries per block: this many blocks stay inside a second-level cache.
_BLOCKS_AT_ONCE = 8192


def philox_blocks(counters: npt.NDArray[np.uint64], key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Encrypt counters with Philox4x32-10.

    Args:
        counters: (4, n) array of 32-bit words, each held in a uint64.
        key: two 32-bit words.

    Returns:
        (4, n) array of 32-bit random words, each held in a uint64.
    """
    c0, c1, c2, c3 = counters
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0 = (product_1 >> _SHIFT_32) ^ c1 ^ np.uint64(k0)
        c2 = (product_0 >> _SHIFT_32) ^ c3 ^ np.uint64(k1)
        c1 = product_1 & _LOW_32
        c3 = product_0 & _LOW_32
        k0 = (k0 + _WEYL_0) & 0xFFFFFFFF
        k1 = (k1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3))


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one purpose under one seed.

    Attributes:
        seed: the seed of the world.
        purpose: what the numbers are for; two purposes of one seed are independent.
    """

    seed: int
    purpose: str

    def uniforms(
        self, users: IntArray, round_index: int, count: int, lane: IntArray | None = None
    ) -> npt.NDArray[np.float64]:
        """Draw ``count`` uniforms in [0, 1) for each user at one round, 53 bits each.

        Args:
            users: (n,) user numbers, 0 <= user < 2**32.
            round_index: the round, 0 <= round < 2**32.
            count: numbers per user.
            lane: optional (n,) sub-address (for example the arm), 0 <= lane < 2**32.

        Returns:
            (n, count) float64; row i depends on nothing but (seed, purpose, users[i], round, lane[i]).
        """
        users = np.asarray(users)
        blocks_per_user = (count + 1) // 2
        out = np.empty((users.size, 2 * blocks_per_user))
        step = max(1, _BLOCKS_AT_ONCE // max(1, blocks_per_user))
        for start in range(0, users.size, step):
            rows = slice(start, start + step)
            lanes = np.uint64(0) if lane is None else np.asarray(lane)[rows].astype(np.uint64)
            out[rows] = self._rows(users[rows].astype(np.uint64), round_index, lanes, blocks_per_user)
        return out[:, :count]

    def normals(self, users: IntArray, round_index: int, lane: IntArray | None = None) -> npt.NDArray[np.float64]:
        """Draw one standard normal per user, (n,) float64 (Box and Muller 1958)."""
        pair = self.uniforms(users, round_index, 2, lane)
        radius = np.sqrt(-2.0 * np.log1p(-pair[:, 0]))
        return np.asarray(radius * np.cos(2.0 * np.pi * pair[:, 1]), dtype=np.float64)

    def generator(self) -> np.random.Generator:
        """Return a sequential generator for what is drawn once per world (weights, permutations)."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self._digest(16), "little")))

    def _rows(
        self,
        users: npt.NDArray[np.uint64],
        round_index: int,
        lanes: npt.NDArray[np.uint64] | np.uint64,
        blocks_per_user: int,
    ) -> npt.NDArray[np.float64]:
        shape = (users.size, blocks_per_user)
        counters = np.empty((4, *shape), dtype=np.uint64)
        counters[0] = users[:, None]
        counters[1] = round_index
        counters[2] = np.asarray(lanes).reshape(-1, 1)
        counters[3] = np.arange(blocks_per_user, dtype=np.uint64)
        words = philox_blocks(counters.reshape(4, -1), self._key()).reshape(4, *shape)
        pairs = np.empty((*shape, 2))
        for half in (0, 1):
            high, low = words[2 * half], words[2 * half + 1]
            pairs[..., half] = ((high << np.uint64(21)) | (low >> np.uint64(11))) * 2.0**-53
        return pairs.reshape(users.size, 2 * blocks_per_user)

    def _key(self) -> tuple[int, int]:
        digest = self._digest(8)
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def _digest(self, size: int) -> bytes:
        return blake2b(f"{self.seed}|{self.purpose}".encode(), digest_size=size, person=b"hush-world").digest()
