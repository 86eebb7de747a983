"""`EdgeAgent` alone, as a device or an application holds it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.feedback.join import Decisions
from hushstream.learners.exploration import NoEligibleArm
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.agent import (
    HISTOGRAM_TOLERANCE,
    EdgeAgent,
    OlderState,
    choose,
    is_normalised,
    normalised,
)
from hushstream.systems.p2b.edge.policies import SharedModels
from hushstream.systems.p2b.slots import pack, unpack

CHECK = """
import sys
before = set(sys.modules)
import hushstream.systems.p2b.edge.agent
loaded = {name: getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before}
print(",".join(sorted({name.split(".")[0] for name, file in loaded.items() if "site-packages" in file})))
stages = {name.split(".")[1] if file.count("/systems/") == 0 else ".".join(name.split(".")[1:4])
          for name, file in loaded.items() if name.startswith("hushstream.") and not file.endswith("__init__.py")}
print(",".join(sorted(stages)))
print(",".join(sorted(name for name in loaded if name.startswith("hushstream.schemas."))))
"""


def test_it_imports_numpy_and_stages_and_nothing_else():
    found = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True, encoding="utf-8")
    third_party, ours, schemas = found.stdout.splitlines()
    assert third_party == "numpy"
    assert set(ours.split(",")) == {
        "engine",
        "features",
        "systems.p2b.slots",
        "systems.p2b.edge",
        "feedback",
        "learners",
        "privacy",
        "schemas",
    }
    assert schemas == "hushstream.schemas.errors,hushstream.schemas.rows"


@pytest.fixture
def make(rigs):
    def agent(seed: int = 1, track: str = "private", **changes):
        return EdgeAgent(
            rigs.make_system(**changes).edge_terms(), rigs.seeded_key(seed, "edge").derive("user", "ann"), track
        )

    return agent


def play(agent, rigs, rounds=8):
    log = []
    for number in range(rounds):
        choice = agent.decide(f"e{number}", rigs.point(number), 1000 * number)
        log.append(choice)
        log.append(agent.rewarded(f"e{number}", choice.arm, float(choice.arm % 2)))
        if choice.slot_due:
            log.append(agent.take_slot().content)
    return log


def test_one_key_and_one_history_give_one_life(make, rigs):
    assert play(make(), rigs) == play(make(), rigs)
    lives = {str(play(make(seed), rigs)) for seed in range(1, 6)}
    assert len(lives) > 1


@pytest.mark.parametrize("seed", range(1, 9))
def test_which_interaction_a_slot_reports_was_drawn_before_and_no_click_changes_it(make, rigs, seed):
    """One key, three lives, in each of which another of three interactions is rewarded: one of them is the slot's."""
    levels = []
    for clicked in range(3):
        agent = make(seed, slot={"after_interactions": 3})
        for number in range(3):
            choice = agent.decide(f"e{number}", rigs.point(0), 0)
            agent.rewarded(f"e{number}", choice.arm, float(number == clicked))
        levels.append(unpack(agent.take_slot().content, rigs.CODES, rigs.ARMS, 1).level)
    assert sorted(levels) == [0, 0, 1]


def test_a_restored_agent_goes_on_as_if_nothing_had_happened(make, rigs):
    straight, broken = make(), make()
    for number in range(9):
        choices = []
        for agent in (straight, broken):
            choice = agent.decide(f"e{number}", rigs.point(number), 1000 * number)
            if number % 3:
                agent.rewarded(f"e{number}", choice.arm, 1.0)
            choices.append(choice)
        assert choices[0] == choices[1]
        broken = EdgeAgent.load(broken.terms, broken.key, broken.dump(), None, again(broken.decisions))
        assert broken.dump() == straight.dump()
        assert broken.open == straight.open


def test_the_learner_role_gives_the_same_bytes_as_an_agent_on_a_device(rigs):
    """The same code: what the operator hosts and what a device runs cannot drift apart."""
    rig = rigs.LearnerRig()
    alone = EdgeAgent(rig.system.edge_terms(), rig.machine.terms.user_key("ann"), "private")
    for number in range(3):
        arm = rig.decide(f"e{number}", "ann", rigs.point(number))
        choice = alone.decide(f"e{number}", rigs.point(number), rig.now_ms)
        assert choice.arm == arm
        rig.reward(f"e{number}", arm, 1.0)
        rig.fold()
        alone.rewarded(f"e{number}", arm, 1.0)
    rig.end_phase()
    (sent,) = rig.fold().slots
    slot = alone.take_slot()
    assert (slot.report_id, slot.content) == (sent.report_id, sent.content)


