"""Any locale: pages are printed whole, paths are named; and what warns in our code fails."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
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
