"""Sealing keys follow one another: only who held one can say which is next, and the period says which is meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.recipients import Openers, Recipients
from hushstream.engine.devices.sealing import SlotPlace
from hushstream.privacy.keys import Key, seeded_key
from hushstream.systems.p2b.contribution.sealed import SealOpener, seal
from hushstream.systems.p2b.contribution.slots import SLOT_BYTES

FIRST, SECOND, THIRD, FOREIGN = (seeded_key(number, "sealing") for number in range(4))
USER = seeded_key(9, "ann")
CONTENT = bytes(range(SLOT_BYTES))
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
    return seal(CONTENT, place(period), recipients.at(period), USER)


def test_the_period_alone_says_to_whom_a_slot_is_sealed():
    expected = {0: FIRST, 9: FIRST, 10: SECOND, 19: SECOND, 20: THIRD, 10**6: THIRD}
    assert {period: ALL.at(period) for period in expected} == {p: public(key) for p, key in expected.items()}
    before = Recipients(ALL.keys[:2])
    assert [sealed_at(period, before) for period in (3, 15)] == [sealed_at(period) for period in (3, 15)]


def test_what_was_sealed_to_any_kept_key_opens_also_when_a_writer_is_late_with_the_new_one():
    openers = Openers(ALL, [FIRST, SECOND, THIRD], SealOpener)
    for period in (0, 10, 20):
        assert openers.open(sealed_at(period), place(period)) == CONTENT
    late = seal(CONTENT, place(25), public(FIRST), USER)
    assert openers.open(late, place(25)) == CONTENT
    with pytest.raises(BadSeal, match="sealed to this key for this place"):
        openers.open(seal(CONTENT, place(25), public(FOREIGN), USER), place(25))


def test_a_destroyed_key_opens_nothing_any_more_and_the_others_go_on():
    openers = Openers(ALL, [SECOND, THIRD], SealOpener)
    assert openers.open(sealed_at(15), place(15)) == CONTENT
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
