"""What a release consists of: versions, locks and executed notebooks."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from modules import module_at
from nbclient import NotebookClient

TOP = Path(__file__).parents[2]
PLACE = TOP / ".github" / "workflows" / "release.yml"
CHANGELOG = """# Changelog

## 0.1.0 (2026-11-24)

### For who runs a deployment

* Roll the workers.

## 0.0.9 (2026-01-01)

* Older.
"""


@pytest.fixture(scope="module")
def workflow() -> Any:
    return yaml.safe_load(PLACE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return module_at(TOP / ".ci" / "check_release.py", "check_release")


def steps(workflow: Any, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow["jobs"][job]["steps"]
    return found


def commands(workflow: Any, job: str) -> str:
    return "\n".join(step.get("run", "") for step in steps(workflow, job))


def used(workflow: Any, job: str) -> set[str]:
    return {step["uses"].partition("@")[0] for step in steps(workflow, job) if "uses" in step}


def test_every_action_is_pinned_by_its_commit_and_says_its_version():
    lines = [line for line in PLACE.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert len(lines) >= 8
    for line in lines:
        assert re.fullmatch(r"\s*(- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line), line


def test_it_runs_for_tags_alone_and_each_job_has_the_rights_that_it_needs(workflow):
    # YAML 1.1 reads the key `on` as a boolean.
    assert workflow[True] == {"push": {"tags": ["v[0-9]*"]}}
    assert workflow["permissions"] == {}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert rights["packages"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    assert rights["image"] == {
        "contents": "read", "packages": "write", "id-token": "write", "attestations": "write"
    }  # fmt: skip


def test_what_leaves_has_an_sbom_a_provenance_and_a_signature(workflow):
    assert {"anchore/sbom-action", "actions/attest-build-provenance", "sigstore/cosign-installer"} <= used(
        workflow, "packages"
    )
    assert {"actions/attest-build-provenance", "sigstore/cosign-installer"} <= used(workflow, "image")
    image = commands(workflow, "image")
    assert "--sbom=true --provenance=mode=max" in image
    assert "cosign sign --yes" in image
    assert steps(workflow, "image")[-1]["env"]["PLACE"].endswith("}@${{ steps.build.outputs.digest }}"), "not a tag"
    assert "cosign sign-blob" in commands(workflow, "packages")


def test_it_builds_with_the_tools_of_the_lock_files_and_from_files_that_are_there(workflow):
    said = commands(workflow, "packages") + commands(workflow, "image")
    for path in set(re.findall(r"[\w./-]+\.(?:py|lock)|deploy/container/\w+", said)):
        assert (TOP / path).is_file(), path
    assert "--require-hashes" in said
    assert "${{" not in said, "what others may name (a tag) is no part of a command"


def packed(tree: Path) -> set[str]:
    """What a source distribution of a tree holds; the two that a build adds by itself are said with it."""
    return {"pyproject.toml", ".gitignore"} | {
        Path(one.distribution_path).as_posix() for one in SdistBuilder(str(tree)).recurse_included_files()
    }


def test_sources_are_packed_whole_and_without_the_environment_that_the_release_makes_beside_them(workflow, tmp_path):
    listed = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, encoding="utf-8", check=False)
    if listed.returncode:
        pytest.skip("these sources are no clone: nothing says which files belong to them")
    tree = tmp_path / "tree"
    for name in listed.stdout.splitlines():
        if (TOP / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, tree / name)
    whole = packed(tree)
    assert whole == {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    (environment,) = re.findall(r"python -m venv (\S+)", commands(workflow, "packages"))
    for folder in (environment, ".ci/plain"):
        (tree / folder / "bin").mkdir(parents=True)
        (tree / folder / "bin" / "hushstream").write_text("#!python", encoding="utf-8")
    assert packed(tree) == whole


def test_a_tag_that_is_the_version_and_is_spoken_of_may_be_released(check, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    assert check.notes("v0.1.0", tmp_path).endswith("* Roll the workers.\n")


@pytest.mark.parametrize(
    ("tag", "changed", "said"),
    [
        ("v0.2.0", ("", ""), r"expected the tag v0\.1\.0"),
        ("v0.1.0", ("0.1.0 (2026", "0.1.1 (2026"), "expected a section"),
        ("v0.1.0", ("(2026-11-24)", "(unreleased)"), "it says unreleased"),
        ("v0.1.0", ("For who runs a deployment", "Other"), "For who runs a deployment"),
    ],
)
def test_a_tag_of_which_the_changelog_does_not_say_what_to_do_is_refused(check, tmp_path, tag, changed, said):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.replace(*changed) if changed[0] else CHANGELOG, encoding="utf-8")
    with pytest.raises(check.NotReleasable, match=said):
        check.notes(tag, tmp_path)


def test_this_changelog_says_what_a_running_deployment_must_do(check):
    text = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    assert check.DUTIES in text.split("\n## ")[1]


ROOT = Path(__file__).parents[2]
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
NAME = re.compile(r"^[A-Za-z0-9._-]+")


def locked(name: str) -> dict[str, str]:
    """What stands behind the name of each package: version, markers and digests."""
    entries = re.sub(r"\\\n\s*", " ", (ROOT / name).read_text(encoding="utf-8")).splitlines()
    found: dict[str, str] = {}
    for entry in filter(None, entries):
        package = normal(entry)
        found[package] = found.get(package, "") + entry
    return found


def normal(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def test_there_is_a_lock_for_everything_for_every_command_for_the_site_and_for_the_build():
    assert LOCKS == ["requirements-build.lock", "requirements-docs.lock", "requirements-run.lock", "requirements.lock"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_has_one_version_and_digests_and_they_are_those_of_the_lock_of_everything(name):
    # The site is built with more than all tests need, and shares a virtual environment with them.
    everything = locked("requirements-docs.lock") | locked("requirements.lock")
    for package, entry in locked(name).items():
        assert re.search(r"==[^ ]+", entry), package
        assert entry.count("--hash=sha256:") >= 1, package
        digests = set(re.findall(r"sha256:[0-9a-f]{64}", entry))
        assert digests <= set(re.findall(r"sha256:[0-9a-f]{64}", everything[package])), package


def test_locks_hold_what_the_project_asks_for_and_its_build_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (backend,) = project["build-system"]["requires"]
    assert re.fullmatch(r"hatchling==[0-9.]+", backend)
    extras = project["project"]["optional-dependencies"]
    assert backend in extras["build"]
    runs = {normal(one) for one in project["project"]["dependencies"]}
    wanted = {
        "requirements-docs.lock": {normal(one) for one in project["dependency-groups"]["docs"]},
        "requirements-run.lock": runs,
        "requirements-build.lock": {normal(one) for one in extras["build"]},
        "requirements.lock": runs | {normal(one) for every in extras.values() for one in every},
    }
    for name, packages in wanted.items():
        assert packages <= locked(name).keys(), name


NOTEBOOKS = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.ipynb"))
_OBJECT = re.compile(r"\d[\d,]* bytes of PNG")


def _texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What its cells printed or returned, but for the sizes of pictures."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return [_OBJECT.sub("PNG", text) for text in found]


@pytest.mark.process
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_those_that_it_shows(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in fresh.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(fresh, timeout=150, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(_texts(stored))
    assert _texts(fresh) == _texts(stored)
    outputs = [output for cell in fresh.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds


def test_there_is_a_notebook_for_each_question():
    assert [path.stem for path in NOTEBOOKS] == ["evaluate-my-own-log", "replay-and-compare", "which-epsilon"]
