"""The collector role: each slot counts once, a round is released once, and each round is paid for with its release."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import ReplayMismatch
from hushstream.schemas import codec


@pytest.fixture
def rig(films):
    return films.CollectorRig()


def sums(fields, shape):
    return np.frombuffer(fields["sums"], "<i8").reshape(shape)


def test_three_rounds_are_released_and_each_is_paid_for_with_its_release(films, rig):
    rig.play(3)
    assert [(one["round"], one["kind"], one["slots"]) for one in rig.released()] == [
        (0, "items", 6),
        (1, "pairs", 6),
        (2, "factors", 6),
    ]
    entries = [entry["debit"] for entry in rig.seen.records("ledger", "LedgerEntry")]
    assert entries == [record["debit"] for record in rig.seen.journals]
    assert {entry["scope"] for entry in entries} == {"epoch/0/0"}
    paid = [entry["epsilon_micro"] for entry in entries]
    assert min(paid) > 0
    assert sum(paid) == rig.system.guarantee().cost.epsilon_micro
    kinds = [codec.decode(output.value)[0] for output in rig.seen.releases("releases")]
    assert kinds == ["RatingSums", "Seal"] * 3
    rig.open(films.rounds_of(rig.system.config)[2])
    rig.end(3)
    seen = rig.fold()
    assert seen.reasons == ["other_round", "other_round"]
    assert not seen.journals


def test_sums_are_those_of_their_slots_under_noise_of_the_stated_size(films):
    # 80 cells: the mean square of Gaussian noise has a relative standard error of sqrt(2 / 80) = 16 %; five of them
    # (false alarm 6e-7). Without noise it is 0, with half the noise a quarter.
    system = films.make_system(epsilon=3.0)
    rig = films.CollectorRig(system)
    rig.play(1)
    (fields,) = rig.released()
    exact = np.zeros((2, films.ITEMS))
    exact[0, :6], exact[1, :6] = 1 << 15, 1 << 18
    noise = (sums(fields, (2, -1)) - exact) / 2**20
    rho = 0.3 * system.guarantee().rho_micro / 1e6
    assert np.mean(noise**2) == pytest.approx(1 / (2 * rho), rel=0.8)
    quiet = films.CollectorRig(films.make_system(noise="exact"))
    quiet.play(1)
    assert (sums(quiet.released()[0], (2, -1)) == exact).all()


def test_a_second_slot_of_a_user_in_a_round_counts_for_nothing(films):
    rig = films.CollectorRig(films.make_system(noise="exact"))
    for _ in range(2):
        rig.slot(1, films.item_slot(rig.system.config, 3))
        rig.slot(1, films.item_slot(rig.system.config, 4))
    rig.end(0)
    seen = rig.fold()
    assert (seen.counts["slot"], seen.counts["repeated_slot"]) == (1, 3)
    (fields,) = rig.released()
    assert fields["slots"] == 1
    assert np.flatnonzero(sums(fields, (2, -1))[0]).tolist() == [3]


def test_what_breaks_a_bound_counts_as_null_and_is_counted_apart(films):
    rig = films.CollectorRig(films.make_system(noise="exact"))
    config = rig.system.config
    clip = 1 << 20
    rig.slot(1, films.item_slot(config, 3, clip, 0))
    rig.slot(2, films.item_slot(config, 3, clip + 1, 0))
    rig.slot(3, films.item_slot(config, 3, clip, 1))
    rig.slot(4, films.item_slot(config, films.ITEMS, 5, 0))
    rig.end(0)
    seen = rig.fold()
    assert (seen.counts["slot"], seen.counts["nulled_slot"]) == (4, 3)
    (fields,) = rig.released()
    assert fields["slots"] == 4, "refusals move no public number"
    assert sums(fields, (2, -1)).sum() == clip


def test_slots_of_no_open_round_and_rounds_that_cannot_be_are_dead_letters(films, rig):
    config = rig.system.config
    asked = films.rounds_of(config)
    rig.slot(1, asked=1)
    rig.slot(2, content=b"short")
    rig.slot(3, config_digest=bytes(16))
    rig.open(asked[1])
    rig.end(1)
    rig.put("updates", b"nothing")
    seen = rig.fold()
    assert seen.reasons[:5] == ["other_round", "malformed_slot", "other_configuration", "other_round", "other_round"]
    rig.play(1)
    rig.open(replace(asked[1], top=np.full(config.top, 2)))
    rig.open(replace(asked[1], gains=np.full(config.top, np.nan)))
    rig.open(None, 1)
    rig.open(asked[1])
    rig.open(asked[1])
    rig.open(replace(asked[1], top=asked[1].top[::-1]))
    rig.end(1, origin=1)
    assert rig.fold().reasons == [*["bad_round"] * 4, "unknown_origin"]


def test_a_round_ends_when_all_partitions_of_users_have_ended_it_however_they_raced(films):
    system = films.make_system(partitions=2)
    left = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        rig = films.CollectorRig(system)
        for number in order:
            rig.slot(number, films.item_slot(system.config, number))
        rig.end(0, origin=order[0] % 2)
        assert not rig.fold().journals
        rig.end(0, origin=1 - order[0] % 2)
        left.append(films.outputs_of(rig.fold(), "releases"))
    assert left[0] == left[1]


def test_no_slot_at_all_is_released_too(films, rig):
    rig.end(0)
    rig.fold()
    (fields,) = rig.released()
    assert fields["slots"] == 0
    assert np.any(sums(fields, (2, -1)))


def test_a_rolled_back_collector_meets_other_noise_on_other_slots(films):
    left = []
    for item in (3, 4, 3):
        rig = films.CollectorRig(key=films.SECRET)
        rig.slot(1, films.item_slot(rig.system.config, item))
        rig.end(0)
        rig.fold()
        left.append(sums(rig.released()[0], (2, -1)))
    assert (left[0] == left[2]).all()
    assert np.count_nonzero(left[0] != left[1]) > films.ITEMS


# What was journaled, and what a suspected rollback costs.


def test_a_journal_and_a_snapshot_taken_within_a_round_lead_to_the_same_bytes(films, rig):
    rig.play(2)
    rig.open(films.rounds_of(rig.system.config)[2])
    rig.slot(1, asked=2)
    rig.fold()
    held = rig.machine.snapshot()
    rig.slot(1, asked=2)
    rig.slot(2, asked=2)
    rig.end(2)
    rig.fold()
    fresh = rig.fresh()
    assert rig.replayed(fresh).releases("releases") == rig.seen.releases("releases")
    assert fresh.snapshot() == rig.machine.snapshot()
    restored = rig.fresh()
    restored.start(rig.genesis)
    restored.restore(held)
    ours = rig.machine
    rig.machine = restored
    again = rig.fold()
    assert films.outputs_of(again, "releases") == films.outputs_of(rig.seen, "releases")[-2:]
    assert restored.snapshot() == ours.snapshot()


@pytest.mark.parametrize(("budget", "released"), [(None, 1), (BudgetConfig(25.0, 1e-4, "zcdp"), 2)])
def test_a_fork_opens_an_epoch_that_pays_again_and_where_it_may_not_the_round_ends_without(films, budget, released):
    rig = films.CollectorRig(films.make_system(budget=budget, epochs=1 if budget is None else 2))
    rig.play(1)
    assert rig.machine.request_epoch(bytes(range(16)), forked=True)
    rig.open(films.rounds_of(rig.system.config)[1])
    rig.slot(1, asked=1)
    rig.end(1)
    seen = rig.fold()
    assert len(rig.released()) == released
    assert seen.counts["release_withheld"] == 2 - released
    assert len(seen.records("releases", "Seal")) == 1, "the end is passed on in any case"
    assert [record["released"] for record in seen.journals] == [released == 2]
    assert rig.machine.ended == (released == 1)
    assert rig.replayed(rig.fresh()).releases("releases") == rig.seen.releases("releases")


def test_an_epoch_of_its_own_has_noise_of_its_own(films):
    """The same slots, by one that was known to have forked: other noise, whatever the content says."""
    left = []
    system = films.make_system(budget=BudgetConfig(25.0, 1e-4, "zcdp"), epochs=2)
    for forked in (False, True):
        rig = films.CollectorRig(system, films.SECRET)
        if forked:
            rig.machine.request_epoch(bytes(range(16)), forked=True)
        rig.play(1)
        left.append(sums(rig.released()[0], (2, -1)))
    assert np.count_nonzero(left[0] != left[1]) > films.ITEMS


def test_what_a_journal_released_of_other_slots_is_never_released_again(films, rig):
    rig.play(1)
    log = rig.logs["updates", 0]
    name, fields = codec.decode(log[0].value)
    log[0] = log[0]._replace(value=codec.encode(name, {**fields, "slot_id": b"another slot id!"}))
    with pytest.raises(ReplayMismatch):
        rig.replayed(rig.fresh())
    fresh = rig.fresh()
    fresh.start(rig.genesis)
    (step,) = films.recover(rig, fresh)
    assert step.counts["diverged"] == 1
    assert not step.releases
    assert (fresh.next, fresh.collector) == (1, None)
    assert fresh.epoch.due, "the next release pays again"
    assert fresh.refused is not None
