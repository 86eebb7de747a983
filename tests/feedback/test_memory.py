"""The bounded memories against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hushstream.feedback.memory import BoundedMap, FeedbackRow, UserEarlyFeedback

KEYS = st.sampled_from("abcdef")


@given(st.integers(1, 4), st.lists(st.tuples(KEYS, st.integers()), max_size=30))
def test_a_bounded_map_holds_the_youngest_keys_with_their_newest_values(capacity, puts):
    bounded = BoundedMap(capacity)
    model: dict[str, int] = {}
    for key, value in puts:
        if key not in model and len(model) == capacity:
            del model[next(iter(model))]
        model[key] = value
        bounded.put(key, value)
        assert list(bounded.items()) == list(model.items())
        assert len(bounded) == len(model) <= capacity


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), KEYS), max_size=30))
def test_parking_loses_no_click_and_never_holds_too_many(capacity, steps):
    early = UserEarlyFeedback(capacity, capacity + 1)
    held: list[FeedbackRow] = []
    for offset, (claims, event_id) in enumerate(steps):
        if claims:
            expected = [click for click in held if click.event_id == event_id]
            assert early.claim(event_id) == expected
            gone = expected
        else:
            click = FeedbackRow(True, event_id, "ann", 0, 1.0, offset, 0, 0)
            gone = early.hold(click)
            held.append(click)
            assert len({evicted.event_id for evicted in gone}) <= 1
        held = [click for click in held if click not in gone]
        assert len(early) == len(held) <= capacity
        assert sorted(early.all()) == sorted(held)
