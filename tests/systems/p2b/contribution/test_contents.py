"""A slot's content, and the keys that follow one another, to which devices seal it."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hushstream.engine.devices.kept import BadSeal
from hushstream.engine.devices.sealing import (
    PUBLIC_KEY_BYTES,
    ContentOpener,
    Openers,
    Recipients,
    SlotPlace,
    require_public_key,
    seal_content,
)
from hushstream.privacy.keys import Key, seeded_key
from hushstream.systems.p2b.slots import (
    SLOT_BYTES,
    BadReward,
    BadSlot,
    ContributionError,
    Report,
    pack,
    reward_level,
    unpack,
    unpack_all,
)

SMALL_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
]
"""RFC 7748, Section 6.1, and Bernstein's list: points with which every agreed secret is zero."""


@pytest.mark.parametrize("point", SMALL_ORDER, ids=range(len(SMALL_ORDER)))
def test_a_public_key_whose_secrets_all_know_is_refused_on_both_sides(point):
    with pytest.raises(BadSeal, match="small order"):
        require_public_key(point)
    with pytest.raises(BadSeal, match="full order"):
        seal_content(A_CONTENT, place(0), point)
    with pytest.raises(BadSeal, match="for this place"):
        ContentOpener(FIRST).open(point + sealed_at(0)[PUBLIC_KEY_BYTES:], place(0))


def test_the_private_half_is_never_shown_and_never_leaves_the_process():
    opener = ContentOpener(FIRST)
    assert opener.public_key.hex() in repr(opener)
    assert FIRST.prf("sealing-private").hex() not in repr(opener)
    for leave in (pickle.dumps, copy.deepcopy):
        with pytest.raises(BadSeal, match="expected to stay in this process"):
            leave(opener)


@given(st.integers(0, 1023), st.integers(0, 49), st.integers(0, 256))
def test_a_report_comes_back_as_it_was(code, arm, level):
    content = pack(Report(code, arm, level))
    assert len(content) == SLOT_BYTES == len(pack(None))
    assert unpack(content, 1024, 50, 256) == Report(code, arm, level)


def test_null_comes_back_as_null():
    assert unpack(pack(None), 1, 1, 1) is None


def test_the_layout_of_a_content_is_frozen():
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
@example(0.29, 100)
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


FIRST, SECOND, THIRD, FOREIGN = (seeded_key(number, "sealing") for number in range(4))
A_CONTENT = bytes(range(SLOT_BYTES))
ALL = (
    Recipients.first(FIRST)
    .followed_by(SECOND, 10, [FIRST, SECOND])
    .followed_by(THIRD, 20, [FIRST, SECOND, THIRD])
)  # fmt: skip


def public(key: Key) -> bytes:
    return ContentOpener(key).public_key


def place(period: int) -> SlotPlace:
    return SlotPlace(b"i" * 16, period.to_bytes(8, "little"), b"c" * 16)


def sealed_at(period: int) -> bytes:
    return seal_content(A_CONTENT, place(period), ALL.at(period))


def test_the_period_alone_says_to_whom_a_slot_is_sealed():
    expected = {0: FIRST, 9: FIRST, 10: SECOND, 19: SECOND, 20: THIRD, 10**6: THIRD}
    assert {period: ALL.at(period) for period in expected} == {p: public(key) for p, key in expected.items()}


def test_what_was_sealed_to_any_kept_key_opens_also_when_a_writer_is_late_with_the_new_one():
    openers = Openers(ALL, [FIRST, SECOND, THIRD])
    for period in (0, 10, 20):
        assert openers.open(sealed_at(period), place(period)) == A_CONTENT
    late = seal_content(A_CONTENT, place(25), public(FIRST))
    assert openers.open(late, place(25)) == A_CONTENT
    with pytest.raises(BadSeal, match="sealed to this key for this place"):
        openers.open(seal_content(A_CONTENT, place(25), public(FOREIGN)), place(25))


def test_a_destroyed_key_opens_nothing_any_more_and_the_others_go_on():
    openers = Openers(ALL, [SECOND, THIRD])
    assert openers.open(sealed_at(15), place(15)) == A_CONTENT
    with pytest.raises(BadSeal):
        openers.open(sealed_at(5), place(5))


@pytest.mark.parametrize("held", [[], [FIRST, SECOND], [FOREIGN]])
def test_without_the_newest_published_key_nothing_is_opened(held):
    with pytest.raises(BadSeal, match=f"public half {public(THIRD).hex()[:16]}..., which the deployment publishes"):
        Openers(ALL, held)


def test_only_who_holds_the_newest_key_can_name_the_next():
    with pytest.raises(BadSeal, match="to sign the next one, got others"):
        Recipients(ALL.keys[:2]).followed_by(THIRD, 20, [FIRST, THIRD])
    with pytest.raises(BadSeal, match="rotate it first"):
        ALL.followed_by(SECOND, 30, [THIRD])
    with pytest.raises(BadSeal, match=r"grow from 0 on, got \[0, 10, 20, 20\]"):
        ALL.followed_by(FOREIGN, 20, [THIRD])


@pytest.mark.parametrize(
    "change", [{"public_key": public(FOREIGN)}, {"vouch_key": bytes(32)}, {"from_period": 19}, {"vouched": bytes(64)}]
)
def test_a_key_that_somebody_else_put_there_is_refused(change):
    first, second, third = ALL.keys
    with pytest.raises(BadSeal, match="signed by the one before it, it is not"):
        Recipients((first, second, replace(third, **change)))
    forged = Recipients.first(FOREIGN).followed_by(THIRD, 20, [FOREIGN]).keys[-1]
    with pytest.raises(BadSeal, match="it is not"):
        Recipients((first, second, forged))


def test_keys_without_a_first_one_or_of_a_wrong_size_are_refused():
    first = ALL.keys[0]
    for keys in ((), (replace(first, from_period=1),)):
        with pytest.raises(BadSeal, match="grow from 0 on"):
            Recipients(keys)
    with pytest.raises(BadSeal, match="vouch key of 32 bytes, got 3"):
        Recipients((replace(first, vouch_key=b"abc"),))


def test_what_is_pinned_is_the_first_key_whatever_follows():
    assert ALL.pinned == Recipients.first(FIRST).pinned
    assert ALL.pinned != Recipients.first(SECOND).pinned
