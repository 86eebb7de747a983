"""The code blocks of the pages. A test runs, loads or parses each block, or a mark says why not.

A comment on the line before a block marks it:

``<!-- not run: REASON -->``
    it needs something that a test does not have; the test still parses hushstream's commands in it.
``<!-- story -->``
    it is one step of its page, which ``deploy/docs/site/stories.py`` runs.
``<!-- story: NAME -->``
    that program writes the block into the file NAME.
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
"""All pages whose blocks are tested."""

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>.*?) -->\n)?^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = "not run: "
_STORY = re.compile(r"story(?:: (\S+))?")


class BlockError(Exception):
    """A block has no language, or an unknown mark."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        page: path of its page from the repository's root.
        line: number of its first line of code.
        language: the language that its fence names.
        code: the code without the fence.
        mark: the comment before it; None if there is none.
    """

    page: str
    line: int
    language: str
    code: str
    mark: str | None

    @property
    def reason(self) -> str | None:
        """Why the block is not run; None if it is run."""
        return self.mark.removeprefix(_NOT_RUN) if self.mark and self.mark.startswith(_NOT_RUN) else None

    @property
    def is_story(self) -> bool:
        """Whether it is a step of its page's story."""
        return self.mark is not None and _STORY.fullmatch(self.mark) is not None

    @property
    def file(self) -> str | None:
        """The file that a step of a story is written into; None if the step is run."""
        found = _STORY.fullmatch(self.mark or "")
        return None if found is None else found[1]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page, without blocks that the site's generator runs (``{name}``).

    Raises:
        BlockError: a block has no language, or an unknown mark.
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
    """The blocks of all pages, in the order of pages."""
    pages = dict.fromkeys(path for pattern in PAGES for path in sorted(ROOT.glob(pattern)))
    return [
        block
        for path in pages
        for block in blocks_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
