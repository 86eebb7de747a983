"""Clicks that contexts name or come before: how long is waited, and for which showing they count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.feedback.memory import EarlyOutcome, FeedbackRow, ShownEarlyFeedback
from hushstream.schemas.batches import encode_context_batch

MARGIN_SECONDS = 30


@pytest.fixture
def rig(rigs):
    return rigs.LearnerRig()


def test_a_context_waits_for_the_click_that_it_names(rig):
    arm = rig.decide("e1")
    rig.context("e2", after_click=0)
    rig.context("e3", user="bob")
    assert not rig.fold().steps
    rig.reward("e1", arm, 1.0)
    seen = rig.fold()
    assert list(seen.arms) == ["e2", "e3"]
    assert seen.counts["rewarded"] == 1


def test_what_stands_before_a_waiting_context_is_decided_at_once(rig):
    rig.context("e1")
    rig.context("e2", after_click=0)
    assert list(rig.fold().arms) == ["e1"]
    assert rig.machine.positions()["contexts", 0] == 1


def test_a_batch_with_one_waiting_row_waits_as_a_whole(rig, rigs):
    vectors = rigs.np.stack([rigs.point(0), rigs.point(1)])
    rig.put("contexts", encode_context_batch(["e1", "e2"], ["ann", "bob"], vectors, after_clicks=[-1, 0]))
    assert not rig.fold().steps
    rig.shown("e0", 0)
    assert list(rig.fold().arms) == ["e1", "e2"]


@pytest.mark.parametrize("kind", ["context", "seal"])
def test_a_click_that_never_comes_is_known_only_by_younger_clicks(rig, kind):
    if kind == "context":
        rig.context("e1", after_click=5)
    else:
        rig.end_phase(0, after_click=5)
    rig.wait(MARGIN_SECONDS)
    rig.shown("other", 0)
    assert rig.fold().reasons == []
    assert rig.machine.positions()["contexts", 0] == 0
    rig.wait(3600)
    rig.context("e2", user="bob")
    assert not rig.fold().steps, "the log time of contexts says nothing of clicks"
    rig.shown("other", 0)
    seen = rig.fold()
    assert seen.reasons == ["after_click_unreachable"]
    assert list(seen.arms) == ["e2"]
    assert not seen.records("reports", "Seal")


def test_a_click_that_comes_late_but_comes_is_waited_for(rig):
    rig.context("e1", after_click=1)
    rig.wait(MARGIN_SECONDS)
    rig.shown("other", 0)
    rig.shown("other", 0)
    seen = rig.fold()
    assert list(seen.arms) == ["e1"]
    assert not seen.letters


def test_where_the_log_of_clicks_is_known_to_end_nothing_waits_for_what_lies_beyond(rig):
    rig.context("e1", after_click=10**9)
    rig.context("e2", user="bob", after_click=3)
    rig.end_phase(0, after_click=3)
    rig.context("e3", user="cleo")
    assert not rig.fold().steps
    waited = rig.machine.awaited
    assert (waited.at, waited.source, waited.offset) == (0, ("clicks", 0), 10**9)
    rig.machine.ends_at(4, 0)
    rig.context("late", user="dan", after_click=3)
    seen = rig.fold()
    assert seen.reasons == ["after_click_unreachable"] * 3
    assert list(seen.arms) == ["e3"]
    assert rig.machine.awaited.at == 4, "what came after the log was asked waits for a while of its own"


def test_a_click_that_came_after_the_log_was_asked_is_taken_all_the_same(rig):
    rig.context("e1", after_click=0)
    assert not rig.fold().steps
    rig.machine.ends_at(1, 0)
    rig.shown("other", 0)
    assert list(rig.fold().arms) == ["e1"]


def test_the_refusal_follows_from_the_journaled_batch_alone(rig, rigs):
    rig.context("e1", after_click=10**9)
    rig.context("e2", user="bob")
    assert not rig.fold().steps
    rig.machine.ends_at(2, 0)
    assert rig.fold().reasons == ["after_click_unreachable"]
    fresh = rigs.LearnerRig().machine
    again = rig.replayed(fresh)
    assert again.reasons == ["after_click_unreachable"]
    assert fresh.snapshot() == rig.machine.snapshot()


def test_a_context_is_decoded_once_however_long_it_waits_and_whatever_comes_meanwhile(rig):
    decoded = []
    decode = rig.machine._arrivals._decode
    rig.machine._arrivals._decode = lambda part: decoded.extend(r.offset for r in part.records) or decode(part)
    rig.context("e1", after_click=10**9)
    for number in range(20):
        rig.context(f"e{number}", user="bob", after_click=number // 2)
        rig.put("contexts", b"garbage")
        if number % 2:
            rig.shown("other", 0)
        rig.fold()
    rig.machine.ends_at(41, 10)
    rig.fold()
    assert rig.machine.positions()["contexts", 0] == 41
    assert decoded == list(range(41))


def test_a_phase_end_waits_for_the_click_that_it_names(rig):
    arm = rig.interact("ann", 2) and rig.decide("ann:2")
    rig.end_phase(0, after_click=2)
    assert not rig.fold().steps
    rig.reward("ann:2", arm, 1.0)
    seen = rig.fold()
    assert len(seen.slots) == 1
    assert [record["phase"] for record in seen.records("reports", "Seal")] == [0]
    assert seen.reports[0] is not None


def test_no_fold_holds_more_rows_than_one_journal_record_can(rig):
    for number in range(4100):
        rig.context(f"e{number}", user=f"u{number % 7}")
    seen = rig.fold()
    assert [len(record["event_ids"]) for record in seen.journals] == [4096, 4]


OF_ONE = 2
steps = st.lists(
    st.tuples(
        st.sampled_from(["shown", "shown", "reward", "reward", "claim", "forget"]),
        st.sampled_from("abcde"),
        st.sampled_from(["ann", "bob"]),
    ),
    max_size=40,
)


def play(taken, left_out=None):
    """Take steps; gives what became of each, what was claimed, and the places."""
    early, became = ShownEarlyFeedback(OF_ONE), []
    for number, (what, event, user) in enumerate(taken):
        if number == left_out:
            became.append(None)
        elif what == "claim":
            became.append(early.claim(event))
        elif what == "forget":
            became.append(early.forget(user))
        else:
            became.append(early.hold(FeedbackRow(what == "reward", event, user, 0, 1.0, number, 0, number)))
    return became, early


@given(steps)
@settings(max_examples=200, deadline=None)
def test_a_place_is_for_the_first_showing_and_the_first_reward_of_a_users_event(taken):
    became, early = play(taken)
    places = {}
    for number, ((what, event, user), outcome) in enumerate(zip(taken, became, strict=True)):
        place = places.get((event, user))
        if what == "claim":
            claimed = [offsets for (of_event, _), offsets in places.items() if of_event == event]
            assert [click.offset for click in outcome] == [offset for offsets in claimed for offset in offsets]
            places = {key: offsets for key, offsets in places.items() if key[0] != event}
        elif what == "forget":
            places = {key: offsets for key, offsets in places.items() if key[1] != user}
        elif what == "reward":
            expected = (
                EarlyOutcome.NOT_SHOWN
                if place is None
                else EarlyOutcome.REPEATED
                if len(place) > 1
                else EarlyOutcome.WAITS
            )
            assert outcome is expected
            if expected is EarlyOutcome.WAITS:
                place.append(number)
        elif place is not None:
            assert outcome is EarlyOutcome.REPEATED
        else:
            full = sum(of_user == user for _, of_user in places) >= OF_ONE
            assert outcome is (EarlyOutcome.FULL if full else EarlyOutcome.WAITS)
            if not full:
                places[event, user] = [number]
    assert sorted(click.offset for click in early.all()) == sorted(o for offsets in places.values() for o in offsets)
    assert bool(early) == bool(places)


@given(steps, st.data())
@settings(max_examples=200, deadline=None)
def test_a_reward_decides_about_no_other_event(taken, data):
    rewards = [number for number, step in enumerate(taken) if step[0] == "reward"]
    if not rewards:
        return
    left_out = data.draw(st.sampled_from(rewards))
    event = taken[left_out][1]
    one, other = play(taken)[0], play(taken, left_out)[0]
    for (what, of_event, _), with_it, without_it in zip(taken, one, other, strict=True):
        if of_event != event or what == "shown":
            assert with_it == without_it
        elif what == "claim":
            assert [click for click in with_it if not click.kind] == [c for c in without_it if not c.kind]


@given(steps)
@settings(max_examples=100, deadline=None)
def test_taken_again_in_the_order_of_a_snapshot_the_places_are_the_same(taken):
    _, early = play(taken)
    again = ShownEarlyFeedback(OF_ONE)
    for click in early.all():
        assert again.hold(click) is EarlyOutcome.WAITS
    assert list(again.all()) == list(early.all())
