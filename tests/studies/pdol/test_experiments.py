"""PDOL's experiments run quickly, write their files, and say what is not private."""

import csv
import json

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.catalogue import find_experiment, played, write

PNG = b"\x89PNG\r\n\x1a\n"
FIGURES = ("epsilon", "topology", "sparsity", "nodes")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "system", "value", "pictures"),
    [
        ("pdol-figures", None, "accuracy", [f"pdol-figures-{one}.png" for one in FIGURES]),
        ("joining", "pdol", "joined", ["joining.png"]),
    ],
)
@pytest.mark.timeout(600)
def test_a_quick_run_writes_rows_and_pictures(name, system, value, pictures, tmp_path):
    experiment = find_experiment(name)
    files = write(experiment, played(experiment, quick=True, system=system), tmp_path)
    rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()))
    assert rows
    assert all(0 <= float(row[value]) <= 1 for row in rows)
    assert all((tmp_path / picture).read_bytes().startswith(PNG) for picture in pictures)
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["description"]["name"] == name
    # Rows, description and page; figures have a table of their targets, too.
    assert len(files) == (4 if name == "pdol-figures" else 3) + len(pictures)
    if name == "pdol-figures":
        assert {row["part"] for row in rows} == set(FIGURES)
        noised = [row for row in rows if row["epsilon_asked"] != "none"]
        assert noised
        assert {row["marks"] for row in noised} == {NOT_PRIVATE}
        assert all(float(row["epsilon"]) > float(row["epsilon_asked"]) for row in noised)
