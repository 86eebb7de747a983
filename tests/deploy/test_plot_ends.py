"""What draws the dashboards leaves no process behind when it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patience import Patience, patience

PLOT = Path(__file__).parents[2] / "deploy" / "grafana" / "plot.py"
PATIENCE_SECONDS = 60.0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="a system without /proc does not say who began whom")
def test_no_process_outlives_a_plot_that_is_ended(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        plot = subprocess.Popen([sys.executable, str(PLOT), "--out", str(tmp_path)], stdout=log, stderr=log)
    waiting, begun = Patience(PATIENCE_SECONDS), []
    while not begun:
        assert plot.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
        assert not waiting.over
        time.sleep(0.05)
        # Imported libraries may begin processes of their own (a first import lists the fonts), before the plot listens.
        begun = children(plot.pid) if catches(plot.pid, signal.SIGTERM) else []
    plot.send_signal(signal.SIGTERM)
    try:
        assert plot.wait(patience(PATIENCE_SECONDS)) == 128 + signal.SIGTERM
        waiting = Patience(PATIENCE_SECONDS)
        # A process that was ended stays in the table until whoever took it over has asked for its exit code.
        while left := [number for number in begun if Path(f"/proc/{number}").is_dir()]:
            assert not waiting.over, left
            time.sleep(0.05)
    finally:
        plot.kill()


def children(process: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()]


def catches(process: int, number: signal.Signals) -> bool:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text("ascii").splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)
