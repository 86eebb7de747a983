"""``index.html``: one page that holds everything, its pictures included, and asks for nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.plots import (
    DARK,
    DOTS_PER_INCH,
    HEIGHT_INCHES,
    LIGHT,
    WIDTH_INCHES,
    Plot,
    render,
)
from hushstream.replay.report.promised import promised
from hushstream.replay.report.results import COLD, CONDITIONS, WARM_NONPRIVATE, WARM_PRIVATE, RunResult
from hushstream.replay.report.summaries import compare, headline
from hushstream.replay.report.wording import (
    CONDITION_NAMES,
    CONDITION_STARTS,
    MARK_MEANINGS,
    deployment_text,
    interval,
    measure_name,
    number,
    overall_status,
    plain_name,
    provenance,
    quantity,
    seed_text,
    title,
    verify_sentence,
)

_LISTED = {"Condition": "It holds only if", "Not protected": "Not protected"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot as it stands on the page: both forms as data URIs, with its words and its size in pixels."""

    light: str
    dark: str
    caption: str
    alternative: str
    width: int = round(WIDTH_INCHES * DOTS_PER_INCH)
    height: int = round(HEIGHT_INCHES * DOTS_PER_INCH)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the headline with its name and a note."""

    name: str
    value: str
    note: str


def html(result: RunResult, drawn: Sequence[Plot], file_names: Sequence[str]) -> str:
    """The page.

    Args:
        result: what to show.
        drawn: the pictures, in their order.
        file_names: the other files of the folder, for the footer.
    """
    package = files("hushstream.replay.report")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.from_string(package.joinpath("page.html.j2").read_text(encoding="utf-8"))
    # The style sheet is ours, not data; escaped, its quotes would no longer be quotes.
    css = Markup(package.joinpath("page.css").read_text(encoding="utf-8"))
    return template.render(
        css=css,
        page=_content(result, drawn, file_names),
        promised=promised(result.privacy.sentence, result.privacy.odds),
    )


def _content(result: RunResult, drawn: Sequence[Plot], file_names: Sequence[str]) -> dict[str, Any]:
    compared = headline(result)
    return {
        "title": title(result),
        "facts": _facts(result),
        "marks": [(mark, MARK_MEANINGS.get(mark, "")) for mark in result.marks],
        "ratio": "" if compared is None else f"{compared.ratio:.2f}×",
        "outcome": _outcome(result),
        "tiles": _tiles(result),
        "conditions": _conditions(result),
        "pictures": [_picture(plot, result) for plot in drawn],
        "provenance": provenance(result),
        "guarantee": _guarantee(result.privacy.lines[1:]),
        "verify_sentence": verify_sentence(result),
        "verify": _verify(result),
        "counts": [
            {"name": plain_name(name), "kind": COUNT_CLASSES[name], "value": number(count)}
            for name, count in sorted(result.counts.items(), key=lambda item: (COUNT_CLASSES[item[0]], item[0]))
        ],
        "speed": _speed(result),
        "files": file_names,
    }


def _facts(result: RunResult) -> list[tuple[str, str]]:
    return [
        ("Runner", result.runner),
        ("Seed", seed_text(result)),
        ("Deployment", deployment_text(result)),
        ("Data", "public" if result.public_dataset else "not public (live run)"),
        ("Configuration digest", result.config_digest),
    ]


def _outcome(result: RunResult) -> list[str]:
    if not result.public_dataset:
        return ["This is a live run: rewards are exact figures on content and are not shown."]
    compared = headline(result)
    if COLD not in result.conditions or WARM_PRIVATE not in result.conditions:
        return ["This run did not play both cold and warm private users, so there is nothing to compare."]
    if compared is None:
        return ["The mean reward of cold users cannot be told from 0, so warm private against cold has no ratio."]
    private = result.conditions[WARM_PRIVATE]
    sentences = [
        f"Users who start from the private model earn {compared.ratio:.2f} times what users earn who start cold "
        f"(95 % interval {compared.low:.2f} to {compared.high:.2f})."
    ]
    best = compare(private, result.conditions[WARM_NONPRIVATE]) if WARM_NONPRIVATE in result.conditions else None
    if best is not None:
        sentences.append(
            f"That is {100 * best.ratio:.0f} % of what the non-private model gives "
            f"({100 * best.low:.0f} % to {100 * best.high:.0f} %)."
        )
    return sentences


def _tiles(result: RunResult) -> list[Tile]:
    privacy = result.privacy
    tiles = [
        Tile(
            "Guarantee of the private condition",
            f"epsilon {privacy.epsilon_text}",
            f"delta {privacy.delta_text}, {privacy.relation_name}, {privacy.values['deployment']}; "
            f"lifetime: {privacy.lifetime_text}",
        )
    ]
    if "events_per_second" in result.throughput:
        seconds = result.throughput.get("seconds")
        tiles.append(
            Tile(
                "Events per second",
                number(result.throughput["events_per_second"]),
                "" if seconds is None else f"over {quantity('seconds', seconds)}",
            )
        )
    if result.verify:
        roles = ", ".join(result.verify)
        tiles.append(Tile("Verify", overall_status(result.verify.values()), roles))
    return tiles


def _conditions(result: RunResult) -> list[dict[str, str]]:
    return [
        {
            "name": CONDITION_NAMES[name],
            "start": CONDITION_STARTS[name],
            "users": number(result.conditions[name].users),
            "mean": f"{result.conditions[name].mean:.4f}",
            "interval": interval(result.conditions[name]),
            **_against_cold(result, name),
        }
        for name in CONDITIONS
        if name in result.conditions
    ]


def _against_cold(result: RunResult, name: str) -> dict[str, str]:
    cold = result.conditions.get(COLD)
    compared = None if cold is None or name == COLD else compare(result.conditions[name], cold)
    if compared is None:
        return {"ratio": "–", "ratio_interval": ""}
    return {"ratio": f"{compared.ratio:.2f}×", "ratio_interval": f"{compared.low:.2f} to {compared.high:.2f}"}


def _picture(plot: Plot, result: RunResult) -> Picture:
    light, dark = (_data_uri(render(plot, result, theme)) for theme in (LIGHT, DARK))
    return Picture(light, dark, plot.caption, f"{plot.title}. {plot.alternative}")


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _guarantee(lines: Sequence[str]) -> dict[str, Any]:
    """The guarantee's own lines, sorted into facts, lists and plain sentences; no line is left out."""
    sentences: list[str] = []
    facts: list[tuple[str, str]] = []
    lists: dict[str, list[str]] = {}
    for line in lines:
        name, separator, value = line.partition(": ")
        if not separator:
            sentences.append(line)
        elif name in _LISTED:
            lists.setdefault(_LISTED[name], []).append(value)
        else:
            facts.append((name, value))
    return {"sentences": sentences, "facts": facts, "lists": list(lists.items())}


def _verify(result: RunResult) -> list[dict[str, str]]:
    return [
        {
            "role": role,
            "status": check.status,
            "equal": number(check.equal),
            "ties": number(check.ties),
            "changed": number(check.changed),
            "uncheckable": number(check.uncheckable),
        }
        for role, check in (result.verify or {}).items()
    ]


def _speed(result: RunResult) -> list[tuple[str, str]]:
    measured = [(measure_name(name), quantity(name, value)) for name, value in result.throughput.items()]
    return measured + [(plain_name(name), str(value)) for name, value in result.environment.items()]
