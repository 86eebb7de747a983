"""The field's words in pages, and papers that are cited."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from modules import module_at
from rich.console import Console
from scipy.special import stdtrit

from hushstream.replay.experiments.findings import Findings, table
from hushstream.replay.experiments.systems import PAPERS, SETTINGS
from hushstream.replay.study import studies

ROOT = Path(__file__).parents[2]
WORDS = {
    r"which of two (things|it was)": "replace-one",
    r"took part at all|whether (it|what they gave) held": "zero-out",
    r"but for a chance of": "delta",
    r"logged polic(y|ies)": "logging policy",
    r"all of it a gain": "significantly better",
    r"pure folds?": "deterministic function of its input topics",
    r"shelf|goods": "catalogue, items",
    r"hold-?outs?": "control (of the A/B measurement)",
    r"null-(slot|user)|replace one (reward|record|value)": "zero-out, replace-one",
    r"padded (slot|report)s?": "fixed-size report",
    r"beat no learning|private start|start cold|cold learners": "beats own learning, from the shared private model",
    r"share of (the |its )?(total |mean )?rewards? (is |that is |)kept|of what a model without privacy earns": (
        "share of the gain over own learning that is kept"
    ),
    r"effective rows": "effective sample size",
    r"residues?": "truncation error",
    r"tombstones?": "deletion request",
}
"""Words of ours, and the field's."""
KAFKAS = ("agents/kafka/logs.py", "recovery/marks.py", "broker/store.py")
"""There a tombstone is Kafka's: a record without a value."""
PAGES = [path for path in [*ROOT.glob("*.md"), *(ROOT / "deploy").rglob("*.md")] if "node_modules" not in path.parts]
CODE = sorted(path for part in ("pipeline", "agents", "replay") for path in (ROOT / part).rglob("*.py"))
_WORDS = re.compile("|".join(rf"\b(?:{word})\b" for word in WORDS), re.IGNORECASE)
_OF_PAGES = re.compile(r"(?<![`_.-])\b(?:prices?|crowds?)\b(?![`_-])", re.IGNORECASE)
"""A privacy cost; noised sums. Code and the page that is made of it name them shortly."""


def texts(path: Path) -> list[str]:
    """What a file says: a page whole, of code its strings."""
    text = path.read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text if path.suffix == ".py" else ""))
    return [text] if path.suffix != ".py" else [one.value for one in nodes if isinstance(getattr(one, "value", 0), str)]


@pytest.mark.parametrize("paths", [PAGES, CODE], ids=["pages", "strings"])
def test_the_fields_words_are_used(paths: list[Path]) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {met[0]}"
        for path in paths
        for text in texts(path)
        for words in (_WORDS, _OF_PAGES)[: 2 if path in PAGES and "life" not in path.parts else 1]
        for met in words.finditer(text)
        if not (met[0].lower().startswith("tombstone") and path.as_posix().endswith(KAFKAS))
    }
    assert found == set(), f"expected the field's words, {WORDS}"


def test_the_list_finds_what_it_names() -> None:
    assert _WORDS.search("Nobody learns which of two things they did.")
    assert _WORDS.search("92 % of what a model without privacy earns")
    assert _OF_PAGES.search("The ledger is asked for the price.")


_SLOT = re.compile(r"(?<![`_.\-\w#/=*])slots?\b(?![`_\-=:(*])", re.IGNORECASE)
"""A user's fixed-size report; in code, in names such as ``slot-public``, and where a page defines it, it stays."""
SLOT_STAYS = {
    "CONTRIBUTING.md": "of the code, whose types and functions have this name",
    "deploy/clients/typescript/edge/README.md": "of the package's interface",
    "deploy/docs/coming-from/retired-service.md": "the retired service's own word: multi-slot rank",
    "deploy/docs/life/p2b.md": "made from the code's names",
}
"""Pages that may say slot, and why."""


def test_a_users_report_is_called_so_outside_of_code() -> None:
    said = {}
    for path in PAGES:
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        if _SLOT.search(text):
            said[path.relative_to(ROOT).as_posix()] = _SLOT.findall(text)
    assert said.keys() == SLOT_STAYS.keys(), said


