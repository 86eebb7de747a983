"""How large the project is: code lines, files, pages, private names of libraries, each with its ceiling and its goal.

    python tests/engine/sizes.py

A code line is a line of a Python file that holds code; imports count, docstrings, comments and blank lines do not. So
neither a second file nor a longer list of imports is free.

Exit 1 when a figure is above its ceiling. Ceilings only fall: a change that lowers a figure lowers its ceiling in the
same commit. A change that makes one part larger makes another one smaller.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipeline"
PRODUCT = tuple(ROOT / name for name in ("pipeline", "schemas", "agents", "replay"))
SYSTEMS, STUDIES = "pipeline/hushstream/systems", "replay/hushstream/replay/studies"
sys.path.insert(0, str(ROOT / "tests" / "shared"))


class Size(NamedTuple):
    """A figure: what is counted, how much there is, the ceiling and the goal."""

    name: str
    now: int
    ceiling: int
    goal: int


class Part(NamedTuple):
    """Ceilings and goals of code lines and of files; a goal of 0 files: none is set."""

    lines: int
    lines_goal: int
    files: int
    files_goal: int


PARTS: Mapping[str, tuple[tuple[str, ...], Part]] = {
    "schemas": (("schemas",), Part(1_025, 1_000, 9, 0)),
    "privacy": (("pipeline/hushstream/privacy",), Part(2_932, 2_600, 21, 0)),
    "counting": (("pipeline/hushstream/counting",), Part(1_369, 1_250, 10, 0)),
    "learners, features, feedback": (
        tuple(f"pipeline/hushstream/{name}" for name in ("learners", "features", "feedback")),
        Part(2_126, 2_000, 14, 0),
    ),
    "engine": (("pipeline/hushstream/engine",), Part(6_226, 5_000, 45, 34)),
    "p2b": ((f"{SYSTEMS}/p2b",), Part(8_172, 4_600, 31, 24)),
    "pdol": ((f"{SYSTEMS}/pdol",), Part(2_405, 2_000, 16, 10)),
    "colin": ((f"{SYSTEMS}/colin",), Part(2_322, 1_600, 14, 10)),
    "pdap": ((f"{SYSTEMS}/pdap",), Part(2_702, 1_600, 17, 10)),
    "bgt": ((f"{SYSTEMS}/bgt",), Part(2_698, 1_600, 15, 10)),
    "agents": (("agents/hushstream/agents",), Part(6_202, 4_900, 38, 30)),
    "client, edge": (tuple(f"agents/hushstream/{name}" for name in ("client", "edge")), Part(2_378, 2_000, 13, 0)),
    "gateway": (("agents/hushstream/gateway",), Part(3_542, 2_800, 26, 0)),
    "ops": (("agents/hushstream/ops",), Part(5_138, 3_000, 27, 0)),
    "broker": (("replay/hushstream/broker",), Part(2_281, 2_400, 16, 0)),
    "command line, api": (tuple(f"replay/hushstream/{name}" for name in ("cli", "api")), Part(2_989, 2_600, 23, 0)),
    "rest of replay": (("replay/hushstream/replay",), Part(10_514, 7_000, 73, 0)),
    "studies": ((STUDIES,), Part(10_081, 6_000, 33, 32)),
}
"""By name: its folders, without those of other parts, and its figures. What no part names counts in the sum."""

PRODUCT_SUM = Part(75_144, 56_000, 443, 430)
TESTS = Part(70_479, 48_000, 365, 330)
DEPLOY = Part(3_631, 3_000, 24, 0)


class Parts:
    """The Python files of the project, by the part that they belong to."""

    def __init__(self) -> None:
        """Find them."""
        self._folders = [(ROOT / folder, name) for name, (folders, _) in PARTS.items() for folder in folders]
        self.files: dict[str, list[Path]] = {name: [] for name in PARTS}
        for path in python_files(*PRODUCT):
            holds = [(len(folder.parts), name) for folder, name in self._folders if path.is_relative_to(folder)]
            if holds:
                self.files[max(holds)[1]].append(path)


def python_files(*folders: Path) -> list[Path]:
    """All Python files below some folders, but for what was installed or made there."""
    made = {"node_modules", "__pycache__", ".venv"}
    return [path for folder in folders for path in sorted(folder.rglob("*.py")) if not made & set(path.parts)]


def figures() -> Iterator[Size]:
    """Every figure, parts first."""
    parts = Parts()
    for name, (_, part) in PARTS.items():
        yield from _both(name, parts.files[name], part)
    yield from _both("the product", python_files(*PRODUCT), PRODUCT_SUM)
    yield from _both("tests", python_files(ROOT / "tests"), TESTS)
    yield from _both("Python of deploy", python_files(ROOT / "deploy"), DEPLOY)
    yield Size("product files below 60 code lines", len(small_files()), 17, 0)
    yield Size("lines of TypeScript", typescript_lines(), 5_332, 4_600)
    yield Size("words in pages", sum(map(words, pages())), 44_975, 45_000)
    yield Size("words of the runbook", words(ROOT / "deploy/docs/runbook.md"), 5_000, 5_000)
    yield Size("words of the README", words(ROOT / "README.md"), 700, 700)
    yield Size("private names of libraries", len(private_names()), 3, 3)
    yield Size("recorded variants", recorded_variants(), 25, 26)
    yield Size("toy with three roles, and its schemas", lines_of_toy("meanarm"), 448, 300)
    yield from _classes()
    yield from _layers()


def _both(name: str, files: list[Path], part: Part) -> Iterator[Size]:
    yield Size(f"{name}: code lines", sum(map(code_lines, files)), part.lines, part.lines_goal)
    yield Size(f"{name}: files", len(files), part.files, part.files_goal or part.files)


@cache
def code_lines(path: Path) -> int:
    """Lines of a file that hold code, imports too: neither blank nor comment nor docstring."""
    text = path.read_text("utf-8")
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def small_files() -> list[Path]:
    """Files of the product that are opened for little: below 60 code lines, ``__init__`` aside."""
    return [path for path in python_files(*PRODUCT) if path.name != "__init__.py" and code_lines(path) < 60]


def typescript_lines() -> int:
    """Lines of the TypeScript packages."""
    files = (path for path in (ROOT / "deploy").rglob("*.ts") if not {"node_modules", "dist"} & set(path.parts))
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def pages() -> list[Path]:
    """Pages for people: all but those that are made from code."""
    made = (ROOT / "deploy/docs/life", ROOT / "deploy/docs/reference", ROOT / "deploy/docs/false-alarms.md")
    left_out = {"node_modules", "site-packages", ".venv", ".pytest_cache", "build", "report"}
    found = (path for path in ROOT.rglob("*.md") if not left_out & set(path.relative_to(ROOT).parts))
    return [path for path in found if not any(path.is_relative_to(folder) for folder in made)]


def words(path: Path) -> int:
    """Words of a page, and whatever else stands between blanks."""
    return len(path.read_text("utf-8").split())


def lines_of_toy(name: str) -> int:
    """Code lines of a toy system, and lines of its schemas."""
    package = ROOT / "tests/engine" / name / "package"
    schemas = (len(path.read_text("utf-8").splitlines()) for path in package.rglob("*.avsc"))
    return sum(map(code_lines, python_files(package))) + sum(schemas)


def recorded_variants() -> int:
    """Number of recorded loops that tests drive again."""
    from recordings import VARIANTS

    return len(VARIANTS)


# Private names of libraries.


def private_names() -> set[str]:
    """Names with a leading underscore that the product takes from a library, or defines for one to call.

    Taken is an attribute that is nowhere defined in the product. Defined for a library is a plain method of a class
    with bases that the product itself nowhere calls or names.
    """
    used, defined, named, methods = set[str](), set[str](), set[str](), set[str]()
    for path in python_files(*PRODUCT):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                (defined if isinstance(node.ctx, ast.Store) and _is_own(node.value) else used).add(node.attr)
            elif isinstance(node, ast.Name):
                (defined if isinstance(node.ctx, ast.Store) else used).add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                defined.add(node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            if isinstance(node, ast.ClassDef) and node.bases:
                functions = (one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
                methods |= {one.name for one in functions if not one.decorator_list}
    return {name for name in (used - defined) | (methods - used - named) if _is_private(name)}


def _is_own(holder: ast.expr) -> bool:
    return isinstance(holder, ast.Name) and holder.id in {"self", "cls", "role"}


def _is_private(name: str) -> bool:
    of_named_tuples = {"_asdict", "_replace", "_fields", "_field_defaults", "_make"}
    return name.startswith("_") and not name.endswith("_") and name not in of_named_tuples


# Classes and layers.

LAYERED = (
    "pipeline/hushstream/engine",
    "agents/hushstream/agents",
    *(f"{SYSTEMS}/{name}" for name in ("bgt", "colin", "p2b", "pdap", "pdol")),
)
"""Packages whose parts, files and folders alike, lie in layers: a part is above all that it imports."""


def _classes() -> Iterator[Size]:
    bases = list(base_classes())
    yield Size("members of the widest base class", max(map(len, bases)), 20, 20)
    abstract = (sum(getattr(value, "__isabstractmethod__", False) for value in base.values()) for base in bases)
    yield Size("abstract members of a base class", max(abstract), 6, 6)
    folders = Counter(path.parent for path in python_files(*PRODUCT) if path.name != "__init__.py")
    yield Size("files in the fullest folder", max(folders.values()), 16, 16)


def base_classes() -> Iterator[Mapping[str, Any]]:
    """The members, names of Python's own aside, of each class of the pipeline that another one derives from.

    Counters are left out: a `Plan` (23 members, 7 abstract) has one for each statement of its proof.
    """
    names = [path.relative_to(PIPELINE).with_suffix("").parts for path in PIPELINE.rglob("*.py")]
    modules = [import_module(".".join(name)) for name in names if name[-1] != "__init__"]
    classes = {value for module in modules for value in vars(module).values() if inspect.isclass(value)}
    bases = {base for one in classes for base in one.__bases__ if base.__module__.startswith("hushstream.")}
    for base in bases - {one for one in bases if one.__module__.startswith("hushstream.counting.")}:
        own = {"_abc_impl", "_is_protocol", "_is_runtime_protocol", "_fields", "_field_defaults"}
        yield {name: value for name, value in vars(base).items() if not name.startswith("__") and name not in own}


def _layers() -> Iterator[Size]:
    for folder in LAYERED:
        ceiling = {"colin": 6}.get(Path(folder).name, 7)
        yield Size(f"import layers of {Path(folder).name}", layers(ROOT / folder), ceiling, 7)


def layers(package: Path) -> int:
    """The longest chain of parts of a package each of which imports the next one."""
    name = ".".join(package.parts[package.parts.index("hushstream") :])
    imports: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        part = path.relative_to(package).with_suffix("").parts[0]
        imports.setdefault(part, set()).update(imported_parts(ast.parse(path.read_text("utf-8")), name) - {part})
    graph = TopologicalSorter(imports)
    depth: dict[str, int] = {}
    for part in graph.static_order():
        depth[part] = 1 + max((depth[below] for below in imports.get(part, ())), default=0)
    return max(depth.values())


def imported_parts(tree: ast.Module, package: str) -> set[str]:
    """The parts of a package that a module imports, wherever in it."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{alias.name}" for node in found for alias in node.names]
    return {name.removeprefix(f"{package}.").partition(".")[0] for name in names if name.startswith(f"{package}.")}


def main() -> int:
    """Print the table; 1 when a figure is above its ceiling."""
    print(f"{'':44}{'now':>10}{'ceiling':>10}{'goal':>10}")
    above = []
    for size in figures():
        print(f"{size.name:44}{size.now:>10,}{size.ceiling:>10,}{size.goal:>10,}")
        above += [size.name] if size.now > size.ceiling else []
    if above:
        print(f"\nabove the ceiling: {', '.join(above)}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
