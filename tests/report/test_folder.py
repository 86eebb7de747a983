import csv
import json
from importlib.resources import files

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.report.parts import EXACT
from hushstream.replay.report.replayed import RELEASED, document, drawing, provenance_lines, write
from hushstream.replay.result import ReportNotWritten

OWNED = ("results.json", "rows.csv", "rewards.csv", "rewards.png", "index.html")
NOT_PRIVATE_LINE = "shared, non-private"


@pytest.fixture(scope="module")
def written(tmp_path_factory, result):
    return write(result, tmp_path_factory.mktemp("runs") / "new" / "report")


def test_a_report_holds_every_file_and_the_page_comes_last(written):
    assert [path.name for path in written] == list(OWNED)
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(OWNED)
    assert all(path.stat().st_size > 100 for path in written)


def test_equal_results_give_equal_bytes(written, tmp_path, result):
    again = write(result, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_results_json_is_the_document_of_the_result(written, result):
    assert json.loads(written[0].read_text(encoding="utf-8")) == json.loads(json.dumps(document(result)))


def test_the_csv_files_hold_every_row_and_every_point_exactly(written, result):
    for path, wanted in ((written[1], result.rows.plain), (written[2], result.curve.points)):
        with path.open(newline="") as source:
            rows = list(csv.DictReader(source))
        assert [[row[name] for name in wanted[0]] for row in rows] == [
            [str(value) for value in one.values()] for one in wanted
        ]


def test_every_row_of_every_file_says_what_is_exact_in_it_and_what_is_not_private(written, result):
    """A column that leaves its folder is read without the page's legend."""
    for path, name in ((written[1], "condition"), (written[2], "line")):
        with path.open(newline="") as source:
            rows = list(csv.DictReader(source))
        for row in rows:
            assert EXACT in row["figures"]
            assert (NOT_PRIVATE in row["figures"]) == (row[name] == NOT_PRIVATE_LINE)
        assert {row[name] for row in rows} > {NOT_PRIVATE_LINE}
    assert NOT_PRIVATE in document(result)["figures"]
    assert EXACT in drawing(result).caption
    assert any(line.startswith(f"Figures: {EXACT}") for line in provenance_lines(result))


def test_a_live_run_says_that_nothing_of_it_is_exact(live_result):
    assert document(live_result)["figures"] == RELEASED


def test_a_live_run_leaves_no_exact_figure_and_none_of_an_earlier_run(tmp_path, result, live_result):
    write(result, tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    write(live_result, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"results.json", "index.html", "notes.txt"}
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (found["rows"], found["curve"]) == ([], [])


def test_a_folder_that_cannot_be_written_is_named(tmp_path, live_result):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ReportNotWritten, match="expected a folder to write to"):
        write(live_result, tmp_path / "file")


def test_the_template_and_its_style_sheet_belong_to_the_package():
    names = {entry.name for entry in files("hushstream.replay.report").iterdir()}
    assert {"page.html.j2", "page.css"} <= names
