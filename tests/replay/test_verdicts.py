"""What an evaluation says first: what the private start earns, and the best policy; or that too few rows tell."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.replay.logged.gains import Gain, Gains, gains
from hushstream.replay.logged.intervals import Interval
from hushstream.replay.logged.log import LoggedDataset
from hushstream.replay.report.results import StatedGuarantee
from hushstream.replay.studies.p2b.evaluation.run import one_arm
from hushstream.replay.studies.p2b.evaluation.verdict import relative_gain, verdict

ARMS, USERS, ROWS = 3, 60, 10
TASTES = np.array([0.4, 0.3, 0.3])
PROMISED = StatedGuarantee.of(slot_sums_guarantee(epsilon=1))


def _log(seed: int, users: int = USERS) -> LoggedDataset:
    """Ten rows a user, whose one favourite arm earns .9 and every other .1; arms are shown at random."""
    draw = np.random.default_rng(seed)
    favourite = np.repeat(draw.choice(ARMS, users, p=TASTES), ROWS)
    shown = draw.integers(0, ARMS, users * ROWS)
    return LoggedDataset(
        name="tastes",
        arms=ARMS,
        users=np.repeat([f"u{user}" for user in range(users)], ROWS),
        timestamps_ms=np.arange(users * ROWS),
        contexts=np.ones((users * ROWS, 1), dtype=np.float32),
        chosen=shown,
        rewards=(draw.random(users * ROWS) < np.where(shown == favourite, 0.9, 0.1)).astype(np.float64),
        propensities=np.full(users * ROWS, 1 / ARMS),
    )


def _judged(log: LoggedDataset) -> Gains:
    policies = {f"arm {arm}": one_arm(np.full(len(log), arm), ARMS) for arm in range(ARMS)}
    return gains(log, policies, np.full((len(log), ARMS), 0.4), ("arm 1", "arm 0"))


def test_the_intervals_of_all_gains_hold_at_once_in_95_of_100_logs():
    """400 logs: at 95 % fewer than 366 hold with a chance of 2e-3, and the seeds are fixed. Taking a user's rows for
    independent ones leaves 61 %, and intervals of 95 % each 86 %."""
    gain = 0.1 + 0.8 * TASTES - (0.1 + 0.8 / ARMS)
    held = 0
    for seed in range(400):
        found = {one.policy: one for one in _judged(_log(seed)).evaluated}
        held += all(
            found[f"arm {arm}"].interval.low <= gain[arm] <= found[f"arm {arm}"].interval.high for arm in range(ARMS)
        )
    assert held >= 366


def test_gains_are_differences_of_paired_rows_and_what_is_kept_is_their_ratio():
    log = _log(1, users=300)
    found = _judged(log)
    means = {f"arm {arm}": log.rewards[log.chosen == arm].mean() for arm in range(ARMS)}
    assert found.logged == log.rewards.mean()
    assert [one.policy for one in found.evaluated] == sorted(means, key=lambda name: -means[name])
    for one in found.evaluated:
        assert one.gain == pytest.approx(one.value - found.logged, abs=1e-12)
    kept, interval = found.kept
    values = {one.policy: one.value for one in found.evaluated}
    assert kept == pytest.approx(values["arm 1"] / values["arm 0"])
    assert interval.low < kept < interval.high


@pytest.mark.parametrize("users", [1, 5])
def test_too_few_rows_or_one_user_alone_give_no_verdict(users):
    found = _judged(_log(2, users=users))
    assert (found.evaluated, found.kept) == ((), None)
    assert set(found.left_out) == {"arm 0", "arm 1", "arm 2"}
    said = verdict(found, PROMISED)
    assert said.startswith(f"No verdict: too few of the {users * ROWS} rows show")
    assert "better than the logged one" in said
    assert relative_gain(found) == ""


def _gain(policy: str, gain: float, within: float) -> Gain:
    return Gain(policy, 0.05 + gain, gain, Interval(gain - within, gain + within))


@pytest.mark.parametrize(
    ("gain", "within", "said"),
    [
        (0.01, 0.004, "0.0600 a decision, 0.0100 (20 %) more than the logged policy's 0.0500; "),
        (0.01, 0.004, "95 % interval +0.0060 to +0.0140, all of it a gain."),
        (0.01, 0.02, "-0.0100 to +0.0300, there may be no gain."),
        (-0.01, 0.004, "0.0100 (20 %) less than the logged policy's 0.0500; "),
        (-0.01, 0.004, "-0.0140 to -0.0060, all of it a loss."),
    ],
)
def test_a_verdict_names_the_best_its_gain_and_whether_there_may_be_none(gain, within, said):
    best, other = _gain("popular", gain, within), _gain("cold", gain - 0.1, within)
    found = verdict(Gains(0.05, 900, (best, other), {}, None), PROMISED)
    assert found.startswith("The best of 2 policies is “popular”: ")
    assert said in found


def test_a_verdict_says_what_the_private_start_gains_and_keeps_and_whom_too_few_rows_tell_of():
    private, exact = _gain("warm_private", 0.01, 0.02), _gain("warm_nonprivate", 0.02, 0.004)
    kept = (6 / 7, Interval(0.8, 0.9))
    found = verdict(Gains(0.05, 900, (exact, private), {"cold": (12.0, 3)}, kept), PROMISED)
    first = f"The private start, “warm, private”, earns 0.0600 a decision, {PROMISED.phrase}. "
    assert found.startswith(f"{first}That is 0.0100 (20 %) more than the logged policy's 0.0500; ")
    assert "The best of 2 policies is “warm, NOT PRIVATE”: 0.0700" in found
    assert "it keeps 86 % (95 % interval 80 % to 90 %) of the reward of “warm, NOT PRIVATE”." in found
    assert found.endswith("Too few rows for “cold”.")
    assert relative_gain(Gains(0.05, 900, (exact, private), {}, kept)) == "+20 %", "the private one's"
    assert relative_gain(Gains(0.0, 900, (exact, private), {}, kept)) == ""


def test_a_private_start_that_too_few_rows_tell_of_is_said_first_and_gives_no_figure():
    judged = Gains(0.05, 900, (_gain("popular", 0.01, 0.004),), {"warm_private": (12.0, 3)}, None)
    found = verdict(judged, PROMISED)
    assert found.startswith("The reward of the private start is not known: of 900 rows it has 12 effective ones, 3 of ")
    assert relative_gain(judged) == ""
