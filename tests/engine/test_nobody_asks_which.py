"""The house: outside the rooms nobody asks which system it has, and the meter of sizes counts what it says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from modules import module_at

ROOT = Path(__file__).parents[2]
ROOMS = ROOT / "pipeline" / "hushstream" / "systems"
DECLARING = (
    "declare.declaration",
    "batch",
    "journal.chain",
    "learner.deciding",
    "machine",
    "one_input",
)
DECLARING += ("declare.role", "records", "system")
ORIGINS = (
    "hushstream.systems",
    "hushstream.agents.recovery.snapshots",
    *(f"hushstream.engine.{name}" for name in DECLARING),
)
"""Where systems, configurations, machines, and what a machine can do are defined."""
ERRORS = {"OffChain", "ReplayMismatch"}
"""Defined there, too: which error came may be asked."""
ASKING = ("isinstance", "issubclass")


def asked_classes(tree: ast.AST) -> Iterator[ast.expr]:
    """The classes that a module tells values apart by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING:
            yield node.args[1]
        elif isinstance(node, ast.MatchClass):
            yield node.cls
        elif isinstance(node, ast.Compare) and any(_is_type(side) for side in (node.left, *node.comparators)):
            yield from (side for side in (node.left, *node.comparators) if not _is_type(side))


def _is_type(node: ast.expr) -> bool:
    """Whether it is ``type(value)`` or ``value.__class__``."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def origins(tree: ast.AST) -> dict[str, str]:
    """The module that each name of a module comes from, as it is written there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Import):
            found.update((name.asname or name.name.partition(".")[0], name.name) for name in node.names)
    return found


def who_asks(source: str) -> list[str]:
    """The forbidden classes that a module's source tells values apart by."""
    tree = ast.parse(source)
    known = origins(tree)
    names = [node for asked in asked_classes(tree) for node in ast.walk(asked) if isinstance(node, ast.Name)]
    return [name.id for name in names if name.id not in ERRORS and known.get(name.id, "").startswith(ORIGINS)]


def test_no_module_outside_the_rooms_asks_which_system_configuration_or_machine_it_has():
    modules = [path for part in ("pipeline", "agents", "replay") for path in (ROOT / part).rglob("*.py")]
    found = {path: who_asks(path.read_text("utf-8")) for path in modules if ROOMS not in path.parents}
    assert len(found) > 300, "the modules are looked for where they lie"
    assert {str(path): asked for path, asked in found.items() if asked} == {}


@pytest.mark.parametrize(
    "asking",
    [
        "from hushstream.systems.p2b.deployment import P2BSystem\nisinstance(x, P2BSystem)",
        "from hushstream.systems.pdap import configuration as c\nassert isinstance(x, c.PdapConfig)",
        "from hushstream.engine.machine import Machine as M\nisinstance(x, (str, M))",
        "from hushstream.engine.machine import Machine\nisinstance(x, str | Machine)",
        "from hushstream.engine.one_input import ReopeningRole\nissubclass(x, ReopeningRole)",
        "import hushstream.systems.colin.system\ntype(x) is hushstream.systems.colin.system.Core",
        "from hushstream.systems.bgt.configuration import BgtConfig\nx.__class__ == BgtConfig",
        "from hushstream.engine.declare.declaration import System\nmatch x:\n  case System():\n    pass",
    ],
)
def test_asking_is_seen_however_it_is_written(asking):
    assert len(who_asks(asking)) == 1


def test_asking_about_values_is_nobodys_matter():
    assert who_asks("from hushstream.engine.journal.marks import Mark\nisinstance(x, (int, Mark))") == []


# The meter of sizes sees what makes a reader's way longer, and no more.

sizes = module_at(Path(__file__).with_name("sizes.py"), "sizes_meter")


def test_imports_are_code_lines_and_words_for_people_are_not(tmp_path):
    file = tmp_path / "some.py"
    file.write_text(
        '"""A page\nof words."""\n\nimport os\nfrom sys import (\n    path,\n)\n\n# why\nx = [os, path]\n',
        encoding="utf-8",
    )
    assert sizes.code_lines(file) == 5


def test_what_is_taken_from_a_library_or_defined_for_one_is_a_private_name(tmp_path, monkeypatch):
    (tmp_path / "some.py").write_text(
        "class Mine(Base):\n"
        "    def __init__(self, other):\n"
        "        self._own = other._theirs\n"
        "        self._call()\n"
        "    def _call(self):\n"
        "        return self._own._replace(a=1)\n"
        "    def _called_by_the_library(self):\n"
        "        return 0\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sizes, "PRODUCT", (tmp_path,))
    assert sizes.private_names() == {"_theirs", "_called_by_the_library"}


def test_every_file_of_the_product_is_in_at_most_one_part():
    files = [path for files in sizes.Parts().files.values() for path in files]
    assert len(files) == len(set(files))
    assert len(files) > 300
