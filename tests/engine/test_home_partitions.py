"""A user is decided for in their home partition alone: elsewhere they would have a second allowance."""

from __future__ import annotations

import pytest

from hushstream.schemas.partitioning import partition_of

NAMES = [f"user-{number}" for number in range(20)]


def of_home(home):
    return next(name for name in NAMES if partition_of(name, 2) == home)


def test_p2b_decides_for_no_user_of_another_partition(rigs):
    system = rigs.make_system(partitions={"learner": 2}, slot={"after_interactions": 1})
    rig = rigs.LearnerRig(system, partition=0)
    rig.context("own", of_home(0), rigs.point(0))
    rig.context("foreign", of_home(1), rigs.point(0))
    seen = rig.fold()
    assert seen.reasons == ["foreign_user"]
    assert [answer.event_id for answer in seen.answers] == ["own"]


@pytest.mark.parametrize(("home", "own", "foreign"), [(0, "bob", "ann"), (1, "ann", "bob")])
def test_a_collaborative_learner_takes_no_reward_of_a_user_of_another_partition(related, home, own, foreign):
    system = related.edge_system(partitions={"learner": 2}, rewards_per_user=1)
    rig = related.RelatedLearnerRig(system, related.SECRET, home)
    rig.interact("own", own)
    rig.context("foreign", foreign)
    rig.end_phase()
    rig.fold()
    assert rig.seen.reasons == ["foreign_user"]
    (release,) = rig.seen.records("releases", "Release")
    assert related.arrays_of(release)[0].tolist() == [system.graph.index[own]]
