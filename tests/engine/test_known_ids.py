"""Ids that were counted are known for ever, in whatever order they came and wherever they lie."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.state.known_ids import ID_BYTES, KnownIds
from hushstream.schemas.errors import HushstreamError

# Few and many halves of a run, with those at both ends.
halves = st.one_of(st.integers(0, 40), st.integers(2**64 - 40, 2**64 - 1), st.integers(0, 2**64 - 1))


def named(half):
    return bytes(8) + half.to_bytes(8, "little")


@given(st.lists(halves, max_size=200), st.lists(halves, max_size=50))
@settings(max_examples=100, deadline=None)
def test_exactly_what_was_added_is_known_before_and_after_a_dump(added, asked):
    known = KnownIds()
    for half in dict.fromkeys(added):
        assert named(half) not in known
        known.add(named(half))
    for ids in (known, KnownIds.load(known.dump())):
        assert len(ids) == len(set(added))
        for half in (*added, *asked):
            assert (named(half) in ids) == (half in set(added))


def test_thousands_of_merged_ids_are_all_known_and_no_others():
    draw = np.random.default_rng(3)
    ids = [draw.bytes(ID_BYTES) for _ in range(40_000)]
    known = KnownIds()
    for report_id in ids:
        known.add(report_id)
    assert len(known._young) <= len(ids) // 16
    assert all(report_id in known for report_id in ids)
    assert not any(draw.bytes(ID_BYTES) in known for _ in range(40_000))
    assert len(known.dump()) == 8 + 8 * len(ids)


def test_equal_sets_give_equal_bytes_whatever_the_order():
    ids = [os.urandom(ID_BYTES) for _ in range(3000)]
    dumps = set()
    for order in (ids, ids[::-1]):
        known = KnownIds()
        for report_id in order:
            known.add(report_id)
        dumps.add(known.dump())
    assert len(dumps) == 1


def test_a_loaded_set_goes_on():
    known = KnownIds()
    for half in range(2000):
        known = KnownIds.load(known.dump()) if half % 500 == 0 else known
        known.add(named(half))
    assert len(known) == 2000
    assert named(0) in known
    assert named(2000) not in known


@pytest.mark.parametrize("halves", [(1, 1), (2, 1)])
def test_what_no_set_wrote_is_refused(halves):
    dumped = (2).to_bytes(8, "little") + b"".join(half.to_bytes(8, "little") for half in halves)
    with pytest.raises(HushstreamError, match="ascending"):
        KnownIds.load(dumped)
    for broken in (b"", dumped[:-1], dumped + b"\0"):
        with pytest.raises(HushstreamError, match="ids: expected"):
            KnownIds.load(broken)
