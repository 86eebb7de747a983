"""The runner of other surroundings: a share is drawn as stated, what is missing is named, and what fails is told."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("hushstream_test_elsewhere", RUN)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_share_is_the_same_for_a_commit_and_another_for_another(runner) -> None:
    files, names = [f"tests/test_{number}.py" for number in range(50)], [f"place {number}" for number in range(13)]
    one, again, other = (runner.drawn(files, names, 9, of) for of in ("a", "a", "b"))
    assert one == again != other
    assert sorted(map(len, one.values())) == [2, 2, 2, 3]
    assert len({file for some in one.values() for file in some}) == 9
    seen = {
        file for number in range(200) for some in runner.drawn(files, names, 9, str(number)).values() for file in some
    }
    # A file is left out of 200 draws of 9 among 50 with a chance of 1e-17.
    assert seen == set(files)


def test_a_share_holds_no_file_that_is_slow_or_needs_more_than_python(runner) -> None:
    files = runner.files_of_tests(RUN.parents[2])
    assert "tests/agents/test_linger.py" in files
    assert not [name for name in files if name.startswith(("tests/kafka/", "tests/chaos/"))]
    assert all("mark.slow" not in (RUN.parents[2] / name).read_text(encoding="utf-8") for name in files)


def test_each_surrounding_says_what_it_is_and_proves_it(runner) -> None:
    made = runner.surroundings()
    assert len(made) == len(set(made)) >= 16
    assert all(surrounding.what and surrounding.probe for surrounding in made.values())


def test_a_surrounding_that_is_not_what_it_is_meant_to_be_is_left_out_with_the_reason(runner) -> None:
    results = [
        runner.run_there(runner.Surrounding("x", "x", "assert 1 == 2, 'still here'"), ["tests/none.py"]),
        runner.run_there(runner.Surrounding("x", "x", "pass", ("no-such-command",)), ["tests/none.py"]),
        runner.run_there(runner.Surrounding("x", "x", "pass", missing=lambda: "a moon"), ["tests/none.py"]),
    ]
    assert ["still here" in results[0].why, results[1].why, results[2].why] == [True, "no-such-command", "a moon"]
    assert all("left out, needs" in runner.told("x", result) for result in results)


def test_what_passes_fails_and_is_skipped_is_counted_and_shown(runner, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import os\nimport pytest\n\n"
        "def test_it():\n    assert os.umask(0) == 0o077\n\n"
        "def test_there():\n    assert 'für' in os.getcwd()\n\n"
        "def test_broken():\n    assert 1 == 2, 'broken here'\n\n"
        "def test_other():\n    pytest.skip('not now')\n",
        encoding="utf-8",
    )
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "JOBS", 0)
    place = runner.Surrounding("x", "x", "import os; assert os.umask(0) == 0o077", folder="Wald für uns", umask=0o077)
    result = runner.run_there(place, ["tests"])
    assert (result.passed, result.failed, result.skipped, result.why) == (2, 1, 1, "")
    assert "broken here" in capsys.readouterr().out
