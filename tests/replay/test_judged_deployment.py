"""A deployment is drafted from a log, judged on it as it stands, and goes live from the page of its evaluation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars
import pytest
import yaml

from hushstream.agents.worker.deployment import load, prepare, read_config, read_draft
from hushstream.engine.values import ConfigurationError
from hushstream.features.checks import FROM_ROWS, without_marks
from hushstream.features.schema import declare
from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.catalogue import make_world
from hushstream.replay.logged.drafts.deployment import shop_of_log
from hushstream.replay.logged.drafts.mapping import draft_mapping
from hushstream.replay.logged.evaluate import Interval
from hushstream.replay.logged.gains import LOGGING, SINGLE, Gains
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import table_mapping
from hushstream.replay.logged.table import stream_table
from hushstream.replay.report.replayed import RunResult, document, write
from hushstream.replay.studies.p2b import evaluation
from hushstream.replay.studies.p2b.play import CONDITION_NAMES
from hushstream.replay.studies.p2b.run import P2BOptions, clear_rewards, clear_sums_of, run_p2b
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.guarantee import guarantee_of

ROWS, USERS = 1500, 250
ITEMS = ("bag", "hat", "pen")


def _table() -> dict[str, list[object]]:
    """Six rows a user; who has a phone buys bags, who likes art buys pens."""
    draw = np.random.default_rng(5)
    device = draw.choice(["phone", "desk"], ROWS)
    art = draw.random(ROWS) < 0.5
    offer = draw.choice(ITEMS, ROWS)
    wanted = ((offer == "bag") & (device == "phone")) | ((offer == "pen") & art)
    return {
        "customer": [f"c{row % USERS}" for row in range(ROWS)],
        "at": [1_700_000_000 + 400 * row for row in range(ROWS)],
        "device": device.tolist(),
        "age": [None if row % 20 == 0 else 18 + row % 60 for row in range(ROWS)],
        "likes": ["art|tea" if one else "tea" for one in art],
        "offer": offer.tolist(),
        "bought": (draw.random(ROWS) < np.where(wanted, 0.7, 0.05)).astype(int).tolist(),
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A log, and the drafts of its mapping and its deployment."""
    folder = tmp_path_factory.mktemp("own")
    polars.DataFrame(_table()).write_csv(folder / "log.csv")
    (folder / "map.yaml").write_text(draft_mapping(folder / "log.csv") + "uniform: true\n", encoding="utf-8")
    (folder / "shop.yaml").write_text(shop_of_log(folder / "log.csv", "shop").text(), encoding="utf-8")
    return folder


def _judge(place: Path, **options):
    given = {"log": place / "log.csv", "mapping": place / "map.yaml", "deployment": place / "shop.yaml"}
    return evaluation.evaluate_with(evaluation.EvaluateOptions(**{**given, **options}))


@pytest.fixture(scope="module")
def judged(place):
    return _judge(place, folder=place / "replayed")


def _changed(place: Path, tmp_path: Path, **changes: object) -> Path:
    values = yaml.safe_load((place / "shop.yaml").read_text(encoding="utf-8"))
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({**values, **changes}), encoding="utf-8")
    return tmp_path / "shop.yaml"


def test_a_draft_names_items_and_features_and_is_prepared_once_each_mark_is_confirmed(place, tmp_path):
    values = yaml.safe_load((place / "shop.yaml").read_text(encoding="utf-8"))
    assert values["items"] == {"capacity": 6, "named": True, "expected": 3}
    kinds = {name: one["kind"] for name, one in values["features"].items()}
    assert kinds == {"device": "category", "age": "number", "likes": "tags"}
    assert values["exploration"] == {"choice": "epsilon", "share": 0.05}
    assert (values["expected_slots"], values["slot"]["after_interactions"]) == (250, 6)
    _, unconfirmed = read_draft(place / "shop.yaml")
    assert {"features.age.range", "expected_slots", "feedback.click_rate", "release.window_units"} <= set(unconfirmed)
    with pytest.raises(ConfigurationError, match=r"taken from rows: features\.device\.vocabulary"):
        read_config(place / "shop.yaml")
    confirmed = tmp_path / "shop.yaml"
    text = (place / "shop.yaml").read_text(encoding="utf-8")
    confirmed.write_text("\n".join(line for line in text.splitlines() if FROM_ROWS + ":" not in line), encoding="utf-8")
    config = read_config(confirmed)
    assert config == read_draft(place / "shop.yaml")[0]
    prepare(tmp_path / "shop", config)


