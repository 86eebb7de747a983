"""In the shadow: an application shows its own choice, and the log says what the answers would have brought."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hushstream.engine.records import InputRecord
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.replay.logged.shadow import ShadowReport, shadow_report
from hushstream.systems.p2b.system import declare

pytestmark = pytest.mark.slow

CLICKS = np.full((4, 5), 0.15) + 0.6 * np.eye(4, 5)
"""The world: one arm a context is liked."""


def in_shadow(rigs: Any, seed: int, decisions: int, liked: float) -> tuple[ShadowReport, float]:
    """What is reported, and the true lift of the answers that were given.

    The application shows the liked arm with probability ``liked``, any arm otherwise.
    """
    rng = np.random.default_rng(seed)
    rig = rigs.LearnerRig(rigs.make_system(), rigs.seeded_key(seed, "edge"))
    lifts = []
    for first in range(0, decisions, 24):
        asked = [(f"e{number}", f"user-{number % 24}", int(rng.integers(4))) for number in range(first, first + 24)]
        for event_id, user, kind in asked:
            rig.context(event_id, user, rigs.point(kind))
        arms = rig.fold().arms
        rig.wait(1.0)
        for event_id, user, kind in asked:
            own = kind if rng.random() < liked else int(rng.integers(5))
            rig.shown(event_id, own, user)
            lifts.append(CLICKS[kind, arms[event_id]] - CLICKS[kind, own])
            if rng.random() < CLICKS[kind, own]:
                rig.reward(event_id, own, 1.0, user)
        rig.wait(1.0)
    rig.wait(60.0)
    rig.context("last", "user-0", rigs.point(0))
    rig.fold()
    journal = [InputRecord(offset, rig.now_ms, value) for offset, value in enumerate((rig.genesis, *rig.journal))]
    logs = LogCopy({source: whole(records) for source, records in {**rig.logs, ("decisions", 0): journal}.items()})
    return shadow_report(logs, declare(rig.system)), float(np.mean(lifts))


def test_the_lift_of_what_was_not_shown_is_the_true_one(rigs: Any) -> None:
    """Five logs of 960 decisions: the true lift lies in three intervals at least (fewer has a chance of .0012), and
    answers of learners who saw every click bring more than an application that chooses at random: in all of them."""
    found = [in_shadow(rigs, seed, 960, liked=0.0) for seed in range(5)]
    assert sum(report.interval.low <= true <= report.interval.high for report, true in found) >= 3
    for report, true in found:
        assert true > 0.1
        assert report.certain
        assert report.lift > 0
        assert report.rows_more == 0
        assert abs(report.snips - true) < 0.25
        assert report.rows == 960
        assert "it would bring more" in report.as_text()
        assert report.as_text().startswith("INTERNAL, NOT PRIVATE")
        assert report.as_json()["propensities"] == "estimated"


def test_where_the_application_is_better_the_lift_is_below_zero_and_where_little_is_known_it_says_so(rigs: Any) -> None:
    worse, true = in_shadow(rigs, 3, 960, liked=0.8)
    assert true < 0
    assert worse.lift is not None
    assert worse.lift < 0
    short, _ = in_shadow(rigs, 4, 24, liked=0.0)
    assert not short.certain
    assert "collect more" in short.as_text() or "more until" in short.as_text()