def test_a_waiting_event_gets_the_same_answer_again_and_counts_once(make, rigs):
    agent = make()
    first = agent.decide("e1", rigs.point(0), 0)
    agent.decide("e2", rigs.point(1), 0)
    repeated = agent.decide("e1", rigs.point(3), 5)
    assert repeated == first._replace(repeated=True)
    assert agent.decided == 2


def again(decisions: Decisions) -> Decisions:
    """Decisions that were written and read."""
    found = Decisions()
    found.load(decisions.dump())
    return found


@pytest.mark.parametrize("restored", [False, True])
def test_a_rewarded_event_gets_the_same_answer_until_its_deadline_as_one_that_waits(make, rigs, restored):
    """So how often a user was decided for, and when they owe a slot, is the same whatever was rewarded."""
    known = []
    for rewarded in (False, True):
        agent = make(slot={"after_interactions": 2})
        first = agent.decide("e", rigs.point(0), 0)
        if rewarded:
            agent.rewarded("e", first.arm, 1.0)
        if restored:
            agent = EdgeAgent.load(agent.terms, agent.key, agent.dump(), None, again(agent.decisions))
        repeated = agent.decide("e", rigs.point(3), agent.terms.attribution_window_ms - 1)
        assert repeated == first._replace(repeated=True)
        if not rewarded:
            agent.expire("e")
        anew = agent.decide("e", rigs.point(3), agent.terms.attribution_window_ms)
        assert (anew.repeated, anew.slot_due) == (False, True)
        known.append((first.arm, agent.allowance()))
    assert known[0] == known[1]


def lived(agent, rigs, rounds, first=0):
    for number in range(first, first + rounds):
        choice = agent.decide(f"e{number}", rigs.point(number), 1000 * number)
        agent.rewarded(f"e{number}", choice.arm, 1.0)
        if choice.slot_due:
            yield agent.take_slot()


def test_an_older_copy_numbers_its_slots_anew_under_the_same_ids(make, rigs):
    """Whatever it does differently: so the shuffler tells that they were counted."""
    agent = make(slot={"lifetime_slots": 4})
    backup = agent.dump()
    before = list(lived(agent, rigs, 12))
    restored = EdgeAgent.load(agent.terms, agent.key, backup)
    after = list(lived(restored, rigs, 12, first=1))
    assert [slot.report_id for slot in after] == [slot.report_id for slot in before]
    assert len({slot.report_id for slot in before}) == 4
    assert [slot.content for slot in after] != [slot.content for slot in before]


@pytest.mark.parametrize("field", ["decided", "due", "sent", "period", "used"])
def test_a_copy_that_is_older_than_what_is_known_to_be_spent_is_refused(make, rigs, field):
    agent = make(users={"contexts_per_period": 100})
    list(lived(agent, rigs, 4))
    agent.within_quota(5 * agent.terms.quota_period_ms)
    dumped, spent = agent.dump(), agent.allowance()
    assert EdgeAgent.load(agent.terms, agent.key, dumped, spent).dump() == dumped
    older = {**dumped, field: dumped[field] - 1}
    with pytest.raises(OlderState, match="older copy"):
        EdgeAgent.load(agent.terms, agent.key, older, spent)
    assert EdgeAgent.load(agent.terms, agent.key, older).dump() == older
    assert EdgeAgent(agent.terms, agent.key, "private", spent).allowance() == spent


def test_a_copy_of_a_later_period_may_have_used_less_of_it(make):
    agent = make(users={"contexts_per_period": 100})
    agent.within_quota(0)
    agent.within_quota(0)
    spent = agent.allowance()
    agent.within_quota(agent.terms.quota_period_ms)
    assert EdgeAgent.load(agent.terms, agent.key, agent.dump(), spent, agent.decisions).used == 1


@pytest.mark.parametrize(
    "context",
    [
        np.full(4, np.nan, np.float32),
        np.array([np.inf, 0, 0, 0], np.float32),
        np.array([0.5, 0.5, 0.5, 0], np.float32),
        np.array([1.5, -0.5, 0, 0], np.float32),
        np.zeros(4, np.float32),
        np.full(5, 0.2, np.float32),
        np.full(4, 0.25),
        np.full((1, 4), 0.25, np.float32),
    ],
)
def test_what_is_no_histogram_is_refused_and_changes_nothing(make, context):
    agent = make()
    before = agent.dump()
    with pytest.raises(HushstreamError, match="context: expected"):
        agent.decide("e1", context, 0)
    assert agent.dump() == before


