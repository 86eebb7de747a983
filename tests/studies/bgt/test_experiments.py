"""The experiments of BGTplanner: quick runs write rows, targets and pictures, and rows say what they promise."""

from __future__ import annotations

import json
from functools import cache

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.experiments.catalogue import find_experiment, run_experiment
from hushstream.replay.studies.bgt.bench.compute import bgt_rows
from hushstream.replay.studies.bgt.experiments import schedules, table, three_slots

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "bgt-dropouts",
            "test_printed_figures_stand_beside_their_schedules",
            "test_targets_judge_the_rows_that_they_name",
            "test_the_benchmark_has_rows_with_names_units_and_targets",
        ]
    ),
]

NAMES = ("bgt-dropouts", "bgt-poisoning", "bgt-schedules", "bgt-table", "bgt-three-slots")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Each experiment once, when a test first asks for it."""
    folder = tmp_path_factory.mktemp("bgt")
    return cache(lambda name: run_experiment(name, folder, quick=True))


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_writes_rows_and_pictures(name, played) -> None:
    outcome = played(name)
    assert {path.name for path in outcome.files} == {
        f"{name}.csv",
        f"{name}-targets.csv",
        f"{name}.html",
        f"{name}.json",
        f"{name}.png",
    }
    read = json.loads(next(path for path in outcome.files if path.suffix == ".json").read_text(encoding="utf-8"))
    assert read["rows"]
    assert len(find_experiment(name).pictures) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_private_row_says_what_it_promises(name, played) -> None:
    noised = [row for row in played(name).findings.rows if row.get("marks")]
    assert noised or name == "bgt-poisoning"
    for row in noised:
        assert REPRODUCIBLE in row["marks"]
        if NOT_PRIVATE not in row["marks"]:
            assert 9.99 < row["epsilon"] <= 10
            assert row["delta"] <= 1e-5


def test_the_papers_form_is_marked_and_stands_beside_what_costs_nothing(played) -> None:
    rows = {row["form"]: row for row in played("bgt-table").findings.rows}
    assert NOT_PRIVATE in rows["planner, gaussian"]["marks"]
    assert rows["planner, gaussian"]["delta"] == 1
    assert {"constant", "local", "all positive", "three slots"} <= set(rows)
    assert rows["three slots"]["rmse"] < rows["planner, gaussian"]["rmse"]


def test_printed_figures_stand_beside_their_schedules() -> None:
    assert table.PRINTED["ml-100k", "planner", "gaussian"] == (0.3223, 0.6444)
    assert table.PRINTED["filmtrust", "fedsgd", "gaussian"] == (0.2905, 0.8354)


def test_targets_judge_the_rows_that_they_name() -> None:
    rows = [
        {"world": world, "schedule": name, "law": "gaussian", "form": name, "rmse": value}
        for world in table.WORLDS
        for name, value in (("planner", 0.31), ("random", 0.32), ("even-100", 0.30), ("even-82", 0.309))
    ]
    rows += [{"world": world, "form": "three slots", "rmse": 0.2} for world in table.WORLDS]
    reached = {row.name: row.reached for row in table.targets(rows)}
    assert not reached["filmtrust, planner against random"]
    assert reached["filmtrust, even-82 minus planner"]
    assert not reached["filmtrust, planner minus even-100"]
    lost = [{"lost": share, "rmse": 0.19} for share in three_slots.LOST]
    assert [row.reached for row in three_slots.lost_targets(lost)] == [True, True, False]
    apart = [{"world": "w", "schedule": "random", "difference": -0.003}]
    assert [row.reached for row in schedules.targets(apart)] == [False]


def test_the_benchmark_has_rows_with_names_units_and_targets() -> None:
    told: list[str] = []
    rows = bgt_rows(told.append, rounds=1)
    assert all(row.value > 0 for row in rows)
    assert [row.target for row in rows if row.target][:2] == ["at least 5000", "at least 100000"]
    assert told == ["BGTplanner"]