def test_a_verdict_on_estimated_propensities_is_followed_by_what_it_assumes(judged):
    """In a world without any gain, whose policy followed users' unobserved readiness to click, 26 of 60 logs of 2,500
    users advised to deploy: no interval holds what an estimate of propensities from features cannot know."""
    better = {name: (0.2, Interval(0.1, 0.3)) for name in (LOGGING, SINGLE)}
    known = Gains("warm_private", ROWS, {"warm_private": 0.4, LOGGING: 0.2, "popular": 0.2}, better, {}, None, None, {})
    assert known.advice == "deploy"
    estimated = replace(known, estimated=True)
    assert estimated.advice == "measure first"
    said = evaluation.conclusion(estimated, judged.privacy)[0]
    assert said.startswith("Measure first: the shared private model looks significantly better than")
    worse = {name: (-0.2, Interval(-0.3, -0.1)) for name in (LOGGING, SINGLE)}
    refused = evaluation.conclusion(replace(estimated, differences=worse), judged.privacy)[0]
    assert refused.startswith("Do not deploy: ")
    assert "This holds only if what was shown depended on the features alone, as propensities are estimated" in refused
    unknown = evaluation.conclusion(replace(estimated, differences={}), judged.privacy)[0]
    assert unknown.startswith("No verdict: ")
    assert "holds only if" not in unknown, "nothing was said that could hold"
    assert "estimated" not in " ".join(judged.verdict)


def test_a_log_is_judged_under_the_very_configuration(judged, place):
    config, _ = read_draft(place / "shop.yaml")
    replayed = load(place / "replayed").config
    for name in ("arms", "context", "release", "named_items", "expected_items", "click_rate", "exploration"):
        assert getattr(replayed, name) == getattr(config, name)
    assert replayed.slot.after_interactions == config.slot.after_interactions
    assert not replayed.measurement.counts
    assert judged.privacy.lift is not None, "the deployment measures, and that costs a person something, too"
    assert judged.privacy.together == guarantee_of(config).together
    learning = {CONDITION_NAMES[one] for one in ("cold", "warm_private")}
    fixed = {"random", "popular", "non-private", "nonlinear", "logged"}
    assert {row["policy"] for row in judged.rows.plain} == learning | fixed
    assert {check.status for check in judged.verify.values()} == {"equal"}
    assert judged.privacy.epsilon_micro == 1_000_000
    first = {"deploy": "Deploy: ", "more users first": "Get more users first: ", "no gain shown": "No gain is shown: "}
    assert judged.verdict[0].startswith(first[judged.details["gains"]["advice"]])
    assert judged.details["gains"]["left"] is None, "trees and additive model differ on fewer than 30 effective rows"
    assert "in too few rows to compare" in " ".join(judged.verdict)


def test_a_verdict_rests_on_five_draws_of_noise_and_says_how_far_they_differ(judged):
    """It rested on one, in which another seed's model may earn a tenth more or less."""
    draws, earned = (judged.details["gains"][name] for name in ("draws", "rewards"))
    assert len(set(draws)) == 5
    assert np.mean(draws) == pytest.approx(earned["warm_private"])
    said = f"by draw it earns {min(draws):.4f} to {max(draws):.4f} a decision."
    assert said in " ".join(judged.verdict)


def test_contributors_are_shown_what_was_logged_and_each_of_them_sends_a_slot(judged):
    # 175 of 250 users contribute, each with six rows, as many as a slot is due after.
    assert judged.facts["users who contributed"] == 175
    assert judged.counts["other_arm"] > 500
    assert judged.counts["records_reports"] >= 175


