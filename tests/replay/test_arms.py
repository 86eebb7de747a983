"""A comparison is of two deployments: the private one holds nothing in clear, the other one has its own warning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hushstream.agents.worker.deployment import load
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.report.replayed import RunResult
from hushstream.replay.studies.p2b.run import P2BOptions, run_p2b

SMALL = {"world": {"users": 60, "rounds": 3, "dimension": 4, "arms": 4}, "config": {"encoder": {"codes": 4}}}


def played(folder: Path, secret_keys: bool) -> RunResult:
    return run_p2b(P2BOptions(folder=folder, secret_keys=secret_keys, **SMALL))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """A run whose private deployment has random keys."""
    folder = tmp_path_factory.mktemp("live")
    return folder, played(folder, secret_keys=True)


def test_under_random_keys_the_private_deployment_is_private_as_stated(live):
    folder, result = live
    assert result.marks == ()
    assert load(folder).guarantee().unnoised == ()
    assert not load(folder).public_dataset
    assert "interactions" not in load(folder).partitions
    assert all(name != "records_interactions" for name in result.counts)
    assert all(check.changed == 0 for check in result.verify.values())


def test_what_is_without_privacy_is_a_deployment_of_its_own_and_says_so(live):
    folder, result = live
    beside = load(folder / "not-private")
    assert [beside.config.deployment] == [*result.beside] == ["replay-not-private"]
    assert beside.guarantee().unnoised == ("interactions", "models")
    assert result.beside["replay-not-private"].marks == (NOT_PRIVATE, REPRODUCIBLE)
    assert result.label.endswith(f"shared, non-private: {NOT_PRIVATE}; {REPRODUCIBLE}; deployment replay-not-private")


def test_the_first_lines_give_what_was_reached_its_price_and_whether_it_pays(live):
    _, result = live
    first, beside, second = result.answers
    private, cold, exact = (row["mean_reward"] for row in result.rows.plain)
    assert f"mean reward from {cold:.3f} (own learning only) to {private:.3f}, " in first
    assert beside.startswith("Without privacy it would be")
    gap = abs(exact - private)
    assert re.search(rf"would be {exact:.3f}, {gap:.3f} (more|less) \([+-][.\d]+ to [+-][.\d]+\) \(an additive", beside)
    assert "95 % intervals over this run's users)" in beside, "it says what they cover"
    assert result.headline.ratio == ("is kept" in beside)
    assert "about one person" in first or "user-level epsilon" in first
    assert "REPRODUCIBLE" not in first
    assert "seed" not in first
    assert second == result.payoff.sentence


def test_a_seed_makes_the_run_again_and_is_marked(tmp_path):
    one, two = (played(tmp_path / name, secret_keys=False) for name in ("one", "two"))
    assert one.marks == two.marks == (REPRODUCIBLE,)
    assert "the noise comes from a seed" in one.answers[0]
    assert (
        json.loads((tmp_path / "one" / "public-dataset.json").read_text(encoding="utf-8"))["non_private_arm"] is False
    )
    assert one.rows["own learning only"] == two.rows["own learning only"], "they meet the same world and coins"
