"""The notebooks of deploy/examples run as they stand, and say what they say in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.ipynb"))
_OBJECT = re.compile(r"\d[\d,]* bytes of PNG")


def _texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What its cells printed or returned, but for the sizes of pictures."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return [_OBJECT.sub("PNG", text) for text in found]


@pytest.mark.process
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_those_that_it_shows(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in fresh.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(fresh, timeout=150, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(_texts(stored))
    assert _texts(fresh) == _texts(stored)
    outputs = [output for cell in fresh.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds


def test_there_is_a_notebook_for_each_question():
    assert [path.stem for path in NOTEBOOKS] == ["evaluate-my-own-log", "replay-and-compare", "which-epsilon"]
