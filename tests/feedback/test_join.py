"""Decisions joined with feedback, answers that are kept, and the memory that both take."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.feedback.join import Answered, KeptAnswers
from hushstream.feedback.memory import BoundedMap, FeedbackRow, UserEarlyFeedback
from hushstream.schemas import codec


@pytest.fixture
def rig(rigs):
    return rigs.LearnerRig()


def test_a_reward_teaches_its_arm_once(rig, rigs):
    arm = rig.decide("e1", x=rigs.point(1))
    rig.reward("e1", arm, 1.0)
    rig.reward("e1", arm, 1.0)
    assert rig.fold().counts == {"rewarded": 1, "repeated_feedback": 1}
    x = rigs.point(1).astype(np.float64)
    gram, moment = rig.knows()
    np.testing.assert_allclose(gram[arm], np.eye(rigs.DIMENSION) + np.outer(x, x), atol=1e-5)
    np.testing.assert_allclose(moment[arm], x, atol=1e-5)
    others = [other for other in range(rigs.ARMS) if other != arm]
    np.testing.assert_array_equal(gram[others], np.broadcast_to(np.eye(4), (4, 4, 4)))
    assert not moment[others].any()


def test_shown_before_or_after_the_reward_changes_nothing(rig, rigs):
    known = []
    for order in ("shown first", "reward first", "reward alone"):
        rig = rigs.LearnerRig()
        arm = rig.decide("e1")
        if order == "shown first":
            rig.shown("e1", arm)
        rig.reward("e1", arm, 1.0)
        if order == "reward first":
            rig.shown("e1", arm)
        rig.fold()
        known.append(rig.knows())
    for gram, moment in known[1:]:
        np.testing.assert_array_equal(gram, known[0][0])
        np.testing.assert_array_equal(moment, known[0][1])


def test_shown_and_never_clicked_counts_as_zero_after_the_wait_in_log_time(rig, rigs):
    arm = rig.decide("e1")
    rig.shown("e1", arm)
    rig.fold()
    rig.wait(4.999)
    rig.context("e2", user="bob")
    assert "expired_as_zero" not in rig.fold().counts
    rig.wait(0.001)
    rig.context("e3", user="bob")
    assert rig.fold().counts["expired_as_zero"] == 1
    x = rigs.point(0).astype(np.float64)
    gram, moment = rig.knows()
    np.testing.assert_allclose(gram[arm], np.eye(4) + np.outer(x, x), atol=1e-5)
    assert not moment.any()


def test_a_reward_after_the_wait_is_late_and_teaches_nothing_more(rig):
    arm = rig.decide("e1")
    rig.shown("e1", arm)
    rig.fold()
    rig.wait(6)
    rig.decide("e2", user="bob")
    before = rig.knows()
    rig.reward("e1", arm, 1.0)
    assert rig.fold().counts == {"late_reward": 1}
    np.testing.assert_array_equal(rig.knows()[0], before[0])
    np.testing.assert_array_equal(rig.knows()[1], before[1])


def test_a_decision_never_shown_teaches_nothing(rig):
    rig.decide("e1")
    rig.wait(6)
    rig.context("e2", user="bob")
    assert rig.fold().counts["never_shown"] == 1
    assert rig.machine.agents.get("ann").state is None


def test_a_wait_ends_by_the_log_time_of_a_phase_end_too(rig):
    arm = rig.decide("e1")
    rig.shown("e1", arm)
    rig.wait(6)
    rig.end_phase()
    assert rig.fold().counts["expired_as_zero"] == 1


@pytest.mark.parametrize("with_reward", [True, False])
def test_the_arm_on_screen_is_learned_when_it_is_not_the_one_decided(rig, rigs, with_reward):
    decided = rig.decide("e1")
    other = (decided + 1) % rigs.ARMS
    rig.shown("e1", other)
    assert rig.fold().counts == {"other_arm": 1}
    if with_reward:
        rig.reward("e1", decided, 1.0)
        assert rig.fold().counts == {"other_arm": 1}
    else:
        rig.wait(6)
        rig.decide("e2", user="bob")
    gram, moment = rig.knows()
    assert gram[other].trace() > 4.2
    assert gram[decided].trace() == pytest.approx(4)
    assert moment[other].any() == with_reward


def test_a_click_before_its_context_waits_and_is_applied(rig):
    rig.reward("e1", 2, 1.0)
    assert rig.fold().counts == {"parked": 1}
    rig.context("e1", eligible=bytes([0b00100]))
    counts = rig.fold().counts
    assert (counts["decided"], counts["rewarded"]) == (1, 1)
    assert rig.knows()[1][2].any()


def test_early_clicks_that_must_give_way_become_dead_letters(rigs):
    rig = rigs.LearnerRig(rigs.make_system(feedback={"early_feedback": 2}))
    rig.shown("e1", 0)
    rig.reward("e1", 0)
    rig.fold()
    rig.reward("e2", 0)
    seen = rig.fold()
    assert seen.reasons == ["click_without_context"] * 2
    assert [(letter["topic"], letter["offset"]) for letter in seen.letters] == [("clicks", 0), ("clicks", 1)]
    for event_id in ("e1", "e2"):
        rig.context(event_id, eligible=bytes([0b00001]))
    assert rig.fold().counts == {"decided": 2, "rewarded": 1}


def test_a_click_of_another_user_teaches_nobody(rig):
    arm = rig.decide("e1", user="ann")
    rig.decide("f1", user="bob")
    rig.reward("e1", arm, 1.0, user="bob")
    rig.reward("e1", arm, 1.0, user="eve")
    assert rig.fold().reasons == ["event_of_another_user"] * 2
    assert all(agent.state is None for _, agent in rig.machine.agents.warm())


def test_an_early_click_of_another_user_is_refused_when_the_context_comes(rig):
    rig.reward("e1", 0, 1.0, user="eve")
    rig.fold()
    rig.context("e1", user="ann")
    assert rig.fold().reasons == ["event_of_another_user"]
    assert rig.machine.agents.get("ann").state is None


def test_an_arm_that_does_not_exist_is_refused_and_the_event_goes_on_waiting(rig, rigs):
    arm = rig.decide("e1")
    rig.reward("e1", rigs.ARMS, 1.0)
    rig.reward("e1", -1, 1.0)
    rig.reward("e1", arm, 1.0)
    seen = rig.fold()
    assert seen.reasons == ["unknown_arm"] * 2
    assert seen.counts["rewarded"] == 1


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -0.001, 1.001])
def test_a_reward_outside_the_unit_interval_is_refused(rig, reward):
    arm = rig.decide("e1")
    rig.reward("e1", arm, reward)
    assert rig.fold().reasons == ["reward_out_of_range"]
    assert rig.machine.agents.get("ann").state is None


def test_a_repeated_event_gets_the_same_answer_and_counts_once(rig):
    first = rig.decide("e1")
    rig.reward("e1", first, 1.0)
    rig.context("e1")
    rig.context("e1")
    seen = rig.fold()
    assert [(answer.arm, answer.policy) for answer in seen.answers] == [(first, 2), (first, 2)]
    assert rig.machine.agents.get("ann").decided == 1


def test_an_event_that_still_waits_keeps_its_answer_when_the_partition_has_forgotten_it(rigs):
    rig = rigs.LearnerRig(rigs.make_system(feedback={"remembered_events": 1}))
    rig.decide("e1")
    rig.decide("e2", user="bob")
    original = rig.seen.answers[0]
    rig.context("e1")
    (again,) = rig.fold().answers
    assert again == original._replace(policy=2)
    assert rig.machine.agents.get("ann").decided == 1


def test_another_users_event_id_is_refused_and_tells_them_nothing(rig):
    rig.decide("e1", user="ann")
    rig.context("e1", user="eve")
    seen = rig.fold()
    assert seen.reasons == ["event_of_another_user"]
    assert not seen.answers


def test_feedback_in_columns_means_the_same(rigs):
    rows = [(1, "e1", "ann", 0, 1.0), (0, "e2", "ann", 1, 0.0), (1, "e2", "ann", 2, 0.5), (1, "e3", "ann", 9, 1.0)]
    known = []
    for columnar in (True, False):
        rig = rigs.LearnerRig()
        for event_id in ("e1", "e2", "e3"):
            rig.decide(event_id)
        if columnar:
            kinds, event_ids, users, arms, rewards = zip(*rows, strict=True)
            fields = {
                "kinds": bytes(kinds),
                "event_ids": list(event_ids),
                "users": list(users),
                "arms": np.array(arms, "<i4").tobytes(),
                "rewards": np.array(rewards, "<f8").tobytes(),
            }
            rig.put("clicks", codec.encode("FeedbackBatch", fields))
        else:
            for kind, event_id, user, arm, reward in rows:
                (rig.reward(event_id, arm, reward, user) if kind else rig.shown(event_id, arm, user))
        seen = rig.fold()
        known.append((rig.knows(), seen.counts, seen.reasons))
    assert known[0][1:] == known[1][1:]
    np.testing.assert_array_equal(known[0][0][0], known[1][0][0])
    np.testing.assert_array_equal(known[0][0][1], known[1][0][1])


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


def _answer(rng: random.Random, now_ms: int) -> Answered:
    return Answered(rng.randrange(70_000), rng.choice([10**9, 0, 333_333_333]), rng.randrange(2**31), now_ms + 100)


def _forget(known: dict[str, Answered], now_ms: int) -> None:
    for event_id in list(known):
        if known[event_id].deadline_ms > now_ms:
            break
        del known[event_id]


@pytest.mark.parametrize("names", [30, 200, 900])
def test_they_are_what_a_dictionary_would_hold_in_its_order(names):
    """Kept, replaced, forgotten and asked for at random, with ids that begin alike, are empty, or are no ASCII."""
    rng = random.Random(names)
    kept, known = KeptAnswers(), dict[str, Answered]()
    ids = ["", "é", "\ud800", *("e" * length for length in range(1, names // 2)), *map(str, range(names // 2))]
    now_ms = most = forgotten = 0
    for _ in range(6_000):
        now_ms += rng.choice([0, 0, 1, 3])
        event_id = rng.choice(ids)
        if rng.random() < 0.6:
            # Some deadlines lie before those of older answers, as after a shorter wait of the log's time.
            answer = _answer(rng, now_ms - rng.choice([0, 0, 0, 60]))
            kept.keep(event_id, answer)
            known[event_id] = answer
        elif rng.random() < 0.3:
            before = len(known)
            kept.forget(now_ms)
            _forget(known, now_ms)
            forgotten += before - len(known)
        assert kept.get(event_id) == known.get(event_id)
        assert (event_id in kept) == (event_id in known)
        assert len(kept) == len(known)
        most = max(most, len(known))
        if known:
            assert kept.next_ms == next(iter(known.values())).deadline_ms
    assert list(kept) == list(known.items())
    assert forgotten > 20
    assert most >= min(20, names)


def test_what_is_forgotten_takes_no_room():
    """A window of 50 goes by over 20,000 answers: block and table stay as large as for some of those."""
    kept = KeptAnswers()
    for number in range(20_000):
        kept.forget(number)
        kept.keep(f"event-{number}", Answered(1, 10**9, 1, number + 50))
        assert len(kept) == min(number + 1, 50)
    assert sum(map(len, kept._blocks)) < 50 * 40 + 2 * 4200
    assert len(kept._places) <= 512


def test_one_takes_about_twenty_bytes():
    """Text of 14 bytes, 22 of fields and length, all compressed to 7, and 8 to 16 of the table."""
    kept = KeptAnswers()
    for number in range(3_000):
        kept.keep(f"event-{number:08d}", Answered(number % 7, 10**9, 1, 10**12 + 100 * number))
    size = sum(block.__sizeof__() for block in kept._blocks) + 5 * len(kept._places)
    assert size / 3_000 < 27
