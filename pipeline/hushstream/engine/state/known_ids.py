"""Every id that was ever counted in a partition, so that nothing is counted twice.

An id may never be forgotten. An edge that is restored from an older copy may repeat slot numbers at any later time, and
a role that died between its release and its commit sends its records again. So ids are kept for the life of a
deployment, with 8 bytes for each. A snapshot holds 0.8 MB for 100,000 ids and 8 MB for a million; memory holds a
quarter more, and up to four times as much while ids are merged.

**Half an id is enough.** Privacy needs no more: equal ids have equal halves, so a repeat is always found. A new id may
be mistaken for a known one. Ids are digests under a key, so the probability that two halves of n ids agree is at most
n^2 / 2^65 (the union bound over n(n - 1)/2 pairs of 64-bit values): 2.8e-8 in all for a million ids of a partition.
Then one slot or reward is lost, independently of its content, because ids do not depend on content.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError

ID_BYTES = 16

_SECOND = ID_BYTES // 2
"""Where the second half of an id begins. The first half also selects the partition, so within a partition it is less
random."""
_COUNT_BYTES = 8
_HALF = np.dtype("u8")
_YOUNG_AT_LEAST = 1024
_YOUNG_SHARE = 16
_RUN_BITS = 3


class KnownIds:
    """A growing set of ids.

    Halves are in one sorted array. New ones are in a set, and are merged into the array when their number reaches 1/16
    of it (and at least 1,024). So each half takes part in about 16 merges. An index holds the beginning of each run of
    equal first bits, so a search looks at about 8 halves.
    """

    __slots__ = ("_merged", "_shift", "_starts", "_view", "_young")

    def __init__(self) -> None:
        """Begin with none."""
        self._young: set[int] = set()
        self._keep(np.empty(0, _HALF))

    def __len__(self) -> int:
        """Number of ids."""
        return len(self._merged) + len(self._young)

    def __contains__(self, report_id: bytes) -> bool:
        """Whether an id of `ID_BYTES` bytes was added."""
        return self._knows(int.from_bytes(report_id[_SECOND:], "little"))

    def add(self, report_id: bytes) -> bool:
        """Add an id; returns whether it is new."""
        half = int.from_bytes(report_id[_SECOND:], "little")
        if self._knows(half):
            return False
        self._young.add(half)
        if len(self._young) >= max(_YOUNG_AT_LEAST, len(self._merged) // _YOUNG_SHARE):
            self._keep(self._all())
            self._young = set()
        return True

    def dump(self) -> bytes:
        """The set as bytes; equal sets give equal bytes."""
        return len(self).to_bytes(_COUNT_BYTES, "little") + self._all().tobytes()

    @classmethod
    def load(cls, dumped: bytes) -> KnownIds:
        """Restore the set that `dump` wrote.

        Raises:
            HushstreamError: not such bytes.
        """
        count = int.from_bytes(dumped[:_COUNT_BYTES], "little")
        if len(dumped) != _COUNT_BYTES + count * _HALF.itemsize:
            raise HushstreamError(f"ids: expected {count} of {_HALF.itemsize} bytes, got {len(dumped)} bytes")
        merged = np.frombuffer(dumped, _HALF, offset=_COUNT_BYTES)
        if (merged[1:] <= merged[:-1]).any():
            raise HushstreamError("ids: expected them in ascending order, got another one")
        known = cls()
        known._keep(merged)
        return known

    def _knows(self, half: int) -> bool:
        if half in self._young:
            return True
        run = half >> self._shift
        end = self._starts[run + 1]
        place = bisect_left(self._view, half, self._starts[run], end)
        return place < end and self._view[place] == half

    def _keep(self, merged: NDArray[np.uint64]) -> None:
        bits = max(1, len(merged).bit_length() - _RUN_BITS)
        self._merged = merged
        # Python takes single numbers from a view and an array faster than from numpy.
        self._view = merged.data
        self._shift = 8 * _HALF.itemsize - bits
        firsts = np.arange(1 << bits, dtype=_HALF) << np.uint64(self._shift)
        self._starts = array("q", [*np.searchsorted(merged, firsts).tolist(), len(merged)])

    def _all(self) -> NDArray[np.uint64]:
        young = np.sort(np.fromiter(self._young, _HALF, len(self._young)))
        # Stable sorting finds the two runs and merges them.
        return np.sort(np.concatenate([self._merged, young]), kind="stable")
