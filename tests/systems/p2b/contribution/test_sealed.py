"""A slot's content, its encryption, and the keys that follow one another: no key ever serves two messages."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hushstream.engine.devices.kept import BadSeal
from hushstream.engine.devices.sealing import PUBLIC_KEY_BYTES, Openers, Recipients, SlotPlace, require_public_key
from hushstream.privacy.keys import Key, seeded_key
from hushstream.systems.p2b.sealed import SEALED_BYTES, SealOpener, seal
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

SHUFFLER = SealOpener(seeded_key(1, "sealing"))
ANN, BOB = seeded_key(2, "ann"), seeded_key(3, "bob")
PLACE = SlotPlace(bytes(range(16)), (7).to_bytes(8, "little"), b"d" * 16)
CONTENT = pack(Report(3, 2, 1))
SMALL_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
]
"""RFC 7748, Section 6.1, and Bernstein's list: points with which every agreed secret is zero."""


def sealed(content: bytes = CONTENT, place: SlotPlace = PLACE, key=ANN) -> bytes:
    return seal(content, place, SHUFFLER.public_key, key)


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=SLOT_BYTES, max_size=SLOT_BYTES), st.integers(0, 2**63 - 1))
def test_the_shuffler_opens_what_was_sealed_to_it_and_all_have_one_size(content, period):
    place = PLACE._replace(period=period.to_bytes(8, "little"))
    value = sealed(content, place)
    assert len(value) == SEALED_BYTES
    assert SHUFFLER.open(value, place) == content


def test_a_replay_gives_the_same_bytes():
    assert sealed() == sealed()
    assert sealed() == seal(CONTENT, PLACE, SealOpener(seeded_key(1, "sealing")).public_key, seeded_key(2, "ann"))


def test_no_two_messages_share_a_key_so_the_constant_nonce_serves_each_key_once():
    contents = [pack(None), *(pack(Report(code, 1, level)) for code in range(8) for level in (0, 1))]
    places = [
        PLACE,
        PLACE._replace(report_id=bytes(16)),
        PLACE._replace(period=bytes(8)),
        PLACE._replace(config_digest=bytes(16)),
    ]
    recipients = [SHUFFLER.public_key, SealOpener(seeded_key(9, "sealing")).public_key]
    made = [
        seal(content, place, recipient, key)
        for content in contents
        for place in places
        for recipient in recipients
        for key in (ANN, BOB)
    ]
    assert len({value[:PUBLIC_KEY_BYTES] for value in made}) == len(made) == 17 * 4 * 2 * 2


def test_equal_contents_of_two_users_look_unrelated():
    """A byte that did not depend on the user's key would be the same in all 400.

    Uniform bytes give at least 90 values of 256 (or of 128: the highest byte of a public key) but for a probability
    below 1e-9.
    """
    keys = [ANN.derive("user", number) for number in range(400)]
    for content in (pack(None), CONTENT):
        values = [sealed(content, key=key) for key in keys]
        assert min(len({value[place] for value in values}) for place in range(SEALED_BYTES)) >= 90


@pytest.mark.parametrize("byte", [0, PUBLIC_KEY_BYTES, SEALED_BYTES - 1], ids=["ephemeral", "content", "tag"])
def test_a_changed_slot_does_not_open(byte):
    value = bytearray(sealed())
    value[byte] ^= 1
    with pytest.raises(BadSeal, match="got another"):
        SHUFFLER.open(bytes(value), PLACE)


@pytest.mark.parametrize("field", SlotPlace._fields)
def test_a_slot_opens_in_its_own_place_alone(field):
    value = getattr(PLACE, field)
    elsewhere = PLACE._replace(**{field: bytes([value[0] ^ 1]) + value[1:]})
    with pytest.raises(BadSeal, match="for this place"):
        SHUFFLER.open(sealed(), elsewhere)


def test_another_shuffler_opens_nothing():
    with pytest.raises(BadSeal, match="sealed to this key"):
        SealOpener(seeded_key(8, "sealing")).open(sealed(), PLACE)


