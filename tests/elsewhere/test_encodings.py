"""Text is read and written as UTF-8, whatever the locale says: each call that opens text names its encoding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("agents", "pipeline", "replay", "schemas", "deploy", ".ci", "tests")

OPENS_TEXT = {"read_text": 1, "write_text": 2}
"""Methods of a path, with how many positional arguments they have when an encoding is among them."""

MODES = frozenset({"r", "w", "a", "x", "r+", "w+", "a+", "rt", "wt"})


def calls_without_an_encoding(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _opens_text(node):
            yield node


def _opens_text(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    words = {word.arg: word.value for word in call.keywords}
    if {"encoding", None} & set(words):
        return False
    if name in OPENS_TEXT:
        return isinstance(call.func, ast.Attribute) and len(call.args) < OPENS_TEXT[name]
    if any(_is_true(words.get(word)) for word in ("text", "universal_newlines")):
        return True
    if name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile"):
        given = [*call.args, *words.values()]
        # A method `open` of something else takes no mode.
        modes = [value.value for value in given if isinstance(value, ast.Constant) and value.value in MODES]
        return bool(modes) or (name == "open" and isinstance(call.func, ast.Name) and len(call.args) == 1 and not words)
    return False


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


@pytest.mark.parametrize("folder", FOLDERS)
def test_whoever_opens_text_names_its_encoding(folder):
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "site-packages" not in path.parts
        for call in calls_without_an_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("path.read_text()", 1), ("path.read_text(errors='replace')", 1), ("path.write_text(text)", 1),
        ("open(path)", 1),
        ("open(path, 'w')", 1), ("path.open('r+')", 1), ("run(command, text=True)", 1), ("os.fdopen(one, 'w')", 1),
        ("path.read_text(encoding='utf-8')", 0), ("path.read_text('utf-8')", 0), ("open(path, 'rb')", 0),
        ("path.open('wb')", 0), ("reader.open({place: 1})", 0), ("run(command, text=True, encoding='utf-8')", 0),
        ("run(command)", 0), ("path.write_text(text, 'utf-8')", 0), ("open(path, **how)", 0),
    ],
)  # fmt: skip
def test_such_calls_are_found(source, found):
    assert len(list(calls_without_an_encoding(ast.parse(source)))) == found
