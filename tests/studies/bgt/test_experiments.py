"""The experiments of BGTplanner: quick runs write rows, targets and pictures, and rows say what they promise."""

from __future__ import annotations

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.experiments.findings import Findings, Scale
from hushstream.replay.studies.bgt import experiments
from hushstream.replay.studies.bgt.bench import bgt_rows
from hushstream.replay.studies.bgt.experiments import run_table, run_three_slots

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "test_printed_figures_stand_beside_their_schedules",
            "test_targets_judge_the_rows_that_they_name",
            "test_the_benchmark_has_rows_with_names_units_and_targets",
        ]
    ),
]


@pytest.fixture(scope="module")
def table() -> Findings:
    return run_table(Scale(quick=True))


def test_every_private_row_says_what_it_promises(table):
    joining = run_three_slots(Scale(quick=True))
    noised = [row for row in (*table.rows, *joining.rows) if row.get("marks")]
    assert noised
    for row in noised:
        assert REPRODUCIBLE in row["marks"]
        if NOT_PRIVATE not in row["marks"]:
            assert 9.99 < row["epsilon"] <= 10
            assert row["delta"] <= 1e-5
    beside = [row for row in joining.rows if "epsilon_asked" in row]
    assert all(row["mixture"] == row["rmse"] and {"joined", "alone", "without_privacy"} <= row.keys() for row in beside)


def test_the_papers_form_is_marked_and_stands_beside_what_costs_nothing(table):
    rows = {row["form"]: row for row in table.rows}
    assert NOT_PRIVATE in rows["planner, gaussian"]["marks"]
    assert rows["planner, gaussian"]["delta"] == 1
    assert {"constant", "alone", "all positive", "three slots"} <= set(rows)
    assert rows["three slots"]["rmse"] < rows["planner, gaussian"]["rmse"]


def test_printed_figures_stand_beside_their_schedules():
    assert experiments.PRINTED["ml-100k", "planner", "gaussian"] == (0.3223, 0.6444)
    assert experiments.PRINTED["filmtrust", "fedsgd", "gaussian"] == (0.2905, 0.8354)


def test_targets_judge_the_rows_that_they_name():
    rows = [
        {"world": world, "schedule": name, "law": "gaussian", "form": name, "rmse": value}
        for world in experiments.WORLDS
        for name, value in (("planner", 0.31), ("random", 0.32), ("even-100", 0.30), ("even-82", 0.309))
    ]
    rows += [{"world": world, "form": "three slots", "rmse": 0.2} for world in experiments.WORLDS]
    reached = {row.name: row.reached for row in experiments.table_targets(rows)}
    assert not reached["filmtrust, planner against random"]
    assert reached["filmtrust, even-82 minus planner"]
    assert not reached["filmtrust, planner minus even-100"]


def test_the_benchmark_has_rows_with_names_units_and_targets():
    told: list[str] = []
    rows = bgt_rows(told.append, rounds=1)
    assert all(row.value > 0 for row in rows)
    assert [row.target for row in rows if row.target][:2] == ["at least 5000", "at least 100000"]
    assert told == ["BGTplanner"]
