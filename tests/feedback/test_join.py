"""What a reward, a view, and the lack of one teach: through the learner, from record bytes."""

from __future__ import annotations

import numpy as np
import pytest

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
    assert rig.machine.agents["ann"].state is None


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
    assert all(agent.state is None for agent in rig.machine.agents.values())


def test_an_early_click_of_another_user_is_refused_when_the_context_comes(rig):
    rig.reward("e1", 0, 1.0, user="eve")
    rig.fold()
    rig.context("e1", user="ann")
    assert rig.fold().reasons == ["event_of_another_user"]
    assert rig.machine.agents["ann"].state is None


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
    assert rig.machine.agents["ann"].state is None


def test_a_repeated_event_gets_the_same_answer_and_counts_once(rig):
    first = rig.decide("e1")
    rig.reward("e1", first, 1.0)
    rig.context("e1")
    rig.context("e1")
    seen = rig.fold()
    assert [(answer.arm, answer.policy) for answer in seen.answers] == [(first, 2), (first, 2)]
    assert rig.machine.agents["ann"].decided == 1


def test_an_event_that_still_waits_keeps_its_answer_when_the_partition_has_forgotten_it(rigs):
    rig = rigs.LearnerRig(rigs.make_system(feedback={"remembered_events": 1}))
    rig.decide("e1")
    rig.decide("e2", user="bob")
    original = rig.seen.answers[0]
    rig.context("e1")
    (again,) = rig.fold().answers
    assert again == original._replace(policy=2)
    assert rig.machine.agents["ann"].decided == 1


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
