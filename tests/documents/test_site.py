"""What the site's build looks for in its own pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hushstream.engine.journal.chain import IF_INTENDED
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
            "## What it is for",
            "```{guarantee}",
            "## When it pays",
            "## How to start it",
        ):
            assert part in text, (name, part)


def test_worker_and_runbook_give_one_advice_on_topics_that_are_gone() -> None:
    _, _, section = (SITE.parent / "runbook.md").read_text(encoding="utf-8").partition("\n## Topics wiped\n")
    section = " ".join(section.partition("\n## ")[0].split())
    for advice in ("restore the topics", "if that was intended", "under another name", "`hushstream dev reset`"):
        assert advice in IF_INTENDED
        assert advice in section


def test_figures_of_which_epsilon_are_those_that_the_notebook_prints() -> None:
    stored = json.loads((SITE.parents[1] / "examples" / "which-epsilon.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in stored["cells"] for output in cell.get("outputs", [])]
    printed = "\n".join("".join(output.get("data", {}).get("text/plain", "")) for output in outputs)
    rows = re.findall(
        r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$",
        (SITE.parent / "which-epsilon.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == 3
    for epsilon, *figures in rows:
        assert re.search(rf"^{float(epsilon)} +{' +'.join(figures)}$", printed, re.MULTILINE), epsilon
    ratio, low, high = rows[1][1:]
    p2b = " ".join((SITE.parent / "systems" / "p2b.md").read_text(encoding="utf-8").split())
    assert f"({ratio} times the reward, {low} to {high})" in p2b


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
