"""Roles that explore: what their records state was drawn, by the event, and is drawn again on replay.

Draws are keyed, so each test gives one outcome for ever. Its false-alarm rate is that of another key: every bound lies
more than five standard deviations off (6e-7). What a mutant does lies more than ten off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.records import ReplayMismatch
from hushstream.learners.exploration import WHOLE, Drawn, draw, highest_gap
from hushstream.privacy.keys import seeded_key
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.machines.learner import LearnerMachine

HALF = ExplorationConfig("epsilon", share=0.5)
SOFT = ExplorationConfig("softmax", temperature=0.1)
DIFFERENT = {"colin": {"features": np.outer([0.5, 0.65, 0.6, 0.55], [1.0, 0.0, 0.0])}}
"""A cold model of colin tells arms apart by the length of their features alone."""
FEATURES = {"country": {"kind": "category", "vocabulary": ["de", "fr"]}, "age": {"kind": "number", "range": [16, 96]}}


def _rig(name: str, request: pytest.FixtureRequest, exploration: ExplorationConfig) -> Any:
    if name == "colin":
        related = request.getfixturevalue("related")
        return related.RelatedLearnerRig(
            related.make_system(exploration=exploration, learner={"alpha": 2.0, "ridge": 1.0})
        )
    rigs = request.getfixturevalue("rigs")
    return rigs.LearnerRig(rigs.make_system(exploration=exploration))


def _fresh(rig: Any) -> Any:
    return type(rig.machine)(rig.system, 0, rig.key)


def _asked(rig: Any, count: int, users: Sequence[str] = ("ann", "bob", "cyd"), **fields: Any) -> list[Any]:
    for number in range(count):
        rig.context(f"event-{number}", users[number % len(users)], **fields)
    return list(rig.fold().answers)


@pytest.mark.parametrize("name", ["p2b", "colin"])
@pytest.mark.parametrize("exploration", [HALF, SOFT], ids=["epsilon", "softmax"])
def test_what_is_stated_was_drawn(name, exploration, request):
    """Of n events the arm's inverse propensities sum to n, however it scores: Horvitz and Thompson."""
    rig, count = _rig(name, request, exploration), 1_200
    # Scores that differ, so that propensities do: one reward, of one arm.
    rig.context("first", "ann")
    rig.shown("first", rig.fold().arms["first"])
    rig.reward("first", 1, 1.0)
    rig.fold()
    answers = _asked(rig, count, **DIFFERENT.get(name, {}))
    assert len({answer.propensity for answer in answers}) > 1
    for arm in range(rig.system.config.arms):
        stated = [answer.propensity / WHOLE for answer in answers if answer.arm == arm]
        least = min(stated)
        assert abs(sum(1 / one for one in stated) - count) < 5 * (count / least) ** 0.5, arm
    rig.replayed(_fresh(rig))


