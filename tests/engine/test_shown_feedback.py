"""Places for what was shown: who has one, and that rewards change nothing about that, nor about one another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.feedback.memory import EarlyOutcome, FeedbackRow, ShownEarlyFeedback

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
            assert [click for click in with_it if not click.rewarded] == [c for c in without_it if not c.rewarded]


@given(steps)
@settings(max_examples=100, deadline=None)
def test_taken_again_in_the_order_of_a_snapshot_the_places_are_the_same(taken):
    _, early = play(taken)
    again = ShownEarlyFeedback(OF_ONE)
    for click in early.all():
        assert again.hold(click) is EarlyOutcome.WAITS
    assert list(again.all()) == list(early.all())
