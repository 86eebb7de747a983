"""In the shadow: what was answered is counted by item and agreement, and what leaves is noised and tells the lift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hushstream.engine.values import ConfigurationError
from hushstream.schemas import codec
from hushstream.systems.p2b.lift import SUMS, LiftCounter, lift_tree, required_lift
from hushstream.systems.p2b.reports.shadow_report import ShadowReport, shadow_of
from hushstream.systems.p2b.system import declare

SHADOW = {"epsilon": 20.0, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 8}
ARMS = 5


@pytest.fixture
def rig(rigs: Any) -> Any:
    return rigs.LearnerRig(rigs.make_system(shadow=SHADOW, slot={"after_interactions": 100}))


def noise(rig: Any) -> NDArray[np.int64]:
    """Of the first release."""
    lift, levels, items = required_lift(rig.system.config)
    address = rig.system.lift_address(rig.machine.chain.genesis_nonce, 0)
    return LiftCounter(lift, levels, 5000, rig.key.derive("lift"), address, items).release(0).sums


def play(rigs: Any, rig: Any, rounds: int) -> NDArray[np.int64]:
    """Four users ask; every other time the answer is shown, every third time it is rewarded. The sums by hand."""
    sums = np.zeros((ARMS, SUMS), dtype=np.int64)
    for number in range(rounds):
        for user in ("ann", "bob", "cat", "dan"):
            event, at = f"{user}:{number}", number + len(user) + ord(user[0])
            answered = rig.decide(event, user, rigs.point(at))
            own = answered if at % 2 else (answered + 1) % ARMS
            rig.shown(event, own, user)
            if at % 3 == 0:
                rig.reward(event, own, 1.0, user)
            if number < SHADOW["decisions_per_user"]:
                sums[answered, (0 if at % 2 else 2) + (at % 3 != 0)] += 1
        rig.fold()
    return sums


def test_what_leaves_are_the_sums_by_answer_agreement_and_reward_with_the_counters_noise(rigs: Any, rig: Any) -> None:
    by_hand = play(rigs, rig, rounds=7)
    assert by_hand.sum() == 20, "the first five decisions of each count"
    rig.wait(6)
    rig.decide("later", "tick", rigs.point(0))
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    released = np.frombuffer(record["sums"], "<i8") - noise(rig)
    assert released.reshape(ARMS, SUMS).tolist() == by_hand.tolist()
    (entry,) = rig.seen.records("ledger-edge", "LedgerEntry")
    promise = rig.system.promises.lift
    assert promise is not None
    assert entry["debit"]["epsilon_micro"] == promise.epsilon_micro == 20_000_000
    assert lift_tree(*required_lift(rig.system.config)).dimension == ARMS * SUMS


@pytest.mark.parametrize("through_a_snapshot", [False, True])
def test_what_waits_of_a_user_who_is_forgotten_is_never_counted(rigs: Any, rig: Any, through_a_snapshot: bool) -> None:
    by_hand = play(rigs, rig, rounds=3)
    if through_a_snapshot:
        state = rig.machine.snapshot()
        rig.machine = rigs.LearnerMachine(rig.system, 0, rig.key)
        rig.machine.start(rig.genesis)
        rig.machine.restore(state)
    rig.put("contexts", codec.encode("Forget", {"user": "bob", "config_digest": rig.system.digest}))
    rig.fold()
    rig.wait(6)
    rig.decide("later", "tick", rigs.point(0))
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    released = np.frombuffer(record["sums"], "<i8") - noise(rig)
    assert (released >= 0).all()
    assert released.sum() == by_hand.sum() - 3
    assert (released.reshape(ARMS, SUMS) <= by_hand).all()


def test_one_decision_moves_one_pair_of_sums_by_all_levels_together(rigs: Any) -> None:
    """So the sensitivity is M a decision, whatever was answered, shown and rewarded, and beyond the cap nothing."""
    system = rigs.make_system(shadow={**SHADOW, "epsilon": 1.0}, release={"levels": 4})
    lift, levels, items = required_lift(system.config)
    promise = system.promises.lift
    assert promise.sensitivity == levels * lift.decisions_per_user
    for agreed in (False, True):
        for reward in (0.0, 0.25, 1.0):
            counter = LiftCounter(
                lift, levels, 5000, rigs.seeded_key(1, "edge"), system.lift_address(bytes(32), 0), items
            )
            for index in range(2 * lift.decisions_per_user):
                counter.count_answer(bytes(16), 3, agreed, index, 0, reward)
            moved = np.array([sums for users in counter._waiting.values() for sums in users.values()])
            assert np.abs(moved).sum() == promise.sensitivity


def world(seed: int, decisions: int, own: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Exact sums of a log, and the true lift of its answers.

    Kinds of visits are answered the item that is theirs; the application draws one with the chances of its own.
    """
    rng = np.random.default_rng(seed)
    clicks = 0.1 + 0.3 * np.eye(4)
    kinds = rng.integers(4, size=decisions)
    shown = np.array([rng.choice(4, p=own[kind]) for kind in kinds])
    rewarded = rng.random(decisions) < clicks[kinds, shown]
    sums = np.zeros((4, SUMS))
    np.add.at(sums, (kinds, 2 * (shown != kinds) + ~rewarded), 1)
    lift = float((clicks[kinds, kinds] - np.array([own[kind] @ clicks[kind] for kind in kinds])).mean())
    return sums, lift