KEPT = [
    ("README.md", "central differential privacy: a trusted role adds the noise before anything is published"),
    (
        "pipeline/hushstream/systems/p2b/system.py",
        "central: reports go to a trusted shuffler, which sums them and adds",
    ),
    ("deploy/docs/systems/p2b.md", "One person is one account: D accounts cost D times the epsilon"),
    (
        "pipeline/hushstream/privacy/promises/promise.py",
        "a person has one account: m of them move every sum m times as far",
    ),
    ("deploy/docs/concepts.md", "Everybody gets *the same model* only while the aggregator is honest"),
    ("pipeline/hushstream/systems/p2b/system.py", "the same for everybody while the aggregator is honest"),
    ("pipeline/hushstream/systems/bgt/system.py", "the same for everybody while the aggregator is honest"),
    ("deploy/clients/typescript/edge/src/device/guarantee.ts", "the same for everybody while the aggregator is honest"),
    ("PRIVACY.md", "Who retires what nobody clicked publishes those clicks"),
    ("deploy/docs/items.md", "Never retire items by raw click counts"),
]
"""Sentences that say whom one trusts, who counts and what is published; without one, its page promises too much."""


@pytest.mark.parametrize(("path", "sentence"), KEPT)
def test_a_page_that_promises_says_under_which_condition(path: str, sentence: str) -> None:
    assert sentence in " ".join(" ".join(texts(ROOT / path)).split())


@pytest.fixture(scope="module")
def made() -> ModuleType:
    return module_at(ROOT / "deploy" / "docs" / "papers.py", "hushstream_docs_papers")


def test_pages_are_what_their_results_give(made):
    assert made.main(["--check"]) == 0


def rows_of(made: ModuleType, name: str) -> list[dict[str, Any]]:
    found = json.loads((made.PAGES[name][0] / f"{name}.json").read_text(encoding="utf-8"))
    assert found["description"]["name"] == name
    return list(found["rows"])


def test_every_system_has_rows_of_ten_runs_whose_words_follow_from_their_intervals(made):
    rows = rows_of(made, "joining")
    assert {row["system"] for row in rows} == {name for name, study in studies().items() if study.joining is not None}
    for row in rows:
        assert row["seeds"] >= 10
        assert {"alone", "joined", "without_privacy"} <= row.keys()
        line = made.joining({"rows": [row]}).splitlines()[-1]
        for name in ("joined", "mixture"):
            low, high = (row.get(f"{name}_over_alone_{end}", 0.0) for end in ("low", "high"))
            assert (f"{name} better" in line) == (low > 0)
            assert (f"{name} worse" in line) == (high < 0)
            assert (f"{name} no significant difference" in line) == (low <= 0 <= high and name in row)


def test_each_target_of_joining_is_of_one_row_which_says_whether_it_is_reached(made):
    rows = rows_of(made, "joining")
    for (system, world, epsilon), wanted in made.TARGETS.items():
        alike = [one for one in rows if one["system"] == system and round(one["epsilon_asked"], 2) == epsilon]
        (row,) = (one for one in alike if one["world"].startswith(world))
        line = made.joining({"rows": [row]}).splitlines()[-1]
        for name, value in wanted.items():
            assert f"{name}:{value:g}:{made.reached(row, name, value)}" in line
    # Errors, less is better: a deviation of .01 allows .03; the interval of ten seeds is the mean ± .0072.
    half = 0.01 * stdtrit(9, 0.975) / 10**0.5
    row = {"system": "bgt", "seeds": 10, "joined": 0.2, "joined_low": 0.2 - half, "joined_high": 0.2 + half}
    words = ["reached", "undecided", "undecided", "missed"]
    assert [made.reached(row, "joined", target) for target in (0.178, 0.177, 0.163, 0.162)] == words
    more = row | {"system": "pdol"}
    assert [made.reached(more, "joined", target) for target in (0.222, 0.223, 0.237, 0.238)] == words


def test_every_system_with_a_paper_has_a_line_with_figures(made):
    rows = {row["system"]: row for row in rows_of(made, "papers")}
    assert set(rows) == {name for name, study in studies().items() if study.paper is not None}
    for name, row in rows.items():
        words = asdict(import_module(studies()[name].paper.__module__).CLAIM)
        assert row.items() >= words.items(), "run hushstream experiment papers again"
        assert {"published", "ours", "local_only", "most_delta", "ours_replace_one_epsilon"} <= row.keys()
        assert {"random", "least_epsilon", "least_delta"} <= row.keys()
        assert row["least_epsilon"] > row["attacked_epsilon"], "an attack breaks the claim"
        assert row["attack_false_alarm"] == 1e-6


