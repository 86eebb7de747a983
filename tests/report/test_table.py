from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from hushstream.privacy.mechanisms.guarantee import paper_guarantee
from hushstream.replay.report.parts import RoleCheck
from hushstream.replay.report.replayed import table


def shown(result, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(result))
    return console.file.getvalue()


def words(text: str) -> str:
    """Without the places where lines end."""
    return " ".join(text.split())


def test_the_terminal_shows_arms_guarantee_speed_and_verify(result):
    text = shown(result)
    for row in result.rows.plain:
        assert re.search(rf"^ *{row['condition']} .* {row['mean_reward']:.4f} ", text, re.MULTILINE)
    assert text.startswith("A shared private model raised new users' mean reward")
    assert f"guarantee {result.privacy.summary}" in words(text)
    assert "demo (hosted)" in text
    assert "7,764 decisions/s" in text
    assert "30 records equal, 1 float tie, 0 changed" in text


def test_marks_come_first_on_the_terminal(make_result):
    stated = paper_guarantee(threshold=10, sampling=0.5).under_key(True)
    text = shown(make_result(privacy=stated))
    assert text.index("NOT PRIVATE AS STATED") < text.index("REPRODUCIBLE, NOT PRIVATE") < text.index("  mean reward")


def test_a_live_run_shows_its_guarantee_without_rewards(live_result):
    text = shown(live_result)
    assert "mean reward" not in text
    assert live_result.privacy.summary in words(text)


def test_names_are_not_read_as_markup(make_result):
    text = shown(make_result(dataset="[red]data[/red]", deployment="[bold]d"))
    assert "p2b on [red]data[/red]" in text
    assert "[bold]d (hosted)" in text


@pytest.mark.parametrize("width", [48, 60])
def test_narrow_terminals_keep_every_figure(result, width):
    text = shown(result, width)
    assert f"{result.rows['shared private model']['mean_reward']:.4f}" in text
    assert result.config_digest in "".join(text.split())


def test_a_changed_record_is_said(make_result):
    assert "0 records equal, 0 float ties, 1 changed" in shown(make_result(verify={"learner": RoleCheck(0, changed=1)}))
