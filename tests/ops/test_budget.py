"""What `budget` says of every mechanism: spent, left, the configured limit, and when it is exhausted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hushstream.agents.worker.deployment import parse_config
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.journal.marks import Mark, MarkSeal
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRecord
from hushstream.ops import budget
from hushstream.ops.budget import EXHAUSTED, INCOMPLETE
from hushstream.ops.log_copy import LogCopy, PartitionCopy, whole
from hushstream.privacy.amounts import Cost
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of
from hushstream.systems.catalogue import kind_of
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.lift import lift_guarantee, required_lift
from hushstream.systems.p2b.slots import Report
from hushstream.systems.p2b.system import declare as declare_p2b

WIDE = BudgetConfig(50.0, 1e-6)


def copy_of(topic: str, *rigs: Any) -> LogCopy:
    """The ledger topic as the machines of one deployment wrote it, one partition each."""
    parts = {}
    for partition, rig in enumerate(rigs):
        values = [output.value for output in rig.seen.outputs if output.topic == topic]
        parts[topic, partition] = whole([InputRecord(offset, 1, value) for offset, value in enumerate(values)])
    return LogCopy(parts)


def accounts(found: budget.Budget) -> Mapping[str, budget.Account]:
    return {account.scope: account for account in (*found.deployments, *found.charges)}


# A finished p2b deployment with windows and a lift.


def test_every_window_costs_its_slots_the_promised_price_once(deployment):
    found = budget.read(deployment.copy, deployment.system)
    windows = sum(len(part.records) for _, part in deployment.copy.of_topic("ledger"))
    lifts = sum(len(part.records) for _, part in deployment.copy.of_topic("ledger-edge"))
    promised = deployment.system.guarantee()
    assert found.ok
    assert found.exit_code == 0
    assert found.by_mechanism == {"slot-sums": windows, "lift": lifts}
    assert sum(one.scope.startswith("window/") for one in found.charges) == windows
    said = found.as_json()
    assert said["units"][0]["spent"] == said["units"][0]["price"]
    assert said["units"][0]["price"]["epsilon_micro"] == promised.epsilon_micro
    assert said["lifetime"]["units"] == 2
    assert said["lifetime"]["epsilon_micro"] == promised.lifetime.cost.epsilon_micro == 2 * promised.epsilon_micro
    assert f"{windows} by slot-sums" in found.as_text()


def test_windows_and_partitions_lie_side_by_side_and_the_lift_has_a_scope_of_its_own(deployment):
    found = accounts(budget.read(deployment.copy, deployment.system))
    life = deployment.system.guarantee().lifetime.cost
    price = lift_guarantee(*required_lift(deployment.system.config)).cost
    for partition in (0, 1):
        slots, lift = found[f"deployment/{partition}"], found[f"deployment-lift/{partition}"]
        assert (slots.spent, slots.limit, slots.left, slots.entries) == (life, life, Cost(0), 1)
        assert (lift.spent, lift.limit) == (price, price)
        assert found[f"lift/{partition}"].entries > 1
    text = budget.read(deployment.copy, deployment.system).as_text()
    assert "window/0/* (each)" in text
    # A zero read as an alarm where all was as planned.
    assert "(0, 0)" not in text
    assert "1 of 1 charged, as planned" in text
    assert "covers 1 release, 1 made" in text
    promise = deployment.system.guarantee()
    assert f"One person in a whole life, {promise.units_in_life}: {promise.phrase()}.\n" in text
    assert "window/0/0 " not in text


def test_slots_and_the_users_of_a_lift_each_stand_beside_their_own_price(deployment):
    """The largest delta of a lift beside the price of a slot read as an overspend."""
    found = budget.read(deployment.copy, deployment.system)
    slot = deployment.system.guarantee().price
    of_lift = lift_guarantee(*required_lift(deployment.system.config))
    user = of_lift.price
    assert slot != user
    assert [(one.spent, one.price) for one in found.units] == [(slot, slot), (user, user)]
    spent = [line for line in found.as_text().splitlines() if line.startswith("Spent on ")]
    assert spent == [
        f"Spent on one report of one user: at most {slot} on a charge (privacy cost: {slot}).",
        f"Spent on {of_lift.unit}: at most {user} on a charge (privacy cost: {user}).",
    ]


def test_a_repeated_entry_is_charged_once(deployment, editor):
    source = ("ledger", 0)
    records = editor.copy.part(source).records
    found = budget.read(editor.inserted(source, len(records), records[0].value), deployment.system)
    assert found.ok
    assert found.repeated == 1
    assert found.charges == budget.read(editor.copy, deployment.system).charges


def test_two_contents_under_one_id_are_an_error_and_both_are_charged(deployment, editor):
    source = ("ledger", 0)
    records = editor.copy.part(source).records
    _, entry = codec.decode(records[0].value)
    other = codec.encode("LedgerEntry", {**entry, "debit": {**entry["debit"], "epsilon_micro": 5}})
    # Written to the other partition: an id stands for one content wherever it is.
    found = budget.read(editor.inserted(("ledger", 1), 0, other), deployment.system)
    assert found.exit_code == 1
    (problem,) = found.problems
    assert (problem.topic, problem.partition, problem.offset) == ("ledger", 1, 0)
    assert entry["entry_id"].hex() in problem.reason
    charged = accounts(found)[entry["debit"]["scope"]]
    assert charged.spent.epsilon_micro == entry["debit"]["epsilon_micro"] + 5
    assert not charged.within


def test_entries_of_others_and_noise_are_named_and_cost_nothing(deployment, editor):
    source = ("ledger", 0)
    _, entry = codec.decode(editor.copy.part(source).records[0].value)
    before = budget.read(editor.copy, deployment.system)
    lifted = {**entry, "debit": {**entry["debit"], "scope": "lift/0"}}
    for value, reason in (
        (codec.encode("LedgerEntry", {**entry, "deployment": "theirs"}), "deployment small"),
        (codec.encode("LedgerEntry", {**entry, "config_digest": bytes(16)}), "configuration"),
        (codec.encode("LedgerEntry", lifted), "a scope of kind window, got 'lift/0'"),
        (b"noise", "a ledger entry"),
    ):
        found = budget.read(editor.inserted(source, 1, value), deployment.system)
        assert not found.ok
        assert reason in found.problems[0].reason
        assert found.charges == before.charges


def with_marks(copy: LogCopy, *marks: Mark, partition: int = 0) -> LogCopy:
    """A copy in which a shuffler's partition has marks."""
    seal = MarkSeal("small", "shuffler", partition, KeyRing(0, 0, (), seeded_key(7, "shuffler")))
    records = [InputRecord(offset, 1, seal.pack(mark)) for offset, mark in enumerate(marks)]
    return LogCopy({**copy.parts, ("marks-shuffler", partition): whole(records)})


