"""Serving and the learner role: tickets by cell, what may be shown, and which outcomes leave when."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of
from hushstream.systems.pdap.algorithm.serving import Serving, TicketNumbers
from hushstream.systems.pdap.cells import PdapError
from hushstream.systems.pdap.edge import cold_serving
from hushstream.systems.pdap.records import parse_model


@pytest.fixture(scope="module")
def served(pdap):
    run = pdap.Deployment(pdap.config(first_window=300))
    for _ in range(5):
        run.window()
    return run


def asked(count):
    contexts = np.random.default_rng(5).random((count, 2)).astype(np.float32)
    contexts[0] = 1.0
    return contexts, [b"user %d" % place for place in range(count)], [b"%d" % place for place in range(count)]


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_batches_of_any_size_give_the_same_answers(served, batch):
    contexts, users, rounds = asked(300)
    whole = served.serving.choose(contexts, users, rounds)
    for begin in range(0, 300, batch):
        part = slice(begin, begin + batch)
        found = served.serving.choose(contexts[part], users[part], rounds[part])
        for name in ("arms", "propensities", "cells", "arrivals", "tickets"):
            assert np.array_equal(getattr(found, name), getattr(whole, name)[part])


def test_contexts_are_answered_one_at_a_time_as_in_a_batch(served):
    contexts, users, events = asked(50)
    together = served.serving.choose(contexts, users, events)
    paths = served.config.grid.paths(contexts).tolist()
    alone = [served.serving.one(*row) for row in zip(paths, users, events, strict=True)]
    columns = together.arms, together.propensities, together.cells, together.arrivals, together.tickets
    np.testing.assert_array_equal(np.array(alone, dtype=np.int64).T, columns)


def test_the_propensity_is_the_share_of_tickets_with_that_arm(served):
    contexts = np.repeat(asked(1)[0], 256, axis=0)
    found = served.serving.answer(contexts, np.arange(256, dtype=np.uint8))
    for arm, propensity in zip(found.arms, found.propensities, strict=True):
        assert propensity == (found.arms == arm).sum()


def test_the_serving_cell_is_open_and_the_arrival_one_level_below(served):
    contexts, users, rounds = asked(300)
    found = served.serving.choose(contexts, users, rounds)
    open_cells = set(served.aggregate.partition.cells)
    assert len(open_cells) > 4
    assert set(found.cells.tolist()) <= open_cells
    grid = served.config.grid
    for cell, arrival in zip(found.cells.tolist(), found.arrivals.tolist(), strict=True):
        assert arrival == cell if cell >> 57 == grid.levels else grid.parent(arrival) == cell


def test_tickets_are_a_keyed_function_of_user_and_event():
    numbers, other = TicketNumbers(seeded_key(0, "edge")), TicketNumbers(seeded_key(1, "edge"))
    users, events = [b"a"] * 64 + [b"b"] * 64, [b"%d" % place for place in range(64)] * 2
    first = numbers(users, events)
    assert np.array_equal(first, numbers(users, events))
    assert not np.array_equal(first[:64], first[64:])
    assert not np.array_equal(first, other(users, events))
    # The end of a user's name cannot stand for the beginning of an event's.
    assert not np.array_equal(numbers([b"ab"] * 64, events[:64]), numbers([b"a"] * 64, [b"b" + e for e in events[:64]]))


def test_tickets_are_even():
    # A fixed key: the outcome is fixed. Of random keys one in a million would fail.
    drawn = TicketNumbers(seeded_key(0, "edge"))([b"%d" % place for place in range(25_600)], [b"3"] * 25_600)
    assert chisquare(np.bincount(drawn, minlength=256)).pvalue > 1e-6


def test_a_version_that_is_not_the_next_or_leaves_a_row_out_is_refused(served):
    fresh = Serving(served.config.grid, seeded_key(0, "edge"))
    with pytest.raises(PdapError, match="expected a model, got none"):
        fresh.choose(*asked(1))
    with pytest.raises(PdapError, match="expected version 0, got 1"):
        fresh.apply(served.updates[1])
    fresh.apply(served.updates[0])
    from dataclasses import replace

    opening = next(update for update in served.updates[1:] if len(update.opened))
    damaged = replace(opening, version=1, changed=opening.changed[:-1], tickets=opening.tickets[:-1])
    with pytest.raises(PdapError, match="tickets for each changed and each opened row"):
        fresh.apply(damaged)


def test_only_eligible_arms_are_shown_each_as_often_as_it_says(served):
    eligible = np.zeros(served.config.arms, dtype=np.bool_)
    middle = np.full((256, 2), 0.5)
    some = np.unique(served.serving.answer(middle, np.arange(256, dtype=np.uint8)).arms)[:3]
    assert len(some) == 3
    eligible[some] = True
    path = int(served.config.grid.paths(middle[:1])[0])
    drawn: dict[int, list[int]] = {}
    for event in range(20_000):
        found = served.serving.one(path, b"u", b"%d" % event, eligible)
        drawn.setdefault(found.arm, []).append(found.propensity)
    assert set(drawn) == set(some.tolist())
    for propensities in drawn.values():
        assert len(set(propensities)) == 1
        # Keyed draws of a fixed key: a binomial within six of its standard deviations (false alarm 2e-9).
        share = propensities[0] / 256
        assert abs(len(propensities) / 20_000 - share) < 6 * (share * (1 - share) / 20_000) ** 0.5
    assert sum(propensities[0] for propensities in drawn.values()) == 256


def test_where_no_ticket_is_of_an_eligible_arm_all_of_them_are_as_likely(served):
    path = int(served.config.grid.paths(np.full((1, 2), 0.5))[0])
    tickets = np.frombuffer(served.serving.dump()["tickets"], "<i4")
    unseen = sorted(set(range(served.config.arms)) - set(tickets.tolist()))[:2]
    assert len(unseen) == 2
    eligible = np.zeros(served.config.arms, dtype=np.bool_)
    eligible[unseen] = True
    found = [served.serving.one(path, b"u", b"%d" % event, eligible) for event in range(400)]
    assert {one.arm for one in found} == set(unseen)
    assert {one.propensity for one in found} == {128}


def test_an_eligible_arm_without_tickets_in_the_cell_is_one_that_others_show_if_there_is_one(served):
    """So one that was withdrawn, which has no ticket anywhere, is not drawn because it is named among others."""
    tickets = np.frombuffer(served.serving.dump()["tickets"], "<i4").reshape(-1, 256)
    path = int(served.config.grid.paths(np.full((1, 2), 0.5))[0])
    row = served.serving.rows(np.full((1, 2), 0.5))[0]
    elsewhere = sorted(set(tickets.ravel().tolist()) - set(tickets[row].tolist()))
    nowhere = sorted(set(range(served.config.arms)) - set(tickets.ravel().tolist()))
    eligible = np.zeros(served.config.arms, dtype=np.bool_)
    eligible[[elsewhere[0], nowhere[0]]] = True
    found = [served.serving.one(path, b"u", b"%d" % event, eligible) for event in range(50)]
    assert {(one.arm, one.propensity) for one in found} == {(elsewhere[0], 256)}


@pytest.fixture
def rig(shops):
    return shops.VendorLearnerRig()


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


# Decisions.


def test_the_arm_is_the_tickets_before_and_after_a_model(shops, rig):
    serving = cold_serving(rig.system, rig.key)
    values = shops.models_of(rig.system, [shops.some_rewards(number, 60) for number in range(4)])
    draw = np.random.default_rng(1)
    for version in range(len(values)):
        if version:
            rig.model(values[version])
            serving.apply(parse_model(codec.decode(values[version])[1], rig.system.config.arms))
        else:
            rig.model(values[0])
        for number in range(20):
            at, event = draw.random(2).astype(np.float32), f"{version}:{number}"
            arm = rig.decide(event, at.tolist())
            expected = serving.choose(at[None], [b"ann"], [event.encode()])
            answer = rig.seen.answers[-1]
            assert arm == expected.arms[0]
            assert answer.propensity == expected.propensities[0] * 10**9 // 256
            assert (answer.model_version, answer.policy) == (version, 0)
    assert len(rig.machine.serving.dump()["cells"]) > 8, "cells have opened"


VISITS = {
    "age": {"kind": "number", "range": [0, 1]},
    "spend": {"kind": "number", "range": [0, 1]},
}


def _visit(rig, event_id, values, **changes):
    """A context of declared features, as the client sends it."""
    schema = declare(VISITS)
    fields = {"event_id": event_id, "user": "ann", "line": rig.vendor, "row": schema.encode(values).row}
    fields = {**fields, "features_digest": schema.digest, **changes}
    rig.put(f"contexts.{rig.vendor}", codec.encode("FeatureContext", fields), rig.partition)


def test_declared_features_are_answered_as_the_numbers_where_they_lie(shops):
    """Two features from 0 to 1 are the very context of two numbers: the same cells, tickets and outcomes."""
    rig = shops.VendorLearnerRig(shops.make_system(dimension=0, declared=VISITS))
    serving, grid = cold_serving(rig.system, rig.key), rig.system.config.grid
    values = shops.models_of(rig.system, [shops.some_rewards(number, 60) for number in range(4)])
    for value in values:
        rig.model(value)
    for value in values[1:]:
        serving.apply(parse_model(codec.decode(value)[1], rig.system.config.arms))
    draw = np.random.default_rng(3)
    for number in range(20):
        at, event = draw.random(2), f"e{number}"
        _visit(rig, event, {"age": at[0], "spend": at[1]})
        arm = rig.fold().arms[event]
        assert arm == serving.choose(at[None], [b"ann"], [event.encode()]).arms[0]
    _visit(rig, "missing", {})
    middle = int(grid.paths(np.full((1, 2), 0.5))[0])
    rig.fold()
    assert rig.machine.open.get("missing").arrival == grid.cell_at(middle, grid.levels)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"at": (0.5, 1.5)}, "context_outside"),
        ({"at": (-1e-7, 0.5)}, "context_outside"),
        ({"at": (0.5, float("nan"))}, "not_finite"),
        ({"at": (0.5, float("inf"))}, "not_finite"),
        ({"at": (0.5,)}, "wrong_dimension"),
        ({"line": "three"}, "unknown_line"),
        ({"line": "private"}, "unknown_line"),
        ({"eligible": bytes([1]), "baseline": 3}, "baseline_not_eligible"),
    ],
)
def test_a_context_that_cannot_be_is_a_dead_letter(rig, fields, reason):
    rig.context("e", **fields)
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert not seen.answers


def test_a_user_of_another_partition_is_refused(shops):
    rig = shops.VendorLearnerRig(shops.make_system(partitions={"learner": 2}), partition=1 - partition_of("ann", 2))
    rig.context("e")
    rig.shown("other", 0)
    assert rig.fold().reasons == ["foreign_user"] * 2


# Outcomes.


def test_what_was_shown_leaves_with_its_reward_and_nothing_else_does(rig):
    clicked, passed = rig.interact("clicked"), rig.interact("passed", reward=None)
    rig.decide("not shown")
    other = rig.decide("another shown")
    rig.shown("another shown", (other + 1) % 7)
    rig.reward("another shown", other)
    rig.end_phase()
    found = rig.outcomes(rig.fold())
    assert sorted((arm, reward) for _, _, arm, reward in found) == sorted([(clicked, 1), (passed, 0)])
    assert {cell for _, cell, _, _ in found} == {0}


def test_an_outcome_keeps_the_cell_that_served_though_it_has_split_since(shops, rig):
    rig.interact("e")
    for value in shops.models_of(rig.system, [shops.some_rewards(number, 60) for number in range(3)]):
        rig.model(value)
    rig.fold()
    rig.end_phase()
    assert [cell for _, cell, _, _ in rig.outcomes(rig.fold())] == [0]
    rig.interact("later")
    rig.end_phase(1)
    assert all(cell > 0 for _, cell, _, _ in rig.outcomes(rig.fold()))


def test_outcomes_of_one_span_leave_together_when_log_time_has_come(shops, rig):
    rig.interact("e")
    rig.wait(shops.WAIT_SECONDS * 2.5)
    assert not rig.outcomes()
    rig.decide("tells the time")
    assert len(rig.outcomes()) == 1


def test_rewards_off_the_levels_are_refused_and_those_on_them_count(shops):
    rig = shops.VendorLearnerRig(shops.make_system(release={"reward_levels": 4}))
    rig.interact("on", 0.75)
    rig.interact("off", 0.6)
    rig.end_phase()
    found = rig.outcomes(rig.fold())
    assert sorted(reward for *_, reward in found) == [0, 3]
    assert rig.seen.reasons == ["reward_off_levels"]


@pytest.mark.parametrize("named", [False, True])
def test_no_reward_moves_anything_but_the_number_in_its_own_row(shops, named):
    """The rule that the proof rests on: what leaves, when, with what and to whom is the same for any rewards."""
    found = []
    for flip in (False, True):
        seen = shops.played(shops.make_system(**({"vendors": shops.NAMED} if named else {})), flip).seen
        places = [(output.topic, output.partition, output.key, len(output.value)) for output in seen.outputs]
        sent = [codec.decode(output.value) for output in seen.outputs]
        public = [(name, without(fields, "rewards")) for name, fields in sent]
        journals = [without(record, "head", "chain") for record in seen.journals]
        found.append(((places, public, journals), [fields.get("rewards") for _, fields in sent]))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize("named", [False, True])
def test_what_dark_visits_show_and_earn_moves_nothing_that_leaves_the_vendor(shops, named):
    """On trial decisions move with rewards, and they stay; outcomes, forwards and changes of items do not."""
    found = []
    for flip in (False, True):
        seen = shops.played(shops.on_trial(named=named), flip, 400).seen
        sent = [(output.topic, *codec.decode(output.value)) for output in seen.outputs]
        public = [(topic, name, without(fields, "rewards")) for topic, name, fields in sent]
        shown = [without(record, "head", "chain") for record in seen.journals]
        found.append((public, shown, [fields.get("rewards") for *_, fields in sent]))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
    assert found[0][2] != found[1][2]


def test_dark_visits_show_own_items_and_no_outcome_or_forward_of_them_leaves(shops):
    rig = shops.VendorLearnerRig(shops.on_trial(), shops.SECRET)
    renewed = shops.VendorLearnerRig(rig.system, seeded_key(9, "edge.one"), nonce=bytes([9]) * 32)
    events = [f"e{number}" for number in range(200)]
    arms = {event: rig.interact(event) for event in events}
    rig.end_phase()
    seen = rig.fold() and rig.seen
    clean = [event for event in events if rig.machine.is_clean("ann", event)]
    assert clean == [event for event in events if renewed.machine.is_clean("ann", event)]
    assert {arms[event] for event in set(events) - set(clean)} <= {0, 1, 2}
    abroad = [arms[event] for event in clean if arms[event] > 2]
    assert sorted(arm for _, _, arm, _ in rig.outcomes()) == sorted(arms[event] for event in clean)
    forwarded = b"".join(fields["arms"] for fields in seen.records("forwards.two", "Forwards"))
    assert np.frombuffer(forwarded, "<i4").tolist() == abroad
    assert len(abroad) > 10
    # A binomial of .4 within six standard deviations (false alarm 2e-9).
    assert abs(len(clean) - 80) < 6 * (200 * 0.4 * 0.6) ** 0.5


def test_where_a_vendor_shares_or_none_of_its_items_may_be_shown_all_visits_are_clean(shops):
    rig = shops.VendorLearnerRig(shops.on_trial(), shops.SECRET)
    others = bytes([0b1111000])
    assert all(rig.decide(f"e{number}", eligible=others) > 2 for number in range(30))
    aggregator = shops.TicketAggregatorRig(rig.system)
    aggregator.machine.aggregate.trial.shares[:] = [True, False]
    aggregator.change(0, offered=False)
    for value in (aggregator.genesis, *aggregator.journal):
        rig.model(value)
    rig.fold()
    for number in range(30, 90):
        rig.interact(f"e{number}")
    rig.end_phase()
    rig.fold()
    assert len(rig.outcomes()) == 60


def test_no_record_beyond_the_edge_names_a_user_an_event_or_a_context(shops):
    rig = shops.VendorLearnerRig(key=shops.SECRET)
    for number in range(20):
        rig.interact(f"event-with-a-long-name-{number}", user="user-with-a-long-name")
    rig.end_phase()
    rig.fold()
    point = np.array((0.2, 0.7), "<f4").tobytes()
    for output in rig.seen.outputs:
        for secret in (b"event-with", b"user-with", point, point[:4]):
            assert secret not in output.value, output.topic


def names_of(rig):
    return b"".join(fields["names"] for fields in rig.seen.records("outcomes", "Outcomes"))


def test_an_outcome_that_a_new_journal_sends_again_has_its_name_and_counts_once(shops):
    """A lost journal whose loss was accepted: all that its logs hold is decided and sent anew."""
    lives = [shops.VendorLearnerRig(key=shops.SECRET, nonce=bytes([life]) * 32) for life in (1, 2)]
    assert lives[0].machine.chain.genesis_nonce != lives[1].machine.chain.genesis_nonce
    counter = shops.BlockCounterRig(lives[0].system)
    for rig in lives:
        for number in range(8):
            rig.interact(f"e{number}")
        rig.end_phase()
        rig.fold()
        for output in rig.seen.releases("outcomes"):
            counter.put("outcomes", output.value)
    assert names_of(lives[0]) == names_of(lives[1])
    assert counter.fold().counts["repeated_rewards"] == 8
    assert counter.machine.counter.taken == 8


def test_names_of_outcomes_differ_by_user_event_vendor_key_and_deployment(shops):
    systems = shops.make_system(), shops.make_system(deployment="another")
    rigs = [
        shops.VendorLearnerRig(systems[0]),
        shops.VendorLearnerRig(systems[0], vendor="two"),
        shops.VendorLearnerRig(systems[0], key=shops.SECRET),
        shops.VendorLearnerRig(systems[1]),
    ]
    one = rigs[0].machine
    names = [rig.machine.outcome_name("ann", "e") for rig in rigs]
    # Ids are joined by their lengths: no two pairs of user and event share a name.
    names += [one.outcome_name(*pair) for pair in (("ann", "f"), ("bob", "e"), ("an", "ne"), ("anne", ""))]
    assert len(set(names)) == len(names) == 8
    assert all(len(name) == 16 and name != one.forward_name("e") for name in names)


@pytest.mark.parametrize(("placement", "origins"), [("home", (0, 1)), ("serving", (2, 3))])
def test_outcomes_and_phase_ends_go_to_the_one_counter_or_to_that_of_their_home_alone(shops, placement, origins):
    system = shops.make_system(release={"placement": placement}, partitions={"learner": 2})
    number = 1 if placement == "home" else 0
    for partition, origin in enumerate(origins):
        rig = shops.VendorLearnerRig(system, partition=partition, vendor="two")
        user = next(name for name in ("ann", "bob", "cy", "di") if partition_of(name, 2) == partition)
        for event in range(3):
            rig.interact(f"e{event}", user=user)
        rig.end_phase()
        seen = rig.fold()
        assert [counter for counter, *_ in rig.outcomes(seen)] == [number] * 3
        topic = "outcomes.two" if placement == "home" else "outcomes"
        sent = {(out.topic, out.partition) for out in rig.seen.outputs if out.topic.startswith("outcomes")}
        assert sent == {(topic, 0)}
        assert [phase_end["origin"] for phase_end in seen.records(topic, "Seal")] == [origin]


def test_what_names_another_vendor_is_refused(shops):
    rig = shops.VendorLearnerRig(vendor="two")
    for number, track in enumerate(("two", "one", "three", "private")):
        rig.context(f"e{number}", line=track)
    seen = rig.fold()
    assert [answer.event_id for answer in seen.answers] == ["e0"]
    assert seen.reasons == ["unknown_line"] * 3
    assert {letter.topic for step in seen.steps for letter in step.dead_letters} == {"dead-letters-edge.two"}


def test_a_forward_tells_the_serving_vendor_the_cell_and_the_ticket(shops, rig):
    arms = {f"e{number}": rig.decide(f"e{number}") for number in range(40)}
    sent = rig.seen.records("forwards.two", "Forwards")
    assert {output.topic for output in rig.seen.outputs if output.topic.startswith("forwards")} == {"forwards.two"}
    abroad = [arm for arm in arms.values() if arm >= 3]
    assert 0 < len(abroad) < 40
    assert [int(arm) for fields in sent for arm in np.frombuffer(fields["arms"], "<i4")] == abroad
    assert {fields["serving"] for fields in sent} == {1}
    assert {int(home) for fields in sent for home in np.frombuffer(fields["homes"], "<i4")} == {0}
    names = {fields["names"][at : at + 16] for fields in sent for at in range(0, len(fields["names"]), 16)}
    assert len(names) == len(abroad)


# Changes of the catalogue.


@pytest.fixture
def of_items(shops):
    """The learner of the second vendor, whose arms are 3 to 6, where items have names."""
    return shops.VendorLearnerRig(shops.make_system(vendors=shops.NAMED), vendor="two")


def test_a_vendor_changes_its_own_items_and_the_first_partition_passes_it_on_to_the_counter(shops, of_items):
    rig = of_items
    for version, (item, offered) in enumerate([("hat", True), ("bag", True), ("hat", False)], 1):
        rig.item(item, version, offered=offered)
    seen = rig.fold()
    sent = seen.records("outcomes", "ArmChange")
    assert [(fields["arm"], fields["offered"]) for fields in sent] == [(3, True), (4, True), (3, False)]
    assert {fields["config_digest"] for fields in sent} == {rig.system.digest}
    assert seen.counts["item_changed"] == 3
    fresh = rig.fresh()
    assert [step.releases for step in rig.replayed(fresh).steps] == [step.releases for step in rig.seen.steps]
    system = shops.make_system(vendors=shops.NAMED, partitions={"learner": 2})
    second = shops.VendorLearnerRig(system, vendor="two", partition=1)
    second.item("hat", 1)
    assert second.fold().counts["item_changed"] == 1
    assert not second.seen.releases("outcomes"), "once for all partitions"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 3}, "item_refused"),
        ({"item": "hat"}, "item_refused"),
        ({"item": "x" * 200}, "item_refused"),
        ({"features": '{"colour": "red"}'}, "item_refused"),
        ({"offered": False}, "item_refused"),
        ({"config_digest": b"\x01" * 16}, "other_configuration"),
    ],
)
def test_a_change_that_does_not_count_is_a_dead_letter(of_items, fields, reason):
    of_items.item("hat", 1)
    of_items.fold()
    of_items.item(**{"item": "bag", "version": 2, **fields})
    seen = of_items.fold()
    assert seen.reasons == [reason]
    assert not seen.releases("outcomes")


def test_a_vendor_shows_its_own_items_before_any_model_knows_them_and_a_retired_one_at_once_no_more(of_items):
    rig = of_items
    rig.context("nobody")
    assert rig.fold().reasons == ["nothing_offered"]
    rig.item("hat", 1)
    rig.item("bag", 2)
    shown = {rig.decide(f"e{number}") for number in range(40)}
    assert shown == {3, 4}
    rig.item("hat", 3, offered=False)
    assert {rig.decide(f"f{number}") for number in range(20)} == {4}
    assert rig.decide("g", eligible=bytes([0b11000])) == 4
    rig.context("h", eligible=bytes([0b01000]))
    assert rig.fold().reasons == ["nothing_offered"]
    # Who asks again about what was decided is answered, whatever is offered now.
    rig.item("bag", 4, offered=False)
    rig.context("e0")
    assert rig.fold().arms["e0"] in {3, 4}


def test_a_retired_item_of_ones_own_is_not_shown_though_the_last_model_has_tickets_for_it(shops, of_items):
    rig, system = of_items, of_items.system
    aggregator = shops.TicketAggregatorRig(system)
    for arm in (0, 3, 4):
        aggregator.change(arm, offered=True)
    rig.model(aggregator.genesis)
    for value in aggregator.journal:
        rig.model(value)
    rig.item("hat", 1)
    rig.item("bag", 2)
    assert {rig.decide(f"e{number}") for number in range(80)} == {0, 3, 4}
    rig.item("hat", 3, offered=False)
    assert {rig.decide(f"f{number}") for number in range(80)} == {0, 4}
    fresh = rig.fresh()
    rig.replayed(fresh)
    assert fresh.snapshot() == rig.machine.snapshot()


def test_there_is_a_capacity_and_no_row_is_used_again(of_items):
    rig = of_items
    for number in range(4):
        rig.item(f"i{number}", number + 1)
    rig.item("i0", 5, offered=False)
    rig.fold()
    rig.wait(10**7)
    rig.item("late", 6)
    assert rig.fold().reasons == ["item_refused"]
    rig.item("i0", 6)
    assert rig.fold().records("outcomes", "ArmChange")[0]["arm"] == 3, "one that comes back has its row"


def test_a_user_who_is_forgotten_leaves_no_open_outcome(rig):
    rig.interact("one", user="ann")
    rig.interact("two", user="bob")
    forget = {"user": "ann", "config_digest": rig.system.digest}
    rig.put("contexts.one", codec.encode("Forget", forget))
    rig.fold()
    assert b"ann" not in rig.machine.snapshot()
    rig.end_phase()
    assert len(rig.outcomes(rig.fold())) == 1


# Cuts, restores and replays.
