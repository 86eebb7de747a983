"""The pool of arms that may be shown: the first ones of a public permutation.

The pool grows with the number of decisions.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np

from hushstream.systems.pdap.cells import Int64

FLOOR = 12
"""Size of the pool at the beginning."""

_GROWTH = 3.0
_BLOCKS_AN_ARM = 0.1


def pool_size(arms: int, decisions: int, least: float) -> int:
    """min(arms, max(12, min(3 sqrt(N), .1 N / least))): this is the number of arms that N decisions can distinguish.

    Args:
        arms: number of arms of all vendors.
        decisions: N, public.
        least: kappa/epsilon, outcomes of the smallest block; each arm should fill about ten of them.
    """
    wanted = min(_GROWTH * math.sqrt(decisions), _BLOCKS_AN_ARM * decisions / least)
    return min(arms, max(FLOOR, math.floor(wanted)))


def permutation(arms: int, seed: bytes) -> Int64:
    """A public order of all arms, from the configuration's digest: arms sorted by a hash of their number."""
    # BLAKE2b is the same on every machine; numpy's shuffles are not promised to be.
    ranks = [blake2b(arm.to_bytes(8, "little"), key=seed, person=b"hush-pdap-pool").digest() for arm in range(arms)]
    return np.array(sorted(range(arms), key=ranks.__getitem__), dtype=np.int64)
