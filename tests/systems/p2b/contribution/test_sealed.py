"""Sealed slots: the shuffler alone reads them, a replay gives the same bytes, and no key ever serves two messages."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.sealing import PUBLIC_KEY_BYTES, SlotPlace, require_public_key
from hushstream.privacy.keys import seeded_key
from hushstream.systems.p2b.contribution.sealed import SEALED_BYTES, SealOpener, seal
from hushstream.systems.p2b.contribution.slots import SLOT_BYTES, Report, pack

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
