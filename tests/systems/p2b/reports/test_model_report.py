"""Released models: what they show, the file that decides as they do, and the forecast beside the simulation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue, ItemChange
from hushstream.engine.declare.plan import Audience
from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.replay.studies.p2b.features import foretold
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.deployment import P2BSystem, decode_model
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.forecast import (
    ForecastError,
    Sample,
    Spreads,
    UserBehaviour,
    best_reward,
    cold_reward,
    forecast_codes,
    forecast_features,
    slot_share,
)
from hushstream.systems.p2b.guarantee import noise_variance
from hushstream.systems.p2b.machines.shuffler import terms_of
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.plan import Forecaster, assumed_spreads
from hushstream.systems.p2b.reports import ModelTable, ShownItem, export_model, mean_reward, similar_to
from hushstream.systems.p2b.server.estimate import effects, warm_start
from hushstream.systems.p2b.slots import layout_of, pack_reports
from hushstream.systems.p2b.system import declare as declared_system

ARMS, SLOTS = 3, 3_000
FEATURES = {"country": {"kind": "category", "vocabulary": ["de", "fr"]}, "age": {"kind": "number", "range": [16, 96]}}


def features_system(epsilon: float = 4.0) -> P2BSystem:
    release = ReleaseConfig(form="features", epsilon=epsilon, window_slots=SLOTS, sums="fresh")
    context = ContextConfig(declared=declare(FEATURES))
    return P2BSystem.declared(P2BConfig("shop", ARMS, context, 2 * SLOTS, slot=SlotConfig(1), release=release))


def released(rigs: Any, system: P2BSystem, contents: list[bytes]) -> list[bytes]:
    """The models of slots, through the roles."""
    shuffler, aggregator = rigs.ShufflerRig(system), rigs.AggregatorRig(system)
    for number, content in enumerate(contents):
        place = {
            "report_id": number.to_bytes(16, "big"),
            "period": (shuffler.now_ms // 86_400_000).to_bytes(8, "little"),
            "config_digest": system.digest,
        }
        shuffler.put("reports", codec.encode(system.form.slot_record, {**place, "content": content}))
    seen = shuffler.fold()
    assert not seen.reasons
    made = aggregator.give(out.value for out in seen.releases("window-sums"))
    assert not made.reasons
    return [step.journal for step in made.steps if step.journal is not None]


def visits(system: P2BSystem, liked: int, seed: int) -> list[bytes]:
    """Slots of users of whom those of "fr" like one item, half of the time, and all else a tenth."""
    layout, draw = system.linear.layout, np.random.default_rng(seed)
    french, arms = draw.random(SLOTS) < 0.5, draw.integers(0, ARMS, SLOTS)
    columns = {"country": np.where(french, "fr", "de").tolist(), "age": draw.uniform(16, 96, SLOTS)}
    rows = layout.schema.encode_columns(columns).rows
    clicked = draw.random(SLOTS) < np.where(french & (arms == liked), 0.5, 0.1)
    units = layout.units_of(layout.schema.blocks(rows))
    return pack_reports(layout, arms.astype(np.int64), clicked.astype(np.int64), ARMS, units)


def test_a_planted_preference_is_shown_for_its_cell_and_no_other(rigs):
    system = features_system()
    view = declared_system(system).models
    (model,) = released(rigs, system, visits(system, 2, 7))
    found = view.read([model], None, {}).as_json()
    best = {segment["cell"]: segment for segment in found["segments"]}
    french = next(one for cell, one in best.items() if "fr" in cell)
    assert french["item"] == "2"
    assert french["sure"] > 0.99
    # Linear around the mean rate, as learners take it: less than the half that is planted.
    assert 0.3 < french["reward"] < 0.5
    # Of all visitors it pleases .3.
    assert found["items"][2]["reward"] < french["reward"]
    assert found["observations"] == pytest.approx(SLOTS, rel=0.05)
    text = view.read([model], None, {}).as_text()
    assert text.startswith("REPRODUCIBLE, NOT PRIVATE\nVersion 1, ")
    assert f"{french['cell']}: item 2 (" in text


def drawn_table(effects: NDArray[np.float64], deviation: float, seed: int) -> ModelTable:
    """A released model of items with these effects (K, C), under noise of this deviation."""
    shape, draw = effects.shape, np.random.default_rng(seed)
    items = tuple(ShownItem(str(row), f"item {row}") for row in range(shape[0]))
    own, cells = np.zeros(shape[0]), tuple(f"cell {place}" for place in range(shape[1]))
    seen = effects + draw.normal(0.0, deviation, shape)
    return ModelTable(1, 1e4, items, cells, own, own, seen, np.full(shape, deviation), {}, True)


@pytest.mark.parametrize("cells", [2, 8, 40])
def test_items_with_equal_effects_are_told_apart_in_one_case_of_twenty(cells):
    """Of 2,000 equal items 100 are expected, and more than 150 by chance once in a million (false alarms).

    Items that differ by six deviations in one cell, of 40 too, are told apart in more than nine cases of ten (power).
    Each is compared with an item of its own: with one for all, its noise would be in all of them.
    """
    wrong = right = 0
    for seed in range(2000):
        table = drawn_table(np.zeros((2, cells)), 0.01, seed)
        wrong += similar_to(table, "0", 1).found[0].told_apart
        if seed < 200:
            planted = np.zeros((2, cells))
            planted[1, 0] = 0.01 * 6 * math.sqrt(2)
            right += similar_to(drawn_table(planted, 0.01, seed), "0", 1).found[0].told_apart
    assert 60 < wrong < 150
    assert right > 150


def test_the_most_similar_item_is_the_one_that_the_same_visits_like():
    likes_fr, likes_de = np.array([0.3, -0.3, 0.0, 0.0]), np.array([-0.3, 0.3, 0.0, 0.0])
    table = drawn_table(np.array([likes_fr, likes_de, likes_fr, likes_de]), 0.01, 7)
    found = similar_to(table, "0", 2)
    assert [(one.item.item, one.told_apart) for one in found.found] == [("2", False), ("1", True)] or [
        (one.item.item, one.told_apart) for one in found.found
    ] == [("2", False), ("3", True)]
    assert found.found[0].noise == pytest.approx(0.01 * math.sqrt(2))
    assert found.as_text().splitlines()[1].endswith("; the noise hides whether they differ")
    assert found.as_json()["similar"][0]["item"] == "2"
    with pytest.raises(HushstreamError, match="expected an item of version 1"):
        similar_to(table, "9", 2)


def test_less_epsilon_is_more_of_the_noise(rigs):
    shares = []
    for epsilon in (0.5, 4.0):
        system = features_system(epsilon)
        (model,) = released(rigs, system, visits(system, 2, 7))
        shares.append(declared_system(system).models.read([model], None, {}).noise)
    for block in ("country", "age", "an item's own reward"):
        assert 0 < shares[1][block] < shares[0][block] < 1


def test_two_versions_differ_where_tastes_do(rigs):
    """In the second window, which is alike but for it, the liked item is another, so neither is sure any more."""
    system = features_system()
    view = declared_system(system).models
    models = released(rigs, system, [*visits(system, 2, 7), *visits(system, 1, 8)])
    older, newer = view.read(models, 1, {}), view.read(models, None, {})
    assert (older.version, newer.version) == (1, 2)
    change = view.change(older, newer).as_json()
    assert change["moved"][0]["item"] in ("1", "2")
    assert {row["item"]: row["by"] for row in change["moved"]}["1"] > 0
    assert view.change(older, older).as_json()["changed"] == []
    with pytest.raises(HushstreamError, match="version 3"):
        view.read(models, 3, {})


def test_before_a_window_there_is_no_model():
    with pytest.raises(HushstreamError, match="expected a released model on topic models, got none"):
        declared_system(features_system()).models.read([], None, {})


def test_a_record_of_somebody_else_among_the_models_hides_none(rigs):
    system = features_system()
    view = declared_system(system).models
    released_models = released(rigs, system, visits(system, 2, 7))
    shown = view.read(released_models, None, {}).as_json()
    assert view.read([b"garbage", *released_models, b"", released_models[0][:-1]], None, {}).as_json() == shown


EXPORTED_ARMS = 4
EXPORTED_FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "se"]},
    "age": {"kind": "number", "range": [16, 96], "nodes": 4},
    "likes": {"kind": "tags", "vocabulary": ["books", "games", "toys"], "most": 2},
    "taste": {"kind": "embedding", "dimension": 3},
    "mix": {"kind": "histogram", "bins": 4},
    "hour": {"kind": "time_of_day"},
    "day": {"kind": "day_of_week"},
    "member": {"kind": "boolean"},
    "both": {"kind": "cross", "of": ["country", "member"]},
}
"""Every kind."""


def system_of(named: bool = False) -> P2BSystem:
    context = ContextConfig(declared=declare(EXPORTED_FEATURES))
    release = ReleaseConfig(form="features", sums="fresh")
    return P2BSystem.declared(P2BConfig("shop", EXPORTED_ARMS, context, 20_000, release=release, named_items=named))


def released_records(rigs, system: P2BSystem, entries: Sequence[int] = range(1, EXPORTED_ARMS + 1)) -> list[bytes]:
    """Two versions of a model, as the aggregator publishes them, in which items and cells differ."""
    layout, draw = system.linear.layout, np.random.default_rng(5)
    aggregator = rigs.AggregatorRig(system)
    windows = []
    for window in range(2):
        shown = draw.integers(200, 600, (EXPORTED_ARMS, layout.cells)) * rigs.cell_budgets(layout)
        clicked = (draw.uniform(0.05, 0.6, shown.shape) * shown).astype(np.int64)
        rows = {"catalogue": max(entries), "entries": np.array(entries, "<i4").tobytes(), "features": b""}
        own = {"window_id": bytes([window]) * 16, "slots": 1_000, "variance": 1e6, "private_as_stated": True}
        sums = {"ones": clicked.astype("<i8").tobytes(), "zeros": (shown - clicked).astype("<i8").tobytes()}
        said = {**terms_of(system).record, **system.price_fields, **own, **sums, **rows}
        windows.append(codec.encode(system.form.sums_record, said))
    made = aggregator.give(windows)
    assert not made.reasons
    return [step.journal for step in made.steps if step.journal is not None]


def context(draw: np.random.Generator) -> dict[str, object]:
    return {
        "country": draw.choice(["de", "fr", "se", "it"]).item(),
        "age": float(draw.uniform(10, 110)),
        "likes": [["books"], ["games", "toys"], []][draw.integers(3)],
        "taste": (draw.uniform(-1, 1, 3) / 3).tolist(),
        "mix": np.array([0.25, 0.25, 0.5, 0.0])[draw.permutation(4)].tolist(),
        "hour": float(draw.uniform(0, 24)),
        "day": int(draw.integers(1, 8)),
        "member": bool(draw.integers(2)),
    }


@pytest.mark.parametrize("form", ["as_json", "as_npz"])
def test_a_file_decides_as_an_agent_does_who_was_never_seen(rigs, form):
    """One in a million contexts may tie but for rounding; of 200 seeded ones none does."""
    system = system_of()
    records = released_records(rigs, system)
    model = ExportedModel.read(getattr(export_model(system, records), form)())
    _, fields = codec.decode(records[-1])
    terms, draw = system.edge_terms(), np.random.default_rng(9)
    terms.policy.adopt("private", 2, *decode_model(system, fields).arrays)
    decided = set()
    for number in range(200):
        values = context(draw)
        agent = EdgeAgent(terms, seeded_key(number, "edge").derive("user", "ann"), "private")
        row = np.frombuffer(system.linear.layout.schema.encode(values).row, np.uint8)
        assert model.decide(values) == str(agent.decide_new("event", row, 0).arm)
        decided.add(model.decide(values))
    assert len(decided) > 1
    assert model.decide(values, eligible=["2"]) == "2"
    assert (model.rewards(values) < model.scores(values)).all()


def test_it_says_where_it_comes_from_and_what_was_paid(rigs):
    system = system_of()
    records = released_records(rigs, system)
    older = export_model(system, records, 1)
    assert (older.about["version"], export_model(system, records).about["version"]) == (1, 2)
    assert older.about["deployment"] == "shop"
    assert older.about["epsilon"] == 1.0
    assert older.about["config_digest"] == system.digest.hex()
    assert len(older.golden) == 12
    assert len({tuple(golden.scores) for golden in older.golden}) > 6


def test_items_with_names_are_those_that_stood_in_its_rows(rigs):
    system = system_of(named=True)
    catalogue = Catalogue(system.catalogue_rules)
    for number, item in enumerate(("boots", "hat", "scarf"), 1):
        catalogue.take(ItemChange(item, number, True), 0)
    records = released_records(rigs, system, (1, 2, 3, 0))
    model = ExportedModel.read(export_model(system, records, None, catalogue).as_json())
    assert model.items == ("boots", "hat", "scarf")
    assert model.decide({"country": "de"}, eligible=["hat"]) == "hat"
    with pytest.raises(HushstreamError, match="expected an item of the model"):
        model.decide({}, eligible=["gloves"])


def test_a_file_of_which_a_golden_decision_does_not_come_out_is_refused(rigs):
    system = system_of()
    values = json.loads(export_model(system, released_records(rigs, system)).as_json())
    bent = [[*values["means"][0][:1], *[one + 1e-3 for one in values["means"][0][1:]]], *values["means"][1:]]
    other = [{**values["golden"][3], "item": str((int(values["golden"][3]["item"]) + 1) % EXPORTED_ARMS)}]
    for change, expected in (({"means": bent}, "the scores of golden decision"), ({"golden": other}, "decision 0")):
        with pytest.raises(HushstreamError, match=expected):
            ExportedModel.read(json.dumps({**values, **change}).encode())


@pytest.mark.parametrize("content", [b"", b"{}", b"PK not an archive", b"[1]", b'{"format": "another"}'])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(HushstreamError, match="model file: expected an exported model"):
        ExportedModel.read(content)


def test_a_change_that_no_golden_decision_shows_is_told_by_the_digest(rigs):
    system = system_of()
    values = json.loads(export_model(system, released_records(rigs, system)).as_json())
    paid = {**values["about"]["paid"], "which": {**values["about"]["paid"]["which"], "epsilon_micro": 0}}
    for change in ({"paid": paid}, {"slots": 1.0}, {"deployment": "another"}):
        with pytest.raises(HushstreamError, match=f"expected content with the digest {values['digest']}, got "):
            ExportedModel.read(json.dumps({**values, "about": {**values["about"], **change}}).encode())


SCHEMA = declare(
    {"country": {"kind": "category", "vocabulary": ["de", "fr"]}, "age": {"kind": "number", "range": [0, 9]}}
)
ITEMS = {
    "kind": {"kind": "category", "vocabulary": ["shoe", "hat", "coat"]},
    "price": {"kind": "number", "range": [1, 9]},
}
SPREADS = Spreads(0.25, {"country": 0.2, "age": 0.2}, 0.3, 0.08)
HABITS = UserBehaviour(10, 10, 10, 0.8)


@pytest.mark.slow
def test_the_plans_range_holds_the_gain_of_the_whole_simulation():
    """Ten drawn worlds of `hushstream experiment forecast`, on which nothing was fitted; not all ranges hold 0.

    False alarm: ranges that hold nine of ten worlds miss three of ten in 7 % of draws; these seeds are fixed. Power
    against ranges that hold half of the worlds: 94 %.
    """
    worlds = [foretold(seed) for seed in range(1, 11)]
    assert sum(found.held for found in worlds) >= 8
    assert sum(found.said.low > 0 for found in worlds) >= 2


def config(**changed):
    release = changed.pop("release", ReleaseConfig(form="features", window_slots=1_000, sums="fresh"))
    return P2BConfig("shop", 10, ContextConfig(declared=SCHEMA), 20_000, release=release, click_rate=0.08, **changed)


def test_more_slots_and_less_noise_never_bring_less():
    layout = layout_of(SCHEMA, 10, 1, 1.0, 20_000)
    gains = [
        forecast_features(layout, SPREADS, HABITS, Sample(slots, 10 * slots, variance)).gain
        for slots, variance in ((500, 1e9), (500, 1e7), (5_000, 1e7), (50_000, 1e7), (50_000, 0.0))
    ]
    assert gains == sorted(gains)
    assert gains[0] < 0.2 * gains[-1]


def test_features_of_items_bring_more_the_more_effects_follow_them_and_the_more_items_tell_of_them():
    """With m/K = 0 the shared part is known; with alike = 0, or without such features, nothing changes."""
    layout, sample = layout_of(SCHEMA, 200, 1, 1.0, 20_000), Sample(20_000, 200_000, 1e7)

    def gain(alike, features, items=200):
        habits = replace(HABITS, arms=items, item_features=features)
        return forecast_features(layout, replace(SPREADS, alike=alike), habits, sample).gain

    assert gain(0.0, 14) == pytest.approx(gain(0.6, 0)) == pytest.approx(gain(0.0, 0))
    assert gain(0.0, 14) < gain(0.3, 14) < gain(0.6, 14) < gain(0.6, 4)
    sized = replace(config(), arms=200, named_items=True, item_features=ITEMS)
    few = replace(sized, expected_items=29)
    assert Forecaster(sized, Audience(20_000, 12), assumed_spreads(sized)).behaviour.item_features == 5
    assert Forecaster(few, Audience(20_000, 12), assumed_spreads(few)).behaviour.item_features == 0


def test_the_best_of_many_items_is_worth_more_than_the_best_of_few():
    """Where rates are small, log E e^(C M) - C^2/2 over C, to C: E M - C (1 - var M) / 2 (Harter 1961: .564, 1.539)."""
    small = Spreads(0.1, {}, 0.0, 1e-4)
    few, many = (math.log(best_reward(small, arms, 0.01) / 1e-4) / 0.1 for arms in (2, 10))
    assert few == pytest.approx(0.5642 - 0.05 * (1 - 0.6817), abs=0.005)
    assert many == pytest.approx(1.5388 - 0.05 * (1 - 0.3443), abs=0.005)
    assert best_reward(small, 10, 0.0) == pytest.approx(1e-4, rel=1e-3)


def test_a_model_that_sees_all_is_as_good_as_the_best_item():
    draw = np.random.default_rng(5)
    odds = draw.standard_normal((200_000, 10)) * SPREADS.whole
    chances = 1 / (1 + np.exp(-(odds - 2.6)))
    rate = float(chances.mean())
    seen = best_reward(Spreads(SPREADS.whole, {}, 0.0, rate), 10, SPREADS.whole**2)
    assert seen == pytest.approx(float(chances.max(axis=1).mean()), rel=0.01)


def test_slots_prefer_clicks_as_the_warm_start_takes_them_to():
    cold = cold_reward(SPREADS, HABITS, 10)
    assert slot_share(SPREADS, HABITS) == pytest.approx(0.8 * (1 - (1 - cold) ** 10))
    assert slot_share(SPREADS, UserBehaviour(10, 10, 10, None)) == cold


def test_cold_learners_with_nothing_to_tell_apart_earn_the_rate():
    assert cold_reward(Spreads(0, {}, 0, 0.08), HABITS, 10) == pytest.approx(0.08)
    assert cold_reward(SPREADS, HABITS, 10) > 0.08


def test_noise_of_windows_adds_up_as_the_release_says():
    fresh = config()
    assert noise_variance(fresh, 10) == pytest.approx(10 * noise_variance(fresh, 1))
    one = Forecaster(fresh, Audience(20_000, 12), assumed_spreads(fresh)).at(365)
    large = config(release=ReleaseConfig(form="features", window_slots=20_000, sums="fresh"))
    whole = Forecaster(large, Audience(20_000, 12), assumed_spreads(large)).at(365)
    assert one.gain < whole.gain


def test_nothing_is_gained_before_a_window_has_closed():
    ahead = Forecaster(config(), Audience(20_000, 12), assumed_spreads(config()))
    assert ahead.windows(22) == 0
    assert ahead.at(22).gain == 0
    assert ahead.windows(25) >= 1
    # 667 users a day, whose tenth visit comes 22.5 days after their first.
    assert ahead.slots(40) == pytest.approx(20_000 / 30 * 17.5)


def test_users_with_several_slots_in_their_life_give_as_many():
    several = config(slot=SlotConfig(5, 2))
    ahead = Forecaster(several, Audience(300, 10, 30), assumed_spreads(several))
    assert ahead.slots(40) == pytest.approx(10 * (40 - 12) + 10 * (40 - 27))
    assert ahead.slots(365) == 2 * 300


def test_codes_see_less_with_fewer_codes_and_with_more_noise():
    spreads, behaviour = Spreads(0.25, {"context": 0.6}, 0.3, 0.08), UserBehaviour(10, 10, 10, None, 0.43)

    def gain(codes, variance):
        return forecast_codes(10, codes, spreads, behaviour, Sample(20_000, 200_000, variance)).gain

    assert gain(4, 0.0) < gain(32, 0.0)
    assert gain(32, 100.0) < gain(32, 2.0) < gain(32, 0.0)


def test_impossible_spreads_are_refused():
    with pytest.raises(ForecastError, match="spreads of at least 0"):
        Spreads(-0.1, {}, 0.0, 0.1)
    with pytest.raises(ForecastError, match="none of age"):
        forecast_features(
            layout_of(SCHEMA, 10, 1, 1.0, 100), Spreads(0.1, {"country": 0.1}, 0.1, 0.1), HABITS, Sample(1, 1, 1)
        )


def noised_table(rates: Sequence[float], slots: int, more_noise: float, drawn: tuple[float | None, int], seed: int):
    """A model of slots of these reward rates, whose released sums have so many times the noise of one window."""
    system, draw, arms = features_system(1.0), np.random.default_rng(seed), len(rates)
    layout, (chance, horizon) = system.linear.layout, drawn
    country = np.where(draw.random(slots) < 0.5, "fr", "de").tolist()
    rows = layout.schema.encode_columns({"country": country, "age": draw.uniform(16, 96, slots)}).rows
    units, shown = layout.units_of(layout.schema.blocks(rows)), draw.integers(0, arms, slots)
    clicked = np.array(rates) if chance is None else chance * (1 - (1 - np.array(rates)) ** horizon)
    rewarded, variance = draw.random(slots) < clicked[shown], noise_variance(system.config, 1) * more_noise
    sums = np.zeros((2, arms, layout.cells), np.int64)
    for one, who in zip(sums, (rewarded, ~rewarded), strict=True):
        np.add.at(one, (shown[who, None], units.cells[who]), units.units[who])
    sums += np.rint(draw.laplace(0, math.sqrt(variance / 2), sums.shape)).astype(np.int64)
    found = effects(layout, *sums, variance)
    start = warm_start(found, chance, horizon)
    own, none = start.means[:, 0], np.zeros((arms, 0))
    known = mean_reward(layout, arms, Sample(found.slots, 0.0, variance), drawn, float(own.mean()))
    items = tuple(ShownItem(str(row), f"item {row}") for row in range(arms))
    deviations = np.sqrt(start.variances[:, 0])
    return ModelTable(1, found.slots, items, (), own, deviations, none, none, {}, True, known)


@pytest.mark.parametrize(
    ("rates", "slots", "more_noise", "drawn"),
    [
        ((0.5, 0.5, 0.5), 300, 30.0, (0.8, 10)),
        ((0.3, 0.5, 0.7), 300, 10.0, (None, 1)),
        ((0.05, 0.05, 0.1), 30, 1.0, (None, 1)),
    ],
)
def test_the_interval_of_a_reward_covers_it_in_the_first_noisy_versions(rates, slots, more_noise, drawn):
    """Of 120 models fewer than 105 would cover by chance in 3 cases of 10,000, at 95 % (false alarms).

    Items' deviations alone cover in 51, 84 and 47 % of cases: 105 of 120 by chance in one case of four at most, and for
    the first and the last in none of a billion (power).
    """
    covered = 0
    for seed in range(120):
        low, high = noised_table(rates, slots, more_noise, drawn, seed).interval(seed % 3)
        covered += low <= rates[seed % 3] <= high
    assert covered >= 105


def test_where_noise_hides_how_many_slots_there_were_nothing_is_said_of_items():
    tables = [noised_table((0.5, 0.5, 0.5), 100, 100.0, (None, 1), seed) for seed in range(20)]
    hidden = [one for one in tables if one.interval(0) == (0.0, 1.0)]
    assert len(hidden) >= 15
    assert "item 0: nothing learned yet" in hidden[0].as_text()
    assert "nothing learned yet" not in noised_table((0.5, 0.5, 0.5), 3_000, 1.0, (None, 1), 1).as_text()