def test_the_page_ends_with_how_the_deployment_goes_live(judged, place, tmp_path):
    files = write(judged, tmp_path / "found")
    page = unescape(next(path for path in files if path.suffix == ".html").read_text(encoding="utf-8"))
    last = page.index('id="deploy"')
    assert last > max(page.index(f'id="{other}"') for other in ("plots", "compared", "guarantee"))
    prepared, added = f"prepare {place / 'shop.yaml'} shop/", "hushstream items add bag hat pen --deployment shop/"
    for said in ("Confirm first", "features.age.range", f"hushstream {prepared}", added, "deployment: shop"):
        assert said in page[last:]
    advised = judged.details["gains"]["advice"] == "deploy"
    assert ("The log does not advise to deploy this" in page[last:]) == (not advised)
    assert not advised or evaluation.PLAN_OF in judged.ending
    assert advised or "beat no learning" not in page + judged.ending, "no forecast beside a log that shows no gain"
    assert "hushstream worker aggregator --deployment shop/" in judged.ending
    assert ("HUSHSTREAM__MODE=shadow" in judged.ending) == (not advised), "a longer log is collected in shadow mode"
    found = json.loads(json.dumps(document(judged), allow_nan=False))
    assert "features.age.range" in found["deploy"]["unconfirmed"]
    assert (found["deploy"]["plan"] is not None) == advised


def test_a_forecast_that_the_log_contradicts_is_not_given(place):
    """Of a log of digits whose users saw another digit each time, it "will not" beat what it beat by .037 to .073."""
    deployment = evaluation.evaluated_deployment(place / "shop.yaml")
    options = evaluation.EvaluateOptions(log=place / "log.csv", mapping=place / "map.yaml")
    log = evaluation.read_log(options, deployment.schema)
    for own, said in ((None, evaluation.PLAN_OF), (Interval(0.98, 0.99), "No forecast: ")):
        found = deployment.live(log, True, own, evaluation.measured_spreads(log, 0))
        assert (said in found["ending"], found["details"]["deploy"]["plan"] is None) == (True, own is not None)


_OF_DEVICES = {
    "kind": "edge",
    "items": {"capacity": 3},
    "slot": {"after_interactions": 6},
    "measurement": {},
}
"""A whole deployment whose learners are on devices: its slots are sealed, its items numbered."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": {"capacity": 2, "named": True}}, "items.capacity: expected at least the log's 3, got 2"),
        ({"items": {"capacity": 4}}, "items.capacity: expected the log's 3, got 4"),
        ({"slot": {"after_interactions": 7}}, "slot.after_interactions: expected at most 6, as no contributor has"),
        ({"features": {"dimension": 3}, "feedback": {}, "items": {"capacity": 3}}, "expected a deployment of p2b that"),
        (_OF_DEVICES, "kind: expected hosted"),
        ({"shoe": 1}, "shoe: there is no such key"),
        ({"release": {"window_units": 251}}, "release.window_units: a window closes at 251 .* nothing would ever be"),
    ],
)
def test_a_deployment_that_does_not_fit_the_log_is_refused(place, tmp_path, changes, message):
    with pytest.raises(HushstreamError, match=message):
        _judge(place, deployment=_changed(place, tmp_path, **changes))


def test_a_model_of_a_window_that_live_stays_open_longer_is_said_to_be_one(judged, place, tmp_path):
    """Their end closes windows: "Deploy" was said of a window that contributors' reports do not fill."""
    slow = _judge(place, deployment=_changed(place, tmp_path, release={"window_units": 176}))
    assert slow.verdict[0].endswith(
        "It is from 175 reports, whose window closed at their end; live, none closes before 176."
    )
    assert "live, none closes" not in judged.verdict[0]


def test_a_replay_whose_users_owe_no_report_is_refused_at_once():
    with pytest.raises(
        HushstreamError, match=r"slot\.after_interactions: expected at most 3, .* got 4: nothing would ever"
    ):
        run_p2b(P2BOptions(**{**SMALL, "config": {**SMALL["config"], "slot": {"after_interactions": 4}}}))


