"""What a collaborative learner decides, and which rows leave it and when."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.schemas import codec
from hushstream.systems.colin.algorithm.textbook import TextbookCollaborative


@pytest.fixture
def rig(related):
    return related.RelatedLearnerRig()


# Decisions.


@pytest.mark.parametrize("algorithm", ["linucb", "colin", "goblin"])
def test_the_arm_is_the_textbooks_choice_before_and_after_a_model(related, algorithm):
    system = related.make_system(
        learner={"algorithm": algorithm, "alpha": 0.3, "ridge": 0.7},
        release={"mechanism": "exact"},
        public_dataset=True,
    )
    rig = related.RelatedLearnerRig(system)
    textbook = TextbookCollaborative(system.relation, related.DIMENSION, 0.7)
    rows = related.some_rewards(4, 40)
    for phase in range(2):
        for number in range(12):
            features = related.some_features(100 * phase + number) * np.float32(0.5 + number / 30)
            user = number % 3
            arm = rig.decide(f"{phase}:{number}", related.USERS[user], features)
            assert arm == textbook.choose(user, features.astype(np.float64), 0.3)
        for value in related.model_of(system, rows):
            rig.model(value)
        for node, features, reward in rows:
            textbook.learn(node, np.array(features, np.float32).astype(np.float64), reward)
    versions = [answer.model_version for answer in rig.seen.answers]
    assert versions == [0] * 12 + [1] * 12
    assert {(answer.propensity, answer.policy) for answer in rig.seen.answers} == {(10**9, 0)}


def test_arms_that_may_not_be_shown_are_not(related, rig):
    for number in range(8):
        arm = rig.decide(f"e{number}", features=related.some_features(number), eligible=bytes([0b0110]))
        assert arm in (1, 2)


def test_a_repeated_context_gets_the_same_answer_and_one_row(related, rig):
    arm = rig.interact("e", features=related.some_features(1))
    rig.context("e", features=related.some_features(2))
    seen = rig.fold()
    assert [(answer.arm, answer.policy) for answer in seen.answers] == [(arm, 2)]
    rig.end_phase()
    rig.fold()
    rig.context("e")
    assert [(answer.arm, answer.policy) for answer in rig.fold().answers] == [(arm, 2)]
    assert len(rig.rows()) == 1


def test_an_open_decision_is_known_even_when_the_memory_of_events_is_full(related):
    rig = related.RelatedLearnerRig(related.make_system(feedback={"remembered_events": 1}))
    arm = rig.decide("first", features=related.some_features(1))
    rig.decide("second", "bob")
    rig.context("first", features=related.some_features(3))
    rig.context("first", "bob")
    seen = rig.fold()
    assert seen.counts["repeated_context"] == 1
    assert [(answer.event_id, answer.arm) for answer in seen.answers] == [("first", arm)]
    assert seen.reasons == ["event_of_another_user"]
    rig.shown("first", arm)
    rig.wait(10)
    rig.end_phase()
    assert len(rig.rows(rig.fold())) == 1


def test_a_context_waits_for_the_click_that_it_names(related, rig):
    arm = rig.decide("e")
    rig.shown("e", arm)
    rig.context("later", after_click=1)
    rig.end_phase(after_click=1)
    seen = rig.fold()
    assert not seen.answers
    assert seen.counts == {"shown": 1}
    rig.reward("e", arm, 0.5)
    seen = rig.fold()
    assert list(seen.arms) == ["later"]
    assert [row[2] for row in rig.rows(seen)] == [0.5], "the phase end has waited too"


def test_a_click_that_never_comes_is_not_waited_for_once_younger_ones_have_come(related, rig):
    rig.context("e", after_click=7)
    rig.end_phase(after_click=7)
    rig.wait(30)
    rig.shown("x", 0)
    assert not rig.fold().reasons
    rig.wait(0.001)
    rig.shown("x", 0)
    seen = rig.fold()
    assert seen.reasons == ["after_click_unreachable"] * 2
    assert not seen.answers


# Rows that leave.


def test_a_row_holds_the_features_of_the_arm_on_screen_and_its_reward(related, rig):
    features = related.some_features(1)
    arm = rig.interact("e", "bob", 0.25, features)
    rig.end_phase()
    assert rig.rows(rig.fold()) == [(1, features[arm].tolist(), 0.25)]


def test_rows_decided_in_one_span_leave_together_once_the_last_of_them_has_settled(related, rig):
    rig.interact("e")
    rig.wait(9.999)
    rig.interact("in the same span")
    rig.wait(0.001)
    rig.interact("in the next")
    rig.wait(9.999)
    rig.decide("later")
    assert not rig.rows()
    rig.wait(0.001)
    rig.decide("later still")
    (record,) = rig.seen.records("rewards", "Rewards")
    assert len(record["nodes"]) // 4 == rig.seen.journals[-1]["slots"] == 2


@pytest.mark.parametrize(
    ("feedback", "rows", "outcomes"),
    [
        ("shown", 1, {"shown": 1}),
        ("shown reward", 1, {"shown": 1, "rewarded": 1}),
        ("reward shown", 1, {"shown": 1, "rewarded": 1}),
        ("reward", 0, {"rewarded": 1, "not_shown": 1}),
        ("", 0, {"not_shown": 1}),
        ("other", 0, {"other_arm": 1, "not_shown": 1}),
        ("other reward", 0, {"other_arm": 1, "rewarded": 1, "not_shown": 1}),
        ("other shown", 0, {"other_arm": 1, "repeated_feedback": 1, "not_shown": 1}),
        ("shown other shown", 1, {"shown": 1, "repeated_feedback": 2}),
        ("shown reward reward", 1, {"shown": 1, "rewarded": 1, "repeated_feedback": 1}),
    ],
)
def test_only_what_was_shown_decides_whether_a_row_leaves(related, rig, feedback, rows, outcomes):
    arm = rig.decide("e")
    for turn, word in enumerate(feedback.split()):
        if word == "reward":
            rig.reward("e", arm, 1.0 / (1 + turn))
        else:
            rig.shown("e", arm if word == "shown" else (arm + 1) % related.ARMS)
    rig.end_phase()
    seen = rig.fold()
    assert len(rig.rows(seen)) == rows
    assert {name: count for name, count in seen.counts.items() if name != "seal"} == outcomes


def test_the_first_reward_stands_and_none_is_zero(related, rig):
    for event, rewards in (("twice", (0.75, 1.0)), ("none", ())):
        arm = rig.decide(event)
        rig.shown(event, arm)
        for reward in rewards:
            rig.reward(event, arm, reward)
    rig.end_phase()
    assert [row[2] for row in rig.rows(rig.fold())] == [0.75, 0.0]


def test_a_late_reward_is_lost_and_counted(related, rig):
    arm = rig.interact("e", reward=None)
    rig.end_phase()
    rig.fold()
    rig.reward("e", arm)
    rig.shown("e", arm)
    seen = rig.fold()
    assert seen.counts == {"late_reward": 1, "repeated_feedback": 1}
    rig.end_phase(1)
    assert [row[2] for row in rig.rows(rig.fold())] == []
    assert [row[2] for row in rig.rows()] == [0.0]


def test_feedback_that_comes_before_its_context_waits_for_it(related, rig):
    rig.shown("e", 0)
    rig.reward("e", 0, 0.5)
    rig.reward("e", 0, 0.75)
    rig.shown("e", 0, user="bob")
    rig.reward("e", 0, 1.0, user="bob")
    seen = rig.fold()
    assert seen.counts == {"parked": 4, "repeated_feedback": 1}
    arm = rig.decide("e", eligible=bytes([0b0001]))
    assert arm == 0
    assert rig.seen.reasons == ["event_of_another_user"] * 2
    rig.end_phase()
    assert [row[2] for row in rig.rows(rig.fold())] == [0.5]


def test_a_reward_before_its_context_has_a_place_beside_what_was_shown_and_nowhere_else(rig):
    rig.reward("e", 0, 0.5)
    rig.shown("e", 0)
    rig.shown("f", rig.system.config.arms)
    assert rig.fold().reasons == ["click_without_context", "unknown_arm"]
    rig.decide("e", eligible=bytes([0b0001]))
    rig.end_phase()
    assert [row[2] for row in rig.rows(rig.fold())] == [0.0]


def leaving(related, system, rewarded_early):
    """What leaves when more is shown and rewarded before its context than there are places for."""
    rig = related.RelatedLearnerRig(system, related.SECRET)
    if rewarded_early:
        rig.reward("e0", 0, 1.0)
    for number in range(30):
        rig.shown(f"e{number}", 0)
    for number in range(1, 30):
        rig.reward(f"e{number}", 0, 0.5)
    rig.fold()
    for number in range(30):
        rig.context(f"e{number}", eligible=bytes([0b0001]))
    rig.end_phase()
    return rig.fold()


@pytest.mark.parametrize("noise_at", ["server", "learner", "noisy"])
def test_one_reward_before_its_context_decides_of_no_row_whether_it_leaves(related, noise_at):
    """25 places: one reward more must not take the place of what was shown, nor of another reward."""
    places = {"early_feedback": 25 * len(related.USERS)}
    system = {
        "server": lambda: related.make_system(feedback=places),
        "learner": lambda: related.make_system(feedback=places, release={"noise_at": "learner"}),
        "noisy": lambda: related.make_system(
            feedback=places, release={"noise_at": "learner", "mechanism": "noisy-reward"}
        ),
    }[noise_at]()
    one, more = (leaving(related, system, early) for early in (False, True))
    assert [record["slots"] for record in one.journals] == [record["slots"] for record in more.journals] == [25]
    if noise_at == "server":
        rig = related.RelatedLearnerRig(system)
        assert rig.rows(one) == rig.rows(more)
        assert [row[2] for row in rig.rows(one)] == [0.0, *[0.5] * 24]


def test_waiting_feedback_has_a_share_for_each_user_that_nobody_else_can_take(related):
    rows = []
    for flood in (False, True):
        rig = related.RelatedLearnerRig(related.make_system(feedback={"early_feedback": 6}))
        rig.shown("e", 0, "bob")
        rig.reward("e", 0, 0.5, "bob")
        for number in range(9 * flood):
            rig.shown(f"x{number}", 0, "ann")
            rig.shown(f"y{number}", 0, "nobody")
        seen = rig.fold()
        assert sorted(seen.reasons) == ["too_many_parked"] * 7 * flood + ["unknown_user"] * 9 * flood
        rig.decide("e", "bob", eligible=bytes([0b0001]))
        rig.end_phase()
        rows.append(rig.rows(rig.fold()))
    assert rows[0] == rows[1]
    assert [row[2] for row in rows[0]] == [0.5]


def test_many_rows_leave_in_records_of_bounded_size(related):
    system = related.make_system(release={"rows": 4096, "horizon": 2048, "rewards_per_user": 2048})
    rig = related.RelatedLearnerRig(system)
    for number in range(600):
        rig.context(f"e{number}", features=related.some_features(number % 7))
    arms = rig.fold().arms
    for name, arm in arms.items():
        rig.shown(name, arm)
    rig.end_phase()
    seen = rig.fold()
    sizes = [len(fields["nodes"]) // 4 for fields in seen.records("rewards", "Rewards")]
    assert sizes == [256, 256, 88]
    assert len({fields["batch_id"] for fields in seen.records("rewards", "Rewards")}) == 3
    counter = related.CounterRig(system)
    for output in seen.releases("rewards"):
        counter.put("rewards", output.value)
    (record,) = counter.fold().journals
    assert (record["rows"], record["closed_by"]) == (600, "seal")


def test_a_phase_end_is_passed_on_behind_its_rows(related, rig):
    rig.interact("e")
    rig.end_phase(3)
    outputs = rig.fold().releases("rewards")
    assert [codec.decode(output.value)[0] for output in outputs] == ["Rewards", "Seal"]
    phase_end = codec.decode(outputs[1].value)[1]
    assert (phase_end["phase"], phase_end["origin"], phase_end["config_digest"]) == (3, 0, rig.system.digest)


# Nothing but contents moves with rewards.


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


@pytest.mark.parametrize("noise_at", ["server", "learner", "noisy"])
def test_only_contents_move_with_the_rewards(related, noise_at):
    system = {
        "server": lambda: related.make_system(),
        "learner": lambda: related.edge_system(rewards_per_user=5),
        "noisy": lambda: related.edge_system(rewards_per_user=5, mechanism="noisy-reward", reward_levels=1, epsilon=4),
    }[noise_at]()
    found = []
    for flip in (False, True):
        rig = related.played(system, flip)
        seen = rig.seen
        places = [(output.topic, output.partition, output.key, len(output.value)) for output in seen.outputs]
        sent = [codec.decode(output.value) for output in seen.outputs]
        public = [(name, without(fields, "rewards", "sums")) for name, fields in sent]
        journals = [without(record, "head", "chain") for record in seen.journals]
        content = [fields.get("rewards", fields.get("sums")) for _, fields in sent]
        found.append(((places, public, journals), content))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
