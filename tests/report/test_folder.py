from __future__ import annotations

import csv
import json
from importlib.resources import files

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.report.values import ReportNotWritten
from hushstream.replay.report.wording import EXACT, provenance_lines
from hushstream.replay.studies.p2b.report.document import as_json
from hushstream.replay.studies.p2b.report.folder import OWNED, write_report
from hushstream.replay.studies.p2b.report.plots import plots
from hushstream.replay.studies.p2b.report.results import WARM_NONPRIVATE
from hushstream.replay.studies.p2b.report.wording import RELEASED, figures_of


@pytest.fixture(scope="module")
def written(tmp_path_factory, result):
    return write_report(result, tmp_path_factory.mktemp("runs") / "new" / "report")


def test_a_report_holds_every_file_and_the_page_comes_last(written):
    assert [path.name for path in written] == list(OWNED)
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(OWNED)
    assert all(path.stat().st_size > 100 for path in written)


def test_equal_results_give_equal_bytes(written, tmp_path, result):
    again = write_report(result, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_results_json_is_the_document_of_the_result(written, result):
    assert json.loads(written[0].read_text(encoding="utf-8")) == json.loads(json.dumps(as_json(result)))


def test_the_csv_files_hold_every_row_exactly(written, result):
    with written[1].open(newline="") as source:
        rows = list(csv.DictReader(source))
    assert [(r["condition"], int(r["round"]), int(r["users"]), float(r["mean"]), float(r["ci95"])) for r in rows] == [
        (r.condition, r.round, r.users, r.mean, r.ci95) for r in result.rows
    ]
    with written[2].open(newline="") as source:
        cells = list(csv.DictReader(source))
    assert [[int(value) for name, value in cell.items() if name != "figures"] for cell in cells] == [
        [c.code, c.arm, c.exact_ones, c.exact_zeros, c.noised_ones, c.noised_zeros] for c in result.cells
    ]


def test_every_row_of_every_file_says_what_is_exact_in_it_and_what_is_not_private(written, result):
    """A column that leaves its folder is read without the page's legend."""
    with written[1].open(newline="") as source:
        rows = list(csv.DictReader(source))
    for row in rows:
        assert EXACT in row["figures"]
        assert (NOT_PRIVATE in row["figures"]) == (row["condition"] == WARM_NONPRIVATE)
    assert {row["condition"] for row in rows} > {WARM_NONPRIVATE}
    with written[2].open(newline="") as source:
        cells = {cell["figures"] for cell in csv.DictReader(source)}
    assert cells == {f"columns exact_ones and exact_zeros: {EXACT}; noised_ones and noised_zeros: released"}
    assert NOT_PRIVATE in as_json(result)["figures"]
    for name in ("rewards", "noise"):
        assert EXACT in next(one for one in plots(result) if one.name == name).caption
    assert any(line.startswith(f"Figures: {EXACT}") for line in provenance_lines(result, figures_of(result)))


def test_a_live_run_says_that_nothing_of_it_is_exact(live_result):
    assert as_json(live_result)["figures"] == RELEASED


def test_a_live_run_leaves_no_exact_figure_and_none_of_an_earlier_run(tmp_path, result, live_result):
    write_report(result, tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    write_report(live_result, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"results.json", "epsilon.png", "index.html", "notes.txt"}
    document = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (document["conditions"], document["rows"], document["cells"]) == ({}, [], None)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, live_result):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ReportNotWritten, match="expected a folder to write to"):
        write_report(live_result, tmp_path / "file")


def test_the_template_and_its_style_sheet_belong_to_the_package():
    names = {entry.name for entry in files("hushstream.replay.report").iterdir()}
    assert {"page.html.j2", "page.css"} <= names
