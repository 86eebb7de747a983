"""The experiments of P-DAP: quick runs write rows, targets and pictures, and every row says what it promises."""

from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.studies.pdap import experiments
from hushstream.replay.studies.pdap.experiments import run_sharing, run_table


def test_every_private_row_says_what_it_promises():
    joining = run_sharing(Scale(quick=True))
    rows = [*run_table(Scale(quick=True)).rows, *joining.rows]
    beside = [row for row in joining.rows if row["form"] == "blocks"]
    assert all(row["joined"] == row["online"] and {"alone", "without_privacy"} <= row.keys() for row in beside)
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


def test_the_papers_figures_stand_beside_what_was_played():
    assert experiments.PRINTED["DAP", None][50_000] == 92.17
    row = experiments._row("DAP", None, 5_000, [70.0, 72.0])
    assert (row["accuracy"], row["printed"]) == (71.0, 87.34)
