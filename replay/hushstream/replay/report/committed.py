"""Files of the repository that follow from code: they are committed, and compared with it."""

from __future__ import annotations

import argparse
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Wanted = Mapping[Path, str | None]
"""The text of each file; None: a file that must not be there."""


def main(
    made: Callable[[], Wanted],
    about: str | None,
    arguments: Sequence[str] | None = None,
    same: Callable[[str, str], bool] = operator.eq,
) -> int:
    """Run a script that writes such files, or with ``--check`` compares them; returns its exit code.

    Args:
        made: makes the files.
        about: the script's description.
        arguments: of the script; None: those of this process.
        same: whether a file's text counts as the wanted one.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file differs")
    check = parser.parse_args(arguments).check
    return settle(made(), check=check, same=same)


def settle(wanted: Wanted, *, check: bool, same: Callable[[str, str], bool] = operator.eq) -> int:
    """Write each file that differs, or with ``check`` name it; returns the exit code."""
    differing = [path for path, text in wanted.items() if not _is(path, text, same)]
    for path in differing:
        text = wanted[path]
        if check:
            print(f"{path}: differs from what the code makes; run the script without --check", file=sys.stderr)
        elif text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)
    return 1 if check and differing else 0


def _is(path: Path, text: str | None, same: Callable[[str, str], bool]) -> bool:
    if text is None or not path.is_file():
        return text is None and not path.exists()
    return same(path.read_text(encoding="utf-8"), text)
