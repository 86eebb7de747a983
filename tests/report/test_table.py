from __future__ import annotations

import io

import pytest
from rich.console import Console

from hushstream.privacy.mechanisms.guarantee import paper_guarantee
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.studies.p2b.report.table import terminal_table


def shown(result, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(terminal_table(result))
    return console.file.getvalue()


def words(text: str) -> str:
    """Without the places where lines end."""
    return " ".join(text.split())


def test_the_terminal_shows_arms_guarantee_speed_and_verify(result):
    text = shown(result)
    for name, condition in zip(("cold", "warm, NOT PRIVATE", "warm, private"), result.conditions.values(), strict=True):
        line = next(line for line in text.splitlines() if line.strip().startswith(name + " "))
        assert f"{condition.mean:.4f}" in line
    assert text.startswith("Users who start from the private model earn")
    assert f"guarantee {result.privacy.summary}" in words(text)
    assert "demo (hosted)" in text
    assert "events per second 15,527" in text
    assert "verify        float tie" in text


def test_marks_come_first_on_the_terminal(make_result):
    stated = StatedGuarantee.of(paper_guarantee(threshold=10, sampling=0.5).under_key(True))
    text = shown(make_result(privacy=stated, release_mode="paper", sampling=0.5))
    assert text.index("NOT PRIVATE AS STATED") < text.index("REPRODUCIBLE, NOT PRIVATE") < text.index("mean reward")


def test_a_live_run_shows_its_guarantee_without_rewards(live_result):
    text = shown(live_result)
    assert "mean reward" not in text
    assert live_result.privacy.summary in words(text)


def test_names_are_not_read_as_markup(make_result):
    text = shown(make_result(dataset="[red]data[/red]", deployment="[bold]d", marks=("[link=x]mark",)))
    assert "p2b on [red]data[/red]" in text
    assert "[bold]d (hosted)" in text
    assert "[link=x]mark" in text


@pytest.mark.parametrize("width", [48, 60])
def test_narrow_terminals_keep_every_figure(result, width):
    text = shown(result, width)
    ratio = result.conditions["warm_private"].mean / result.conditions["cold"].mean
    assert f"{result.conditions['warm_private'].mean:.4f}" in text
    assert f"{ratio:.2f}x" in text
    assert result.config_digest in "".join(text.split())


def test_a_changed_record_is_said(make_result):
    assert "verify        changed (at least one published record" in shown(
        make_result(verify={"learner": RoleCheck(1, changed=1)})
    )
