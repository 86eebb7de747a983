"""A log of one's own users: marks on every output, estimated propensities, estimators, and a first mapping."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import numpy as np
import polars
import pytest
import yaml
from described import described
from rich.console import Console

from hushstream.agents.worker.deployment import load
from hushstream.api import evaluate
from hushstream.engine.declare.artefacts import PUBLIC_DATASET
from hushstream.features.schema import declare
from hushstream.replay.logged.drafts.deployment import shop_of_log
from hushstream.replay.logged.drafts.mapping import draft_mapping
from hushstream.replay.logged.evaluate import policy_values
from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.logged.mapping import table_mapping
from hushstream.replay.logged.models import expected_rewards, with_estimated_propensities
from hushstream.replay.studies.p2b.evaluation import one_arm, references
from hushstream.schemas.errors import HushstreamError

ARMS = 3


def _table(rows: int = 240) -> dict[str, list[object]]:
    draw = np.random.default_rng(5)
    device = draw.choice(["phone", "desk"], rows)
    offer = draw.choice(["bag", "hat", "pen"], rows)
    chance = np.where((device == "phone") == (offer == "bag"), 0.8, 0.1)
    return {
        "customer_id": [f"c{number}" for number in draw.integers(0, 60, rows)],
        "created_at": [1_700_000_000 + row for row in range(rows)],
        "device": device.tolist(),
        "age": draw.integers(18, 80, rows).tolist(),
        "note": [f"n{row}" for row in range(rows)],
        "offer": offer.tolist(),
        "bought": (draw.random(rows) < chance).astype(int).tolist(),
    }


def _log(rows: int = 6000) -> LoggedDataset:
    """Two kinds of context; the logging policy prefers for each an arm that is among its worst."""
    draw = np.random.default_rng(3)
    kind = draw.integers(0, 2, rows)
    chances = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
    shown = (draw.random(rows)[:, None] > chances[kind].cumsum(axis=1)).sum(axis=1)
    means = np.array([[0.2, 0.5, 0.8], [0.7, 0.4, 0.1]])
    return LoggedDataset(
        name="skewed",
        arms=ARMS,
        users=np.array([f"u{row // 4}" for row in range(rows)]),
        timestamps_ms=np.arange(rows),
        **described(np.stack([1 - kind, kind], axis=1)),
        chosen=shown,
        rewards=(draw.random(rows) < means[kind, shown]).astype(np.float64),
        propensities=chances[kind, shown],
    )


def test_doubly_robust_is_its_formula_row_by_row_to_1e_9():
    log, draw = _log(200), np.random.default_rng(1)
    policy = draw.dirichlet(np.ones(ARMS), 200)
    expected = draw.random((200, ARMS))
    total = 0.0
    for row in range(200):
        arm = int(log.chosen[row])
        weight = policy[row, arm] / log.propensities[row]
        total += sum(policy[row, other] * expected[row, other] for other in range(ARMS))
        total += weight * (log.rewards[row] - expected[row, arm])
    found = {one.estimator: one.value for one in policy_values(log, policy, expected)}
    assert found["dr"] == pytest.approx(total / 200, abs=1e-9)


def test_a_skewed_log_gives_the_best_policys_true_value_by_every_estimator():
    """The best arms earn .8 and .7, so .75. A term of IPS has variance below 10, so the mean of 6,000 has a deviation
    of .041 at most: .2 is more than four of them, and the seed is fixed."""
    log = _log()
    best = one_arm(np.where(log.contexts[:, 0] == 1, 2, 0), ARMS)
    found = policy_values(log, best, expected_rewards(log))
    assert {one.estimator for one in found} == {"ips", "snips", "dr"}
    for one in found:
        assert one.value == pytest.approx(0.75, abs=0.2)
    assert log.rewards.mean() < 0.4


def test_propensities_that_the_log_lacks_are_those_that_it_was_made_with_but_for_a_few_hundredths():
    log = _log()
    found = with_estimated_propensities(replace(log, propensities=None))
    assert found.estimated
    assert np.abs(found.propensities - log.propensities).mean() < 0.05
    with pytest.raises(LogError, match="expected several arms to be shown, got one"):
        with_estimated_propensities(log.select(log.chosen == 1))


def test_a_users_own_rows_do_not_move_their_own_estimates():
    log = _log(400)
    user = log.users == "u7"
    changed = replace(log, rewards=np.where(user, 1 - log.rewards, log.rewards))
    before, after = expected_rewards(log), expected_rewards(changed)
    assert np.array_equal(before[user], after[user])
    assert not np.array_equal(before[~user], after[~user])


def test_references_show_eligible_arms_alone():
    log = _log(300)
    eligible = np.ones((300, ARMS), dtype=bool)
    eligible[np.arange(300), (log.chosen + 1) % ARMS] = False
    found = references(log, replace(log, eligible=eligible))
    assert list(found) == ["random", "popular", "non-private", "nonlinear"]
    for probabilities in found.values():
        assert np.allclose(probabilities.sum(axis=1), 1)
        assert not probabilities[~eligible].any()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Where the internal log lies, and the deployment's folder beside it."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def judged(own):
    """An internal log without propensities, judged by its own draft."""
    path = own / "log.csv"
    polars.DataFrame(_table()).write_csv(path)
    (own / "shop.yaml").write_text(shop_of_log(path, "shop").text(), encoding="utf-8")
    mapping, deployment = yaml.safe_load(draft_mapping(path)), own / "shop.yaml"
    return evaluate(
        path, mapping=mapping, deployment=deployment, condition="cold", verify=False, folder=own / "deployment"
    )


def test_the_folder_of_an_internal_log_is_marked_as_what_it_is(judged, own):
    """Its workers publish contents in clear: whoever finds it has to read that this is no public dataset."""
    marked = json.loads((own / "deployment" / PUBLIC_DATASET).read_text(encoding="utf-8"))
    assert marked["dataset"].endswith(", INTERNAL, NOT PRIVATE")
    assert load(own / "deployment").public_dataset


def test_every_output_of_an_internal_log_is_marked(judged, tmp_path, capsys):
    marks = {"INTERNAL, NOT PRIVATE", "PROPENSITIES ESTIMATED"}
    assert marks <= set(repr(judged).splitlines())
    assert marks <= set(judged.as_json()["marks"])
    files = judged.save(tmp_path)
    assert [path.name for path in files if path.suffix == ".png"] == ["policies.png"], "its marks are in the picture"
    for path in (path for path in files if path.suffix != ".png"):
        assert all(mark in path.read_text(encoding="utf-8") for mark in marks)
    for text in judged.to_polars()["figures"]:
        assert marks <= set(text.split("; "))
    Console(width=160).print(judged.table())
    printed = capsys.readouterr().out
    assert all(mark in printed and mark in judged._repr_html_() for mark in marks)


def test_the_verdict_stands_first_on_the_result_and_the_page_and_in_the_document(judged, tmp_path):
    verdict, *findings = judged.details.verdict
    assert verdict.startswith("No verdict: the shared private model was not played.")
    assert [repr(judged).splitlines()[1]] == [verdict] == judged.as_json()["answers"]
    page = next(path for path in judged.save(tmp_path) if path.name == "index.html").read_text(encoding="utf-8")
    page = unescape(page)
    places = [page.index(one) for one in (verdict, *findings, judged.details.privacy.sentence(), 'id="outcome"')]
    assert places == sorted(places)


def test_below_the_least_effective_rows_there_is_no_value(judged):
    rows = judged.to_polars()
    below = rows["effective_sample_size"] < 20
    few, enough = rows.filter(below), rows.filter(~below)
    assert len(few) >= 1
    assert len(enough) > 5
    assert few["mean_reward"].is_null().all()
    assert few["ci95_low"].is_null().all()
    for policy, estimator in few.select("policy", "estimator").iter_rows():
        said = [one for one in judged.details.remarks if f"{policy} ({estimator})" in one.partition(": ")[0]]
        assert any("is below 20: no value is given" in one for one in said)
    assert enough["mean_reward"].is_not_null().all()


def test_an_internal_log_is_not_put_on_somebodys_kafka():
    mapping = {"data": "internal", "arm": "offer", "reward": "bought", "user": "customer_id"}
    mapping |= {"arms": ["bag", "hat", "pen"]}
    mapping |= {"features": {"device": {"kind": "category", "vocabulary": ["desk", "phone"]}}}
    with pytest.raises(HushstreamError, match="bootstrap: expected none for an internal log"):
        evaluate(polars.DataFrame(_table()), mapping=mapping, runner="stream", bootstrap="127.0.0.1:1")


def test_a_draft_says_what_columns_seem_to_mean_and_can_be_used(tmp_path):
    path = tmp_path / "log.csv"
    polars.DataFrame(_table()).write_csv(path, separator=";")
    text = draft_mapping(path)
    schema = declare({"device": {"kind": "category", "vocabulary": ["desk", "phone"]}})
    found = table_mapping(yaml.safe_load(text), schema)
    assert (found.data, found.delimiter, found.user) == ("internal", ";", "customer_id")
    assert (found.timestamp, found.timestamp_unit) == ("created_at", "s")
    assert (found.arm, found.arms, found.reward) == ("offer", ("bag", "hat", "pen"), "bought")
    assert set(found.columns) == {"device", "customer_id", "created_at", "offer", "bought"}
    assert "propensity: COLUMN" in text
    parquet = tmp_path / "log.parquet"
    polars.DataFrame(_table()).write_parquet(parquet)
    assert yaml.safe_load(draft_mapping(parquet)) == {k: v for k, v in yaml.safe_load(text).items() if k != "delimiter"}
