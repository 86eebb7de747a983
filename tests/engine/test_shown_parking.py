"""Places for what was shown: who has one, and that rewards change nothing about that, nor about one another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.shown_parking import Parked, ShownParking
from hushstream.feedback.memory import ParkedClick

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
    parking, became = ShownParking(OF_ONE), []
    for number, (what, event, user) in enumerate(taken):
        if number == left_out:
            became.append(None)
        elif what == "claim":
            became.append(parking.claim(event))
        elif what == "forget":
            became.append(parking.forget(user))
        else:
            became.append(parking.park(ParkedClick(what == "reward", event, user, 0, 1.0, number, 0, number)))
    return became, parking


@given(steps)
@settings(max_examples=200, deadline=None)
def test_a_place_is_for_the_first_showing_and_the_first_reward_of_a_users_event(taken):
    became, parking = play(taken)
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
            expected = Parked.NOT_SHOWN if place is None else Parked.REPEATED if len(place) > 1 else Parked.WAITS
            assert outcome is expected
            if expected is Parked.WAITS:
                place.append(number)
        elif place is not None:
            assert outcome is Parked.REPEATED
        else:
            full = sum(of_user == user for _, of_user in places) >= OF_ONE
            assert outcome is (Parked.FULL if full else Parked.WAITS)
            if not full:
                places[event, user] = [number]
    assert sorted(click.offset for click in parking.all()) == sorted(o for offsets in places.values() for o in offsets)
    assert bool(parking) == bool(places)


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
def test_parked_again_in_the_order_of_a_snapshot_the_places_are_the_same(taken):
    _, parking = play(taken)
    again = ShownParking(OF_ONE)
    for click in parking.all():
        assert again.park(click) is Parked.WAITS
    assert list(again.all()) == list(parking.all())
