"""What is told of the lift, from the released counts alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from hushstream.engine.machine import InputRecord
from hushstream.ops.copies import LogCopy, whole
from hushstream.ops.lift import LiftReport, read_lift, require_lift
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.lift import lift_guarantee, lift_of

SETTINGS = {"holdout": 0.5, "epsilon": 20.0, "decisions_per_user": 4, "every_seconds": 1e6, "releases": 8}


def copy_of(*rigs: Any) -> LogCopy:
    found = {}
    for number, rig in enumerate(rigs):
        values = [output.value for output in rig.seen.outputs if output.topic == "lift"]
        found["lift", number] = whole([InputRecord(offset, 1, value) for offset, value in enumerate(values)])
    return LogCopy(found)


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
    rig.seal()
    rig.fold()
    return rig


def test_the_newest_release_of_every_counter_is_added_up(rigs: Any) -> None:
    parts = [played(rigs, partition, settle=True) for partition in (0, 1)]
    report = read_lift(copy_of(*parts), parts[0].system)
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
    assert "the 95 % hold however alike the decisions of one user are" in text
    assert report.as_json()["uplift"]["ci95"] == report.lift.uplift[1]


def test_before_any_wait_is_over_there_is_no_figure(rigs: Any) -> None:
    """Rewards have come, and counted at once they would give a rate."""
    rig = played(rigs, 0, settle=False)
    report = read_lift(copy_of(rig), rig.system)
    assert isinstance(report, LiftReport)
    assert report.lift.uplift is None
    assert "Model: too little was shown to tell from the noise." in report.as_text()


def test_without_a_release_or_a_hold_out_it_says_what_is_missing(rigs: Any, related: Any) -> None:
    with pytest.raises(HushstreamError, match=r"got none; the first comes after lift\.every_seconds"):
        read_lift(LogCopy({}), rigs.make_system(lift=SETTINGS))
    with pytest.raises(HushstreamError, match=r"expected lift\.holdout above 0 .* set lift: \{holdout: 0\.1\}"):
        require_lift(rigs.make_system())
    with pytest.raises(HushstreamError, match="expected a deployment of p2b, got one of colin, which has no hold-out"):
        require_lift(related.make_system())
