"""The site: links lead somewhere, systems have their pages, and vectors of partitions follow from the stated rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unicodedata import normalize

import pytest
from modules import module_at

from hushstream.agents.worker.deployment import artefacts_of, read_config
from hushstream.engine.journal.chain import IF_INTENDED
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits import AuditResult
from hushstream.replay.audits.catalogue import audit_names
from hushstream.schemas.topics import partition_of
from hushstream.systems.catalogue import kinds

from .conftest import SITE, site_module

PAGE = '<html><head>{head}</head><body id="top"><a href="{link}">there</a></body></html>'


def _site(folder: Path, head: str = "", link: str = "other.html#top", css: str = "") -> list[str]:
    (folder / "page.html").write_text(PAGE.format(head=head, link=link), encoding="utf-8")
    (folder / "other.html").write_text(PAGE.format(head="", link="https://example.org/"), encoding="utf-8")
    (folder / "site.css").write_text(css, encoding="utf-8")
    return list(site_module("build").faults(folder))


def test_pages_whose_links_lead_somewhere_are_whole(tmp_path: Path) -> None:
    assert _site(tmp_path) == []
    assert _site(tmp_path, head='<link rel="stylesheet" href="site.css">', link="#top") == []


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"link": "none.html"}, "page.html: expected a file behind none.html, there is none"),
        (
            {"link": "other.html#end"},
            "page.html: expected a place behind other.html#end, the page has none of that name",
        ),
        ({"link": "#end"}, "page.html: expected a place behind #end, the page has none of that name"),
        ({"head": '<script src="https://example.org/a.js"></script>'}, "page.html: fetches https://example.org/a.js"),
        ({"head": '<link rel="stylesheet" href="//example.org/a.css">'}, "page.html: fetches //example.org/a.css"),
        ({"css": "@import url(https://example.org/font.css);"}, "site.css: fetches from another machine"),
    ],
)
def test_a_link_to_nowhere_or_something_from_elsewhere_is_named(
    wrong: dict[str, str], fault: str, tmp_path: Path
) -> None:
    assert _site(tmp_path, **wrong) == [fault]


def test_every_system_has_its_settings_and_its_page() -> None:
    docs = SITE.parent
    shown = re.findall(
        r"^```{settings} (\w+)$", (docs / "reference" / "settings.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert shown == list(kinds())
    for name in kinds():
        text = (docs / "systems" / f"{name}.md").read_text(encoding="utf-8")
        for part in (
            f"```{{about}} {name}",
            "```{guarantee}",
            "## When it pays",
            "## How to start it",
        ):
            assert part in text, (name, part)


def test_the_plain_page_of_a_system_has_the_guarantee_that_its_example_prints() -> None:
    for name, kind in kinds().items():
        page = SITE.parent / "systems" / f"{name}.md"
        found = re.search(r"```{guarantee} (\S+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        assert found is not None
        example = (page.parent / found[1]).resolve()
        said = kind.guarantee(read_config(example), artefacts_of(example.parent)).sentence()
        assert " ".join(found[2].split()) == said


def test_worker_and_runbook_give_one_advice_on_topics_that_are_gone() -> None:
    _, _, section = (SITE.parent / "runbook.md").read_text(encoding="utf-8").partition("\n## Topics wiped\n")
    section = " ".join(section.partition("\n## ")[0].split())
    for advice in (
        "restore the topics",
        "if that was intended",
        "under another name",
        "keeps topics only with `--data`",
    ):
        assert advice in IF_INTENDED
        assert advice in section


def test_figures_of_which_epsilon_are_those_of_the_page_of_p2b() -> None:
    page = (SITE.parent / "which-epsilon.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| (\S+) \| (\S+) to (\S+) \|", page, re.MULTILINE)
    assert [epsilon for epsilon, *_ in rows] == ["0.1", "0.5", "2"]
    gain, low, high = rows[1][1:]
    p2b = " ".join((SITE.parent / "systems" / "p2b.md").read_text(encoding="utf-8").split())
    assert f"({gain} a decision; 95 % interval {low} to {high})" in p2b


def _unfenced(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _places(page: Path) -> set[str]:
    """The places in a page that a link may name, as the site and the repository's host name them."""
    text = _unfenced(page)
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    named = re.findall(r"^\((\S+)\)=$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings} | set(named)


def _links(page: Path) -> Iterator[str]:
    return (link for link in re.findall(r"\]\(([^)\s]+)\)", _unfenced(page)) if not re.match(r"[a-z]+:", link))


def test_links_between_pages_lead_somewhere() -> None:
    """Also for who reads the files themselves: a place that only the build of the site makes is none for them.

    Found here in a second; the build, which looks at every link once more, comes late.
    """
    root = SITE.parents[2]
    pages = [
        *root.glob("*.md"),
        *(page for page in (root / "deploy").rglob("*.md") if "node_modules" not in page.parts),
    ]
    places = {page.resolve(): _places(page) for page in pages}
    links = [(page, link) for page in pages for link in _links(page)]
    assert len(links) > 250
    for page, link in links:
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page.resolve()
        assert target.exists(), (page, link)
        assert not place or target not in places or place in places[target], (page, link)


COUNTS = (4, 12)
CLIENT_PAGE = (Path(__file__).parents[2] / "deploy" / "docs" / "reference" / "other-languages.md").read_text(
    encoding="utf-8"
)


class Vector(NamedTuple):
    """A row of the table."""

    name: str
    utf8: str
    digest: str
    partitions: tuple[int, int]


_ROW = re.compile(r"^\| `(.+?)`.* \| `([0-9a-f]+)` \| `([0-9a-f]{16})` \| (\d+) \| (\d+) \|$", re.MULTILINE)
VECTORS = [
    Vector(name, utf8, digest, (int(of_4), int(of_12))) for name, utf8, digest, of_4, of_12 in _ROW.findall(CLIENT_PAGE)
]


def digest(name: str) -> bytes:
    """Of 8 bytes, by the standard library."""
    return blake2b(name.encode(), digest_size=8).digest()


def test_there_are_ten_and_each_follows_from_the_rule():
    assert len({vector.name for vector in VECTORS}) == 10
    for vector in VECTORS:
        assert vector.name.encode().hex() == vector.utf8
        assert digest(vector.name).hex() == vector.digest
        number = int.from_bytes(digest(vector.name), "little")
        assert vector.partitions == tuple(number % count for count in COUNTS)
        assert vector.partitions == tuple(partition_of(vector.name, count) for count in COUNTS)


def little(found: bytes) -> int:
    return int.from_bytes(found, "little")


WRONG: dict[str, Callable[[str], int]] = {
    "truncated BLAKE2b-512": lambda name: little(blake2b(name.encode()).digest()[:8]),
    "truncated BLAKE2b-256": lambda name: little(blake2b(name.encode(), digest_size=32).digest()[:8]),
    "big-endian": lambda name: int.from_bytes(digest(name), "big"),
    "signed": lambda name: abs(int.from_bytes(digest(name), "little", signed=True)),
    "a double": lambda name: int(float(little(digest(name)))),
    "four bytes": lambda name: little(digest(name)[:4]),
    "composed text": lambda name: little(digest(normalize("NFC", name))),
    "decomposed text": lambda name: little(digest(normalize("NFD", name))),
    "lower case": lambda name: little(digest(name.lower())),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_client_puts_some_of_them_elsewhere(wrong: str):
    elsewhere = [
        vector.name
        for vector in VECTORS
        for count in COUNTS
        if WRONG[wrong](vector.name) % count != partition_of(vector.name, count)
    ]
    assert elsewhere


def test_some_names_do_not_tell_a_truncated_digest_from_the_right_one():
    """Why one name is not enough: a wrong digest can be right by chance."""
    truncated = WRONG["truncated BLAKE2b-512"]
    same = [vector.name for vector in VECTORS if truncated(vector.name) % 4 == vector.partitions[0]]
    assert same
    assert len(same) < len(VECTORS) // 2


# The page of the audits' false alarms is what the committed counts give, and names every row.

SCRIPT = Path(__file__).parents[2] / "deploy" / "docs" / "false_alarms.py"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    return module_at(SCRIPT, "hushstream_docs_false_alarms")


def test_the_page_is_what_its_counts_give(made):
    assert made.main(["--check"]) == 0


def test_every_row_has_a_line_and_what_was_not_run_says_so(made):
    names = audit_names()
    one = {"name": names[3], "blas": "openblas Haswell", "effort": "quick", "false_alarm": 1e-6, "times": 200}
    lines = made.page([{**one, "alarms": 0, "structure": ""}]).splitlines()
    assert [line for line in lines if line.startswith(f"| {names[3]} |")] == [
        f"| {names[3]} | Haswell | 200 | 0 | 0.015 | as stated |"
    ]
    assert sum("| not run |" in line for line in lines) == len(names) - 1
    assert f"Of {len(names)} rows 1 were run, 200 times in all, with 0 alarms" in " ".join(lines)
    alarmed = made.page([{**one, "alarms": 2, "structure": "draw 1 and draw 5 share noise"}])
    assert "| 2 | 0.031 | **more often than stated**: draw 1 and draw 5 share noise |" in alarmed


def test_counts_that_were_changed_are_seen(made, monkeypatch, tmp_path):
    found = json.loads(made.RESULT.read_text(encoding="utf-8"))
    found["counted"][0]["alarms"] += 1
    (tmp_path / "counts.json").write_text(json.dumps(found), encoding="utf-8")
    monkeypatch.setattr(made, "RESULT", tmp_path / "counts.json")
    assert made.main(["--check"]) == 1


def test_no_committed_row_alarms_more_often_than_it_states(made):
    for one in json.loads(made.RESULT.read_text(encoding="utf-8"))["counted"]:
        assert made.as_stated(one["alarms"], one["times"], one["false_alarm"]), one


def test_more_alarms_than_stated_are_told_from_chance(made):
    assert made.as_stated(0, 200)
    assert not made.as_stated(1, 200), "it comes with probability 2e-4"
    assert made.as_stated(6, 200, 0.01)
    assert not made.as_stated(10, 200, 0.01)


def test_counting_goes_on_where_it_was_stopped_and_under_each_blas_by_itself(made, monkeypatch, tmp_path):
    """The third run sees two places that share noise, and the first command is interrupted in its eighth."""
    done, kept = [], tmp_path / "counts.json"

    def run(name, _):
        done.append(name)
        if len(done) == 8:
            raise KeyboardInterrupt
        return AuditResult(Cost(1_000_000), 0.0, 10, 1e-6, (0, 0), None, "two share" if len(done) == 3 else "")

    kept.write_text('{"counted": []}', encoding="utf-8")
    monkeypatch.setattr(made, "RESULT", kept)
    monkeypatch.setattr(made, "result_of", run)
    row = audit_names()[0]
    with pytest.raises(KeyboardInterrupt):
        made.count(12, [row])
    made.count(12, [row])
    made.count(12, [row])
    assert len(done) == 13, "seven, an interrupted one, and the five that were left"
    monkeypatch.setattr(made, "kernels", lambda: "another")
    made.count(1, [row])
    counted = json.loads(kept.read_text(encoding="utf-8"))["counted"]
    told = {(one["blas"] == "another", one["times"], one["alarms"], one["structure"]) for one in counted}
    assert told == {(False, 12, 1, "two share"), (True, 1, 0, "")}


def test_a_row_is_run_as_the_table_runs_it(made):
    assert made.result_of("discrete-laplace-size", 0).passed
    assert made.kernels()