def test_the_true_lift_lies_in_the_interval(rigs: Any) -> None:
    """Of 40 logs of independent decisions, 8,000 each, with noise of 30 deviations: in 34 at least. Were the chance in
    one .95, fewer would have a chance of .003; an interval of half the width (.67) reaches 34 with a chance of .01."""
    rng, own = np.random.default_rng(7), np.array([[0.4, 0.2, 0.2, 0.2]] * 4)
    inside, certain = 0, 0
    for seed in range(40):
        sums, lift = world(seed, 8_000, own)
        found = shadow_of([((sums + rng.normal(0, 30, sums.shape)).ravel().astype(np.int64), 900.0, 1)], 1)
        assert found.interval is not None
        inside += found.interval[0] <= lift <= found.interval[1]
        certain += found.certain
        assert found.unseen < 0.01
    assert inside >= 34
    assert certain == 40, "the lift is .2 or so, and the interval is .05 wide"


def test_what_is_answered_and_never_shown_may_earn_anything() -> None:
    own = np.array([[1.0, 0.0, 0.0, 0.0]] * 4)
    sums, lift = world(1, 20_000, own)
    found = shadow_of([(sums.ravel().astype(np.int64), 1.0, 1)], 1)
    assert found.unseen == pytest.approx(0.75, abs=0.02)
    assert found.interval is not None
    low, high = found.interval
    assert low < lift < high
    assert high - low > 0.75
    assert not found.certain
    assert found.decisions_more is None


def test_it_says_how_many_decisions_more_it_takes_and_these_are_enough() -> None:
    own = np.array([[0.4, 0.2, 0.2, 0.2]] * 4)
    sums, _ = world(3, 150, own)
    found = shadow_of([(sums.ravel().astype(np.int64), 0.01, 1)], 1)
    assert not found.certain
    more = found.decisions_more
    assert more
    scaled = sums * (1 + more / sums.sum()) * 1.05
    assert shadow_of([(scaled.ravel().astype(np.int64), 0.01, 1)], 1).certain


def test_too_little_is_said_to_be_too_little() -> None:
    found = shadow_of([(np.full(4 * SUMS, 3, dtype=np.int64), 100.0, 1)], 20)
    assert (found.lift, found.interval, found.decisions_more) == (None, None, None)


def test_the_declared_view_reads_it_and_ends_with_its_code(rigs: Any, rig: Any) -> None:
    play(rigs, rig, rounds=3)
    rig.wait(6)
    rig.decide("later", "tick", rigs.point(0))
    rig.end_phase()
    rig.fold()
    system = declare(rig.system)
    assert system.holdout is None
    assert system.shadow is not None
    report = system.shadow.read(out.value for out in rig.seen.outputs if out.topic == "lift")
    assert isinstance(report, ShadowReport)
    assert report.exit_code == 1
    assert report.as_text().startswith("REPRODUCIBLE, NOT PRIVATE\nAbout ")
    assert report.as_json()["epsilon_micro"] == 20_000_000
    assert {topic.name for topic in system.topics} >= {"lift", "ledger-edge"}
    assert "lift" in {one.topic for one in system.promises.releases.contents}


def test_the_mode_changes_nothing_that_is_computed_and_what_cannot_be_is_refused(rigs: Any) -> None:
    live, shadow = (rigs.make_system(mode=mode).digest for mode in ("live", "shadow"))
    assert live == shadow
    assert rigs.make_system(mode="shadow").requests.shadow
    assert rigs.make_system(shadow=SHADOW).digest != live
    for changes, key in (
        ({"mode": "dark"}, "mode"),
        ({"shadow": {"epsilon": 0}}, "shadow.epsilon"),
        ({"shadow": SHADOW, "lift": {"holdout": 0.1}}, "shadow.epsilon"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{key}: expected"):
            rigs.make_system(**changes)
