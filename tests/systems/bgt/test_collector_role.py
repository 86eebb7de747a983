"""The collector role: each slot counts once, each round is released once and charged for itself until a budget ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRecord, ReplayMismatch
from hushstream.engine.values import ConfigurationError
from hushstream.ops import budget
from hushstream.ops.budget import EXHAUSTED
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.privacy.amounts import Cost
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.schemas import codec
from hushstream.systems.bgt.guarantee import epoch_guarantee
from hushstream.systems.bgt.system import declare


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


# What was journaled, and what a suspected rollback costs.


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


EPOCH_NONCE = bytes(range(16))


def limited(films, share: float, epochs: int = 1, name: str = "zcdp"):
    """A deployment whose budget pays for this share of what all rounds cost, and a little more."""
    plain = films.make_config(epochs=epochs)
    whole_price = epoch_guarantee(plain)
    delta = 4 * plain.release.delta
    half = int(delta * 2**80) // 2
    epsilon = rho_to_epsilon_micro(int(share * whole_price.rho_micro) + 100, half) / 1e6
    if name == "basic":
        epsilon = epoch_guarantee(plain, rounds=2).cost.epsilon_micro * 1.001 / 1e6 if share < 1 else share * 10.001
    return films.make_system(epochs=epochs, budget=BudgetConfig(epsilon, delta, name))


def read(rig):
    values = [output.value for output in rig.seen.outputs if output.topic == "ledger"]
    log = whole([InputRecord(offset, 1, value) for offset, value in enumerate(values)])
    return budget.read(LogCopy({("ledger", 0): log}), declare(rig.system))


def test_rounds_are_debited_one_by_one_and_come_to_the_price_of_all(films):
    rig = films.CollectorRig()
    spent = []
    for number in range(3):
        rig.play_round(number)
        spent.append(rig.machine.spending.spent)
    config = rig.system.config
    assert spent == [epoch_guarantee(config, rounds=rounds).cost for rounds in (1, 2, 3)]
    found = read(rig)
    assert found.ok
    (deployed,), (charge,) = found.deployments, found.charges
    assert (charge.entries, charge.spent, charge.left) == (3, epoch_guarantee(config).cost, Cost(0))
    assert deployed.spent == deployed.limit == charge.spent
    assert found.exit_code == EXHAUSTED


@pytest.mark.parametrize("name", ["zcdp", "renyi", "basic"])
@pytest.mark.parametrize(("share", "rounds"), [(0.75, 2), (1.2, 3)])
def test_a_budget_stops_before_the_round_that_it_has_no_room_for(films, name, share, rounds):
    system = limited(films, share, name=name)
    rig = films.CollectorRig(system)
    for number in range(3):
        rig.play_round(number)
    assert [one["round"] for one in rig.released()] == list(range(rounds))
    assert [record["released"] for record in rig.seen.journals] == [n < rounds for n in range(3)]
    assert len(rig.seen.records("releases", "Seal")) == 3, "the ends of rounds are passed on in any case"
    assert system.guarantee().cost == epoch_guarantee(system.config, rounds=rounds).cost
    (facts,) = system.budgets
    assert (facts.counted, facts.planned, facts.fits) == ("rounds", 3, rounds)
    found = read(rig)
    assert found.ok
    assert found.charges[0].spent == epoch_guarantee(system.config, rounds=rounds).cost
    assert found.deployments[0].spent.fits(found.deployments[0].limit)
    assert ("does not fit what is left" in found.charges[0].refusing) == (rounds < 3)
    assert rig.replayed(rig.fresh()).releases("releases") == rig.seen.releases("releases")


def test_refused_the_third_round_the_server_publishes_the_model_of_counts_alone(films):
    system = limited(films, 0.75)
    rater, collector, server = films.all_rounds(system)
    assert [one["round"] for one in collector.released()] == [0, 1]
    models = server.seen.journals
    assert len(models) == 3
    assert models[-1]["biases"] == models[0]["biases"]
    assert models[-1]["factors"] == b""
    assert rater.machine.received.ended


def test_a_suspected_rollback_charges_all_of_the_epoch_before_it_and_the_rounds_so_far_again(films):
    """After A a lost branch may have released B and C: they are charged; B anew costs A and B once more."""
    rig = films.CollectorRig(films.make_system(epochs=2, budget=BudgetConfig(25.0, 1e-4, "zcdp")))
    limit, steps = rig.system.spending_terms.limit, rig.system.spending_terms.steps
    prices = [np.array(limit.price(step)) for step in steps]
    paid = []
    for number in range(3):
        if number == 1:
            rig.machine.request_epoch(EPOCH_NONCE, forked=True)
        rig.play_round(number)
        paid.append(np.array(rig.machine.spending._ledger.totals()["deployment/0"]))
    wanted = [prices[0], prices[2] + prices[1], prices[2] + prices[2]]
    assert [one.tolist() for one in paid] == [one.tolist() for one in wanted]
    found = read(rig)
    assert found.ok
    assert [one.entries for one in found.charges] == [1, 2]
    assert found.deployments[0].spent == limit.cost(tuple(wanted[2].tolist()))
    restored = rig.fresh()
    restored.start(rig.genesis)
    restored.restore(rig.machine.snapshot())
    assert restored.spending.dump() == rig.machine.spending.dump()


def test_what_a_suspected_rollback_leaves_no_budget_for_is_refused_and_what_is_left_is_not_spent_on_less(films):
    """Room for 1.5 prices: after a suspected rollback the rest of the first epoch and two rounds more would be 1.6."""
    rig = films.CollectorRig(limited(films, 1.5, epochs=2))
    rig.play_round(0)
    rig.machine.request_epoch(EPOCH_NONCE, forked=True)
    rig.play_round(1)
    assert len(rig.released()) == 1
    assert rig.machine.ended


def test_room_for_no_round_at_all_is_refused_before_anything_runs(films):
    with pytest.raises(ConfigurationError, match=r"a limit that covers the first release at least \(epsilon"):
        limited(films, 0.25)
    assert films.make_system(budget=BudgetConfig(10.0, 1e-5)).budgets[0].fits == 3
