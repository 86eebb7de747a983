"""Decisions joined with feedback, and the memory that they take."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.feedback import join
from hushstream.feedback.join import NO_DECISION, NOT_SHOWN, Decisions, JoinOutcome, OpenDecision
from hushstream.feedback.memory import NOBODY, BoundedMap, FeedbackRow, PastDecision, UserEarlyFeedback
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


def test_what_ends_between_two_rows_of_one_fold_teaches_the_second_alone(rig, rigs):
    rig.shown("e1", rig.decide("e1"))
    rig.fold()
    for seconds, event, user in ((4.9, "e2", "ann"), (0.2, "other", "bob"), (0.1, "e3", "ann")):
        rig.wait(seconds)
        rig.context(event, user)
    found = {answer.event_id: answer.propensity for answer in rig.fold().answers}
    ties = {"e2": rigs.ARMS, "other": rigs.ARMS, "e3": rigs.ARMS - 1}
    assert found == {event: 10**9 // tied for event, tied in ties.items()}


def test_what_ends_after_a_row_teaches_it_nothing_though_another_row_waits_for_it(rig, rigs):
    """The row of e2 has no score: what ended before it taught its user. Behind it another row learns from all."""
    shown = [("e1", "ann", 0.0), ("e1:2", "ann", 0.3), ("c1", "carl", 0.1)]
    arms = {}
    for event, user, seconds in shown:
        rig.wait(seconds)
        arms[event] = rig.decide(event, user=user)
        rig.shown(event, arms[event], user)
    rig.fold()
    assert arms["e1"] != arms["e1:2"]
    for seconds, event, user in ((4.7, "b0", "bob"), (0.1, "e2", "ann"), (0.3, "c2", "carl")):
        rig.wait(seconds)
        rig.context(event, user)
    found = {answer.event_id: answer.propensity for answer in rig.fold().answers}
    assert found == {"b0": 10**9 // rigs.ARMS, "e2": 10**9 // (rigs.ARMS - 1), "c2": 10**9 // (rigs.ARMS - 1)}


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


WAIT_MS = 50


class Model:
    """What `Decisions` mean, one object for each."""

    def __init__(self, remembered: int) -> None:
        self.remembered = remembered
        self.made: list[dict[str, Any]] = []

    def newest(self, event_id: str) -> tuple[int, dict[str, Any]]:
        return [found for found in enumerate(self.made) if found[1]["event"] == event_id][-1]

    def get(self, event_id: str, now_ms: int) -> PastDecision | None:
        if all(one["event"] != event_id for one in self.made):
            return None
        number, one = self.newest(event_id)
        live = one["state"] in ("waits", "rewarded") and one["decision"].deadline_ms > now_ms
        if number < len(self.made) - self.remembered and not live:
            return None
        answer = one["decision"][:3]
        return PastDecision(NOBODY if one["hidden"] else one["user"], *answer, one["state"] == "ended")


@pytest.mark.parametrize("remembered", [0, 3, 200])
def test_decisions_are_what_objects_would_be_whatever_becomes_of_them(remembered, monkeypatch):
    """Made, shown, rewarded, ended, hidden, dropped with their user, written and read, at random."""
    monkeypatch.setattr(join, "_TIDY_EVERY", 20)
    rng = random.Random(remembered)
    held, model, now_ms, last = Decisions(remembered), Model(remembered), 0, dict.fromkeys("abc", NO_DECISION)
    for _ in range(1_500):
        now_ms += rng.choice([0, 0, 1, 3])
        ended = [number for number, one in enumerate(model.made) if _is_due(one, now_ms)]
        expected = [(one["event"], one["user"], one["decision"]) for one in map(model.made.__getitem__, ended)]
        never, dark = sum(one.shown_arm == NOT_SHOWN for *_, one in expected), rng.random() < 0.5
        expected = [one for one in expected if dark or one[2].shown_arm != NOT_SHOWN]
        assert held.ended(now_ms, dark) == (never, expected)
        for number in ended:
            model.made[number]["state"] = "ended"
        event_id, user = f"e{rng.randrange(700)}", rng.choice("abc")
        if held.get(event_id) is None:
            answer = (rng.randrange(9), rng.choice([10**9, 333_333_333]), rng.randrange(3))
            rest = (len(model.made), now_ms + WAIT_MS, NOT_SHOWN, last[user], rng.randbytes(5), len(model.made))
            made = OpenDecision(*answer, *rest)
            last[user] = held.end
            held.extend([event_id], [user], made.context, *([value] for value in (*made[:5], made.before)))
            model.made.append({"event": event_id, "user": user, "decision": made, "state": "waits", "hidden": False})
        number, one = model.newest(rng.choice(model.made[-40:])["event"])
        waits = one["state"] == "waits"
        assert held.waiting(one["event"], one["user"]) == (one["decision"] if waits else None)
        assert held.waiting(one["event"], "d") is None
        if waits and rng.random() < 0.5:
            held.reward_all([number], [one["decision"].arm])
            one["state"] = "rewarded"
        elif waits and rng.random() < 0.5:
            first = one["decision"].shown_arm == NOT_SHOWN
            assert (held.show(number, 4) is JoinOutcome.REPEATED_FEEDBACK) != first
            one["decision"] = one["decision"]._replace(shown_arm=4)
        if rng.random() < 0.02:
            held.drop(last[user])
            last[user] = NO_DECISION
            for other in model.made:
                if other["user"] == user and other["state"] in ("waits", "rewarded") and _lasts(other, now_ms):
                    other["state"] = "dropped"
        if rng.random() < 0.01:
            held.hide(lambda past: past.arm == 8)
            for other in model.made:
                other["hidden"] |= other["decision"].arm == 8
        if rng.random() < 0.01:
            copy = Decisions(remembered)
            copy.load(held.dump())
            assert copy.dump() == held.dump()
            held = copy
        for asked in (event_id, one["event"]):
            assert held.get(asked) == model.get(asked, now_ms)
        for name, newest in last.items():
            waiting = [place for place, it in enumerate(model.made) if it["user"] == name and it["state"] == "waits"]
            assert [*held.of(newest)] == waiting[::-1]
            assert all(held[place] == model.made[place]["decision"] for place in waiting)
    assert len(model.made) > 500
    assert len(held) < 100 + 2 * remembered


def _is_due(one: dict[str, Any], now_ms: int) -> bool:
    return one["state"] == "waits" and not _lasts(one, now_ms)


def _lasts(one: dict[str, Any], now_ms: int) -> bool:
    return one["decision"].deadline_ms > now_ms


def test_a_decision_takes_about_two_hundred_bytes_with_its_names():
    """41 of numbers, 26 of a context, 16 for both names, 63 of an event, 32 of its number, 60 to 90 to find it."""
    held = Decisions(0)
    tracemalloc.start()
    try:
        for number in range(20_000):
            held.extend([f"event-{number:08d}"], ["ann"], bytes(26), [1], [10**9], [1], [0], [10**12], [NO_DECISION])
        assert tracemalloc.get_traced_memory()[0] / 20_000 < 300
    finally:
        tracemalloc.stop()
