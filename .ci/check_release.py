"""Whether a tag may be released: it is the version of the package, and the changelog says what changed in it.

python .ci/check_release.py v0.2.0           # exit 1 with one line where it may not
python .ci/check_release.py v0.2.0 --notes   # print the changelog's section of it

A section names under "For who runs a deployment" what a running one must do, also where that is nothing.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
DUTIES = "### For who runs a deployment"


class NotReleasable(Exception):
    """Why a tag may not be released."""


def notes(tag: str, top: Path = TOP) -> str:
    """The changelog's section of a tag.

    Raises:
        NotReleasable: another version, no section of it, one that is called unreleased, or one that does not say what a
            running deployment must do.
    """
    version = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if tag != f"v{version}":
        raise NotReleasable(f"expected the tag v{version}, the version in pyproject.toml, got {tag}")
    text = (top / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    if version not in sections:
        raise NotReleasable(f"expected a section {version} in CHANGELOG.md, there is none")
    if re.search(rf"^## {re.escape(version)} \(unreleased\)", text, re.MULTILINE):
        raise NotReleasable(f"expected the date of {version} in CHANGELOG.md, it says unreleased")
    if DUTIES not in sections[version]:
        raise NotReleasable(f"expected {DUTIES!r} in the section {version} of CHANGELOG.md, it is not there")
    return sections[version].strip() + "\n"


def main(arguments: list[str]) -> int:
    """See the module; returns the exit code."""
    tag, *options = arguments
    try:
        found = notes(tag)
    except NotReleasable as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    if "--notes" in options:
        print(found, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
