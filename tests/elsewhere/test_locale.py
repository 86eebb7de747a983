"""Any locale: pages are printed whole, paths are named; and what warns in our code fails."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from modules import module_at

ROOT = Path(__file__).parents[2]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Such a locale without what Python puts in its place: what is left is strict ASCII."""


@pytest.fixture(scope="module")
def relative_folders():
    return module_at(ROOT / "deploy" / "relative_folders.py", "hushstream_relative_folders")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, ASCII], ids=["C", "strict"])
def test_an_installation_in_a_folder_with_an_umlaut_starts(relative_folders, tmp_path, locale):
    checkout = tmp_path / "Träume für alle"
    (checkout / "pipeline").mkdir(parents=True)
    (checkout / "pipeline" / "product.py").write_text("VALUE = 7\n", encoding="utf-8")
    venv = checkout / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "_hushstream.pth").write_text(f"{checkout / 'pipeline'}\n", encoding="utf-8")

    def run() -> subprocess.CompletedProcess[bytes]:
        command = [venv / "bin" / "python", "-c", "import product; print(product.VALUE)"]
        return subprocess.run(command, env={**os.environ, **locale}, capture_output=True, check=False)

    for _ in range(2):
        assert relative_folders.make_relative(venv) == [packages / "_hushstream.pth"]
        done = run()
        assert (done.stdout, done.returncode) == (b"7\n", 0), done.stderr.decode(errors="replace")


def test_where_nothing_is_installed_nothing_is_named(relative_folders, tmp_path):
    assert relative_folders.make_relative(tmp_path) == []


def test_a_refusal_names_a_path_that_the_locale_cannot_write(tmp_path):
    folder = tmp_path / "Träume"
    folder.mkdir()
    program = "from hushstream.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "guarantee", f"{folder}/für uns.yaml"],
        env={**os.environ, **ASCII}, capture_output=True, check=False,
    )  # fmt: skip
    said = done.stderr.decode("ascii")
    assert done.returncode == 1
    assert "Traceback" not in said
    assert said.startswith("hushstream: "), said


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_page_is_printed_whole_in_any_encoding(encoding):
    shown = subprocess.run(
        [sys.executable, "-m", "hushstream.cli", "guarantee", str(ROOT / "deploy" / "examples" / "shop.yaml")],
        env={**os.environ, **ASCII, "PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr.decode(errors="replace")
    # Typer takes a terminal of ASCII for one of UTF-8 that nobody has set up.
    assert len(shown.stdout.decode(encoding if encoding != "ascii" else "utf-8").splitlines()) > 5


@pytest.mark.parametrize("module", ["hushstream.agents.partition.driver", "hushstream.replay.runners.stream", __name__])
def test_a_warning_of_ours_is_raised(module):
    with pytest.raises(RuntimeWarning, match="overflow"):
        warnings.warn_explicit("overflow", RuntimeWarning, "file.py", 1, module)


def test_a_warning_of_a_library_is_shown():
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, "library.module")
    assert [str(warning.message) for warning in shown] == ["old"]


# Text is read and written as UTF-8, whatever the locale says: each call that opens text names its encoding.

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