def test_a_replay_with_a_window_of_ones_own_says_when_live_none_would_close():
    """The end of phase 0 closes a window of any size; of 60 users 42 contribute."""
    found = [
        run_p2b(P2BOptions(**{**SMALL, "config": {**SMALL["config"], "release": {"window_units": size}}})).remarks
        for size in (42, 43)
    ]
    assert ["none closes before 43." in " ".join(one) for one in found] == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"privacy": {"epsilon": 2}}}, "deployment: expected a log of your own and no further setting"),
        ({"conditions": ("warm_nonprivate",)}, "conditions: expected some of cold, warm_private, got warm_nonprivate"),
    ],
)
def test_what_goes_against_the_deployment_is_refused(place, options, message):
    with pytest.raises(HushstreamError, match=message):
        _judge(place, **options)


MAPPING = {"arm": "offer", "arms": list(ITEMS), "reward": "bought"}


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("old", "line 3, column age: expected a number such as 1234.5"),
        ("1e999", "line 3, column age: expected a finite number, got another value"),
    ],
)
def test_a_cell_that_is_no_value_of_its_feature_is_named_by_row_and_column_never_shown(tmp_path, cell, message):
    path = tmp_path / "log.csv"
    path.write_text(f"age,offer,bought\n30,bag,1\n{cell},hat,0\n", encoding="utf-8")
    mapping = table_mapping({**MAPPING, "features": {"age": {"kind": "number", "range": [16, 96]}}})
    with pytest.raises(LogError, match=message) as raised:
        list(stream_table(path, mapping))
    assert cell not in str(raised.value).replace("finite", "")


def test_rows_become_what_an_application_would_tell_and_what_a_learner_sees(tmp_path):
    declared = {
        "age": {"kind": "number", "range": [0, 100], "nodes": 2, FROM_ROWS: ["range"]},
        "member": {"kind": "boolean"},
        "hour": {"kind": "time_of_day"},
        "likes": {"kind": "tags", "vocabulary": ["art", "tea"], "most": 2},
    }
    path = tmp_path / "log.csv"
    path.write_text("age,member,hour,likes,offer,bought\n25,yes,13:30,art;tea,bag,1\n,,7,,hat,0\n", encoding="utf-8")
    (log,) = stream_table(path, table_mapping({**MAPPING, "features": declared}))
    assert log.visits.tolist() == [
        {"age": 25.0, "member": True, "hour": "13:30", "likes": ["art", "tea"]},
        {"age": None, "member": None, "hour": 7.0, "likes": None},
    ]
    schema = declare(without_marks(declared))
    assert log.schema == schema
    names = schema.cell_names()
    seen = [{name: round(float(one), 3) for name, one in zip(names, row, strict=True) if one} for row in log.contexts]
    age = next(block for block in schema.table if block.name == "age")
    assert log.contexts[0, age.first_cell : age.first_cell + 2].tolist() == pytest.approx([0.75, 0.25], abs=1e-4)
    assert seen[0]["likes: art"] == seen[0]["likes: tea"] == 0.707
    assert seen[1]["age: missing"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": ["age"]}, "unknown key context"),
        ({"features": {"age": {"kind": "size"}}}, "mapping: features"),
    ],
)
def test_a_mapping_that_declares_features_wrongly_is_refused(changes, message):
    declared = {"age": {"kind": "number", "range": [0, 100]}}
    with pytest.raises(LogError, match=message):
        table_mapping({**MAPPING, "features": declared, **changes})


def test_rewards_between_the_levels_are_told(place, tmp_path):
    rewards = np.where(np.array(_table()["bought"]) == 1, 0.2, 0.0)
    rewards[0] = 1.0
    polars.DataFrame({**_table(), "bought": rewards}).write_csv(tmp_path / "log.csv")
    graded = (place / "shop.yaml").read_text("utf-8").replace("feedback:", "feedback:\n  reward_levels: 5")
    (tmp_path / "graded.yaml").write_text(graded, encoding="utf-8")
    off = int((rewards == 0.2).sum())
    said = f"{off:,} OF {ROWS:,} REWARDS LIE BETWEEN LEVELS AND ARE ROUNDED DOWN (feedback.reward_levels: 1)"
    assert said in _judge(place, log=tmp_path / "log.csv").warnings
    found = _judge(place, log=tmp_path / "log.csv", deployment=tmp_path / "graded.yaml").warnings
    assert not any("REWARDS" in one for one in found)