@pytest.mark.parametrize(("arm", "reward"), [(-1, 1.0), (5, 1.0), (0, float("nan")), (0, 1.5), (0, -0.5)])
def test_impossible_feedback_is_refused_and_the_event_goes_on_waiting(make, rigs, arm, reward):
    agent = make()
    agent.decide("e1", rigs.point(0), 0)
    before = agent.dump()
    with pytest.raises(HushstreamError, match="expected"):
        agent.rewarded("e1", arm, reward)
    if not 0 <= arm < 5:
        with pytest.raises(HushstreamError, match="expected an arm"):
            agent.shown("e1", arm)
    assert agent.dump() == before


def test_feedback_on_an_unknown_event_is_refused(make):
    agent = make()
    for call in (lambda: agent.shown("e", 0), lambda: agent.rewarded("e", 0, 1.0), lambda: agent.expire("e")):
        with pytest.raises(HushstreamError, match="expected an event that waits"):
            call()


def test_no_arm_outside_the_eligible_ones_is_chosen_and_ties_give_their_propensity(make, rigs):
    agent, none = make(), np.zeros(5, bool)
    eligible = np.array([False, True, False, True, False])
    choice = agent.decide("e1", rigs.point(0), 0, eligible)
    assert eligible[choice.arm]
    assert choice.billionths == 500_000_000
    many = agent.table, [agent.row] * 2, ["e3", "e4"], np.stack([rigs.point(0)] * 2)
    arms, propensities, _ = choose(*many, [eligible, None])
    assert eligible[arms[0]]
    assert propensities == [500_000_000, 200_000_000]
    for refused in (lambda: agent.decide("e2", rigs.point(0), 0, none), lambda: choose(*many, [None, none])):
        with pytest.raises(NoEligibleArm):
            refused()


def test_a_slot_can_be_taken_once_and_only_when_it_is_due(make, rigs):
    agent = make()
    with pytest.raises(HushstreamError, match="take_slot"):
        agent.take_slot()
    assert [agent.decide(f"e{n}", rigs.point(n), 0).slot_due for n in range(4)] == [False, False, True, False]
    assert agent.take_slot().content == pack(None)
    with pytest.raises(HushstreamError, match="take_slot"):
        agent.take_slot()


def test_a_reward_after_the_slot_was_taken_is_learned_but_never_reported(make, rigs):
    agent = make(slot={"lifetime_slots": 2})
    for number in range(3):
        agent.decide(f"e{number}", rigs.point(0), 0)
    agent.take_slot()
    for number in range(3):
        agent.rewarded(f"e{number}", 0, 1.0)
    for number in range(3, 6):
        agent.decide(f"e{number}", rigs.point(0), 0)
    assert agent.take_slot().content == pack(None)


def test_the_agent_prints_nothing_of_its_key(make):
    agent = make()
    assert agent.key._material.hex()[:16] not in repr(agent) + str(agent.dump())


@given(
    st.lists(st.floats(-0.5, 1.5, width=32), min_size=1, max_size=40), st.sampled_from([0.0, 1e-3, -1e-3, 9e-4, 1.1e-3])
)
def test_one_row_is_a_histogram_where_an_array_of_it_is(row, beyond):
    """Also about the tolerance: but for a row whose sum meets it to the last bit, which neither reader can tell."""
    contexts = np.array([row, [*row[:-1], 1.0 + beyond - sum(row[:-1])]], dtype=np.float32)
    far = np.abs(np.abs(contexts.sum(axis=1, dtype=np.float64) - 1.0) - HISTOGRAM_TOLERANCE) > 1e-12
    for context, good, told in zip(contexts.tolist(), normalised(contexts), far, strict=True):
        assert is_normalised(context) == good or not told


def test_a_version_stays_while_a_user_stands_on_it_and_no_longer():
    models = SharedModels(("cold", "private"), "cold")
    models.adopt("private", 1, "first")
    assert models.retain("private").version == models.retain("private").version == 1
    models.adopt("private", 2, "second")
    models.drop("private", 1)
    assert models.retained("private", 1) == "first"
    again = SharedModels(("cold", "private"), "cold")
    again.restore(models.dump(str.encode), bytes.decode)
    assert again.dump(str.encode) == models.dump(str.encode)
    assert (again.retained("private", 1), again.newest("private").state) == ("first", "second")
    again.drop("private", 1)
    with pytest.raises(HushstreamError, match="a version of 'private' that a user started from, got 1"):
        again.retained("private", 1)
    assert [item["version"] for item in again.dump(str.encode)] == [0, 2]
