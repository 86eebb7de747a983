"""The table of first bits gives what a binary search gives, for every word where the two could differ."""

from __future__ import annotations

import bisect

import numpy as np
import pytest

from hushstream.privacy.mechanisms.lookup import ThresholdLookup
from hushstream.privacy.mechanisms.tables import laplace_tables

ENTRY = 1 << 50
LAST = 2**64 - 1
THRESHOLDS = {
    "none": [],
    "the ends of the words": [0, LAST],
    "the ends of entries": [ENTRY - 1, ENTRY, 5 * ENTRY, 5 * ENTRY + 1, LAST - ENTRY, LAST - ENTRY + 1],
    "several in one entry, and equal ones": [7 * ENTRY + 1, 7 * ENTRY + 1, 7 * ENTRY + 9, 8 * ENTRY - 1],
    "a digit, little by little": laplace_tables(10**9, 1).digits[0].tolist(),
    "a digit, all in the last entries": laplace_tables(8, 1).digits[0].tolist(),
    "random": np.sort(np.random.default_rng(1).integers(0, LAST, 300, dtype=np.uint64)).tolist(),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_every_word_has_passed_as_many_thresholds_as_a_search_finds(name):
    thresholds = THRESHOLDS[name]
    edges = [0, LAST, *thresholds, *range(0, LAST, 97 * ENTRY)]
    random = np.random.default_rng(2).integers(0, LAST, 2_000, dtype=np.uint64).tolist()
    words = [word for edge in edges for word in (edge - 1, edge, edge + 1) if 0 <= word <= LAST] + random
    expected = [bisect.bisect_right(thresholds, word) for word in words]
    lookup = ThresholdLookup(np.array(thresholds, dtype=np.uint64))
    counts = lookup.passed(np.array(words, dtype=np.uint64))
    assert counts.dtype == np.int64
    assert counts.tolist() == expected
    for few in (0, 1, 255, 256):
        assert lookup.passed(np.array(words[:few], dtype=np.uint64)).tolist() == expected[:few]
    apart = np.repeat(np.array(words, dtype=np.uint64), 3)[::3]
    assert lookup.passed(apart).tolist() == expected
