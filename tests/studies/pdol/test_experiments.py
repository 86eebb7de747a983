"""PDOL's experiments run quickly, write their files, and say what is not private."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.catalogue import run_experiment

PNG = b"\x89PNG\r\n\x1a\n"
NAMES = (
    "pdol-fig-epsilon",
    "pdol-fig-topology",
    "pdol-fig-sparsity",
    "pdol-fig-nodes",
    "pdol-sharing",
    "pdol-forms",
)


@pytest.mark.sweep(keep=["pdol-fig-sparsity"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(600)
def test_a_quick_run_writes_rows_and_pictures(name: str, tmp_path: Path) -> None:
    outcome = run_experiment(name, tmp_path, quick=True)
    rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()))
    assert rows
    value = "released" if name == "pdol-sharing" else "accuracy"
    assert all(0 <= float(row[value]) <= 1 for row in rows)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["description"]["name"] == name
    assert len(outcome.files) == 5
    if name.startswith("pdol-fig"):
        noised = [row for row in rows if row["epsilon_asked"] != "none"]
        assert noised
        assert {row["marks"] for row in noised} == {NOT_PRIVATE}
        assert all(float(row["epsilon"]) > float(row["epsilon_asked"]) for row in noised)