def test_a_ledger_that_holds_what_its_marks_say_is_complete(deployment):
    found = budget.read(with_marks(deployment.copy, Mark("a", 0), Mark("a", 9, paid=True)), deployment.system)
    assert found.ok
    assert found.as_json()["complete"] is True
    begun = budget.read(with_marks(LogCopy({}), Mark("a", 0), Mark("a", 3)), deployment.system)
    assert begun.ok, "nothing was paid yet"


def test_a_lost_ledger_is_no_budget_that_was_not_spent(deployment):
    kept = {place: part for place, part in deployment.copy.parts.items() if place != ("ledger", 0)}
    found = budget.read(with_marks(LogCopy(kept), Mark("a", 0), Mark("a", 9, paid=True)), deployment.system)
    assert found.exit_code == INCOMPLETE
    (gap,) = found.lost
    assert (gap.topic, gap.partition) == ("marks-shuffler", 0)
    assert "a debit was sent, and ledger holds none" in gap.reason
    assert found.as_text().startswith("INCOMPLETE: more was spent than the ledger holds")
    told = found.as_json()
    assert told["complete"] is False
    assert not {"spent", "deployments", "units", "releases"} & told.keys(), "each figure would be too low"
    assert "epsilon" not in found.as_text()
    assert len(found.as_text().splitlines()) == 2


