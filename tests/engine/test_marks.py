"""A release mark tells nobody without its zone's key how far a journal is, cannot be made up, and is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hushstream.engine.journal.marks import Mark, MarkSeal, MarkUnreadable, ReleaseEvidence, read_public
from hushstream.privacy.key_files import KeyRing, next_key
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec

KEY = seeded_key(1, "shuffler")
RING = KeyRing(0, 0, (), KEY)
MARK = Mark("0a1b", 77, generation=2, paid=True)


def seal(deployment: str = "dep", role: str = "shuffler", partition: int = 3, ring: KeyRing = RING) -> MarkSeal:
    return MarkSeal(deployment, role, partition, ring)


def test_a_mark_is_read_as_it_was_written_and_only_the_zone_learns_its_number():
    value = seal().pack(MARK)
    assert seal().unpack(value) == MARK
    assert read_public(value, "dep", "shuffler", 3) == replace(MARK, sequence=0)
    with pytest.raises(MarkUnreadable, match="expected a mark of deployment 'other'"):
        read_public(value, "other", "shuffler", 3)
    assert (77).to_bytes(8, "little") not in value
    assert len(value) == len(seal().pack(replace(MARK, sequence=1 << 62))), "its size tells nothing of the number"


def test_marks_of_neighbouring_records_share_no_pad():
    hidden = [codec.decode(seal().pack(replace(MARK, sequence=n)))[1]["sealed"] for n in range(200)]
    numbers = [n.to_bytes(8, "little") for n in range(200)]
    pads = {bytes(a ^ b for a, b in zip(one, number, strict=True)) for one, number in zip(hidden, numbers, strict=True)}
    assert len(pads) == 200


@pytest.mark.parametrize(
    "change",
    [
        {"journal": "ffff"},
        {"generation": 3},
        {"accepted": True},
        {"paid": False},
        {"sealed": bytes(8)},
        {"tag": bytes(16)},
    ],
)
def test_a_mark_that_was_altered_is_refused(change):
    _, fields = codec.decode(seal().pack(MARK))
    with pytest.raises(MarkUnreadable, match="altered"):
        seal().unpack(codec.encode("ReleaseMark", {**fields, **change}))


@pytest.mark.parametrize("other", [{"deployment": "other"}, {"role": "counter"}, {"partition": 4}])
def test_a_mark_of_another_place_is_refused(other):
    with pytest.raises(
        MarkUnreadable, match="expected a mark of deployment 'dep', role shuffler, partition 3, got one"
    ):
        seal().unpack(seal(**other).pack(MARK))  # type: ignore[arg-type]


def test_a_mark_moved_to_another_place_is_refused():
    _, fields = codec.decode(seal(partition=4).pack(MARK))
    with pytest.raises(MarkUnreadable, match="altered"):
        seal().unpack(codec.encode("ReleaseMark", {**fields, "partition": 3}))


def test_a_mark_that_was_made_without_the_zones_key_is_refused():
    foreign = seal(ring=KeyRing(0, 0, (), seeded_key(2, "shuffler"))).pack(MARK)
    with pytest.raises(MarkUnreadable, match="under a key of this zone's key file"):
        seal().unpack(foreign)
    _, fields = codec.decode(foreign)
    with pytest.raises(MarkUnreadable, match="altered"):
        seal().unpack(codec.encode("ReleaseMark", {**fields, "key_id": KEY.key_id}))


def test_garbage_is_refused():
    for value in (b"", b"noise", seal().pack(MARK)[:-1], codec.encode("Tick", {"config_digest": bytes(16)})):
        with pytest.raises(MarkUnreadable, match="expected a release mark, got something else"):
            seal().unpack(value)


def test_marks_outlive_the_turn_of_a_key_and_those_of_a_destroyed_key_are_passed_over():
    before = seal().pack(MARK)
    turned = KeyRing(0, 1, (), KEY)
    assert seal(ring=turned).unpack(before) == MARK
    after = seal(ring=turned).pack(MARK)
    retired = KeyRing(1, 1, ((0, KEY.key_id),), next_key(KEY, 1))
    assert seal(ring=retired).unpack(after) == MARK
    assert seal(ring=retired).unpack(before) is None


# What a journal is held to.


def begun(*marks: Mark) -> ReleaseEvidence:
    return ReleaseEvidence((Mark("a", 0), *marks))


def test_a_journal_that_holds_all_that_was_released_is_gone_on_with():
    evidence = begun(Mark("a", 7), Mark("a", 3))
    assert not evidence.suspicion("a", 7)
    assert not evidence.suspicion("a", 12)
    assert evidence.highest("a") == 7


def test_a_journal_that_ends_before_a_mark_is_an_older_copy():
    assert "ends at record 6, but a release was sent with record 7" in begun(Mark("a", 7)).suspicion("a", 6)
    noted = ReleaseEvidence((Mark("a", 0),), (Mark("a", 7),))
    assert "older copy" in noted.suspicion("a", 6), "what this disk alone knows counts"


def test_a_new_journal_where_another_has_marks_is_refused_whether_it_has_a_record_or_not():
    for journal, sequence in ((None, 0), ("b", 0), ("b", 9)):
        assert "another journal has released here (a)" in begun().suspicion(journal, sequence)
        assert "another journal" in ReleaseEvidence((Mark("b", 0),), (Mark("a", 3),)).suspicion("b", 9)


def test_a_journal_with_records_and_no_mark_has_lost_its_marks():
    assert not ReleaseEvidence().suspicion(None, 0)
    assert not ReleaseEvidence().suspicion("a", 0)
    assert "the topic of marks holds none of it" in ReleaseEvidence().suspicion("a", 1)


def test_a_disk_that_knows_more_than_the_topic_shows_that_the_topic_was_lost():
    for shared in ((), (Mark("a", 9),)):
        evidence = ReleaseEvidence(shared, (Mark("a", 9, generation=1),))
        assert "that the topic lacks" in evidence.suspicion("a", 9)
    assert "that the topic lacks" in ReleaseEvidence((), (Mark("a", 1),)).suspicion(None, 0)


def test_other_signs_speak_against_a_new_journal_and_against_none_that_has_a_mark():
    signs = ("the group has committed work on journal a", "topic window-sums is not empty")
    for journal in (None, "b"):
        assert ReleaseEvidence(signs=signs).suspicion(journal, 0) == "; ".join(signs)
    assert not ReleaseEvidence((Mark("b", 0),), signs=signs).suspicion("b", 5)


def test_an_operators_word_makes_one_journal_count_and_lasts_until_the_next_loss():
    lost = (Mark("a", 0), Mark("a", 30))
    accepted = ReleaseEvidence((*lost, Mark("a", 12, 1, accepted=True)))
    assert not accepted.suspicion("a", 12)
    assert accepted.accepted_at("a") == 12
    assert accepted.accepted_at("b") is None
    assert "another journal" in accepted.suspicion("b", 40)
    gone_on = ReleaseEvidence((*lost, Mark("a", 12, 1, accepted=True), Mark("a", 14, 1)), (Mark("a", 30),))
    assert gone_on.accepted_at("a") == 12, (
        "what was sent since answers no suspected rollback: the journal says what did"
    )
    assert not gone_on.suspicion("a", 14), "marks of the lost history count no more, wherever they are"
    assert "record 14" in gone_on.suspicion("a", 13)


def test_commits_that_are_ahead_of_a_journal_speak_against_it_as_marks_do():
    evidence = ReleaseEvidence((Mark("a", 0), Mark("a", 5)), committed=(Mark("a", 9), Mark("b", 80)))
    assert "ends at record 5, but the group has committed all up to record 9" in evidence.suspicion("a", 5)
    assert not evidence.suspicion("a", 9), "what another journal has committed says nothing of this one"
    gone_on = ReleaseEvidence((*evidence.shared, Mark("a", 5, 1, accepted=True)), committed=evidence.committed)
    assert not gone_on.suspicion("a", 5), "commits of a lost history count no more"
    assert "a generation that the topic of marks lacks" in ReleaseEvidence(
        evidence.shared, committed=(Mark("a", 5, 2),)
    ).suspicion("a", 5)


def test_an_operators_word_names_a_generation_of_which_nobody_has_heard():
    """A word that stayed in a command fits no refusal of topics that were put back to before it."""
    assert ReleaseEvidence().next_generation == 1
    assert ReleaseEvidence((Mark("a", 3),), (Mark("a", 7, 1),)).next_generation == 2
    assert ReleaseEvidence((Mark("a", 3),), committed=(Mark("a", 7, 4),)).next_generation == 5


def test_a_life_is_counted_for_each_generation_that_has_paid_or_of_which_nothing_is_known():
    first, accepted = Mark("a", 7, paid=True), Mark("a", 4, 1, accepted=True, paid=True)
    assert begun(first).incarnations(1) == 1
    assert begun(Mark("a", 7)).incarnations(1) == 0
    assert begun(first, accepted).incarnations(2) == 1, "nothing was sent since the operator's word"
    assert begun(first, accepted, Mark("a", 5, 1, paid=True)).incarnations(2) == 2
    assert ReleaseEvidence((accepted,)).incarnations(1) == 1, (
        "marks of the first are lost, or under a key that was destroyed"
    )


def test_two_journals_that_were_accepted_at_once_are_both_refused():
    evidence = ReleaseEvidence((Mark("a", 3, 1, accepted=True), Mark("b", 0, 1, accepted=True)))
    for journal in ("a", "b"):
        assert "another journal" in evidence.suspicion(journal, 3)
