"""The Open Bandit adapter on a made-up log in the published layout, and on the real one."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.obd import load_obd

HEADER = (
    ",timestamp,item_id,position,click,propensity_score,"
    "user_feature_0,user_feature_1,user_feature_2,user_feature_3,user-item_affinity_0\n"
)


def _write(folder, policy: str, rows: str):
    path = folder / policy / "men" / "men.csv"
    path.parent.mkdir(parents=True)
    path.write_text(HEADER + rows, encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    _write(
        tmp_path,
        "random",
        "0,2019-11-24 00:00:17.004101+00:00,33,2,0,0.0294,f0,a,x,q,0.0\n"
        "1,2019-11-24 00:00:18+00:00,0,1,1,0.0294,e0,a,y,q,0.0\n",
    )
    _write(tmp_path, "bts", "0,2019-11-24 00:00:19+00:00,5,3,1,0.5,d0,b,x,q,0.0\n")
    return tmp_path


def test_rows_become_columns(folder):
    log = load_obd(folder, policy="random", campaign="men")
    assert log.name == "obd/random/men"
    assert log.arms == 34
    assert log.chosen.tolist() == [33, 0]
    assert log.positions.tolist() == [2, 1]
    assert log.rewards.tolist() == [0.0, 1.0]
    assert log.propensities.tolist() == [0.0294, 0.0294]
    assert log.timestamps_ms.tolist() == [1_574_553_617_004, 1_574_553_618_000]


def test_both_policies_share_one_code_of_user_features(folder):
    random, bts = load_obd(folder, "random", "men"), load_obd(folder, "bts", "men")
    # Sorted values d0 e0 f0 | a b | x y | q: eight columns.
    assert random.contexts.tolist()[0] == [0, 0, 0.25, 0.25, 0, 0.25, 0, 0.25]
    assert bts.contexts.tolist()[0] == [0.25, 0, 0, 0, 0.25, 0.25, 0, 0.25]
    assert np.allclose(random.contexts.sum(axis=1), 1.0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "the log has no rows"),
        ("0,2019-11-24 00:00:17+00:00,1\n", "line 2: expected 11 fields, got 3"),
        ("0,2019-11-24 00:00:17+00:00,one,2,0,0.1,a,b,c,d,0.0\n", "line 2: expected a time, three integers"),
        ("0,2019-11-24 00:00:17+00:00,34,2,0,0.1,a,b,c,d,0.0\n", r"every arm must be in 0\.\.33"),
        ("0,2019-11-24 00:00:17+00:00,3,2,0,0.0,a,b,c,d,0.0\n", r"every propensity must be in \(0, 1\]"),
    ],
)
def test_a_wrong_log_is_refused(tmp_path, rows, message):
    _write(tmp_path, "random", rows)
    with pytest.raises(LogError, match=message):
        load_obd(tmp_path, "random", "men")


def test_unknown_logs_are_refused(folder):
    with pytest.raises(LogError, match="expected policy in"):
        load_obd(folder, policy="greedy")
    with pytest.raises(LogError, match="expected a readable log"):
        load_obd(folder, policy="random", campaign="women")


def test_the_real_logs_have_their_published_clicks(data_folder):
    folder = data_folder / "open-bandit-small"
    clicks = {
        (policy, c): load_obd(folder, policy, c).rewards.sum() for policy in ("random", "bts") for c in ("all", "men")
    }
    assert clicks == {("random", "all"): 38, ("random", "men"): 46, ("bts", "all"): 42, ("bts", "men"): 69}
