"""Contexts that are scored together are answered as if each were scored in its turn, to the last bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hushstream.learners.linucb import LinUCBModel
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.code_policies import UserLinUCB
from hushstream.systems.p2b.edge.low_rank import OwnUpdates, UserState
from hushstream.systems.p2b.edge.policy import UNSCORED
from hushstream.systems.p2b.machines.learner import LookAhead

FOLD = "hushstream.systems.p2b.machines.learner"


def _states(kernel: UserLinUCB, rng: np.random.Generator) -> list[UserState]:
    """Users of one base: some without a step, some with a few, some that have become dense."""
    base = LinUCBModel.cold(kernel.arms, kernel.dimension).state()
    states: list[UserState] = []
    for steps in (0, 1, 3, 7, 12, 3 * max(16, kernel.dimension)):
        state: UserState = OwnUpdates.none(base)
        for _ in range(steps):
            context = rng.dirichlet(np.ones(kernel.dimension)).astype(np.float32)
            state = kernel.learned(state, context, int(rng.integers(kernel.arms)), float(rng.random()))
        states.append(state)
    return states


@pytest.mark.parametrize(("arms", "dimension"), [(2, 3), (5, 4), (7, 33), (25, 25), (60, 50)])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_scores_of_many_have_the_bits_of_each_alone(arms: int, dimension: int, alpha: float) -> None:
    kernel, rng = UserLinUCB(arms, dimension, alpha), np.random.default_rng(arms)
    users = _states(kernel, rng)
    states = [users[number] for number in rng.integers(len(users), size=150)]
    contexts = rng.dirichlet(np.ones(dimension), len(states)).astype(np.float32)
    together, alone = kernel.best(states, contexts), []
    for state, context in zip(states, contexts, strict=True):
        # As records are decoded one at a time: aligned memory of its own.
        arm, ties = kernel.choose(state, context.copy(), 0)
        alone.append(arm if ties == 1 else UNSCORED)
    assert together == alone
    # A user without a step finds all arms tied.
    assert UNSCORED in alone
    assert len(set(alone)) > 2
    few = kernel._together
    kernel.best(states[:few], contexts[:few])
    for row, (state, context) in enumerate(zip(states[:few], contexts[:few], strict=True)):
        assert kernel.scores(state, context.copy()).tobytes() == kernel._many_scores[row].tobytes()


def _lived(rigs: Any, users: int) -> list[bytes]:
    """The journal of a partition: clicks between contexts, waits that end between them, and many contexts a fold."""
    rig, rng = rigs.LearnerRig(rigs.make_system(feedback={"attribution_window_seconds": 2.0})), np.random.default_rng(3)
    waiting: list[tuple[str, str, int]] = []
    for batch in range(12):
        asked = []
        for number in range(90):
            rig.wait(0.02)
            event_id, user = f"event-{batch}-{number}", f"user-{rng.integers(users)}"
            rig.context(event_id, user, rng.dirichlet(np.ones(rigs.DIMENSION)))
            asked.append((event_id, user))
            if waiting and number % 45 == 7:
                given, whose, arm = waiting.pop(int(rng.integers(len(waiting))))
                rig.reward(given, arm, float(rng.random() < 0.5), whose)
        arms = rig.fold().arms
        waiting = [(event_id, user, arms[event_id]) for event_id, user in asked]
        for event_id, user, arm in waiting[::2]:
            rig.shown(event_id, arm, user)
        rig.fold()
    return list(rig.journal)


def test_a_partition_answers_the_same_whether_it_looks_ahead_or_not(rigs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other user learns while others of theirs are still to be answered: what was found for them is void."""
    used: list[int] = []
    best = LookAhead.best

    def noted(ahead: LookAhead, row: int, agent: Any) -> int:
        found = best(ahead, row, agent)
        if row in ahead._found:
            used.append(found)
        return found

    monkeypatch.setattr(LookAhead, "best", noted)
    ahead = _lived(rigs, users=6)
    void, good = used.count(UNSCORED), len(used) - used.count(UNSCORED)
    assert good > 100
    assert void > 100
    monkeypatch.setattr(f"{FOLD}.AHEAD_AT_LEAST", 1 << 30)
    used.clear()
    assert _lived(rigs, users=6) == ahead
    assert not used


def test_what_was_found_for_a_state_that_is_given_up_is_void(rigs: Any) -> None:
    """A user who came back from disk has learned nothing since, and yet their next decision is another's."""
    rig = rigs.LearnerRig()
    rig.interact("ann", 6)
    agent = rig.machine.agents["ann"]
    loaded = EdgeAgent.load(agent.terms, agent.key, agent.dump())
    columns: Any = SimpleNamespace(users=["ann"], eligible=[b""], contexts=np.stack([rigs.point(0)]))
    ahead = LookAhead(agent.terms.policy)
    ahead.look(columns, [0], lambda _: loaded)
    assert ahead.best(0, loaded) == agent.decide("next", rigs.point(0), rig.now_ms).arm
    loaded.delete_state()
    assert ahead.best(0, loaded) == UNSCORED


def _answered(rigs: Any, decoded_apart: bool) -> dict[str, int]:
    """Eight users who have learned ask once, and three of them again, with another context, in the same batch."""
    rig, users = rigs.LearnerRig(), [f"user-{number}" for number in range(8)]
    for user in users:
        for turn in range(24):
            event_id = f"{user}:{turn}"
            rig.wait(0.01)
            rig.context(event_id, user, rigs.point(turn))
            arm = rig.fold().arms[event_id]
            rig.shown(event_id, arm, user)
            rig.reward(event_id, arm, float(turn % rigs.ARMS == arm), user)
            rig.fold()
    for number, user in enumerate(users):
        rig.context(f"first-{number}", user, rigs.point(number))
    if decoded_apart:
        rig.machine.ready(rig.arrived())
    for number, user in enumerate(users[:3]):
        rig.context(f"second-{number}", user, rigs.point(number + 1))
    arms: dict[str, int] = rig.fold().arms
    return arms


def test_contexts_that_were_decoded_apart_are_answered_as_together(rigs: Any) -> None:
    """What was found for a row of the first piece was taken for the same row of the second, too few to be looked at."""
    together = _answered(rigs, decoded_apart=False)
    assert any(together[f"first-{number}"] != together[f"second-{number}"] for number in range(3))
    assert _answered(rigs, decoded_apart=True) == together
