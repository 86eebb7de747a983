"""Write the page that shows which functions a record of p2b passes through: the life of a record.

    python tests/engine/life_of_a_record.py [--check | --system NAME]

The runs are those that `paths` traces. The page lists each function once, where it is called first, under the function
that called it, with the first sentence of its docstring. ``--check`` writes nothing, and exits 1 when the page differs
from what would be written. ``--system`` prints the page of another system.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).parent))

from paths import (
    ANSWERS,
    COLLECTS,
    PRODUCT,
    PUBLISHES,
    RELEASES,
    ROOT,
    TOYS,
    VARIANTS,
    Call,
    Walk,
    walk_along,
    walks,
    with_the_same_hashes,
)

WRITTEN = "p2b"
PAGE = ROOT / "deploy" / "docs" / "life" / f"{WRITTEN}.md"

SAYS: Mapping[str, str] = {
    ANSWERS: "A context arrives, and leaves as a decision or an answer.",
    COLLECTS: "Feedback arrives, and what the role has collected from it leaves. The same batch may hold contexts.",
    RELEASES: "A window is full: its slots or its feedback become sums, and noise is added before anything leaves.",
    PUBLISHES: "A release arrives, and leaves in the next version of the model.",
}
TITLES: Mapping[str, str] = {
    ANSWERS: "From a context to its decision",
    COLLECTS: "From feedback to a release",
    RELEASES: "From slots to a release",
    PUBLISHES: "From a release to a model",
}


def page(system: str) -> str:
    """The page of one system."""
    sections = "\n".join(section(role, path, calls) for _, role, path, calls in walks(system))
    return f"""# The life of a record: {system}

Read this before you change the code. It follows records through {system}: which functions they pass through, in which
order, and what each function does. Each function stands once, where it is called first, below the function that called
it. It is made from a run: a machine has folded some batches of a recorded stream, and takes one more. `make life`
writes it again, `make paths` fails where it differs from the code, and `make life SYSTEM=colin` prints that of another
system; `meanarm`, a toy of the tests, is the smallest.

{sections}"""


def section(role: str, path: str, calls: Sequence[Call]) -> str:
    """One way through one role: its counts, and its functions in order."""
    walk = walk_along(calls)
    rows = "\n".join(f"| {' | '.join(row)} |" for row in listed(calls))
    return f"""## {TITLES[path]}: the role `{role}`

{SAYS[path]} {counted(walk)}

| function | file | what it does |
| --- | --- | --- |
{rows}
"""


def counted(walk: Walk) -> str:
    """The counts of a walk, in words."""
    return f"{walk.files} files, {walk.functions} functions, {walk.changes} changes of file."


def listed(calls: Iterable[Call]) -> Iterator[tuple[str, str, str]]:
    """Name, file and meaning of each function, at its first call; its name is set in by how deep it was called."""
    met: set[CodeType] = set()
    for code, depth in calls:
        if code in met:
            continue
        met.add(code)
        name = code.co_qualname.replace(".<locals>", "")
        yield f"{'&emsp;' * depth}`{name}`", f"`{place_of(code.co_filename)}`", meaning_of(code)


def place_of(file: str) -> str:
    """A file as pages name it: from the package `hushstream` on, or, of a toy, from the root on."""
    path = Path(file)
    if path.is_relative_to(TOYS):
        return path.relative_to(ROOT).as_posix()
    return path.relative_to(next(folder for folder in PRODUCT if path.is_relative_to(folder)) / "hushstream").as_posix()


def meaning_of(code: CodeType) -> str:
    """The first line of a function's docstring; empty where it has none."""
    text = docstrings(Path(code.co_filename)).get(code.co_firstlineno, "")
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


@cache
def docstrings(file: Path) -> Mapping[int, str]:
    """The first line of each function's docstring, by the line where the function, or its first decorator, begins."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            begins = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[begins] = (ast.get_docstring(node) or "").partition("\n")[0]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the page of the life of a record, or print another system's.")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--check", action="store_true", help="write nothing, exit 1 when the page differs")
    asked.add_argument("--system", choices=sorted({variant.kind for variant in VARIANTS}), help="print its page")
    given = parser.parse_args(arguments)
    wanted = page(given.system or WRITTEN)
    if given.system is not None:
        print(wanted, end="")
    elif not given.check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != wanted:
        print(f"{PAGE}: differs from the code; run `make life`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with_the_same_hashes()
    sys.exit(main())
