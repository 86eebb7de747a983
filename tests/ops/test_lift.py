"""What is told of the lift, from the released counts alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.lift import lift_guarantee, lift_of
from hushstream.systems.p2b.reports.lift_report import LiftReport
from hushstream.systems.p2b.system import declare

SETTINGS = {"holdout": 0.5, "epsilon": 20.0, "decisions_per_user": 4, "every_seconds": 1e6, "releases": 8}


def read(system: P2BSystem, *rigs: Any) -> LiftReport:
    """What the deployment's declared view says of the topics that it names, one partition a rig."""
    view = declare(system).holdout
    assert view is not None
    report = view.read(out.value for rig in rigs for out in rig.seen.outputs if out.topic in view.topics)
    assert isinstance(report, LiftReport)
    return report


def played(rigs: Any, partition: int, settle: bool) -> Any:
    system = rigs.make_system(lift=SETTINGS, slot={"after_interactions": 100}, partitions={"learner": 2})
    rig = rigs.LearnerRig(system, partition=partition)
    rig.put = partial(rig.put, partition=partition)
    users = [user for user in (f"user-{number}" for number in range(240)) if rig.machine.is_home_of(user)]
    for user in users:
        for number in range(4):
            arm = rig.decide(f"{user}:{number}", user, rigs.point(number), baseline=2)
            rig.reward(f"{user}:{number}", arm, float(number % 2), user)
    if settle:
        rig.wait(6)
    rig.end_phase()
    rig.fold()
    return rig


def test_the_newest_release_of_every_counter_is_added_up(rigs: Any) -> None:
    parts = [played(rigs, partition, settle=True) for partition in (0, 1)]
    report = read(parts[0].system, *parts)
    records = [record for rig in parts for record in rig.seen.records("lift", "Lift")]
    sums = [np.frombuffer(record["sums"], "<i8") for record in records]
    assert report.lift == lift_of([(one, records[0]["variance"], 1) for one in sums], 4)
    assert report.lift.model is not None
    assert report.lift.holdout is not None
    assert report.lift.model.shown + report.lift.holdout.shown == pytest.approx(960, abs=150)
    assert report.releases == 2
    price = lift_guarantee(parts[0].system.config.lift, 1)
    assert (report.epsilon_micro, report.delta_units) == (price.epsilon_micro, price.delta_units)
    text = report.as_text()
    assert text.startswith("REPRODUCIBLE, NOT PRIVATE\nModel: ")
    assert "The 95 % hold however alike the decisions of one user are" in text
    assert report.as_json()["uplift"]["ci95"] == report.lift.uplift[1]
    assert report.exit_code == 0


def test_before_any_wait_is_over_there_is_no_figure(rigs: Any) -> None:
    """Rewards have come, and counted at once they would give a rate."""
    rig = played(rigs, 0, settle=False)
    report = read(rig.system, rig)
    assert report.lift.uplift is None
    assert report.exit_code == 1
    assert (
        "Model: too little was shown to distinguish it from the noise: about 0 decisions counted, some 1 needed"
        in report.as_text()
    )


def test_without_a_release_it_says_what_is_missing(rigs: Any) -> None:
    with pytest.raises(HushstreamError, match=r"wait for a reward is over \(5 s\), and releases are 1e\+06 s apart"):
        read(rigs.make_system(lift=SETTINGS))


def test_there_is_a_view_of_a_hold_out_exactly_where_there_is_one(rigs: Any, related: Any) -> None:
    assert declare(rigs.make_system()).holdout is None
    assert declare_colin(related.make_system()).holdout is None
    held = declare(rigs.make_system(lift=SETTINGS))
    assert held.holdout is not None
    assert set(held.holdout.topics) <= held.partitions.keys()
