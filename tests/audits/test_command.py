"""``hushstream audit --all`` and ``--only``: the table, stable JSON, and the exit code of a broken claim."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hushstream.cli.main import app
from hushstream.replay.audits.catalogue import run_audits
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b import shuffler as release
from hushstream.systems.p2b.machines import shuffler as p2b_release

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "test_rows_come_as_json_with_stable_keys",
            "test_a_bound_above_its_claim_is_exit_code_one",
            "test_wrong_usage_is_refused",
        ]
    ),
]

KEYS = {
    "name", "kind", "attack", "claimed", "paper_claims", "claim_broken", "epsilon_lower_bound",
    "calibrated_lower_bound", "confidence", "false_alarm", "runs", "power", "structure", "verdict", "passed",
}  # fmt: skip


def hushstream(*arguments):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_rows_come_as_json_with_stable_keys():
    answer = hushstream("--only", "discrete-laplace", "--only", "p2b-paper", "--quick", "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert set(found) == {"effort", "passed", "false_alarm_of_all", "audits"}
    assert (found["effort"], found["passed"], found["false_alarm_of_all"]) == ("quick", True, 2e-6)
    laplace, paper = found["audits"]
    assert set(laplace) == set(paper) == KEYS
    assert laplace["claimed"]["epsilon"] == 1
    assert 0 < laplace["epsilon_lower_bound"] <= 1
    assert paper["verdict"] == "NOT PRIVATE AS STATED, claim broken"
    assert (laplace["claim_broken"], paper["claim_broken"]) == (None, True)
    assert paper["paper_claims"]["epsilon_lower_bound"] > paper["paper_claims"]["epsilon"]
    assert paper["claimed"]["delta"] == 0.5, "what is really promised is as little as delta p"


def test_the_table_shows_claim_bound_confidence_runs_and_verdict():
    answer = hushstream("--only", "p2b-paper", "--quick")
    assert answer.exit_code == 0
    printed = " ".join(answer.stdout.replace("│", " ").split())
    for word in (
        "claim (epsilon, delta)",
        "bound by curve",
        "may miss below",
        "1 - 1e-06",
        "1,000",
        "NOT PRIVATE AS STATED",
    ):
        assert word in printed
    assert "The claims of p2b-paper, calibrated as in their papers, are broken, as they must be" in printed


def test_a_bound_above_its_claim_is_exit_code_one(monkeypatch):
    honest = p2b_release.laplace_scale
    monkeypatch.setattr(p2b_release, "laplace_scale", lambda epsilon, levels: honest(2 * epsilon, levels))
    answer = hushstream("--only", "slot-sums-fresh", "--quick")
    assert answer.exit_code == 1
    assert "EXCEEDS the claim" in answer.stdout
    assert "1 of 1 fail: slot-sums-fresh" in answer.stdout


def test_two_places_that_share_noise_are_named_and_exit_code_one(monkeypatch):
    """One draw for all codes: the size of each is as it should be, and every difference between codes is exact."""
    honest = p2b_release.noised_sums
    monkeypatch.setattr(
        p2b_release, "noised_sums", lambda sums, noise: honest(sums, np.repeat(noise[:, :1], noise.shape[1], axis=1))
    )
    answer = hushstream("--only", "windows-each-cell", "--quick", "--json")
    assert answer.exit_code == 1
    (row,) = json.loads(answer.stdout)["audits"]
    assert row["structure"].endswith("share noise")
    assert row["verdict"] == f"NOT INDEPENDENT: {row['structure']}"
    first, second = (place.split(", code ") for place in row["structure"].removesuffix(" share noise").split(" and "))
    assert first[0] == second[0], "of one partition, window and sum"
    assert row["calibrated_lower_bound"] <= row["claimed"]["epsilon"]


def test_a_paper_whose_claim_stands_after_all_is_exit_code_one(monkeypatch):
    """Whoever repairs the paper's release must not go on saying that it is broken."""
    monkeypatch.setattr(
        p2b_release, "paper", lambda reports, threshold: release.tuples(reports, reports.codes >= 0, threshold)
    )
    answer = hushstream("--only", "p2b-paper", "--quick")
    assert answer.exit_code == 1
    assert "are broken, as they must be" not in answer.stdout
    (row,) = json.loads(hushstream("--only", "p2b-paper", "--quick", "--json").stdout)["audits"]
    assert (row["claim_broken"], row["passed"]) == (False, False)
    assert row["verdict"] == "the paper's claim was not broken"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "5"), "expected --runs with --config, got it alone"),
        (("--all", "--runs", "100"), "--all or --only alone"),
        (("--all", "--quick", "--thorough"), "got both"),
        (("--only", "nothing"), "expected a name that `hushstream audit` lists, got 'nothing'"),
        (("--only", "p2b-papr"), "got 'p2b-papr', did you mean p2b-paper?"),
        (("--only", "p2b-paper", "--false-alarm", "1"), "false alarm in"),
    ],
)
def test_wrong_usage_is_refused(arguments, message):
    answer = hushstream(*arguments)
    assert isinstance(answer.exception, HushstreamError)
    assert message in str(answer.exception)


def test_more_runs_are_taken_where_they_are_asked_for():
    (quick,), (full,) = (list(run_audits(["injected-reports"], effort)) for effort in ("quick", "full"))
    assert full.result.runs > quick.result.runs


def test_a_configuration_of_either_system_is_attacked_by_what_it_releases(tmp_path):
    place = tmp_path / "deployment.yaml"
    features, release = {"dimension": 4}, {"mechanism": "binary", "horizon": 50}
    values = {
        "system": "colin",
        "deployment": "audited",
        "items": {"capacity": 2},
        "features": features,
        "release": release,
        "privacy": {"epsilon": 4, "units_per_person": 50},
    }
    place.write_text(json.dumps(values), encoding="utf-8")
    answer = hushstream("--config", str(place), "--runs", "200", "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert (found["system"], found["mechanism"], found["horizon"], found["epsilon"]) == ("colin", "binary", 50, 4.0)
    neighbours, size = found["audits"]
    assert neighbours["calibrated_lower_bound"] <= found["claimed"]["epsilon"] == 4.0
    assert size["runs"] >= 20_000
    told = hushstream("--config", str(place), "--runs", "200").stdout
    assert "Seen: the first" in told
    assert "All 2 behave as expected" in told
