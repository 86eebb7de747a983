"""Write the folders of an editable installation relative to the file that lists them.

Python reads that file (``_hushstream.pth``) in the encoding of the locale, before it runs anything. With ``LC_ALL=C``
it ends there with a UnicodeDecodeError if the path of the checkout has a character that is not ASCII. A relative path
holds no part of the checkout's path.

    python deploy/relative_folders.py VENV
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "_hushstream.pth"


def make_relative(venv: Path) -> list[Path]:
    """Rewrite the list of folders in an environment with relative paths.

    Args:
        venv: folder of the environment.

    Returns:
        The files that were rewritten, or had relative paths already.
    """
    found = sorted(venv.resolve().glob(f"lib/python*/site-packages/{NAME}"))
    for file in found:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
        # A relative folder is resolved from the file's own folder, so this may run twice.
        folders = [os.path.relpath(file.parent / line, file.parent) for line in lines]
        file.write_text("".join(f"{folder}\n" for folder in folders), encoding="utf-8")
    return found


if __name__ == "__main__":
    if not make_relative(Path(sys.argv[1])):
        sys.exit(f"expected {NAME} in {sys.argv[1]}, as an editable installation leaves it; found none")
