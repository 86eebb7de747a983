"""`make test` leaves nothing out unseen, and every test that it leaves out is in the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

import parts

PLAIN = "def test_plain(): pass\n"
KEPT = """
import pytest
pytestmark = pytest.mark.process(keep=["test_kept", "test_cases[1]"])
def test_kept(): pass
def test_left(): pass
@pytest.mark.parametrize("case", [1, 2, 3])
def test_cases(case): pass
"""
ON_KAFKA = """
import pytest
@pytest.mark.slow_statistics(keep=["test_on_kafka"])
@pytest.mark.kafka
def test_on_kafka(): pass
"""


@pytest.fixture
def tried(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A few tests beside the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(Path(parts.__file__).parent))
    lines = "\n".join(f"  {name}: of a part" for name in parts.LEFT)
    pytester.makeini(
        "[pytest]\naddopts = -p parts --strict-markers -p no:cacheprovider\n"
        f"asyncio_default_fixture_loop_scope = function\nmarkers =\n{lines}\n"
    )
    pytester.makepyfile(test_plain=PLAIN, test_kept=KEPT, test_on_kafka=ON_KAFKA)
    return pytester


def test_the_quick_part_keeps_what_markers_keep_and_says_what_it_leaves_to_whom(tried):
    ended = tried.runpytest_subprocess("--part", "quick", "-n", "2")
    ended.assert_outcomes(passed=3, deselected=4)
    ended.stdout.fnmatch_lines(
        ["4 tests are left to `make test-all` (3 process) and `make test-kafka` (1 kafka); CONTRIBUTING.md says *"]
    )


def test_the_rest_is_what_the_quick_part_leaves_but_for_kafka(tried):
    ended = tried.runpytest_inprocess("--part", "rest", "-v")
    ended.assert_outcomes(passed=3, deselected=4)
    ended.stdout.fnmatch_lines_random(["*::test_left PASSED*", "*::test_cases?2? PASSED*", "*::test_cases?3? PASSED*"])


def test_without_a_part_all_that_is_named_runs(tried):
    tried.runpytest_inprocess("test_kept.py::test_left", "test_on_kafka.py").assert_outcomes(passed=2)


def test_a_kept_name_that_no_test_has_is_an_error(tried):
    tried.makepyfile(test_kept=KEPT.replace("def test_kept", "def test_renamed"))
    ended = tried.runpytest_inprocess("--part", "quick")
    ended.stderr.fnmatch_lines(["*test_kept.py: process: expected names of tests to keep, got test_kept"])
    assert ended.ret == pytest.ExitCode.USAGE_ERROR


def test_a_share_of_the_rest_says_how_much_it_is(tried):
    tried.makepyfile(test_other=KEPT)
    ended = tried.runpytest_inprocess("--part", "rest", "--share", "1", "--of", "a commit")
    ended.assert_outcomes(passed=3, deselected=9)
    ended.stdout.fnmatch_lines(["1 of the 2 files ran that have tests beside those of `make test`."])


def test_shares_are_the_same_for_one_commit_and_soon_every_file_for_many():
    files = [Path(f"tests/test_{number}.py") for number in range(50)]
    assert parts.share(files, 8, "one") == parts.share(reversed(files), 8, "one")
    assert len(parts.share(files, 8, "one")) == 8
    # A file is missed by 100 commits with a chance of 0.84^100 = 3e-8. The names are fixed, so nothing here is drawn.
    assert set().union(*(parts.share(files, 8, f"{commit}") for commit in range(100))) == set(files)
