"""What commands print on a narrow terminal, into a file or a pipe, and when they are interrupted."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rich.table import Table

from hushstream.cli.progress import LINE_EVERY_SECONDS, steps_on_a_bar
from hushstream.cli.tables import print_table
from patience import patience

SHOP = Path(__file__).parents[2] / "deploy" / "examples" / "shop.yaml"
PLAN = ("plan", str(SHOP), "--users", "20000", "--visits-per-user", "200", "--days", "30")
COLUMNS = 60


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hushstream.cli", *arguments]


def _read_all(terminal: int) -> Iterator[bytes]:
    # Linux answers with an error, in place of an empty read, once the other side is closed.
    with suppress(OSError):
        while piece := os.read(terminal, 4096):
            yield piece


def _on_a_terminal(*arguments: str) -> str:
    """What a command prints on a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", 0):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(_command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        printed = b"".join(_read_all(ours)).decode()
        assert process.wait(patience(60)) == 0, printed
    return printed.replace("\r\n", "\n")


def test_a_plan_on_a_narrow_terminal_is_cut_between_words(cli) -> None:
    whole = cli(*PLAN).out
    assert max(map(len, whole.splitlines())) > COLUMNS, "in a pipe each line stays whole"
    narrow = _on_a_terminal(*PLAN)
    assert max(map(len, narrow.splitlines())) <= COLUMNS
    assert narrow.split() == whole.split()


def test_a_table_in_a_file_has_no_line_that_ends_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="a title\nin two lines", box=None)
    for name in ("name", "meaning"):
        table.add_column(name, min_width=20)
    table.add_row("a", "b")
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["a", "title"], ["in", "two", "lines"], ["name", "meaning"], ["a", "b"]]
    assert lines == [line.rstrip() for line in lines]


def test_progress_without_a_terminal_is_a_line_every_so_often(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, expected in ((False, "phase 1: 1,000 of 3,000\nphase 1: 3,000 of 3,000\n"), (True, "")):
        seconds = iter((0.0, 1.0, LINE_EVERY_SECONDS, LINE_EVERY_SECONDS + 9, 30.0))
        with steps_on_a_bar(quiet, lambda times=seconds: next(times)) as progress:
            for done in (10, 1000, 2000, 3000):
                progress(done, 3000, "phase 1")
        assert capsys.readouterr().err == expected


@pytest.mark.process
def test_an_interrupted_command_says_so_in_one_line(cli, config, tmp_path: Path) -> None:
    assert cli("prepare", config(), tmp_path / "made").code == 0
    settings = tmp_path / "security.yaml"
    os.mkfifo(settings)
    process = subprocess.Popen(
        _command("topics", "plan", "--deployment", str(tmp_path / "made"), "--security", str(settings)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    # The pipe opens once the command reads it; the command then waits for what it holds.
    with settings.open("wb"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=patience(60))
    assert (process.returncode, out, err) == (130, "", "hushstream: interrupted\n")
