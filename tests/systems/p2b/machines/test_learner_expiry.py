"""Users unseen for long begin anew, and what they owe and have spent stays."""

from __future__ import annotations

import numpy as np

from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.engine.state.spilled import MemoryUserStore
from storage import SEAL

HOUR = 3600.0


def test_a_user_unseen_for_long_begins_anew_but_their_allowance_does_not(rigs):
    system = rigs.make_system(users={"expire_after_seconds": HOUR}, slot={"lifetime_slots": 2})
    rig = rigs.LearnerRig(system)
    rig.interact("ann", 3)
    rig.wait(20)
    rig.decide("tick", "bob")
    assert len(rig.seen.slots) == 1
    gram, _ = rig.knows("ann")
    assert not np.allclose(gram, np.eye(rigs.DIMENSION), atol=1e-3)
    rig.wait(HOUR)
    rig.decide("back", "ann")
    assert rig.machine.agents["ann"].state is None
    for number in range(20):
        rig.decide(f"more-{number}", "ann")
        rig.wait(20)
    rig.end_phase()
    rig.fold()
    assert len(rig.seen.slots) == 2
    assert len({slot.report_id for slot in rig.seen.slots}) == 2
    assert rig.machine.agents["ann"].decided == 24


def test_the_state_of_a_user_who_never_comes_back_goes_too(rigs):
    rig = rigs.LearnerRig(rigs.make_system(users={"expire_after_seconds": HOUR}))
    rig.interact("ann", 3)
    for number in range(8):
        rig.wait(HOUR / 4)
        rig.decide(f"b{number}", "bob")
    assert [user for user, _ in rig.machine.agents.warm()] == ["bob"]
    assert rig.seen.counts["expired"] == 1


def test_a_slot_in_progress_keeps_its_target_over_an_expiry(rigs):
    """The same number of decisions, the same reported interaction, drawn before from the key alone."""
    reported = []
    for pause in (0.0, 2 * HOUR):
        rig = rigs.LearnerRig(rigs.make_system(users={"expire_after_seconds": HOUR}, slot={"after_interactions": 6}))
        rig.interact("ann", 1)
        rig.wait(pause)
        agent = rig.machine.agents.get("ann")
        for number in range(1, 6):
            rig.reward(f"x{number}", rig.decide(f"x{number}", "ann", rigs.point(number)), 1.0, "ann")
            rig.fold()
        agent = rig.machine.agents["ann"]
        reported.append((agent.due, sorted(agent._waits.targets)))
    assert reported[0] == reported[1]


def test_very_many_expire_at_once_wherever_they_lie(rigs, tmp_path):
    system = rigs.make_system(users={"expire_after_seconds": HOUR})
    counts = []
    for store, limit in ((None, None), (MemoryUserStore(), 40), (UserDatabase(tmp_path / "0.users", SEAL), 40)):
        rig = rigs.LearnerRig(system)
        if store is not None:
            rig.machine.keep_users(store, limit)
        for number in range(2500):
            rig.context(f"e{number}", f"user-{number}")
        rig.fold()
        if isinstance(store, UserDatabase):
            store.save(rig.machine.snapshot())
        arms = rig.seen.arms
        for number in range(2500):
            rig.reward(f"e{number}", arms[f"e{number}"], 1.0, f"user-{number}")
        rig.fold()
        rig.wait(2 * HOUR)
        rig.decide("last", "bob")
        counts.append(rig.seen.counts["expired"])
        assert [user for user, _ in rig.machine.agents.warm()] == ["bob"]
        assert all(model["users"] == 0 for model in rig.machine.terms.policy.dump_models())
        if isinstance(store, UserDatabase):
            store.close()
    assert counts == [2500] * 3
