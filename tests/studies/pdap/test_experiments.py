"""The experiments of P-DAP: quick runs write rows, targets and pictures, and every row says what it promises."""

from __future__ import annotations

import json

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.experiments.catalogue import find_experiment, run_experiment
from hushstream.replay.studies.pdap.experiments import sharing, table

NAMES = ("pdap-table", "pdap-sharing", "pdap-forms", "pdap-gp")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pdap")
    return {name: run_experiment(name, folder, quick=True) for name in NAMES}


@pytest.mark.sweep(keep=["pdap-sharing", "pdap-forms", "pdap-gp"])
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_writes_rows_and_pictures(name, outcomes):
    files = {path.name for path in outcomes[name].files}
    assert files == {f"{name}.csv", f"{name}-targets.csv", f"{name}.html", f"{name}.json", f"{name}.png"}
    read = json.loads(next(path for path in outcomes[name].files if path.suffix == ".json").read_text(encoding="utf-8"))
    assert read["rows"]
    assert len(find_experiment(name).pictures) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_private_row_says_what_it_promises(name, outcomes):
    rows = outcomes[name].findings.rows
    private = [row for row in rows if "epsilon_asked" in row]
    assert private
    for row in private:
        assert REPRODUCIBLE in row["marks"]
        assert (NOT_PRIVATE in row["marks"]) == (row["form"] in ("P-DAP", "GP-DAP"))
        if row["form"] not in ("P-DAP", "GP-DAP"):
            assert row["epsilon"] >= row["epsilon_asked"]
            assert row["delta"] < 1e-12
        else:
            assert row["delta"] == 1


def test_gp_is_priced_by_its_largest_level(outcomes):
    low, geometric, high = outcomes["pdap-gp"].findings.rows
    assert low["epsilon"] == pytest.approx(0.035355)
    assert geometric["epsilon"] == pytest.approx(high["epsilon"], rel=1e-4)


def test_the_papers_figures_stand_beside_what_was_played():
    assert table.PRINTED["DAP", None][50_000] == 92.17
    row = table._row("DAP", None, 5_000, [70.0, 72.0])
    assert (row["accuracy"], row["printed"]) == (71.0, 87.34)


def test_targets_judge_the_rows_that_they_name():
    rows = [
        {"part": "4 x 1,000", "form": form, "epsilon_asked": epsilon, "accuracy": value, "placement": "serving"}
        for form, epsilon, value in (
            ("blocks", 0.1, 80.0),
            ("negative-digit", 0.1, 50.0),
            ("exponential", 0.1, 30.0),
            ("binary", 0.1, 75.0),
            ("blocks", 1.0, 88.0),
            ("negative-digit", 1.0, 89.0),
            ("exponential", 1.0, 30.0),
            ("binary", 1.0, 60.0),
        )
    ]
    assert [row.reached for row in sharing.forms_targets(rows)] == [True, True, False, False, True, True]
    with pytest.raises(KeyError, match="expected one row"):
        sharing.forms_targets(rows[1:])
