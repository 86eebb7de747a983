"""A deployment of declared features: from what a user does to the model that the next one starts from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.engine.configuration import canonical_form
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.requests import BadContext
from hushstream.engine.values import ConfigurationError
from hushstream.features.compiled import CompiledRows
from hushstream.features.schema import declare
from hushstream.gateway.conversation.translation import Translation
from hushstream.learners.sparse import MOST_STEPS
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    FeedbackConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
)
from hushstream.systems.p2b.deployment import P2BSystem, decode_model
from hushstream.systems.p2b.edge.agent import EdgeAgent, EdgeTerms
from hushstream.systems.p2b.edge.policies import Lesson
from hushstream.systems.p2b.machines.aggregator import FeatureTotals
from hushstream.systems.p2b.machines.shuffler import release_window
from hushstream.systems.p2b.shuffler import ClosedBy, ClosedWindow
from hushstream.systems.p2b.slots import pack, pack_null, slot_bytes, slot_columns, unpack_reports
from hushstream.systems.p2b.system import KIND

COUNTRIES = ("de", "fr", "se")
FEATURES = {
    "country": {"kind": "category", "vocabulary": list(COUNTRIES)},
    "age": {"kind": "number", "range": [16, 96]},
    "hour": {"kind": "time_of_day"},
}
ARMS, WAIT_MS, EVERY_MS = 4, 5_000, 1_000
VALUES: dict[str, Any] = {
    "deployment": "shop",
    "items": {"capacity": ARMS},
    "features": FEATURES,
    "expected_slots": 2_000,
    "feedback": {"click_rate": 0.1},
}


def system_of(click_rate: float | None = 0.1, **release: Any) -> P2BSystem:
    return P2BSystem.declared(
        P2BConfig(
            deployment="shop",
            arms=ARMS,
            context=ContextConfig(declared=declare(FEATURES)),
            expected_slots=2_000,
            slot=SlotConfig(after_interactions=10),
            feedback=FeedbackConfig(attribution_window_seconds=WAIT_MS / 1000),
            release=ReleaseConfig(**{"form": "features", "sums": "fresh", **release}),
            click_rate=click_rate,
        )
    )


def row(system: P2BSystem, country: str, age: float = 30.0, hour: float = 12.0) -> np.ndarray:
    encoded = system.requests.row_of({"country": country, "age": age, "hour": hour})
    return np.frombuffer(encoded, np.uint8)


class Shoppers:
    """Users whose country has one item that they like, on agents of their own."""

    def __init__(self, system: P2BSystem, terms: EdgeTerms, source: random.Random) -> None:
        self.system, self.terms, self.source = system, terms, source

    def visit(self, name: str) -> tuple[bytes, float]:
        """Ten interactions, each rewarded when it has settled or not at all: the slot, and the mean reward."""
        agent = EdgeAgent(self.terms, seeded_key(5, "edge").derive("user", name), "private")
        country, source, clicks = self.source.randrange(3), self.source, 0.0
        for number in range(10):
            now_ms, event = EVERY_MS * number, str(number)
            for late in [one for one, open_ in agent.open.items() if open_.deadline_ms <= now_ms]:
                agent.expire(late)
            context = row(self.system, COUNTRIES[country], source.uniform(16, 96), source.uniform(0, 24))
            arm = agent.decide_new(event, context, now_ms).arm
            agent.shown(event, arm)
            if source.random() < (0.4 if arm == country + 1 else 0.03):
                agent.rewarded(event, arm, 1.0)
                clicks += 1
        for late in list(agent.open):
            agent.expire(late)
        return agent.take_slot(EVERY_MS * 10 + WAIT_MS).content, clicks / 10


@pytest.mark.slow_statistics
def test_new_users_start_from_what_others_liked_in_their_country() -> None:
    """800 slots at epsilon 2. A cold user loses a third of the clicks to trying; seeded, so it does not flake."""
    system, source = system_of(epsilon=2.0), random.Random(3)
    terms = system.edge_terms()
    shoppers = Shoppers(system, terms, source)
    played = [shoppers.visit(f"cold-{number}") for number in range(800)]
    rows = system.window_rules().item_rows
    closed = ClosedWindow(0, ClosedBy.SLOTS, tuple(slot for slot, _ in played), item_rows=rows)
    window = release_window(system, seeded_key(2, "shuffler"), bytes(32), 0, closed).record
    totals = FeatureTotals(system)
    assert totals.add(window)
    published = decode_model(system, {"version": 1, "arms": ARMS, **totals.model().fields()})
    terms.policy.adopt("private", published.version, *published.arrays)
    clicks = np.array([clicks for _, clicks in played])
    warm = float(np.mean([shoppers.visit(f"warm-{number}")[1] for number in range(150)]))
    assert clicks.mean() < 0.25
    assert warm > 0.32
    held = unpack_reports(system.linear.layout, [slot for slot, _ in played])
    assert held.held.all()
    # Of 800 slots: 5 deviations.
    assert held.levels.mean() == pytest.approx(0.8 * (clicks > 0).mean(), abs=0.09)


# Which interaction a slot holds.


def play(
    system: P2BSystem, clicked: dict[int, float], until_ms: int, name: str = "ann", every_ms: int = EVERY_MS
) -> tuple[Any, list[int]]:
    """Ten decisions of a user; of ``clicked`` the reward comes at once, of the others the deadline."""
    agent = EdgeAgent(system.edge_terms(), seeded_key(5, "edge").derive("user", name), "private")
    arms = []
    for number in range(10):
        now_ms = every_ms * number
        for late in [event for event, waits in agent.open.items() if waits.deadline_ms <= now_ms]:
            agent.expire(late)
        arms.append(agent.decide_new(str(number), row(system, COUNTRIES[number % 3], 16.0 + 8 * number), now_ms).arm)
        agent.shown(str(number), arms[-1])
        if number in clicked:
            agent.rewarded(str(number), arms[-1], clicked[number])
    for late in [event for event, waits in agent.open.items() if waits.deadline_ms <= until_ms]:
        agent.expire(late)
    slot = agent.take_slot(until_ms)
    (held,) = unpack_reports(system.linear.layout, [slot.content]).held
    assert bool(held) == (slot.interaction is not None)
    return slot, arms


def test_no_interaction_counts_before_its_reward_window_has_ended() -> None:
    """A reward at once would get ahead of those that never come; so an early slot of nothing but clicks is null."""
    system = system_of()
    everything = dict.fromkeys(range(10), 1.0)
    slot, _ = play(system, everything, WAIT_MS - 1, every_ms=WAIT_MS // 10)
    assert slot.interaction is None
    assert slot.content == pack_null(system.linear.layout)
    slot, arms = play(system, everything, WAIT_MS, every_ms=WAIT_MS // 10)
    assert slot.interaction is not None
    first = system.policy().kept(row(system, "de", 16.0)[None])
    assert slot.interaction.context == first, "the first is all that has ended"
    assert slot.interaction.arm == arms[0]


def test_a_slot_holds_the_first_click_with_the_declared_chance_and_an_unclicked_one_else() -> None:
    """h = .8 of 400 users: outside .72 to .88 by chance with probability below 1e-4; the keys are seeded."""
    system, end_ms = system_of(), EVERY_MS * 10 + WAIT_MS
    first = system.policy().kept(row(system, COUNTRIES[4 % 3], 16.0 + 8 * 4)[None])
    found = [play(system, {4: 1.0, 7: 1.0}, end_ms, f"user-{number}")[0].interaction for number in range(400)]
    clicked = [one for one in found if one.reward > 0]
    assert 0.72 < len(clicked) / len(found) < 0.88
    assert {one.context for one in clicked} == {first}
    assert len({one.context for one in found if not one.reward}) == 8


def test_with_frequent_or_unknown_clicks_every_interaction_is_drawn_alike() -> None:
    end_ms = EVERY_MS * 10 + WAIT_MS
    for rate in (0.5, None):
        system = system_of(click_rate=rate)
        found = [play(system, {4: 1.0}, end_ms, f"user-{number}")[0].interaction for number in range(200)]
        assert sum(one.reward for one in found) < 45
        assert len({one.context for one in found}) == 10


# What the roles refuse, and what counts as null.


def test_a_forged_slot_is_a_slot_and_moves_no_sum(rigs: Any) -> None:
    """What differs between the window with the forged slot and the one with a null is the noise, by its address."""
    system = system_of(window_slots=4, epsilon=20.0)
    layout = system.linear.layout
    forged = slot_columns(layout, 1)
    forged["level"], forged["units"][:, 0] = 1, 5 * 4096
    found = []
    for content, counted in ((forged[0].tobytes(), 4), (pack_null(layout), 0)):
        rig = rigs.ShufflerRig(system)
        for number in range(4):
            put_slot(rig, number, content)
        seen = rig.fold()
        assert not seen.reasons
        assert seen.counts.get("forged_slot", 0) == counted
        (window,) = seen.records("window-sums", "ItemSums")
        found.append(np.frombuffer(window["ones"], "<i8"))
        assert (window["slots"], window["mode"]) == (4, "linear-sums")
    # Scale 4096/20: beyond 20 scales a draw is with probability below 1e-8.
    assert max(np.abs(sums).max() for sums in found) < 4096


def test_forged_slots_are_a_zone_private_count() -> None:
    assert OUTCOMES["forged_slot"] == "zone-private"


def test_an_agent_that_forgot_its_first_interactions_is_restored_to_the_last_bit() -> None:
    """300 interactions, of which the newest 256 are kept: the bytes and the next choice are those of before."""
    system = system_of()
    policy = system.policy()
    version, state = policy.begin("private")
    for number in range(300):
        context = policy.kept(row(system, COUNTRIES[number % 3], 16.0 + number % 80)[None])
        policy.learn_all([Lesson(state, context, number % ARMS, float(number % 2))])
    dumped = policy.dump_own(state)
    assert len(dumped) == 4 + MOST_STEPS * (4 + 4 * system.linear.layout.cells + 4) + 4
    again = policy.load_own("private", version, dumped)
    assert policy.dump_own(again) == dumped
    asked = row(system, "fr", 41.0)
    for number in range(3):
        scores = [policy.scores(one, asked).tobytes() for one in (state, again)]
        assert scores[0] == scores[1]
        policy.learn_all([Lesson(one, policy.kept(asked[None]), number, 1.0) for one in (state, again)])


def test_a_slot_of_another_length_or_form_is_a_dead_letter(rigs: Any) -> None:
    rig = rigs.ShufflerRig(system_of(window_slots=4))
    put_slot(rig, 0, pack_null(rig.system.linear.layout)[:-1])
    rig.slot(1)
    assert rig.fold().reasons == ["malformed_slot", "unexpected_schema"]


def put_slot(rig: Any, number: int, content: bytes) -> None:
    period = (rig.now_ms // 86_400_000).to_bytes(8, "little")
    place = {"report_id": number.to_bytes(16, "big"), "period": period, "config_digest": rig.system.digest}
    rig.put("reports", codec.encode("FeatureSlot", {**place, "content": content}))


def test_the_end_of_a_phase_ends_all_reward_windows(rigs: Any) -> None:
    """A replay's rewards are all there when its phase ends, and no log time passes any more: its slots were empty."""
    system = system_of()
    rig, schema, good = rigs.LearnerRig(system), system.linear.layout.schema, row(system, "fr").tobytes()
    place = {"user": "ann", "line": "private", "row": good, "features_digest": schema.digest}
    for number in range(10):
        rig.put("contexts", codec.encode("FeatureContext", {"event_id": str(number), **place}))
        (answer,) = rig.fold().answers
        rig.reward(str(number), answer.arm, float(number == 4))
        rig.fold()
    rig.end_phase()
    (slot,) = rig.fold().records("reports", "FeatureSlot")
    found = unpack_reports(system.linear.layout, [slot["content"]])
    assert found.held.all()


