"""The code blocks of the pages. Each is run, loaded or parsed by a test, or says beside itself why it is not.

A comment on the line before a block marks it:

``<!-- not run: REASON -->``
    it needs what a test does not have; commands of ours in it are parsed all the same.
``<!-- story -->``
    it is one step of its page, run for real by ``deploy/docs/site/stories.py``.
``<!-- story: NAME -->``
    that step writes the block into the file NAME.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]

SITE = (
    "PRIVACY.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "deploy/docs/*.md",
    "deploy/docs/*/*.md",
    "deploy/compose/README.md",
    "deploy/kubernetes/README.md",
    "deploy/clients/*/README.md",
    "deploy/clients/*/*/README.md",
)
"""The pages of the site, as patterns below the repository's root."""

PAGES = ("README.md", *SITE)
"""Everything whose blocks are tested."""

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>.*?) -->\n)?^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = "not run: "
_STORY = re.compile(r"story(?:: (\S+))?")


class BlockError(Exception):
    """A block has no language, or a mark that nobody knows."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        page: where it stands, from the repository's root.
        line: of its first line of code.
        language: as its fence says.
        code: without the fence.
        mark: the comment before it; None where there is none.
    """

    page: str
    line: int
    language: str
    code: str
    mark: str | None

    @property
    def reason(self) -> str | None:
        """Why it is not run; None where it is."""
        return self.mark.removeprefix(_NOT_RUN) if self.mark and self.mark.startswith(_NOT_RUN) else None

    @property
    def is_story(self) -> bool:
        """Whether it is a step of its page's story."""
        return self.mark is not None and _STORY.fullmatch(self.mark) is not None

    @property
    def file(self) -> str | None:
        """The file that a step of a story writes it into; None where it is run."""
        found = _STORY.fullmatch(self.mark or "")
        return None if found is None else found[1]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page, without those that the site's generator runs (``{name}``).

    Raises:
        BlockError: one without a language, or with an unknown mark.
    """
    for found in _FENCE.finditer(text):
        language, mark = found["language"].strip(), found["mark"]
        if language.startswith("{"):
            continue
        line = text.count("\n", 0, found.start("code")) + 1
        block = Block(page, line, language, _dedented(found["code"], len(found["indent"])), mark)
        if not language:
            raise BlockError(f"{block}: expected a language behind the fence, got none")
        if mark is not None and block.reason is None and not block.is_story:
            raise BlockError(f"{block}: expected `not run: REASON`, `story` or `story: NAME`, got {mark!r}")
        yield block


def _dedented(code: str, indent: int) -> str:
    return "".join(line[indent:] if line.strip() else line for line in code.splitlines(keepends=True))


def all_blocks() -> list[Block]:
    """Those of every page, page by page."""
    pages = dict.fromkeys(path for pattern in PAGES for path in sorted(ROOT.glob(pattern)))
    return [
        block
        for path in pages
        for block in blocks_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