def test_a_journal_that_was_gone_on_with_after_a_loss_leaves_a_ledger_that_is_too_low_for_good(deployment):
    for marks in (
        (Mark("a", 0), Mark("a", 9, paid=True), Mark("b", 0, 1, accepted=True)),
        (Mark("a", 0), Mark("a", 9, paid=True), Mark("a", 5, 1, accepted=True)),
        (Mark("a", 0), Mark("b", 0)),
    ):
        found = budget.read(with_marks(deployment.copy, *marks), deployment.system)
        assert found.exit_code == INCOMPLETE
        assert "add what was spent on what is lost" in found.lost[0].reason


def test_the_price_of_a_fork_says_how_many_incarnations_were_paid_though_their_entries_are_lost(rigs):
    """The ledger was put back with the journal: its first entry is that of the third life."""
    system = rigs.make_system(release={"window_slots": 4, "epsilon": 0.05}, budget=BudgetConfig(8.0, 1e-6))
    rig = rigs.ShufflerRig(system)
    rig.machine.request_epoch(bytes(range(16)), forked=True, incarnations=2)
    for number in range(8):
        rig.slot(number, Report(number % 4, 0, 1))
    rig.fold()
    found = accounts(budget.read(copy_of("ledger", rig), declare_p2b(system)))["deployment/0"]
    assert found.spent == rig.machine.spending.spent
    life = system.slot_terms.life.cost
    assert found.spent.epsilon_micro == 3 * life.epsilon_micro


OURS = b"shuffler/1/a/0/00"
"""The record key of a mark of shuffler 1."""


@pytest.mark.parametrize(
    ("key", "mended", "complete"),
    [(b"x", False, True), (None, False, True), (b"shuffler/0/a/0/00", False, True), (OURS, False, False),
     (OURS, True, True)],
)  # fmt: skip
@pytest.mark.parametrize("foreign", ["garbage", "a mark of another partition"])
def test_a_foreign_record_among_marks_counts_only_where_it_may_have_replaced_a_mark(
    deployment, key, mended, complete, foreign
):
    part = with_marks(deployment.copy, Mark("a", 0), partition=1).part(("marks-shuffler", 1))
    other = with_marks(deployment.copy, Mark("b", 0), partition=0).part(("marks-shuffler", 0))
    value = b"garbage" if foreign == "garbage" else other.records[0].value
    records, keys = [*part.records, InputRecord(1, 1, value)], [OURS, key]
    if mended:
        records, keys = [*records, InputRecord(2, 1, part.records[0].value)], [*keys, OURS]
    copied = {("marks-shuffler", 1): PartitionCopy(0, len(records), records, keys)}
    found = budget.read(LogCopy({**deployment.copy.parts, **copied}), deployment.system)
    assert (found.exit_code != INCOMPLETE) == complete, found.as_text()
    if not complete:
        assert "under the key of a mark" in found.lost[0].reason
        assert str(found.lost[0]).startswith("marks-shuffler/1 offset 1: expected a")


def test_a_mark_that_is_none_is_named_where_a_copy_has_no_keys(deployment):
    noise = {("marks-shuffler", 1): whole([InputRecord(0, 1, b"noise")])}
    found = budget.read(LogCopy({**deployment.copy.parts, **noise}), deployment.system)
    assert found.exit_code == INCOMPLETE
    assert str(found.lost[0]).startswith("marks-shuffler/1 offset 0: expected a release mark")
    assert "this copy of the log has no record keys" in found.lost[0].reason


def test_an_empty_ledger_has_spent_nothing(deployment):
    found = budget.read(LogCopy({}), deployment.system)
    assert found.ok
    assert [one.spent for one in found.units] == [Cost(0), Cost(0)]
    assert not found.deployments


# Every mechanism, with and without a configured budget.


def windows(rigs: Any, count: int, **changes: Any) -> Any:
    rig = rigs.ShufflerRig(rigs.make_system(**changes))
    for number in range(4 * count):
        rig.slot(number, Report(number % rigs.CODES, 0, 1))
    rig.fold()
    return rig