def test_rewards_that_come_late_are_read_together(rigs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was read alone where so many contexts had come since that its row was forgotten: an eighth of the speed."""
    system = system_of()
    rig, schema = rigs.LearnerRig(system), system.linear.layout.schema
    plain = {"line": "private", "features_digest": schema.digest}

    def ask(number: int) -> None:
        place = {"event_id": str(number), "user": str(number), "row": row(system, "fr", 20.0 + number).tobytes()}
        rig.put("contexts", codec.encode("FeatureContext", {**plain, **place}))

    for number in range(40):
        ask(number)
    arms = rig.fold().arms
    ask(40)
    rig.fold()
    for number in range(40):
        rig.reward(str(number), arms[str(number)], 1.0, str(number))
    sizes, read = [], CompiledRows.read
    monkeypatch.setattr(CompiledRows, "read", lambda self, rows: sizes.append(len(rows)) or read(self, rows))
    assert rig.fold().counts["rewarded"] == 40
    assert sizes == [40 * schema.row_bytes]


def test_bad_rows_are_dead_letters_and_those_beside_them_are_answered(rigs: Any) -> None:
    system = system_of()
    rig, schema = rigs.LearnerRig(system), system.linear.layout.schema
    good = row(system, "fr").tobytes()
    fields = {"users": ["ann"] * 3, "line": "private", "features_digest": schema.digest}
    rows = good + b"\xfe" * len(good) + good
    rig.put("contexts", codec.encode("FeatureContextBatch", {**fields, "event_ids": ["a", "b", "c"], "rows": rows}))
    one = {"event_id": "d", "user": "ann", "line": "private"}
    rig.put("contexts", codec.encode("FeatureContext", {**one, "row": good, "features_digest": bytes(16)}))
    rig.put("contexts", codec.encode("FeatureContext", {**one, "row": good[1:], "features_digest": schema.digest}))
    rig.put("contexts", codec.encode("Context", {**one, "context": bytes(16)}))
    seen = rig.fold()
    assert [answer.event_id for answer in seen.answers] == ["a", "c"]
    assert sorted(seen.reasons) == ["malformed_features", "other_features", "unexpected_schema", "wrong_dimension"]


def test_sums_and_models_of_another_layout_are_refused(rigs: Any) -> None:
    system, other = system_of(window_slots=4), system_of(window_slots=4, levels=2)
    rows = system.window_rules().item_rows
    closed = ClosedWindow(0, ClosedBy.SLOTS, (pack_null(system.linear.layout),) * 4, item_rows=rows)
    window = release_window(other, seeded_key(2, "shuffler"), bytes(32), 0, closed).record
    totals = FeatureTotals(system)
    assert not totals.add(window)
    assert not totals.add({**window, **system.form.domain, "ones": window["ones"][:-8]})
    assert totals.add({**window, **system.form.domain})
    fields = {"version": 1, "arms": ARMS, **totals.model().fields()}
    with pytest.raises(HushstreamError, match="layout"):
        decode_model(other, fields)
    with pytest.raises(HushstreamError, match="bytes"):
        decode_model(system, {**fields, "means": b""})


def test_a_gateway_tells_contexts_apart_whose_numbers_have_one_hash(rigs) -> None:
    """It remembers the hash of a request."""
    translation = Translation(rigs.make_system().requests)
    one, other = (translation.situation([number, 0.5]).key for number in (-1.0, -2.0))
    assert hash(-1.0) == hash(-2.0)
    assert hash(one) != hash(other)


def test_a_gateway_takes_values_by_name_and_refuses_what_the_client_refuses() -> None:
    system = system_of()
    translation = Translation(system.requests)
    values = {"country": "fr", "age": 30.0, "hour": 12.0}
    assert translation.situation(values) == (values, row(system, "fr").tobytes(), ())
    assert translation.schema()["context"]["features"]["country"]["vocabulary"] == list(COUNTRIES)
    for bad in ({"land": "fr"}, {"age": "old"}):
        with pytest.raises(BadContext, match="expected"):
            translation.situation(bad)


# Configuration.


def test_nothing_is_fitted_for_declared_features(tmp_path: Path) -> None:
    system = prepare(tmp_path / "shop", parse_config(VALUES))
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["deployment.yaml"]
    assert system.core.digest == prepare(tmp_path / "again", parse_config(VALUES)).core.digest
    assert system.facts["slot_bytes"] == slot_bytes(system.core.linear.layout.places)


def test_a_configuration_of_declared_features_is_written_as_it_is_read() -> None:
    config = parse_config({**VALUES, "items": {"capacity": 9, "expected": 4}})
    written = KIND.language.written(config)
    assert written["features"]["country"] == {"kind": "category", "vocabulary": list(COUNTRIES)}
    assert parse_config(written) == config
    assert written["items"]["expected"] == 4


def test_every_setting_of_declared_features_moves_the_digest() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"items": {"capacity": ARMS, "expected": 2}},
        {"feedback": {"click_rate": 0.2}},
        {"feedback": {}},
        {"features": {**FEATURES, "member": {"kind": "boolean"}}},
        {"features": {**FEATURES, "age": {"kind": "number", "range": [16, 97]}}},
    ]
    digests = {P2BSystem.declared(parse_config({**VALUES, **change})).digest for change in changes}
    assert len(digests) == len(changes)


def test_features_by_name_are_summed_as_features_unless_a_form_is_named() -> None:
    """What a configuration says and what it leaves out have one digest."""
    said = {**VALUES, "release": {"form": "features"}}
    assert parse_config(VALUES).release.form == "features"
    assert P2BSystem.declared(parse_config(VALUES)).digest == P2BSystem.declared(parse_config(said)).digest
    plain = {name: value for name, value in VALUES.items() if name != "feedback"} | {"features": {"dimension": 3}}
    left_out, named = (parse_config({**plain, "release": release}) for release in ({}, {"form": "codes"}))
    assert left_out.release.form == "codes"
    assert canonical_form(left_out, False) == canonical_form(named, False)


def test_sums_are_made_for_the_items_that_are_expected() -> None:
    """The arm's share of a slot follows from a public number, never from how many items are there."""
    few = parse_config({**VALUES, "items": {"capacity": 400, "expected": 4}, "expected_slots": 200})
    many = parse_config({**VALUES, "items": {"capacity": 400}, "expected_slots": 200})
    first, second = (P2BSystem.declared(config).linear.layout for config in (few, many))
    assert first.arms == second.arms == 400
    assert first.budgets[0] < second.budgets[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"release": {"form": "codes"}},
            "release.form: expected features where features are declared by name, else codes, got",
        ),
        ({"features": {"dimension": 4}, "release": {"form": "features"}}, "release.form: expected features where"),
        ({"features": {**FEATURES, "dimension": 4}}, "features.dimension"),
        ({"features": {"age": {"kind": "number", "range": [96, 16]}}}, "features.age.range"),
        ({"features": {"a": {"kind": "category", "vocabulary": ["x"], "from_rows": ["vocabulary"]}}}, "from_rows"),
        ({"feedback": {"click_rate": 0.1, "from_rows": ["click_rate"]}}, "feedback.click_rate"),
        ({"feedback": {"click_rate": 1.5}}, "feedback.click_rate: expected a share from 0 to 1, got 1.5"),
        ({"items": {"capacity": 4, "expected": 5}}, "items.expected: expected a whole number from 1 to 4, got 5"),
        ({"release": {"form": "features", "mechanism": "tuples", "sampling": 0.5}}, "release.mechanism: expected slot"),
        ({"release": {"form": "features", "mechanism": "paper", "sampling": 0.5}}, "release.mechanism: expected slot"),
        ({"encoder": {"codes": 8}}, "encoder.codes: expected auto"),
        ({"learner": {"alpha": 2.0}}, "learner: expected none for form features"),
        ({"items": {"capacity": 65_536}}, "with these features"),
    ],
)
def test_what_declared_features_cannot_have_is_refused_by_its_key(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        prepare(tmp_path / "shop", parse_config({**VALUES, **change}))
    assert said in str(caught.value)


@pytest.mark.parametrize("change", [{"items": {"capacity": 4, "expected": 3}}, {"feedback": {"click_rate": 0.1}}])
def test_keys_of_declared_features_mean_nothing_for_codes(change: dict[str, Any]) -> None:
    plain = {"deployment": "shop", "items": {"capacity": 4}, "features": {"dimension": 4}, "expected_slots": 40}
    parse_config(plain)
    with pytest.raises(ConfigurationError, match="expected none for form codes"):
        parse_config({**plain, **change})


DAY = 86_400.0


def lived(rigs, rig, first, rounds):
    """A user's first slots; gives them as they were sent."""
    for number in range(first, first + rounds):
        event = f"e{number}"
        arm = rig.decide(event, "ann", rigs.point(number))
        rig.reward(event, arm, 1.0)
        rig.fold()
    rig.end_phase(first)
    rig.fold()
    return [output.value for output in rig.seen.releases("reports")]


@pytest.mark.parametrize("days", [0, 1, 2, 3, 400])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_slot_sent_again_with_other_content_is_not_counted_a_second_time(rigs, days, slots):
    """The learner's topics are restored from before the user came; their contexts and clicks are others then."""
    system = rigs.make_system(slot={"lifetime_slots": slots, "after_interactions": 2}, release={"window_slots": 100})
    shuffler = rigs.ShufflerRig(system)
    sent = []
    for restored in (False, True):
        learner = rigs.LearnerRig(system)
        learner.wait(days * DAY * restored)
        values = lived(rigs, learner, 10 * restored, 2 * slots)
        sent.append(learner.seen.slots)
        shuffler.now_ms = learner.now_ms
        for value in values:
            shuffler.put("reports", value)
        shuffler.fold()
        if days == 1 and not restored:
            # What is remembered of ids is in the state, wherever it was taken up.
            state = shuffler.machine.snapshot()
            shuffler.machine = type(shuffler.machine)(system, 0, shuffler.key)
            shuffler.machine.start(shuffler.genesis)
            shuffler.machine.restore(state)
    first, second = sent
    assert [slot.report_id for slot in second] == [slot.report_id for slot in first]
    assert [slot.content for slot in second] != [slot.content for slot in first]
    assert pack(None) not in [slot.content for slot in second]
    counts = shuffler.seen.counts
    assert (counts["slot"], counts["repeated_slot"]) == (slots, slots)
    shuffler.end_phase()
    shuffler.fold()
    assert sum(journal["slots"] for journal in shuffler.seen.journals) == slots