@pytest.mark.parametrize("name", ["centroid", "colin"])
def test_where_two_are_eligible_both_are_shown(name, request):
    """One eligible arm is certain; of two the mixture gives each its part, whatever their scores."""
    rig = _rig(name, request, ExplorationConfig("epsilon", share=1.0))
    # Arm 1 scores higher: it was rewarded, or its features are longer.
    rig.context("first", "ann", **DIFFERENT.get(name, {}))
    rig.fold()
    rig.reward("first", 1, 1.0)
    rig.fold()
    answers = _asked(rig, 400, users=("ann",), eligible=bytes([0b0110]), **DIFFERENT.get(name, {}))
    assert {answer.propensity for answer in answers} == {WHOLE // 2}
    ones = sum(answer.arm == 1 for answer in answers)
    assert {answer.arm for answer in answers} == {1, 2}
    # 400 fair coins: a standard deviation is 10.
    assert abs(ones - 200) < 50
    rig.context("alone", "ann", eligible=bytes([0b0100]))
    (alone,) = rig.fold().answers
    assert (alone.arm, alone.propensity) == (2, WHOLE)


def test_declared_features_explore_too():
    """Agents of declared features: five arms, of which a tenth of the decisions goes to each at least."""
    config = P2BConfig(
        deployment="shop",
        arms=5,
        context=ContextConfig(declared=FEATURES),
        expected_slots=100,
        release=ReleaseConfig(form="features"),
        exploration=HALF,
    )
    system = P2BSystem.declared(config)
    agent = EdgeAgent(system.edge_terms(), seeded_key(3, "edge").derive("user", "ann"), "private")
    row = np.frombuffer(system.requests.row_of({"country": "de", "age": 30.0}), np.uint8)
    agent.decide_new("first", row, 0)
    agent.rewarded("first", 2, 1.0)
    choices = [agent.decide_new(f"event-{number}", row, 0) for number in range(1_000)]
    assert {(choice.arm == 2, choice.billionths) for choice in choices} == {
        (True, WHOLE // 10 * 6),
        (False, WHOLE // 10),
    }
    # 1,000 draws with a chance of .6: a standard deviation is 15.5.
    assert abs(sum(choice.arm == 2 for choice in choices) - 600) < 78


@pytest.mark.parametrize("name", ["centroid", "colin"])
def test_a_request_that_is_repeated_does_not_draw_anew(name, request):
    """Also when nobody remembers that it was answered: it would be asked again until it gives another item."""
    rig = _rig(name, request, HALF)
    first = _asked(rig, 60)
    again = _fresh(rig)
    again.start(rig.genesis)
    rig.machine, rig.logs = again, {}
    for number in reversed(range(60)):
        rig.context(f"event-{number}", ("ann", "bob", "cyd")[number % 3])
    second = {answer.event_id: answer for answer in rig.fold().answers}
    assert len({answer.arm for answer in first}) > 1
    for answer in first:
        assert (second[answer.event_id].arm, second[answer.event_id].propensity) == (answer.arm, answer.propensity)


@pytest.mark.parametrize(
    ("name", "role"),
    [("centroid", "hushstream.systems.p2b.edge.agent"), ("colin", "hushstream.systems.colin.edge")],
    ids=["centroid", "colin"],
)
def test_a_propensity_that_was_not_drawn_does_not_verify(name, role, request, monkeypatch):
    """A learner that states another chance than the one that it drew with: whoever draws again finds it out."""
    rig = _rig(name, request, HALF)
    with monkeypatch.context() as dishonest:
        dishonest.setattr(f"{role}.draw", lambda weights, number: Drawn(draw(weights, number).arm, WHOLE // 3))
        rig.context("event", "ann")
        (answer,) = rig.fold().answers
    assert answer.propensity == WHOLE // 3
    with pytest.raises(ReplayMismatch, match="another arm"):
        rig.replayed(_fresh(rig))


def test_users_who_are_shown_the_own_choice_and_those_over_quota_are_not_explored_upon(rigs):
    """Their answers are what everybody would get: the baseline's stay the baseline, the rest by score."""
    system = rigs.make_system(exploration=HALF, users={"contexts_per_period": 1}, measurement={"baseline": 0.5})
    rig = rigs.LearnerRig(system)
    users = [f"user-{number}" for number in range(40)]
    for user in users:
        rig.context(f"{user}:0", user, baseline=3)
        rig.context(f"{user}:1", user, baseline=3)
    answers = {answer.event_id: answer for answer in rig.fold().answers}
    held_out = [user for user in users if answers[f"{user}:0"].policy == 1]
    assert 5 < len(held_out) < 35
    assert {(answers[f"{user}:0"].arm, answers[f"{user}:0"].propensity) for user in held_out} == {(3, WHOLE)}
    # Over quota: all arms of a cold model are tied, and only ties are drawn.
    assert {answers[f"{user}:1"].propensity for user in users} == {WHOLE // rigs.ARMS}
    assert isinstance(rig.machine, LearnerMachine)


def test_the_digest_is_what_it_was_while_nothing_explores(rigs):
    greedy = rigs.make_system().digest
    assert rigs.make_system(exploration=ExplorationConfig()).digest == greedy
    assert rigs.make_system(exploration=HALF).digest != greedy


@pytest.mark.parametrize(
    ("arm", "propensity", "gap"),
    [
        (0, WHOLE, 0.0),
        (2, WHOLE, 0.25),
        (0, WHOLE // 2, 0.25),
        (2, WHOLE // 2, 0.25),
        (2, WHOLE // 3, 0.5),
        (1, WHOLE // 3, 0.5),
        (0, WHOLE // 4, np.inf),
        (0, WHOLE - 1, np.inf),
        (0, 0, np.inf),
        (3, WHOLE, np.inf),
        (4, WHOLE, np.inf),
    ],
)
def test_a_highest_arm_and_its_propensity_are_as_far_as_the_arms_that_had_to_tie(arm, propensity, gap):
    """A propensity tells how many tied: a forged one stood as a float tie, whatever it was."""
    scores, eligible = np.array([0.75, 0.25, 0.5, 1.0]), np.array([True, True, True, False])
    assert highest_gap(scores, eligible, Drawn(arm, propensity)) == gap
