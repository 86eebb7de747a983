"""When a step of the counter ends, which rewards count, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rig(related):
    return related.CounterRig()


# What ends a step.


def test_a_step_is_released_when_its_rows_have_come(related, rig):
    rows = related.some_rewards(1, 9)
    for number, row in enumerate(rows):
        rig.rewards(number, [row])
    seen = rig.fold()
    assert [record["rows"] for record in seen.journals] == [4, 4]
    assert [record["closed_by"] for record in seen.journals] == ["rows", "rows"]
    assert [release["leaf"] for release in rig.released(seen)] == [1, 2]
    assert seen.counts["reward_taken"] == 9


def test_a_record_is_taken_whole_so_a_step_may_have_more_rows(related, rig):
    rig.rewards(0, related.some_rewards(1, 3))
    rig.rewards(1, related.some_rewards(2, 6))
    assert [record["rows"] for record in rig.fold().journals] == [9]


def test_a_phase_end_ends_the_step_once_all_learner_partitions_have_sent_it(related):
    rig = related.CounterRig(related.make_system(partitions={"learner": 3}))
    rig.rewards(0, related.some_rewards(1, 2))
    for origin in (0, 0, 2):
        rig.end_phase(0, origin)
    assert not rig.fold().journals
    rig.end_phase(0, origin=1)
    (record,) = rig.fold().journals
    assert (record["closed_by"], record["rows"]) == ("seal", 2)
    rig.rewards(1, related.some_rewards(2, 1))
    rig.end_phase(0, origin=1)
    assert not rig.fold().journals, "that phase had ended before"


def test_a_phase_end_without_rows_releases_nothing(rig):
    rig.end_phase(0)
    seen = rig.fold()
    assert not seen.journals
    assert seen.counts == {"seal": 1}


def test_log_time_ends_a_step_and_ticks_carry_it_on(related):
    rig = related.CounterRig(related.releasing(seconds=60.0))
    assert rig.machine.tick(10**9) is None, "no step is open"
    rig.rewards(0, related.some_rewards(1, 1))
    rig.fold()
    assert rig.machine.tick(59_999) is None
    tick = rig.machine.tick(60_000)
    rig.wait(59.999)
    rig.put(tick.topic, tick.value, tick.partition)
    assert not rig.fold().journals
    rig.wait(0.001)
    for _ in range(3):
        rig.put(tick.topic, tick.value, tick.partition)
    seen = rig.fold()
    assert [(record["closed_by"], record["rows"]) for record in seen.journals] == [("time", 1)]
    assert seen.counts["tick"] == 3
    assert rig.machine.tick(10**9) is None


def test_without_a_time_limit_no_tick_is_asked_for(related, rig):
    rig.rewards(0, related.some_rewards(1, 1))
    rig.fold()
    rig.wait(10**6)
    rig.tick()
    assert not rig.fold().journals
    assert rig.machine.tick(10**9) is None


# What counts.


def test_a_batch_that_is_sent_twice_counts_once_also_in_a_later_step(related, rig):
    one, two = related.some_rewards(1, 2), related.some_rewards(2, 4)
    for number, rows in ((0, one), (0, one), (1, two), (0, one), (1, two), (2, one)):
        rig.rewards(number, rows)
    seen = rig.fold()
    assert seen.counts["repeated_rewards"] == 3
    assert seen.counts["reward_taken"] == 8
    assert [record["rows"] for record in seen.journals] == [6]


def test_rewards_beyond_a_users_allowance_do_not_count(related):
    rig = related.CounterRig(related.make_system(release={"rows": 2, "horizon": 8, "rewards_per_user": 3}))
    row = related.some_rewards(1, 1)[0]
    ann = [(0, row[1], 1.0)]
    rig.rewards(0, ann * 2)
    rig.rewards(1, ann * 3)
    rig.rewards(2, [(1, row[1], 1.0)])
    rig.rewards(3, ann)
    seen = rig.fold()
    assert seen.counts["reward_taken"] == 4
    assert seen.counts["allowance_spent"] == 3
    assert [record["rows"] for record in seen.journals] == [2, 2]
    nodes = [np.frombuffer(release["nodes"], "<i4").tolist() for release in rig.released(seen)]
    assert nodes == [[0, 0], [0, 1]]
    rig.rewards(4, ann)
    rig.end_phase(0)
    assert not rig.fold().journals, "no step opens for rows that do not count"


@pytest.mark.parametrize("horizon", [5, "auto"])
def test_a_user_may_use_the_whole_horizon(related, horizon):
    rig = related.CounterRig(related.make_system(release={"rows": 1, "horizon": horizon, "rewards_per_user": 5}))
    row = related.some_rewards(1, 1)[0]
    for number in range(7):
        rig.rewards(number, [(2, row[1], 1.0)])
    seen = rig.fold()
    assert len(rig.released(seen)) == 5
    assert seen.counts["allowance_spent"] == 2


NAN, INF = float("nan"), float("inf")
SHORT = [0.5, 0.5, 0.5]
BAD = {
    "reward above 1": ([(0, SHORT, 1.5)], {}, "malformed_rewards"),
    "negative reward": ([(0, SHORT, -0.1)], {}, "malformed_rewards"),
    "reward not a number": ([(0, SHORT, NAN)], {}, "malformed_rewards"),
    "infinite reward": ([(0, SHORT, INF)], {}, "malformed_rewards"),
    "unknown node": ([(3, SHORT, 1.0)], {}, "malformed_rewards"),
    "negative node": ([(-1, SHORT, 1.0)], {}, "malformed_rewards"),
    "feature not a number": ([(0, [NAN, 0, 0], 1.0)], {}, "malformed_rewards"),
    "infinite feature": ([(0, [INF, 0, 0], 1.0)], {}, "malformed_rewards"),
    "features too long": ([(0, [1.0, 0.1, 0.0], 1.0)], {}, "malformed_rewards"),
    "one bad row of two": ([(0, SHORT, 1.0), (0, SHORT, 2.0)], {}, "malformed_rewards"),
    "no rows": ([(0, SHORT, 1.0)], {"nodes": b"", "contexts": b"", "rewards": b""}, "malformed_rewards"),
    "other dimension": ([(0, [0.1, 0.1], 1.0)], {}, "malformed_rewards"),
    "columns of other lengths": ([(0, SHORT, 1.0)], {"rewards": bytes(16)}, "malformed_rewards"),
    "half a node": ([(0, SHORT, 1.0)], {"nodes": bytes(6)}, "malformed_rewards"),
    "too many rows": ([(0, SHORT, 1.0)] * 257, {}, "malformed_rewards"),
    "another configuration": ([(0, SHORT, 1.0)], {"config_digest": bytes(16)}, "other_configuration"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rewards_are_a_dead_letter_with_their_reason_and_leave_the_sums_alone(related, name):
    rows, changes, reason = BAD[name]
    good = related.some_rewards(1, 4)
    clean, rig = related.CounterRig(), related.CounterRig()
    for each in (clean, rig):
        each.rewards(0, good[:2])
        if each is rig:
            each.rewards(7, rows, **changes)
        each.rewards(1, good[2:])
    seen = rig.fold()
    assert seen.reasons == [reason]
    (letter,) = seen.letters
    assert (letter["zone"], letter["role"], letter["topic"], letter["offset"]) == ("counter", "counter", "rewards", 1)
    assert seen.counts["reward_taken"] == 4
    assert seen.releases("releases") == clean.fold().releases("releases")


@pytest.mark.parametrize(("features", "taken"), [([0.5, 0.5, 0.0], 1), ([0.6, 0.6, 0.0], 0), ([-0.6, 0.6, 0.0], 0)])
def test_features_beyond_the_l1_bound_are_refused_though_their_l2_length_is_allowed(related, features, taken):
    """Laplace noise is sized by it."""
    rig = related.CounterRig(related.make_system(features={"norm_l1": 1.0}))
    rig.rewards(0, [(0, features, 1.0)])
    seen = rig.fold()
    assert seen.counts["reward_taken"] == taken
    assert seen.reasons == ["malformed_rewards"] * (1 - taken)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not_single_object"),
        (b"no record at all", "not_single_object"),
        (b"\xc3\x01" + b"\x55" * 12, "unknown_fingerprint"),
        (b"\xc3\x01" + bytes(1 << 21), "too_large"),
    ],
)
def test_what_is_no_record_is_a_dead_letter(related, rig, value, reason):
    rig.put("rewards", value)
    rig.rewards(0, related.some_rewards(1, 4))
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert len(rig.released(seen)) == 1


def test_phase_ends_of_unknown_partitions_and_of_other_configurations_end_nothing(related, rig):
    rig.rewards(0, related.some_rewards(1, 1))
    rig.end_phase(0, origin=1)
    rig.end_phase(0, origin=-1)
    rig.end_phase(-1)
    rig.end_phase(0, digest=bytes(16))
    seen = rig.fold()
    assert seen.reasons == ["unknown_origin"] * 3 + ["other_configuration"]
    assert not seen.journals