def test_no_epsilon_is_said_of_a_mechanism_with_delta_1(made):
    row = next(row for row in rows_of(made, "papers") if row["most_delta"] == 1)
    assert ("none: δ is 1" in made.page({"rows": [row]})) > ("most_epsilon" in row)


def test_the_terminal_has_a_column_a_paper_with_claim_and_figures(made):
    rows = rows_of(made, "papers")
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table(PAPERS, Findings(rows, [], (), (), SETTINGS)))
    lines = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in captured.get().splitlines()]
    shown = {cells[0]: cells[1:] for cells in lines if cells}
    assert shown["system"] == [row["system"] for row in rows]
    for row, claimed, ours in zip(rows, shown["claimed"], shown["ours"], strict=True):
        assert claimed.startswith(f"({row['claimed_epsilon']:.3g},")
        assert f"{row['ours']:.4g}" in ours


def test_bounds_of_papers_are_rounded_to_their_safe_sides(made):
    for row in rows_of(made, "papers"):
        first, second = re.findall(r"\(([\d.]+), ([\d.e-]+)\)", row["is_not"])[:2]
        assert 0.98 * row["least_epsilon"] < float(first[0]) <= row["least_epsilon"]
        assert 0.95 * row["least_delta"] < float(second[1]) <= row["least_delta"]
        if "most_epsilon" in row:
            assert row["most_epsilon"] <= float(row["at_most"][1:].partition(",")[0]) < row["most_epsilon"] + 2e-3


_BOLD = re.compile(r"\*\*([+-]?\.?\d[\d.,]*)(?: ± ([\d.]+))?[^*]*\*\*")
_FIGURE = re.compile(r"([+-]?\.?\d[\d.,]*) ± ([\d.]+)")


def bold_without_a_difference(text: str) -> list[str]:
    """Rows of tables with a bold figure that lacks an interval, or whose interval holds that of a rival or of nothing.

    A rival is a figure of its row with an interval; under or beside a heading "over ..." it is a difference.
    """
    found, heads = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        heads = (heads or cells) if cells else []
        over = [one.startswith("over ") or cells[0].startswith("over ") for one in heads]
        for place, cell in enumerate(cells):
            if (bold := _BOLD.search(cell)) is None:
                continue
            value, half = float(bold[1].replace(",", "")), float(bold[2] or "nan")
            others = [_FIGURE.search(one) for at, one in enumerate(cells) if at != place and not over[at]]
            rivals = [0.0] if over[place] else [float(one[1].replace(",", "")) for one in others if one]
            if not all(abs(value - rival) > half for rival in rivals or [0.0]):
                found.append(line)
    return found


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ("| a | b |\n|---|---|\n| **.4787 ± .016** | .4656 ± .016 |", 1),
        ("| a | b |\n|---|---|\n| **.4987 ± .016** | .4656 ± .016 |", 0),
        ("| a | b |\n|---|---|\n| **.4987** | .4656 |", 1),
        ("| a | over b |\n|---|---|\n| .4787 ± .016 | **.0131 ± .016** |", 1),
        ("| a | over b |\n|---|---|\n| .4787 ± .016 | **.0131 ± .006** |", 0),
        ("| | a | b |\n|---|---|---|\n| over c | **.5 ± .1** | **.5 ± .6** |", 1),
    ],
)
def test_a_bold_figure_without_a_difference_is_found(table: str, wrong: int) -> None:
    assert len(bold_without_a_difference(table)) == wrong


def test_no_page_has_a_bold_figure_without_a_difference(made) -> None:
    assert {
        path.name: bad for path in PAGES if (bad := bold_without_a_difference(path.read_text(encoding="utf-8")))
    } == {}
    rows = rows_of(made, "papers")
    for row in rows:
        row |= {f"{name}_low": -abs(row[name]) for name in made.OVERS if name in row} | {"over_tuned_low": -1.0}
    assert _BOLD.search(made.page({"rows": rows})) is None