@pytest.mark.parametrize("key", ["user", "arm", "reward", "propensity"])
@pytest.mark.parametrize("form", ["declared", "features"])
def test_a_column_that_no_learner_may_see_is_no_feature(key, form):
    """A feature that is the reward tells every learner the answer, and the own learning wins without a word."""
    number = {"kind": "number", "range": [0, 1]}
    forms = {"declared": {}, "features": {"features": {"seen": number}}}
    given = {**MAPPING, **forms[form], key: "seen"}
    with pytest.raises(LogError, match=f"{key}: expected a column that is no feature, got seen"):
        table_mapping(given, declare({"seen": number}) if form == "declared" else None)


def test_a_mapping_of_a_judged_deployment_declares_nothing_itself():
    schema = declare({"age": {"kind": "number", "range": [0, 100]}})
    assert table_mapping(MAPPING, schema).columns == ("age", "offer", "bought")
    with pytest.raises(LogError, match="features: expected none, as the deployment declares them"):
        table_mapping({**MAPPING, "features": {"age": {"kind": "boolean"}}}, schema)


# A comparison has one deployment, which holds nothing in clear; the model without privacy is computed beside it.

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
    assert all(check.changed == 0 for check in result.verify.values())


def test_what_is_without_privacy_is_computed_here_and_says_so(live):
    folder, result = live
    assert result.marks == ()
    assert result.label.endswith(f"shared, non-private: {NOT_PRIVATE}")
    assert not list(folder.glob("*/deployment.yaml")), "there is one deployment"


def test_users_without_privacy_learn_as_linucb_does_from_all_that_contributors_did():
    world = make_world("synthetic", users=20, rounds=5, dimension=4, arms=3, seed=2)
    users, new = np.arange(12), np.arange(12, 20)
    chosen = np.random.default_rng(1).integers(0, 3, (12, 5))
    rewards = np.stack([world.rewards(users, turn, chosen[:, turn]) for turn in range(5)], axis=1)
    kernel, shared = LinUCB(3, 4, 0.5), LinUCBModel.cold(3, 4, 2.0).state()
    for user, turn in np.ndindex(12, 5):
        context = world.contexts(users[user : user + 1], turn)[0]
        kernel.learn(shared, context, int(chosen[user, turn]), float(rewards[user, turn]))
    expected = np.zeros((8, 5))
    for row, user in enumerate(new):
        state = shared.fork()
        for turn in range(5):
            one = np.array([user])
            context = world.contexts(one, turn)[0]
            arm = int(kernel.scores(state, context).argmax())
            expected[row, turn] = world.rewards(one, turn, np.array([arm]))[0]
            kernel.learn(state, context, arm, expected[row, turn])
    prior = clear_sums_of(world, users, chosen, rewards, ridge=2.0).prior(alpha=0.5)
    np.testing.assert_array_equal(clear_rewards(world, prior, new, 1), expected)


def test_users_without_privacy_are_shown_what_they_may_be_shown():
    world = make_world("synthetic", users=9, rounds=3, dimension=4, arms=3, seed=2)
    users, nothing = np.arange(9), np.zeros((9, 0))
    prior = clear_sums_of(world, users, nothing.astype(np.int64), nothing).prior()
    only = SimpleNamespace(
        arms=3, rounds=3, contexts=world.contexts, rewards=world.rewards, eligible=lambda users, turn: [b"\x02"] * 9
    )
    expected = np.stack([world.rewards(users, turn, np.ones(9, np.int64)) for turn in range(3)], axis=1)
    np.testing.assert_array_equal(clear_rewards(only, prior, users, 1), expected)


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
    marked = (tmp_path / "one" / "public-dataset.json").read_text(encoding="utf-8")
    assert json.loads(marked) == {"dataset": "synthetic"}
    assert one.rows["own learning only"] == two.rows["own learning only"], "they meet the same world and coins"
