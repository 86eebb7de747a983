"""Each round is charged for itself: what the ledger says, and where a budget ends."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRecord
from hushstream.engine.values import ConfigurationError
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.ops.spending import budget
from hushstream.ops.spending.budget import EXHAUSTED
from hushstream.privacy.amounts import Cost
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.systems.bgt.price.guarantee import epoch_guarantee
from hushstream.systems.bgt.system import declare

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
