"""A comparison is of two deployments: the private one holds nothing in clear, the other one has its own warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hushstream.agents.worker.deployment import load
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.studies.p2b.report.results import RunResult
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
    assert load(folder).promises.releases.unnoised == ()
    assert not load(folder).public_dataset
    assert "interactions" not in load(folder).partitions
    assert all(name != "records_interactions" for name in result.counts)
    assert all(check.changed == 0 for check in result.verify.values())


def test_what_is_without_privacy_is_a_deployment_of_its_own_and_says_so(live):
    folder, result = live
    beside = load(folder / "not-private")
    assert beside.config.deployment == result.comparison_arm.deployment == "replay-not-private"
    assert beside.promises.releases.unnoised == ("interactions", "models")
    assert result.comparison_arm.privacy.marks == (NOT_PRIVATE, REPRODUCIBLE)


def test_the_first_lines_give_what_was_reached_its_price_and_whether_it_pays(live):
    _, result = live
    first, second = result.answers
    assert first.startswith(f"{100 * result.kept.ratio:.0f} % of what a model without privacy earns")
    assert "about one person" in first or "one person did" in first
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
    assert one.rows[0] == two.rows[0], "cold users meet the same world and coins"