@pytest.mark.parametrize("point", SMALL_ORDER, ids=range(len(SMALL_ORDER)))
def test_a_public_key_whose_secrets_all_know_is_refused_on_both_sides(point):
    with pytest.raises(BadSeal, match="small order"):
        require_public_key(point)
    with pytest.raises(BadSeal, match="small order"):
        seal(CONTENT, PLACE, point, ANN)
    with pytest.raises(BadSeal, match="small order"):
        SHUFFLER.open(point + sealed()[PUBLIC_KEY_BYTES:], PLACE)


@pytest.mark.parametrize("length", [0, SEALED_BYTES - 1, SEALED_BYTES + 1])
def test_other_sizes_are_refused_by_number(length):
    with pytest.raises(BadSeal, match=f"expected 80 bytes of sealed slot, got {length}"):
        SHUFFLER.open(bytes(length), PLACE)
    with pytest.raises(BadSeal, match="expected 32 bytes of slot content"):
        sealed(bytes(length))
    with pytest.raises(BadSeal, match="public key of 32 bytes"):
        require_public_key(bytes(length))


def test_the_private_half_is_never_shown_and_never_leaves_the_process():
    key = seeded_key(1, "sealing")
    assert SHUFFLER.public_key.hex() in repr(SHUFFLER)
    assert key.prf("sealing-private").hex() not in repr(SHUFFLER)
    for leave in (pickle.dumps, copy.deepcopy):
        with pytest.raises(BadSeal, match="expected to stay in this process"):
            leave(SHUFFLER)


def test_the_layout_is_frozen():
    """A worker of a later version must send again what an earlier one journaled."""
    assert sealed().hex() == (
        "aca9c0ac2b5c9f0a0b632f7070a1cef1564ddbcdcb00532dfd0c1f6617ade47c"
        "f6ac883fc5124dc50b524dfd1c967c44b08e4c3a3757228d9f3b181d66377e13"
        "b1a0d79bff8ade7e53f85e17d4439d16"
    )


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
USER = seeded_key(9, "ann")
A_CONTENT = bytes(range(SLOT_BYTES))
ALL = (
    Recipients.first(FIRST)
    .followed_by(SECOND, 10, [FIRST, SECOND])
    .followed_by(THIRD, 20, [FIRST, SECOND, THIRD])
)  # fmt: skip


def public(key: Key) -> bytes:
    return SealOpener(key).public_key


def place(period: int) -> SlotPlace:
    return SlotPlace(b"i" * 16, period.to_bytes(8, "little"), b"c" * 16)


def sealed_at(period: int, recipients: Recipients = ALL) -> bytes:
    return seal(A_CONTENT, place(period), recipients.at(period), USER)


def test_the_period_alone_says_to_whom_a_slot_is_sealed():
    expected = {0: FIRST, 9: FIRST, 10: SECOND, 19: SECOND, 20: THIRD, 10**6: THIRD}
    assert {period: ALL.at(period) for period in expected} == {p: public(key) for p, key in expected.items()}
    before = Recipients(ALL.keys[:2])
    assert [sealed_at(period, before) for period in (3, 15)] == [sealed_at(period) for period in (3, 15)]


def test_what_was_sealed_to_any_kept_key_opens_also_when_a_writer_is_late_with_the_new_one():
    openers = Openers(ALL, [FIRST, SECOND, THIRD], SealOpener)
    for period in (0, 10, 20):
        assert openers.open(sealed_at(period), place(period)) == A_CONTENT
    late = seal(A_CONTENT, place(25), public(FIRST), USER)
    assert openers.open(late, place(25)) == A_CONTENT
    with pytest.raises(BadSeal, match="sealed to this key for this place"):
        openers.open(seal(A_CONTENT, place(25), public(FOREIGN), USER), place(25))


def test_a_destroyed_key_opens_nothing_any_more_and_the_others_go_on():
    openers = Openers(ALL, [SECOND, THIRD], SealOpener)
    assert openers.open(sealed_at(15), place(15)) == A_CONTENT
    with pytest.raises(BadSeal):
        openers.open(sealed_at(5), place(5))


@pytest.mark.parametrize("held", [[], [FIRST, SECOND], [FOREIGN]])
def test_without_the_newest_published_key_nothing_is_opened(held):
    with pytest.raises(BadSeal, match=f"public half {public(THIRD).hex()[:16]}..., which the deployment publishes"):
        Openers(ALL, held, SealOpener)


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
