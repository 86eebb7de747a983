"""A generation that follows another one: no number of a person counts twice, and nobody is charged more than stated."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from hushstream.agents.worker.deployment import artefacts_of, load, parse_config, prepare
from hushstream.engine.declare.declaration import Ended
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE, Cost
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.promises.sentence import Prices
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.guarantee import life_prices
from hushstream.systems.p2b.reports import left_by
from hushstream.systems.p2b.slots import Report
from hushstream.systems.p2b.succession import NOTHING, Predecessor, require_within_life, spent_after, sums_told

SUCCESSION = kind_of("p2b").succession
EDGE = seeded_key(1, "edge")


def user_slot(rig: Any, user: str, number: int, report: Report | None, edge: Any) -> None:
    """A slot with the id that a user's agent gives it, whatever the agent remembers."""
    report_id = edge.derive("user", user).digest("report-id", number.to_bytes(8, "little"))
    rig.slot(0, report, report_id=report_id)


def ended(system: Any, rig: Any) -> Predecessor:
    """What a generation leaves, as its shuffler ends."""
    left = left_by(system, system.config, Ended((rig.machine,), (), {}, "1f", "2e", {"edge": EDGE.key_id.hex()}))
    assert set(left) == {"predecessor"}, "nothing was released as a model"
    return Predecessor.of(json.loads(left["predecessor"]))


def of_lives(slots: int, micro: int) -> Any:
    """A configuration of so many slots in a life, each at epsilon ``micro`` millionths, without a lift."""
    values = {"items": {"capacity": 2}, "features": {"dimension": 3}, "expected_slots": 1000, "deployment": "d"}
    values |= {"privacy": {"epsilon": micro / 1e6, "units_per_person": slots}}
    return parse_config({"system": "p2b", **values})


def test_a_number_that_was_counted_before_counts_no_more_and_a_further_one_does(rigs):
    """Also over three generations, and whatever content it has now; under another edge key it would count again."""
    edge, first = EDGE, rigs.make_system()
    rig = rigs.ShufflerRig(first)
    for user in "abcd":
        user_slot(rig, user, 0, Report(0, 0, 1), edge)
    assert len(rig.sums_of(rig.fold())) == 1
    before = ended(first, rig)
    for generation in (2, 3):
        system = first.following(before)
        assert before.generation + 1 == generation
        rig = rigs.ShufflerRig(system)
        for user in "abcd":
            user_slot(rig, user, 0, Report(1, 1, 1), edge)
        seen = rig.fold()
        assert seen.counts[Outcome.REPEATED_SLOT] == 4
        assert not rig.sums_of(seen)
        for user in "vwxy":
            user_slot(rig, f"{user}{generation}", 0, None, edge)
        assert len(rig.sums_of(rig.fold())) == 1
        before = ended(system, rig)
    user_slot(rig, "a", 0, None, seeded_key(2, "edge"))
    assert rig.fold().counts[Outcome.SLOT] == 1
    assert rig.machine.windows.remembered == 13


def test_what_a_person_may_have_paid_is_the_most_of_all_ways_to_give_slots():
    """Every way to give numbers to generations is tried: a number in one generation at most."""
    lives = ((2, 1_000_000), (1, 3_000_000), (3, 500_000))
    configs, spent = [of_lives(*one) for one in lives], (NOTHING,)
    for upto, config in enumerate(configs, 1):
        spent = spent_after(spent, config)
        most = max(slots for slots, _ in lives[:upto])
        worst: dict[int, int] = {}
        for given in itertools.product(range(-1, upto), repeat=most):  # of each number the generation that counts it
            counts = [given.count(one) for one in range(upto)]
            if all(number < lives[one][0] for number, one in enumerate(given) if one >= 0):
                paid = sum(count * lives[one][1] for one, count in enumerate(counts))
                worst[sum(counts)] = max(worst.get(sum(counts), 0), paid)
        for slots, paid in worst.items():
            found = spent[slots].zero_out
            assert found is not None
            assert found.epsilon_micro >= paid
        assert max(one.which.epsilon_micro for one in spent) <= 2 * max(sum(a * b for a, b in lives[:upto]), 1)
    one = of_lives(1, 1_000_000)
    again = spent_after(spent_after((NOTHING,), one), one)
    assert again[1].zero_out == life_prices(one, 1).zero_out, "who gave the one slot gives no other"


