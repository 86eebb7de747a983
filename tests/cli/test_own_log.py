"""From an export to a table that `evaluate` reads: the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.cli.main import app
from hushstream.engine.records import InputRecord
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy, whole

pytestmark = pytest.mark.slow

CONFIG = {
    "deployment": "shop",
    "items": {"capacity": 5},
    "features": {"dimension": 4, "digits": 1},
    "expected_slots": 100,
    "encoder": {"codes": 4},
    "feedback": {"attribution_window_seconds": 5},
    "exploration": {"choice": "epsilon", "share": 0.5},
}


@pytest.fixture
def exported(rigs: Any, tmp_path: Path) -> Path:
    """A deployment's folder and an export of 480 decisions; every other one was shown as it was answered."""
    system = prepare(tmp_path / "shop", parse_config(CONFIG))
    rig, rng = rigs.LearnerRig(system.core), np.random.default_rng(1)
    for first in range(0, 480, 24):
        for number in range(first, first + 24):
            rig.context(f"e{number}", f"user-{number % 24}", rigs.point(number))
        arms = rig.fold().arms
        rig.wait(1.0)
        for number in range(first, first + 24):
            arm = arms[f"e{number}"] if number % 2 else int(rng.integers(5))
            rig.reward(f"e{number}", arm, float(rng.random() < 0.5), f"user-{number % 24}")
        rig.wait(1.0)
    rig.wait(60.0)
    rig.context("last", "user-0", rigs.point(0))
    rig.fold()
    journal = [InputRecord(offset, rig.now_ms, value) for offset, value in enumerate((rig.genesis, *rig.journal))]
    logs = {**rig.logs, ("decisions", 0): journal}
    export_copy(LogCopy({source: whole(records) for source, records in logs.items()}), system, tmp_path / "out")
    return tmp_path


def _run(*arguments: Any, code: int = 0) -> str:
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == code, found.output
    return found.output


def test_an_export_becomes_a_table_whose_command_line_evaluate_takes(exported):
    said = _run("topics", "table", exported / "out", exported / "own", "--deployment", exported / "shop")
    assert said.startswith("INTERNAL, NOT PRIVATE")
    assert "left out" in said
    command = said.splitlines()[-1].split()
    assert command[:2] == ["hushstream", "evaluate"]
    judged = _run(*command[1:], "--json")
    assert "INTERNAL, NOT PRIVATE" in judged
    _run("topics", "table", exported / "out", exported / "own", "--deployment", exported / "shop", code=1)
