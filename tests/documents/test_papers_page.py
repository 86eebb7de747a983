"""The page of the papers is what the committed result of the experiment gives, and has a line of each system."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from hushstream.replay.study import studies

SCRIPT = Path(__file__).parents[2] / "deploy" / "docs" / "papers.py"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hushstream_docs_papers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_result_gives(made):
    assert made.main(["--check"]) == 0


def test_a_result_that_was_changed_is_seen(made, monkeypatch, tmp_path):
    found = json.loads(made.RESULT.read_text(encoding="utf-8"))
    found["rows"][0]["claimed_epsilon"] += 1
    (tmp_path / "papers.json").write_text(json.dumps(found), encoding="utf-8")
    monkeypatch.setattr(made, "RESULT", tmp_path / "papers.json")
    assert made.main(["--check"]) == 1


def test_every_system_with_a_paper_has_a_line_with_figures(made):
    rows = {row["system"]: row for row in json.loads(made.RESULT.read_text(encoding="utf-8"))["rows"]}
    assert set(rows) == {name for name, study in studies().items() if study.paper is not None}
    assert all({"claimed_epsilon", "true_epsilon", "paper", "sound", "alone"} <= row.keys() for row in rows.values())
