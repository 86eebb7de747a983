"""A slot's content has one size and one encoding a meaning, and nothing else is read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.systems.p2b.contribution.errors import BadReward, BadSlot, ContributionError
from hushstream.systems.p2b.contribution.slots import SLOT_BYTES, Report, pack, reward_level, unpack, unpack_all


@given(st.integers(0, 1023), st.integers(0, 49), st.integers(0, 256))
def test_a_report_comes_back_as_it_was(code, arm, level):
    content = pack(Report(code, arm, level))
    assert len(content) == SLOT_BYTES == len(pack(None))
    assert unpack(content, 1024, 50, 256) == Report(code, arm, level)


def test_null_comes_back_as_null():
    assert unpack(pack(None), 1, 1, 1) is None


def test_the_layout_is_frozen():
    assert pack(Report(0x01020304, 5, 6)).hex() == "0101" + "04030201" + "05000000" + "0600" + "00" * 20
    assert pack(None).hex() == "0100" + "00" * 30


@given(st.binary(min_size=SLOT_BYTES, max_size=SLOT_BYTES))
def test_any_other_bytes_are_refused_or_have_this_one_encoding(content):
    try:
        report = unpack(content, 8, 10, 1)
    except BadSlot:
        return
    assert pack(report) == content


@given(st.integers(0, SLOT_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_never_reads_as_the_same_report(position, change):
    original = pack(Report(3, 4, 1))
    content = bytearray(original)
    content[position] ^= change
    try:
        assert unpack(bytes(content), 8, 10, 1) != Report(3, 4, 1)
    except BadSlot:
        assert bytes(content) != original


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pack(None)[:-1],
        pack(None) + b"\0",
        b"\2" + pack(None)[1:],
        pack(None)[:-1] + b"\1",
        pack(None)[:2] + b"\1" + pack(None)[3:],
        pack(Report(8, 0, 0)),
        pack(Report(0, 10, 0)),
        pack(Report(0, 0, 2)),
    ],
)
def test_bad_contents_are_refused_without_repeating_them(content):
    with pytest.raises(BadSlot) as caught:
        unpack(content, 8, 10, 1)
    assert content.hex() not in str(caught.value) or not content


def test_what_the_layout_cannot_hold_is_refused():
    for report in (Report(-1, 0, 0), Report(0, 1 << 32, 0), Report(0, 0, 1 << 16)):
        with pytest.raises(BadSlot):
            pack(report)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 256))
def test_rewards_are_clipped_before_they_are_rounded_down(reward, levels):
    level = reward_level(reward, levels)
    clipped = min(max(reward, 0.0), 1.0)
    assert 0 <= level <= levels
    assert level / levels <= clipped + 1e-12
    assert clipped < (level + 1) / levels


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_no_numbers_are_refused(reward):
    with pytest.raises(BadReward):
        reward_level(reward, 1)


@pytest.mark.parametrize("levels", [0, 257])
def test_levels_out_of_range_are_refused(levels):
    with pytest.raises(ContributionError):
        reward_level(0.5, levels)


def good_or_bad():
    reports = st.builds(Report, st.integers(0, 9), st.integers(0, 11), st.integers(0, 2)).map(pack)
    return st.one_of(st.just(pack(None)), reports, st.binary(min_size=SLOT_BYTES, max_size=SLOT_BYTES), st.binary())


@given(st.lists(good_or_bad(), max_size=8))
def test_many_contents_read_as_they_do_one_by_one(contents):
    try:
        expected = [unpack(content, 8, 10, 1) for content in contents]
    except BadSlot:
        with pytest.raises(BadSlot):
            unpack_all(contents, 8, 10, 1)
        return
    columns = unpack_all(contents, 8, 10, 1)
    assert [column.dtype.name for column in columns] == ["bool", "int64", "int64", "int64"]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert list(rows) == [(True, *report) if report else (False, 0, 0, 0) for report in expected]


def test_two_wrong_sizes_that_add_up_to_right_ones_are_refused():
    with pytest.raises(BadSlot, match="32 bytes of slot content in each of 2 slots"):
        unpack_all([pack(None)[:-1], pack(None) + b"\0"], 8, 10, 1)
