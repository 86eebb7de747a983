"""The table at the end of a run on a terminal: conditions, guarantee, speed, and the findings of verify."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hushstream.replay.report.printed import answers, facts_grid
from hushstream.replay.report.wording import (
    EXACT,
    MARK_MEANINGS,
    THROUGHPUT_NAMES,
    deployment_text,
    number,
    overall_status,
    quantity,
    seed_text,
    verify_sentence,
)
from hushstream.replay.studies.p2b.report.results import COLD, CONDITIONS, RunResult
from hushstream.replay.studies.p2b.report.summaries import compare
from hushstream.replay.studies.p2b.report.wording import CONDITION_NAMES, interval, title

_STATUS_STYLES = {"equal": "green", "float tie": "green", "changed": "bold red", "uncheckable": "yellow"}


def terminal_table(result: RunResult) -> RenderableType:
    """The table at the end of a run, for a terminal of at least 48 columns; no text is interpreted as markup."""
    parts: list[RenderableType] = [*answers(result.answers), Text(result.privacy.sentence), *map(_mark, result.marks)]
    if result.conditions:
        parts.append(Padding(_conditions(result), (0, 0, 1, 0)))
    arm = result.comparison_arm
    if arm is not None:
        warning = f"{'; '.join(arm.privacy.marks)}: deployment {arm.deployment}. {arm.privacy.sentence}"
        parts.append(Padding(Text(warning, style="yellow"), (0, 0, 1, 0)))
    parts.append(_facts(result))
    return Group(*parts)


def _mark(mark: str) -> Panel:
    text = Text(mark, style="bold")
    if mark in MARK_MEANINGS:
        text.append("\n" + MARK_MEANINGS[mark], style="not bold")
    return Panel(text, border_style="yellow", box=box.ROUNDED)


def _conditions(result: RunResult) -> Table:
    table = Table(
        title=Text(title(result)),
        caption=Text(f"{EXACT[:1].upper()}{EXACT[1:]}."),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("condition")
    for name in ("users", "mean reward", "95 % interval", "against cold"):
        # A number that is broken over two lines looks like another number; only the interval may break between words.
        table.add_column(name, justify="right", min_width=6)
    cold = result.conditions.get(COLD)
    for name in CONDITIONS:
        summary = result.conditions.get(name)
        if summary is None:
            continue
        compared = None if cold is None or name == COLD else compare(summary, cold)
        ratio = "-" if compared is None else f"{compared.ratio:.2f}x"
        table.add_row(CONDITION_NAMES[name], number(summary.users), f"{summary.mean:.4f}", interval(summary), ratio)
    return table


def _facts(result: RunResult) -> Table:
    privacy = result.privacy
    facts: list[tuple[str, str | Text]] = [
        ("guarantee", privacy.summary),
        ("lifetime", f"{privacy.lifetime_text}, per person"),
        ("deployment", deployment_text(result)),
        ("seed", seed_text(result)),
        ("configuration", result.config_digest),
    ]
    speed = ", ".join(
        f"{THROUGHPUT_NAMES[name].lower()} {quantity(name, result.throughput[name])}"
        for name in THROUGHPUT_NAMES
        if name in result.throughput
    )
    if speed:
        facts.append(("speed", speed))
    style = _STATUS_STYLES[overall_status(result.verify.values())] if result.verify else ""
    facts.append(("verify", Text(verify_sentence(result.verify).removeprefix("Verify: "), style=style)))
    return facts_grid(facts)
