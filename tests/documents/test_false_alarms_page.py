"""The page of the audits' false alarms is what the committed counts give, and names every row."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from modules import module_at

from hushstream.replay.audits.catalogue import Calibration, audit_names

SCRIPT = Path(__file__).parents[2] / "deploy" / "docs" / "false_alarms.py"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    return module_at(SCRIPT, "hushstream_docs_false_alarms")


def test_the_page_is_what_its_counts_give(made):
    assert made.main(["--check"]) == 0


def test_every_row_has_a_line_and_what_was_not_run_says_so(made):
    names = audit_names()
    one = {"name": names[3], "blas": "openblas Haswell", "effort": "quick", "false_alarm": 1e-6, "times": 200}
    lines = made.page([{**one, "alarms": 0, "structure": ""}]).splitlines()
    assert [line for line in lines if line.startswith(f"| {names[3]} |")] == [
        f"| {names[3]} | Haswell | 200 | 0 | 0.015 | as stated |"
    ]
    assert sum("| not run |" in line for line in lines) == len(names) - 1
    assert f"Of {len(names)} rows 1 were run, 200 times in all, with 0 alarms" in " ".join(lines)
    alarmed = made.page([{**one, "alarms": 2, "structure": "draw 1 and draw 5 share noise"}])
    assert "| 2 | 0.031 | **more often than stated**: draw 1 and draw 5 share noise |" in alarmed


def test_counts_that_were_changed_are_seen(made, monkeypatch, tmp_path):
    found = json.loads(made.RESULT.read_text(encoding="utf-8"))
    found["counted"][0]["alarms"] += 1
    (tmp_path / "counts.json").write_text(json.dumps(found), encoding="utf-8")
    monkeypatch.setattr(made, "RESULT", tmp_path / "counts.json")
    assert made.main(["--check"]) == 1


def test_no_committed_row_alarms_more_often_than_it_states(made):
    for one in json.loads(made.RESULT.read_text(encoding="utf-8"))["counted"]:
        row = Calibration(one["name"], one["times"], one["alarms"], one["false_alarm"], one["structure"])
        assert row.as_stated, one