def test_running_sums_are_exhausted_when_their_price_pays_for_no_window_more(rigs):
    release = {"window_slots": 4, "sums": "counter", "windows": 3}
    for count, code in ((2, 0), (3, EXHAUSTED), (5, EXHAUSTED)):
        rig = windows(rigs, count, release=release, budget=WIDE)
        found = budget.read(copy_of("ledger", rig), declare_p2b(rig.system))
        assert (found.ok, found.exit_code) == (True, code)
        account = accounts(found)["epoch/0/0"]
        assert (account.entries, account.left) == (min(count, 3), Cost(0))
        deployed = accounts(found)["deployment/0"]
        assert deployed.limit.epsilon_micro == 50_000_000
        assert deployed.left == WIDE.limit - rig.system.guarantee().lifetime.cost
        assert found.as_json()["exhausted"] == (["epoch/0/0"] if code else [])
        assert ("Exhausted: epoch/0/0: its charge covers no more than 3 releases." in found.as_text()) == bool(code)


def diverging(related: Any, rounds: int, **changes: Any) -> Any:
    """A counter whose inputs change again and again: each time its noise is renewed, while the budget has room."""
    rig = related.CounterRig(related.make_system(**changes), related.SECRET)
    for number in range(rounds):
        rig.rewards(number, related.some_rewards(number, 4))
        seen = rig.fold()
        rig.altered(number, contexts=bytes(4 * 4 * related.DIMENSION))
        machine = rig.fresh()
        machine.start(rig.genesis)
        related.recover(rig, machine)
        rig.machine = machine
        assert seen.journals
    return rig


GAUSSIAN = {
    "epochs": 50,
    "rows": 4,
    "horizon": 64,
    "rewards_per_user": 32,
    "noise": "gaussian",
    "epsilon": 0.3,
    "delta": 1e-8,
}


@pytest.mark.parametrize("name", ["basic", "zcdp", "renyi"])
def test_a_counter_spends_up_to_its_limit_then_refuses_and_the_tighter_filters_have_room_for_more(related, name):
    limit = BudgetConfig(1.0, 1e-5, name)
    system = related.make_system(release=GAUSSIAN, budget=limit)
    fits = system.budgets[0].fits
    assert fits == 3 if name == "basic" else fits > 3
    rig = diverging(related, fits + 2, release=GAUSSIAN, budget=limit)
    found = budget.read(copy_of("ledger", rig), declare_colin(system))
    assert found.exit_code == EXHAUSTED
    assert len([one for one in found.charges if one.spent != Cost(0)]) == fits
    deployed = accounts(found)["deployment/0"]
    assert deployed.entries == fits
    assert deployed.spent.fits(limit.limit)
    assert deployed.spent == deployed.limit == rig.machine.spending.spent == system.guarantee().cost
    assert deployed.mechanism == name
    last = found.charges[-1]
    assert (last.spent, last.scope) == (Cost(0), f"epoch/0/{fits + 1}/renewal/{fits + 1}")
    assert "does not fit what is left" in last.refusing
    before = diverging(related, fits, release=GAUSSIAN, budget=limit)
    assert budget.read(copy_of("ledger", before), declare_colin(system)).exit_code == 0


def test_noise_at_the_edge_has_the_whole_limit_on_each_partition(related):
    changes: dict[str, Any] = {"release": {**related.DEFAULTS["release"], "noise_at": "learner"}, "budget": WIDE}
    system = related.make_system(partitions={"learner": 2}, **changes)
    rigs = [related.RelatedLearnerRig(system, partition=partition) for partition in (0, 1)]
    at_home = {partition_of(user, 2): user for user in ("ann", "bob")}
    for number, rig in enumerate(rigs):
        rig.interact(f"e{number}", at_home[number])
        rig.end_phase()
        rig.fold()
    found = budget.read(copy_of("ledger", *rigs), declare_colin(system))
    price = system.guarantee().price
    assert found.exit_code == 0
    for partition in (0, 1):
        deployed = accounts(found)[f"deployment/{partition}"]
        assert (deployed.spent, deployed.limit, deployed.left) == (price, price, Cost(0)), "one epoch is planned"
        assert accounts(found)[f"epoch/{partition}/0"].spent == price


