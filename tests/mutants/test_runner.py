"""The runner of mutants, on a repository of two files: what it calls caught is caught, and nothing else."""

import subprocess
from pathlib import Path

import pytest
from modules import module_at

RUN = Path(__file__).with_name("run.py")


@pytest.fixture(scope="module")
def runner():
    return module_at(RUN, "hushstream_test_mutants")


@pytest.fixture
def repository(tmp_path):
    """A product of one function, with tests beside it."""
    root = tmp_path / "repository"
    (root / "pipeline").mkdir(parents=True)
    (root / "pipeline" / "product.py").write_text("def twice(x):\n    return 2 * x\n\n\nSPARE = 1\n", encoding="utf-8")
    (root / "tests").mkdir()
    (root / "tests" / "test_product.py").write_text(
        "import product\n\n\ndef test_twice():\n    assert product.twice(2) == 4\n\n\n"
        "def test_broken():\n    assert product.twice(2) == 5\n",
        encoding="utf-8",
    )
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


GOOD = "tests/test_product.py::test_twice"


def listed(tmp_path, **mutants):
    path = tmp_path / "mutants.toml"
    lines = []
    for name, (old, new, by) in mutants.items():
        lines.append(f"{name} = {{ file = 'pipeline/product.py', old = '{old}', new = '{new}', by = '{by}' }}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def run(runner, capsys, repository, path, *arguments):
    code = runner.main(["--list", str(path), "--root", str(repository), *arguments])
    return code, capsys.readouterr()


def test_a_mutant_that_its_test_sees_is_caught_and_the_table_says_so(runner, capsys, repository, tmp_path):
    path = listed(tmp_path, thrice=("2 * x", "3 * x", GOOD))
    code, told = run(runner, capsys, repository, path)
    assert code == 0
    assert "1 of 1 mutants are caught." in told.out
    assert any(line.startswith("thrice ") and line.endswith(GOOD) for line in told.out.splitlines())
    assert (
        (repository / "pipeline" / "product.py").read_text(encoding="utf-8").startswith("def twice(x):\n    return 2")
    )


def test_a_mutant_that_nothing_sees_survives_and_is_exit_code_one(runner, capsys, repository, tmp_path):
    path = listed(tmp_path, thrice=("2 * x", "3 * x", GOOD), spare=("SPARE = 1", "SPARE = 2", GOOD))
    code, told = run(runner, capsys, repository, path)
    assert code == 1
    assert "*** SURVIVED ***" in told.out
    assert "1 of 2 mutants are caught." in told.out


@pytest.mark.parametrize("old", ["4 * x", "x"])
def test_a_text_that_is_gone_or_stands_there_twice_is_an_error(runner, capsys, repository, tmp_path, old):
    code, told = run(runner, capsys, repository, listed(tmp_path, rotten=(old, "y", GOOD)))
    assert code == 1
    assert f"expected '{old}' once in pipeline/product.py" in told.out


def test_a_change_that_changes_nothing_is_an_error(runner, capsys, repository, tmp_path):
    code, told = run(runner, capsys, repository, listed(tmp_path, same=("2 * x", "2 * x", GOOD)))
    assert code == 1
    assert "to be changed" in told.out


def test_what_fails_on_the_product_catches_nothing(runner, capsys, repository, tmp_path):
    path = listed(tmp_path, thrice=("2 * x", "3 * x", "tests/test_product.py::test_broken"))
    code, told = run(runner, capsys, repository, path)
    assert code == 1
    assert "fails on the product" in told.out


@pytest.mark.parametrize(("new", "by"), [("3 * x", "tests/test_product.py::test_that_is_not"), ("(", GOOD)])
def test_a_crash_is_no_verdict(runner, capsys, repository, tmp_path, new, by):
    """A test that is not there, and a product that cannot be imported."""
    code, told = run(runner, capsys, repository, listed(tmp_path, crashing=("2 * x", new, by)))
    assert code == 1
    assert "0 of 1 mutants are caught." in told.out


def test_every_line_of_the_list_fits_the_code(runner):
    """So that it cannot rot between two runs of it: each text stands where it says, and what it names is there."""
    for mutant in runner.read_list():
        text = (runner.ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.applied(text) != text


def test_what_every_line_names_is_there(runner):
    from hushstream.replay.audits.catalogue import audit_names

    audits = set(audit_names())
    for mutant in runner.read_list():
        if mutant.by.startswith("audit "):
            assert mutant.by.removeprefix("audit ") in audits, mutant.name
        else:
            path, _, test = mutant.by.partition("::")
            function = test.partition("[")[0].rpartition("::")[2]
            assert f"def {function}" in (runner.ROOT / path).read_text(encoding="utf-8"), mutant.name
