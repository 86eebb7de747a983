"""Write the pages that show which functions a record passes through: the life of a record, one page for each system.

    python tests/engine/life_of_a_record.py [--check]

The runs are those that `paths` traces. A page lists each function once, where it is called first, under the function
that called it, with the first sentence of its docstring. ``--check`` writes nothing, and exits 1 when a page differs
from what would be written.
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
    Call,
    Walk,
    walk_along,
    walks,
    with_the_same_hashes,
)

FOLDER = ROOT / "deploy" / "docs" / "life"

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
LEFT_OUT = ("poll",)
"""A system of the tests that has what they need, and nothing to learn from."""


def pages() -> dict[Path, str]:
    """What each file must hold."""
    traced: dict[str, dict[tuple[str, str], Sequence[Call]]] = {}
    for kind, role, path, calls in walks():
        if kind not in LEFT_OUT:
            traced.setdefault(kind, {})[role, path] = calls
    made = {FOLDER / f"{kind}.md": page(kind, paths) for kind, paths in traced.items()}
    return made | {FOLDER / "index.md": index(traced)}


def index(traced: Mapping[str, Mapping[tuple[str, str], Sequence[Call]]]) -> str:
    """The first page: how to read the others, and the counts of all."""
    rows = [
        f"| [{kind}]({kind}.md) | {role} | {TITLES[path].lower()} | {walk.files} | {walk.functions} | {walk.changes} |"
        for kind, paths in traced.items()
        for (role, path), calls in paths.items()
        for walk in [walk_along(calls)]
    ]
    listed = "\n".join(traced)
    return f"""# The life of a record

Read this before you change the code. Each page follows records through one system: which functions they pass through,
in which order, and what each function does. Begin with [meanarm](meanarm.md), the smallest system.

The pages are made from a run: a machine has folded some batches of a recorded stream, and takes one more.
`make life` writes them again, and `make paths` fails when one differs from the code. A reader walks through so many
files, functions, and changes of file from one call to the next:

| system | role | way | files | functions | changes of file |
| --- | --- | --- | ---: | ---: | ---: |
{chr(10).join(rows)}

```{{toctree}}
:hidden:

{listed}
```
"""


def page(kind: str, paths: Mapping[tuple[str, str], Sequence[Call]]) -> str:
    """The page of one system."""
    sections = "\n".join(section(role, path, calls) for (role, path), calls in paths.items())
    return f"""# The life of a record: {kind}

Each function stands once, where it is called first, below the function that calls it.
[The first page](index.md) says how the run was made.

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
    parser = argparse.ArgumentParser(description="Write the pages of the life of a record.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a page differs")
    given = parser.parse_args(arguments)
    wanted = pages()
    there = set(FOLDER.glob("*.md"))
    differing = [path for path in wanted if path not in there or path.read_text(encoding="utf-8") != wanted[path]]
    for path in [*differing, *sorted(there - wanted.keys())]:
        if given.check:
            print(f"{path}: differs from the code; run `make life`", file=sys.stderr)
        elif path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 1 if given.check and (differing or there - wanted.keys()) else 0


if __name__ == "__main__":
    with_the_same_hashes()
    sys.exit(main())
