"""The log of another policy through the very same agents: what is fed back, what is estimated, what is refused."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from described import described

from hushstream.agents.worker.deployment import parse_config
from hushstream.client.client import Client
from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.logged.mapping import table_mapping
from hushstream.replay.logged.table import stream_table
from hushstream.replay.report.replayed import document
from hushstream.replay.runners.playing import Place, play
from hushstream.replay.studies.p2b.evaluation import EvaluateOptions, LoggedLoop, LoggedPlan, evaluate_with
from hushstream.replay.studies.p2b.play import CONDITION_NAMES
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import declare

ARMS = 4
CHANCE = np.array([[0.9, 0.1, 0.1, 0.1], [0.1, 0.1, 0.9, 0.1]])
SKEWED = np.array([0.4, 0.3, 0.2, 0.1])
KEYS = {
    "user": "who",
    "timestamp": "at",
    "timestamp_unit": "ms",
    "features": {"phone": {"kind": "boolean"}},
    "arm": "shown",
    "arms": ARMS,
    "reward": "liked",
    "uniform": True,
    "data": "public",
}


def evaluate(**options):
    return evaluate_with(EvaluateOptions(**options))


def _log(rows: int, seed: int, logging: np.ndarray | None = None) -> LoggedDataset:
    """Four rows a user; who has a phone likes arm 0, who has a desk likes arm 2."""
    generator = np.random.default_rng(seed)
    logging = np.full(ARMS, 1 / ARMS) if logging is None else logging
    kind = generator.integers(0, 2, rows)
    shown = generator.choice(ARMS, rows, p=logging)
    return LoggedDataset(
        name="made-up",
        arms=ARMS,
        users=np.array([f"u{row % (rows // 4)}" for row in range(rows)]),
        timestamps_ms=np.arange(rows),
        **described(np.where(kind[:, None] == 0, [0.9, 0.1], [0.1, 0.9])),
        chosen=shown,
        rewards=(generator.random(rows) < CHANCE[kind, shown]).astype(np.float64),
        propensities=logging[shown],
    )


def _users_ending_in(log: LoggedDataset, digits: str) -> np.ndarray:
    return np.array([user[-1] in digits for user in log.users])


@pytest.fixture
def files(tmp_path):
    """A CSV of 400 rows of 100 users and its mapping, as the arguments of `evaluate`."""

    def make(changes: dict[str, object] | None = None, step_ms: int = 1, rows: int = 400) -> dict[str, object]:
        log = _log(rows, 11)
        lines = ["who,at,phone,shown,liked"]
        for row in range(rows):
            phone = "yes" if log.contexts[row, 0] > 0.5 else "no"
            lines.append(f"{log.users[row]},{row * step_ms},{phone},{log.chosen[row]},{log.rewards[row]}")
        (tmp_path / "log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (tmp_path / "mapping.yaml").write_text(json.dumps({**KEYS, **(changes or {})}), encoding="utf-8")
        return {"log": tmp_path / "log.csv", "mapping": tmp_path / "mapping.yaml"}

    return make


def _play(log: LoggedDataset, plan: LoggedPlan, tmp_path):
    values = {
        "deployment": "logged",
        "items": {"capacity": ARMS},
        "features": log.schema.plain,
        "expected_slots": 100,
        "slot": {"after_interactions": 1},
        "feedback": {"settle_seconds": 10000000.0},
    }
    system = declare(P2BSystem.declared(parse_config(values), public_dataset=True))
    return asyncio.run(play(system, Place("direct", tmp_path, None, 5), LoggedLoop(log, plan, system.requests).run))


def test_of_every_row_that_is_played_the_logged_arm_is_shown_and_its_reward_told(tmp_path):
    log = _log(400, 3)
    contributes = _users_ending_in(log, "13579")
    recording = _play(log, LoggedPlan(contributes, ("cold", "warm_private"), in_flight=7), tmp_path)
    played = recording.played.decided
    expected = {
        (f"{condition}-{row}", int(log.chosen[row]), float(log.rewards[row]))
        for condition, decided in played.items()
        for row in np.flatnonzero(decided >= 0)
    }
    clicks = [codec.decode(r.value)[1] for _, part in recording.logs.of_topic("clicks") for r in part.records]
    rewards = [click for click in clicks if click["kind"] == "reward"]
    assert {(click["event_id"], click["arm"], click["reward"]) for click in rewards} == expected
    assert len(rewards) == len(expected) == len(clicks) / 2
    assert np.array_equal(played["contributors"] >= 0, contributes)
    assert np.array_equal(played["cold"] >= 0, ~contributes)


def test_a_users_next_row_waits_for_their_last_reward_and_rows_keep_the_order_of_the_log(tmp_path):
    log = _log(80, 3)
    contributes = _users_ending_in(log, "13")
    recording = _play(log, LoggedPlan(contributes, ("cold",), in_flight=64), tmp_path)
    clicks = {codec.decode(r.value)[1]["event_id"]: r.offset for r in recording.logs.part(("clicks", 0)).records}
    assert len(clicks) == 80
    played: dict[str, list[tuple[int, int, str]]] = {}
    for record in recording.logs.part(("contexts", 0)).records:
        name, fields = codec.decode(record.value)
        if name == "FeatureContext":
            row = int(fields["event_id"].rsplit("-", 1)[1])
            played.setdefault(fields["user"], []).append((row, fields["after_click"], fields["event_id"]))
    waited = 0
    assert len(played) == 20
    for rows in played.values():
        assert len(rows) == 4
        for (before, _, event_id), (row, after_click, _) in itertools.pairwise(rows):
            assert before < row
            assert after_click == clicks[event_id]
            waited += 1
    assert waited == 60


def test_agents_that_learn_on_a_log_earn_more_than_the_policy_that_wrote_it(files):
    # Random arms earn .3, the best .9. 480 evaluated rows of 120 users, 120 or more kept: a mean has standard
    # deviation of at most .046, so .3 against a start from the exact model is more than four of them away.
    found = evaluate(**files(rows=1600), seed=1)
    rows = {(row["policy"], row["estimator"]): row for row in found.rows.plain}
    fixed = ("SNIPS", "IPS", "DR")
    learning = (CONDITION_NAMES["warm_private"], CONDITION_NAMES["cold"])
    assert set(rows) == {
        *((policy, estimator) for policy in learning for estimator in ("replay", *fixed)),
        *((policy, estimator) for policy in ("random", "popular", "non-private", "nonlinear") for estimator in fixed),
        ("logged", "IPS"),
    }
    # The best arm for each of the two contexts earns .9, one arm for all .5, and every estimator says how sure.
    for estimator in fixed:
        assert rows["non-private", estimator]["mean_reward"] == pytest.approx(0.9, abs=0.3)
        assert rows["popular", estimator]["mean_reward"] == pytest.approx(0.5, abs=0.3)
        assert rows["popular", estimator]["ci95_low"] is not None
    warm, random = rows[CONDITION_NAMES["warm_private"], "replay"], rows["random", "SNIPS"]
    assert warm["mean_reward"] > random["mean_reward"] + 0.3
    assert warm["ci95_low"] > random["ci95_high"]
    assert random["mean_reward"] == pytest.approx(rows["logged", "IPS"]["mean_reward"])
    assert 0.15 < warm["matched_rows"] < 0.4
    assert warm["effective_sample_size"] == pytest.approx(480 * warm["matched_rows"])
    assert found.facts == {"rows": 1600, "users": 400, "users who contributed": 280}
    assert {check.status for check in found.verify.values()} == {"equal"}
    assert found.privacy.epsilon_micro == 1_000_000


@pytest.mark.process
@pytest.mark.slow
def test_direct_and_stream_decide_alike_on_a_log(files, monkeypatch):
    """With one draw of noise each: the direct runner draws several."""
    monkeypatch.setattr("hushstream.replay.studies.p2b.evaluation._DRAWS", 1)
    options = {**files(rows=200), "seed": 4, "conditions": ("warm_private",)}
    direct = evaluate(**options)
    stream = evaluate(**options, runner="stream")
    assert stream.runner == "stream"
    assert stream.rows == direct.rows
    assert {check.status for check in stream.verify.values()} == {"equal"}


def test_logged_time_is_kept_at_the_asked_speed(files):
    # 100 rows, 40 ms apart, at 8 times the speed: 0.5 s in each of the two phases, less the ends.
    options = files(step_ms=40, rows=100)
    paced = evaluate(**options, speed=8, conditions=("cold",), verify=False)
    assert paced.throughput["seconds"] > 0.8
    plain = evaluate(**options, conditions=("cold",), verify=False)
    assert plain.rows == paced.rows


def test_limit_and_from_play_fewer_rows(files):
    options = {**files(), "conditions": ("cold",), "verify": False}
    whole, short = evaluate(**options), evaluate(**options, limit=100)
    assert (whole.facts["rows"], short.facts["rows"]) == (400, 100)
    # 70 of the 100 users contribute, each four rows.
    assert whole.counts["decided"] == 400
    assert 120 < evaluate(**options, first=200).counts["decided"] < 120 + 0.7 * 280


def test_rows_out_of_time_order_are_sorted():
    log = _log(8, 1)
    shuffled = log.select(np.array([3, 1, 0, 2, 7, 5, 6, 4]))
    again = shuffled.in_time_order()
    assert np.array_equal(again.timestamps_ms, log.timestamps_ms)
    assert np.array_equal(again.chosen, log.chosen)
    assert np.array_equal(again.propensities, log.propensities)
    assert log.in_time_order() is log


def test_a_policy_of_which_nothing_was_kept_has_no_value_and_says_so(files):
    # One row with a tiny propensity makes thinning drop nearly everything.
    options = files({"uniform": False, "propensity": "p"})
    path = options["log"]
    lines = path.read_text(encoding="utf-8").splitlines()
    chances = ["1e-9" if number == 5 else "0.25" for number in range(len(lines) - 1)]
    path.write_text(
        "\n".join([lines[0] + ",p", *(f"{a},{b}" for a, b in zip(lines[1:], chances, strict=True))]), encoding="utf-8"
    )
    found = evaluate(**options, conditions=("cold",), verify=False)
    row = json.loads(json.dumps(document(found), allow_nan=False))["rows"][0]
    name = CONDITION_NAMES["cold"]
    assert (row["policy"], row["mean_reward"], row["ci95_low"]) == (name, None, None)
    assert f"{name} (replay): no row was kept: this policy cannot be evaluated." in found.remarks
    assert row["matched_rows"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "secret"}, "data: expected `data: public`"),
        ({"public": True}, "public: expected the key `data` in its place: `data: public`, .* or `data: internal`"),
        ({"arms": ["0", "0"]}, "arms: expected a list of different names"),
        ({"propensity": "p"}, "uniform: expected uniform or a propensity column, got both"),
        ({"features": {"phone": {"kind": "boolean"}, "size": {"kind": "boolean"}}}, "missing column size"),
        ({"user": None}, "user: expected a text"),
    ],
)
def test_a_log_that_cannot_be_replayed_is_refused(files, changes, message):
    with pytest.raises(LogError, match=message):
        evaluate(**files(changes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": None, "mapping": None}, "got both or neither"),
        ({"dataset": "obd"}, "got both or neither"),
        ({"mapping": None}, "expected a mapping with a log"),
        ({"contributors": 1.0}, "contributors: expected a share"),
        ({"limit": 0}, "limit: expected at least 1 row"),
        ({"limit": 1}, "expected at least 2 users"),
        ({"conditions": ("hot",)}, "conditions: expected some of cold, warm_private, got hot"),
        ({"speed": 0.0}, "speed above 0"),
        ({"runner": "bus"}, "runner: expected direct or stream, got 'bus'"),
        ({"config": {"items": {"capacity": 9}}}, "expected the log's 4 arms and features"),
        ({"config": {"public_dataset": True}}, "public_dataset: there is no such key"),
        ({"least_propensity": 0.9}, "least_propensity must be in"),
        ({"world": {"campaign": "men"}}, "options of a published log only with its dataset, got campaign"),
        ({"log": None, "mapping": None, "dataset": "nothing"}, "unknown log 'nothing'; known: obd"),
        (
            {"log": None, "mapping": None, "dataset": "ml-100k"},
            "is played by `hushstream replay p2b --dataset ml-100k`",
        ),
    ],
)
def test_an_impossible_evaluation_is_refused(files, options, message):
    with pytest.raises(HushstreamError, match=message):
        evaluate(**{**files(), **options})


def test_uniform_propensities_count_the_eligible_arms(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("x,shown,liked,offered\nyes,0,0,0|1\nno,2,1,0|1|2|3\n", encoding="utf-8")
    keys = {
        "features": {"x": {"kind": "boolean"}},
        "arm": "shown",
        "arms": 4,
        "reward": "liked",
        "eligible": "offered",
        "uniform": True,
    }
    (log,) = stream_table(path, table_mapping(keys))
    assert log.propensities.tolist() == [0.5, 0.25]


def test_only_eligible_arms_are_decided(tmp_path):
    log = _log(80, 2)
    eligible = np.zeros((80, ARMS), dtype=bool)
    eligible[np.arange(80), log.chosen] = eligible[np.arange(80), (log.chosen + 1) % ARMS] = True
    limited = replace(log, propensities=None, eligible=eligible)
    plan = LoggedPlan(_users_ending_in(log, "1"), ("cold",))
    decided = _play(limited, plan, tmp_path).played.decided["cold"]
    rows = np.flatnonzero(decided >= 0)
    assert rows.size == 72
    assert eligible[rows, decided[rows]].all()


def test_a_failure_ends_the_replay_with_its_own_message(tmp_path, monkeypatch):
    log = _log(80, 2)

    async def refuse(self, *arguments, **options):
        raise HushstreamError("the broker went away")

    monkeypatch.setattr(Client, "decide", refuse)
    with pytest.raises(HushstreamError, match="the broker went away"):
        _play(log, LoggedPlan(_users_ending_in(log, "1")), tmp_path)


def test_the_real_random_log_matches_about_one_row_in_34(data_folder):
    # 2,000 rows, some 600 of them evaluated: each matches with probability 1/34, whatever the policy knows.
    found = evaluate(
        dataset="obd",
        data_dir=data_folder,
        world={"campaign": "men"},
        conditions=("cold",),
        limit=2000,
        verify=False,
    )
    cold = found.rows.plain[0]
    matched = cold["effective_sample_size"]
    expected = matched / cold["matched_rows"] / 34
    assert abs(matched - expected) < 5 * np.sqrt(expected)
    assert any("rewarded rows" in remark for remark in found.remarks)