def test_a_generation_by_which_a_person_could_pay_more_than_was_promised_is_refused(rigs):
    first = rigs.make_system(measurement={"own": 0.5, "epsilon": 0.5})
    life, spent = first.paid_before()
    assert life == first.guarantee().together
    lower, measured = "lower privacy.epsilon or privacy.units_per_person", {"own": 0.5, "epsilon": 0.1}
    ends = "delete `measurement`, which counts everybody anew"
    for changes, remedy in (
        ({"measurement": measured}, ends),
        ({"measurement": measured, "release": {"epsilon": 0.5}}, ends),  # also who gave a slot before
        ({"measurement": measured, "release": {"epsilon": 1.6}}, f"{ends}, and {lower}"),
        ({"release": {"epsilon": 1.6}}, lower),
        ({"slot": {"after_interactions": 3, "settle_seconds": 10.0, "lifetime_slots": 2}}, lower),
    ):
        asked = rigs.make_system(**changes).config
        with pytest.raises(
            ConfigurationError, match=rf"nobody is charged more than the first one guaranteed .*\): {remedy}$"
        ):
            SUCCESSION.told(first, asked)
        with pytest.raises(ConfigurationError, match="nobody is charged more"):
            require_within_life(life, spent, asked)
    told = SUCCESSION.told(first, rigs.make_system().config)
    assert "was charged at most epsilon 3, " in told
    assert "asks at most epsilon 2, " in told
    assert "together at most epsilon 3, " in told
    assert "of epsilon 3, " in told
    within = replace(life, which=Cost(life.which.epsilon_micro, 1), zero_out=Cost(life.which.epsilon_micro, 1))
    assert 1 < spent_after(spent, first.config)[-1].which.delta_units <= DELTA_ONE // 10**12
    require_within_life(within, (NOTHING,), rigs.make_system().config)
    assert sums_told(within, (NOTHING,), rigs.make_system().config).endswith("truncation, which is not compared)")
    assert not sums_told(life, (NOTHING,), rigs.make_system().config).endswith("compared)")
    above = Cost(0, DELTA_ONE // 10**12 + 1)
    with pytest.raises(ConfigurationError, match=r"charged epsilon 2, delta 1\.01e-12"):
        require_within_life(within, (Prices(above, above),), rigs.make_system().config)
    edge = {
        "kind": "edge",
        "items": {"capacity": 2},
        "features": {"member": {"kind": "boolean"}},
    }
    devices = parse_config({"system": "p2b", "deployment": "small", "expected_slots": 1000, **edge})
    with pytest.raises(ConfigurationError, match="devices keep themselves what they were charged"):
        SUCCESSION.told(first, devices)


def test_its_digest_names_the_final_ledger_and_marks_and_whatever_else_it_follows(rigs):
    first = rigs.make_system()
    before = ended(first, rigs.ShufflerRig(first))
    changed = [
        replace(before, edge_key="3d"), replace(before, ledger="1e"), replace(before, marks="2f"),
        replace(before, configuration="00" * 16), replace(before, generation=2),
        replace(before, life=before.life + before.life), replace(before, spent=before.spent[:1] * 2),
        replace(before, elsewhere=before.life), replace(before, private_as_stated=False),
        replace(before, ids=(1).to_bytes(8, "little") + bytes(8)),
    ]  # fmt: skip
    digests = {first.digest, *(first.following(one).digest for one in (before, *changed))}
    assert len(digests) == len(changed) + 2
    assert (before.ledger, before.marks, before.configuration) == ("1f", "2e", first.digest.hex())
    genesis = rigs.ShufflerRig(first.following(before)).machine.genesis(rigs.NONCE)
    assert first.following(before).digest in genesis


def test_prepare_keeps_what_it_follows_and_refuses_another_or_a_damaged_one(tmp_path, rigs):
    config = of_lives(1, 1_000_000)
    first = prepare(tmp_path / "first", config)
    life, spent = first.core.paid_before()
    left = Predecessor("d", 1, first.digest.hex(), "3d", "1f", "2e", life, spent, NOTHING, bytes(8), True)

    def prepared(text: str) -> Any:
        return prepare(tmp_path / "next", config, {"predecessor": ("left.json", text)})

    for damaged in ("{", "{}", json.dumps({**left.plain, "ids": "AAAA"}), json.dumps({**left.plain, "spent": []})):
        with pytest.raises(ConfigurationError, match=r"left\.json: "):
            prepared(damaged)
    dearer = Prices(Cost(1), Cost(1))
    with pytest.raises(ConfigurationError, match="guaranteed for a whole life"):
        prepared(json.dumps(replace(left, life=dearer).plain))
    system = prepared(json.dumps(left.plain))
    assert load(tmp_path / "next").digest == system.digest != first.digest
    (fact,) = system.before
    assert "Generation 2 of the deployment: a person was charged at most epsilon 2, " in fact.text
    assert system.core.paid == life, "a person gives the one slot to one of both"
    said = "All generations together charge one person at most epsilon 2, "
    for promise in (system.guarantee(), kind_of("p2b").guarantee(config, artefacts_of(tmp_path / "next"))):
        assert promise.generations == life
        assert promise.sentence().startswith(said)
        assert promise.phrase().startswith(said.lower())
    dearer_before = replace(left, life=life + life, spent=(NOTHING, life + life))
    assert first.core.following(dearer_before).guarantee().odds()[1].share > first.guarantee().odds()[1].share
    with pytest.raises(HushstreamError, match="expected the generation that this deployment follows, got another"):
        prepared(json.dumps(replace(left, ledger="00").plain))


def test_no_learner_begins_under_another_edge_key(rigs):
    """Under another one every number of a person would be new."""
    first = rigs.make_system()
    system = first.following(ended(first, rigs.ShufflerRig(first)))
    for key in (EDGE, seeded_key(2, "edge")):
        machine = rigs.LearnerMachine(system, 0, key)
        genesis = machine.genesis(rigs.NONCE)
        if key is EDGE:
            machine.start(genesis)
        else:
            with pytest.raises(HushstreamError, match=f"edge key: expected {EDGE.key_id.hex()}, .* got another"):
                machine.start(genesis)
