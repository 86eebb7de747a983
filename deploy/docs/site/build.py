"""Build the documentation site into a folder, with every warning as an error, and check the result.

    python deploy/docs/site/build.py [FOLDER]

The checks: every link within the site leads to an existing page and an existing place in it, and no page makes a
browser fetch anything from another machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
START = "deploy/docs/index.html"
_FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
_OUTSIDE = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
_ENTRY = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>hushstream</title>
<meta http-equiv="refresh" content="0; url={start}"></head><body><a href="{start}">hushstream</a></body></html>
"""


class Page(HTMLParser):
    """The links of a page, the addresses that it fetches, and the places in it."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        super().__init__()
        self.places: set[str] = {""}
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one element links to, fetches or names."""
        found = {name: value or "" for name, value in attrs}
        self.places.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if found.get(_FETCHED.get(tag, "")):
            self.fetched.append(found[_FETCHED[tag]])


def faults(folder: Path) -> Iterator[str]:
    """The faults of a site."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(folder)
        for address in [*page.links, *page.fetched]:
            if not urlsplit(address).netloc and not urlsplit(address).scheme:
                yield from (f"{where}: {fault}" for fault in _dangling(path, address, pages))
        yield from (f"{where}: fetches {address}" for address in page.fetched if urlsplit(address).netloc)
    for path in (*folder.rglob("*.css"), *folder.rglob("*.js")):
        if _OUTSIDE.search(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(folder)}: fetches from another machine"


def _dangling(path: Path, address: str, pages: dict[Path, Page]) -> Iterator[str]:
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        yield f"expected a file behind {address}, there is none"
    elif target in pages and unquote(parts.fragment) not in pages[target].places:
        yield f"expected a place behind {address}, the page has none of that name"


def main() -> int:
    """See the module; returns the exit code."""
    # Tests import this module to check a built site, and they do not have the generator.
    from sphinx.cmd.build import main as sphinx

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "--write-all"]
    places = ["--conf-dir", str(HERE), "--doctree-dir", str(folder.with_name(f"{folder.name}-trees"))]
    status = sphinx([*options, *places, str(ROOT), str(folder)])
    if status:
        return status
    (folder / "index.html").write_text(_ENTRY.format(start=START), encoding="utf-8")
    found = list(faults(folder))
    print("\n".join(found) or f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