def test_a_lift_is_exhausted_after_its_last_release_and_spends_its_share_alone(rigs):
    limit = BudgetConfig(8.0, 1e-6, lift=0.25)
    lift = {"own": 0.4, "epsilon": 2.0, "decisions_per_user": 5, "every_seconds": 120.0, "releases": 2}
    system = rigs.make_system(measurement=lift, budget=limit)
    rig = rigs.LearnerRig(system)
    codes = []
    for phase in range(3):
        rig.end_phase(phase)
        rig.fold()
        codes.append(budget.read(copy_of("ledger-edge", rig), declare_p2b(system)).exit_code)
    assert codes == [0, EXHAUSTED, EXHAUSTED]
    deployed = accounts(budget.read(copy_of("ledger-edge", rig), declare_p2b(system)))["deployment-lift/0"]
    assert deployed.limit.epsilon_micro == 2_000_000
    assert deployed.left.epsilon_micro == 0
    assert system.slot_terms.limit.limit.epsilon_micro == 6_000_000


def test_an_epoch_of_a_turned_key_spends_nothing_of_the_deployment(rigs):
    rig = windows(rigs, 1, release={"window_slots": 4, "sums": "counter", "windows": 3})
    values = [codec.decode(value)[1] for value in (o.value for o in rig.seen.outputs if o.topic == "ledger")]
    turned = {**values[0], "entry_id": bytes(16), "debit": {**values[0]["debit"], "scope": "epoch/0/1"}}
    parts = [codec.encode("LedgerEntry", one) for one in (*values, turned)]
    copy = LogCopy({("ledger", 0): whole([InputRecord(n, 1, value) for n, value in enumerate(parts)])})
    found = budget.read(copy, declare_p2b(rig.system))
    assert found.ok
    assert accounts(found)["deployment/0"].spent == rig.system.guarantee().lifetime.cost
    renewed = {**turned, "debit": {**turned["debit"], "scope": "epoch/0/1/renewal/1"}}
    parts[-1] = codec.encode("LedgerEntry", renewed)
    copy = LogCopy({("ledger", 0): whole([InputRecord(n, 1, value) for n, value in enumerate(parts)])})
    overspent = budget.read(copy, declare_p2b(rig.system))
    assert overspent.exit_code == 1
    assert not accounts(overspent)["deployment/0"].within


def test_of_parties_with_ledgers_of_their_own_each_line_says_whose_it_is():
    vendors = [{"name": name, "items": {"capacity": 2}} for name in ("north", "south")]
    values = {
        "system": "pdap",
        "deployment": "mall",
        "features": {"dimension": 2},
        "vendors": vendors,
        "privacy": {"epsilon": 1.0},
        "release": {"placement": "home"},
    }
    system = kind_of("pdap").assemble(parse_config(values), Artefacts("here", {}))
    parts = {}
    for number, (topic, terms) in enumerate(system.ledgers.items()):
        debit = {
            "scope": "epoch/0/0",
            "mechanism": "counts",
            "epsilon_micro": terms.price.cost.epsilon_micro,
            "delta_units": b"",
            "relation": "replace",
            "unit": "one reward",
        }
        entry = {"deployment": "mall", "entry_id": bytes([number] * 16), "debit": debit}
        entry |= {"config_digest": system.digest, "private_as_stated": True}
        parts[topic, 0] = whole([InputRecord(0, 1, codec.encode("LedgerEntry", entry))])
    found = budget.read(LogCopy(parts), system)
    assert [one.party for one in found.charges] == [one.party for one in found.deployments] == ["north", "south"]
    assert [one["party"] for one in found.as_json()["charges"]] == ["north", "south"]
    for name in ("north", "south"):
        assert [line.split()[1].split("/")[0] for line in found.as_text().splitlines() if line.startswith(name)] == [
            "deployment",
            found.charges[0].scope.split("/")[0],
        ]
