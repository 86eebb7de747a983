from __future__ import annotations

import math

import pytest

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.report.counts import COUNT_CLASSES, slot_public
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.values import BadResult
from hushstream.replay.studies.p2b.report.results import CellRow, ConditionRow, ConditionSummary
from hushstream.schemas.reasons import Reason
from hushstream.systems.catalogue import kinds

SUMMARY = ConditionSummary(0.5, 0.01, 10)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("conditions", {"warm_nonprivate": SUMMARY}, "no warm_nonprivate condition"),
        ("rows", (ConditionRow("warm_nonprivate", 1, 10, 0.5, 0.01),), "no warm_nonprivate condition"),
        ("conditions", {"cold": SUMMARY}, "no rewards"),
        ("rows", (ConditionRow("warm_private", 1, 10, 0.5, 0.01),), "no rewards"),
        ("cells", (CellRow(0, 0, 1, 1, 2, -1),), "cells: expected none"),
        ("cells", (), "cells: expected none"),
        ("counts", {"slot": 3, "rewarded": 2}, "got rewarded"),
        ("counts", {"records_dead-letters-edge": 2}, "got records_dead-letters-edge"),
    ],
)
def test_a_live_run_refuses_exact_figures_on_content(make_result, field, value, says):
    with pytest.raises(BadResult, match=says) as caught:
        make_result(public_dataset=False, **{field: value})
    assert "marked public" in str(caught.value)


def test_a_live_run_may_show_its_guarantee_its_slots_and_its_speed(live_result):
    assert live_result.counts == {"slot": 1400}
    assert live_result.throughput["seconds"] > 0


def test_every_count_of_the_machines_has_a_class():
    names = {str(name) for kind in (Outcome, JoinOutcome, Refusal, Reason) for name in kind}
    assert names | {f"records_{topic.name}" for kind in kinds().values() for topic in kind.topics} <= set(COUNT_CLASSES)


def test_what_tells_something_of_content_is_zone_private():
    joins = {str(name) for kind in (JoinOutcome, Refusal, Reason) for name in kind}
    dead = {name for name in COUNT_CLASSES if "dead" in name}
    private = joins | dead | {"rejected", "decided", "reports", "null_slots", "withheld", "records_clicks"}
    assert dead
    assert {COUNT_CLASSES[name] for name in private} == {"zone-private"}


def test_only_slot_public_counts_pass_the_filter():
    assert slot_public({"slot": 1, "window": 2, "rewarded": 3, "late_reward": 4}) == {"slot": 1, "window": 2}


def test_a_count_without_a_class_is_refused_even_for_public_data(make_result):
    with pytest.raises(BadResult, match="privacy class, got 'ages'"):
        make_result(counts={"ages": 1})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config_digest": "018D"}, "32 hexadecimal digits"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"sampling": 0.0}, "sampling"),
        ({"sampling": math.nan}, "sampling"),
        ({"release_mode": "none"}, "release_mode"),
        ({"system": ""}, "system"),
        ({"public_dataset": 1}, "public_dataset"),
        ({"conditions": {"lukewarm": SUMMARY}}, "lukewarm"),
        ({"rows": (ConditionRow("cold", 1, 9, 0.1, 0.1),) * 2}, "one row for each condition"),
        ({"counts": {"slot": -1}}, "counts.slot"),
        ({"throughput": {"seconds": math.inf}}, "throughput.seconds"),
        ({"throughput": {"seconds": -1.0}}, "throughput.seconds"),
    ],
)
def test_impossible_values_are_refused_by_name(make_result, changes, says):
    with pytest.raises(BadResult, match=says):
        make_result(**changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConditionRow("cold", 0, 1, 0.1, 0.1),
        lambda: ConditionRow("cold", 1, 0, 0.1, 0.1),
        lambda: ConditionRow("cold", 1, 1, math.nan, 0.1),
        lambda: ConditionSummary(0.1, -0.1, 1),
        lambda: CellRow(0, 0, -1, 0, 0, 0),
        lambda: RoleCheck(-1),
        lambda: StatedGuarantee({}, ("text",)),
        lambda: StatedGuarantee(slot_sums_guarantee(epsilon=1).as_json(), ()),
    ],
)
def test_impossible_rows_are_refused(make):
    with pytest.raises(BadResult):
        make()


def test_the_marks_of_the_guarantee_cannot_be_left_out(make_result):
    guarantee = paper_guarantee(threshold=10, sampling=0.5).under_key(True)
    marked = make_result(
        privacy=StatedGuarantee.of(guarantee), release_mode="paper", sampling=0.5, marks=("SHORT RUN",)
    )
    assert marked.marks == (NOT_PRIVATE, REPRODUCIBLE, "SHORT RUN")


def test_a_guarantee_is_stated_with_exact_amounts_rounded_up():
    stated = StatedGuarantee.of(slot_sums_guarantee(epsilon="0.7", lifetime_slots=3))
    assert stated.summary.startswith("epsilon 1.4, delta ")
    assert " (which of two it was) and epsilon 0.7, delta " in stated.summary
    assert "null-slot, for one slot of one user" in stated.summary
    assert stated.lifetime_text.startswith("epsilon 4.2, delta ")
    assert " (which of two it was) and epsilon 2.1, delta " in stated.lifetime_text
    # Printed with three digits, never below the true value.
    assert float(stated.delta_text) >= int(stated.values["delta_units"]) / 2**80


def test_a_guarantee_that_renews_is_never_shown_without_its_lifetime():
    once = StatedGuarantee.of(slot_sums_guarantee(epsilon=1))
    renewed = StatedGuarantee.of(slot_sums_guarantee(epsilon=1, lifetime_slots=3))
    assert "lifetime" not in once.summary
    assert renewed.summary.endswith(f"; lifetime {renewed.lifetime_text}")


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (RoleCheck(5), "equal"),
        (RoleCheck(5, ties=1), "float tie"),
        (RoleCheck(5, ties=1, uncheckable=1), "uncheckable"),
        (RoleCheck(5, ties=1, changed=1, uncheckable=1), "changed"),
        (RoleCheck(0), "uncheckable"),
    ],
)
def test_the_status_of_a_role_is_the_worst_that_was_found(check, status):
    assert check.status == status
