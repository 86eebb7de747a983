"""An edge that is taken back to an older copy of its logs refills no allowance, however late it goes on."""

from __future__ import annotations

import pytest

from hushstream.systems.p2b.contribution.slots import pack

DAY = 86_400.0


def lived(rigs, rig, first, rounds):
    """A user's first slots; gives them as they were sent."""
    for number in range(first, first + rounds):
        event = f"e{number}"
        arm = rig.decide(event, "ann", rigs.point(number))
        rig.reward(event, arm, 1.0)
        rig.fold()
    rig.end_phase(first)
    rig.fold()
    return [output.value for output in rig.seen.releases("reports")]


@pytest.mark.parametrize("days", [0, 1, 2, 3, 400])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_slot_sent_again_with_other_content_is_not_counted_a_second_time(rigs, days, slots):
    """The learner's topics are restored from before the user came; their contexts and clicks are others then."""
    system = rigs.make_system(slot={"lifetime_slots": slots, "after_interactions": 2}, release={"window_slots": 100})
    shuffler = rigs.ShufflerRig(system)
    sent = []
    for restored in (False, True):
        learner = rigs.LearnerRig(system)
        learner.wait(days * DAY * restored)
        values = lived(rigs, learner, 10 * restored, 2 * slots)
        sent.append(learner.seen.slots)
        shuffler.now_ms = learner.now_ms
        for value in values:
            shuffler.put("reports", value)
        shuffler.fold()
        if days == 1 and not restored:
            # What is remembered of ids is in the state, wherever it was taken up.
            state = shuffler.machine.snapshot()
            shuffler.machine = type(shuffler.machine)(system, 0, shuffler.key)
            shuffler.machine.start(shuffler.genesis)
            shuffler.machine.restore(state)
    first, second = sent
    assert [slot.report_id for slot in second] == [slot.report_id for slot in first]
    assert [slot.content for slot in second] != [slot.content for slot in first]
    assert pack(None) not in [slot.content for slot in second]
    counts = shuffler.seen.counts
    assert (counts["slot"], counts["repeated_slot"]) == (slots, slots)
    shuffler.end_phase()
    shuffler.fold()
    assert sum(journal["slots"] for journal in shuffler.seen.journals) == slots
