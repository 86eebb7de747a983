"""A deployment that begins with another one's model: its users, its own models, and what was paid for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import load, parse_config, prepare
from hushstream.engine.catalogue import Catalogue, ItemChange
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.ops.statement import OperatorFacts, statement_of
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import FeaturesForm, P2BSystem, decode_model
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.policies import FeaturePolicy
from hushstream.systems.p2b.machines.shuffler import terms_of
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.reports import export_model, successor_model

FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "se"]},
    "age": {"kind": "number", "range": [16, 96], "nodes": 4},
}
ITEMS = 4
VISITS = [{"country": country, "age": age} for country in ("de", "fr", "se", None) for age in (20, 50, 90)]


def system_of(name: str, items: int = ITEMS, start: ExportedModel | None = None, **changed: Any) -> P2BSystem:
    release = ReleaseConfig(form="features", sums="fresh")
    context = ContextConfig(declared=declare(FEATURES))
    return P2BSystem.declared(P2BConfig(name, items, context, 20_000, release=release, **changed), start=start)


def released(
    rigs: Any, system: P2BSystem, windows: int, seed: int, entries: Sequence[Sequence[int]] = ()
) -> list[bytes]:
    """Versions of a model, as the aggregator publishes them; items and cells differ.

    ``entries``: of each window; without them, those of items that are named by numbers.
    """
    layout, draw = system.linear.layout, np.random.default_rng(seed)
    aggregator, sums = rigs.AggregatorRig(system), []
    for window in range(windows):
        shown = draw.integers(200, 600, (layout.arms, layout.cells)) * rigs.cell_budgets(layout)
        clicked = (draw.uniform(0.05, 0.6, shown.shape) * shown).astype(np.int64)
        said = {
            **terms_of(system).record,
            **system.price_fields,
            "window_id": bytes([window]) * 16,
            "slots": 1_000,
            "variance": 1e6,
            "private_as_stated": True,
            "ones": clicked.astype("<i8").tobytes(),
            "zeros": (shown - clicked).astype("<i8").tobytes(),
        }
        row_entries = np.array(entries[window] if entries else range(1, layout.arms + 1), "<i4")
        said |= {"catalogue": int(row_entries.max()), "entries": row_entries.tobytes(), "features": b""}
        sums.append(codec.encode(system.form.sums_record, said))
    made = aggregator.give(sums)
    assert not made.reasons
    return [step.journal for step in made.steps if step.journal is not None]


@pytest.fixture
def exported(rigs: Any) -> ExportedModel:
    """Of a deployment that began with nothing."""
    first = system_of("first")
    return ExportedModel.read(export_model(first, released(rigs, first, 2, seed=5)).as_json())


def decisions(system: P2BSystem) -> list[int]:
    """What somebody is shown who was never seen, before any window of this deployment."""
    schema = system.linear.layout.schema
    return [
        EdgeAgent(system.edge_terms(), seeded_key(number, "edge").derive("user", "ann"), "private")
        .decide_new("event", np.frombuffer(schema.encode(visit).row, np.uint8), 0)
        .arm
        for number, visit in enumerate(VISITS)
    ]


def test_new_users_are_shown_what_the_model_says_and_cold_ones_are_not_touched(exported):
    started = system_of("second", start=exported)
    assert decisions(started) == [int(exported.decide(visit)) for visit in VISITS]
    assert len(set(decisions(started))) > 1, "it prefers different items for different visits"
    policy = started.policy()
    cold = system_of("second").policy().shared("cold").state.model.table
    assert np.array_equal(policy.shared("cold").state.model.table, cold)
    assert started.digest != system_of("second").digest
    assert system_of("second").digest == system_of("second", start=None).digest


def test_its_own_windows_are_pooled_with_it_by_slots(rigs, exported):
    """w = n0 / (n0 + n1) of what was known, by hand; an item that it has not is its own alone."""
    alone, started = system_of("second", items=5), system_of("second", items=5, start=exported)
    own, both = (export_model(one, released(rigs, one, 1, seed=9)) for one in (alone, started))
    weight = exported.slots / (exported.slots + own.slots)
    assert both.slots == pytest.approx(exported.slots + own.slots)
    np.testing.assert_allclose(both.means[:ITEMS], weight * exported.means + (1 - weight) * own.means[:ITEMS])
    variances = weight**2 * exported.variances + (1 - weight) ** 2 * own.variances[:ITEMS]
    np.testing.assert_allclose(both.variances[:ITEMS], variances)
    assert np.array_equal(both.means[ITEMS:], own.means[ITEMS:])


def test_where_windows_fade_what_it_began_with_fades_with_them(rigs, exported):
    fading = system_of("second", start=exported, half_life=1.0)
    alone = system_of("second", half_life=1.0)
    own, both = (export_model(one, released(rigs, one, 3, seed=9)) for one in (alone, fading))
    assert both.slots - own.slots == pytest.approx(exported.slots / 8, rel=1e-6)


def test_what_it_exports_is_taken_up_again_and_what_was_paid_adds_up(rigs, exported):
    second = system_of("second", start=exported)
    again = ExportedModel.read(export_model(second, released(rigs, second, 1, seed=9)).as_npz())
    one = system_of("first").guarantee().together
    assert exported.paid == one
    assert again.paid == one + one
    third = system_of("third", start=again)
    assert third.paid == one + one + one
    assert decisions(third) == [int(again.decide(visit)) for visit in VISITS]


def test_a_generation_with_other_features_begins_with_what_still_means_the_same(exported):
    """Value by value of a vocabulary, in whatever order; what is declared otherwise or new says nothing yet."""
    vocabulary = ["se", "pl", "de", "fr"]
    changed = {
        "country": {"kind": "category", "vocabulary": vocabulary},
        "age": {"kind": "number", "range": [16, 80], "nodes": 4},
        "member": {"kind": "boolean"},
    }
    context = ContextConfig(declared=declare(changed))
    config = replace(system_of("first").config, context=context, arms=ITEMS)
    model = successor_model(exported, FeaturesForm.of(config))
    started = P2BSystem.declared(config, start=ExportedModel.read(model.as_json()))
    cells = {name: place for place, name in enumerate(exported.schema.cell_names(), 1)}
    known = {f"country: {one}": cells[f"country: {one}"] for one in ("de", "fr", "se", "other")}
    known["country: pl"] = cells["country: other"]  # where such a visit was counted
    for place, name in enumerate(model.schema.cell_names(), 1):
        if name in known:
            assert np.array_equal(model.means[:, place], exported.means[:, known[name]])
            assert np.array_equal(model.variances[:, place], exported.variances[:, known[name]])
        else:
            assert not model.means[:, place].any()
            assert np.array_equal(model.variances[:, place], exported.variances[:, 1:].max(axis=1))
    assert np.array_equal(model.means[:, 0], exported.means[:, 0])
    assert len(known) == 5
    assert model.paid == exported.paid
    assert model.golden, "so `read` has compared the learner's kernel with the file's formulas"
    visit = {"country": "pl", "age": 50, "member": True}
    row = np.frombuffer(model.schema.encode(visit).row, np.uint8)
    agent = EdgeAgent(started.edge_terms(), seeded_key(1, "edge").derive("user", "ann"), "private")
    assert agent.decide_new("event", row, 0).arm == int(model.decide(visit))
    same = successor_model(exported, FeaturesForm.of(system_of("first").config))
    assert same.digest == exported.digest
    with pytest.raises(ConfigurationError, match=r"items\.capacity: expected at least 4, .* of the model, got 2"):
        successor_model(exported, FeaturesForm.of(replace(config, arms=2)))


CONFIG = {
    "deployment": "second",
    "items": {"capacity": ITEMS},
    "features": FEATURES,
    "expected_slots": 20_000,
    "release": {"sums": "fresh"},
}


def prepared(tmp_path: Path, text: str, **changed: Any) -> Any:
    return prepare(tmp_path / "shop", parse_config({**CONFIG, **changed}), {"start": ("model.json", text)})


def test_guarantee_and_statement_say_what_was_paid_before(tmp_path, exported):
    system = prepared(tmp_path, exported.as_json().decode())
    assert load(tmp_path / "shop").digest == system.digest
    (fact,) = system.before
    assert "version 2 of the model of deployment first" in fact.text
    assert "was charged epsilon 2" in fact.text
    assert "whoever is in both is charged epsilon 4" in fact.text
    from hushstream.agents.worker.deployment import artefacts_of

    facts = kind_of("p2b").facts(system.config, artefacts_of(tmp_path / "shop"))
    assert fact in facts
    statement = statement_of(system, OperatorFacts(), None)
    (section,) = [one for one in statement.sections if one.title == "What was charged before"]
    assert section.facts[0][1] == fact.text


def test_a_file_that_cannot_be_begun_with_is_refused(tmp_path, exported):
    plain = json.loads(exported.as_json())
    changed = json.loads(exported.as_json())
    changed["means"][0][0] += 0.01
    unpaid = replace(exported, about={name: one for name, one in exported.about.items() if name != "paid"})
    for values, said in (
        (changed, "expected the scores of golden decision 0, got others"),
        (
            {**plain, "about": {**plain["about"], "slots": 1e9}},
            "expected content with the digest [0-9a-f]{32}, got [0-9a-f]",
        ),
        (json.loads(unpaid.as_json()), "expected its paid, got none: export it again"),
        ({**plain, "format_version": 9}, "expected an exported model, got another"),
        ({name: one for name, one in plain.items() if name != "digest"}, "expected an exported model, got another"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            prepared(tmp_path, json.dumps(values))
    for config, said in (
        ({"items": {"capacity": 2}}, r"at most 2 items \(capacity\), got 4"),
        ({"features": {"country": FEATURES["country"]}}, r"declares \(country\), got one of age, country, declared"),
        ({"features": {"dimension": 4}, "release": {}}, "start: expected none for form codes, got 'model.json'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            prepared(tmp_path, exported.as_json().decode(), **config)
    assert not (tmp_path / "shop").exists(), "nothing is left of what was refused"
    prepared(tmp_path, exported.as_json().decode())
    other = replace(exported, about={**exported.about, "slots": 1.0})
    with pytest.raises(HushstreamError, match="the model that this deployment began with, got another"):
        prepared(tmp_path, other.as_json().decode())


@pytest.mark.parametrize(
    ("about", "changed"),
    [
        ({"slots": 0.0}, {}),
        ({"slots": -1.0}, {}),
        ({"slots": np.nan}, {}),
        ({"reward_variance": np.inf}, {}),
        ({"reward_variance": 0.0}, {}),
        ({}, {"means": np.nan}),
        ({}, {"variances": 0.0}),
        ({}, {"variances": np.inf}),
    ],
)
def test_numbers_that_nobody_could_go_on_from_are_refused_whatever_digest_they_have(exported, about, changed):
    """Pooled by slots, a model of none and windows of none would weigh 0/0; nor is there a golden decision to tell."""
    arrays = {name: np.full_like(getattr(exported, name), value) for name, value in changed.items()}
    forged = replace(exported, about={**exported.about, **about}, golden=(), **arrays)
    with pytest.raises(HushstreamError, match="expected an exported model, got another"):
        ExportedModel.read(forged.as_json())


# Items by name.

NAMES = ("boots", "hat", "scarf")


@pytest.fixture
def by_name(rigs: Any) -> ExportedModel:
    """Of a deployment whose items have names."""
    first = system_of("first", named_items=True)
    catalogue = Catalogue(first.catalogue_rules)
    for version, item in enumerate(NAMES, 1):
        catalogue.take(ItemChange(item, version, True), 0)
    values = released(rigs, first, 2, 5, [[1, 2, 3, 0]] * 2)
    return ExportedModel.read(export_model(first, values, None, catalogue).as_json())


def following(system: P2BSystem, *items: str) -> tuple[FeaturePolicy, Catalogue]:
    """What learners choose with when these items entered one after the other, and the catalogue."""
    policy, catalogue = system.policy(), Catalogue(system.catalogue_rules)
    assert isinstance(policy, FeaturePolicy)
    policy.follow(catalogue)
    for item in items:
        change = ItemChange(item, catalogue.version + 1, True)
        policy.entered(catalogue.take(change, 0).row)
    return policy, catalogue


def test_an_item_that_the_model_knows_by_id_begins_with_what_it_says_and_another_as_a_new_one(by_name):
    started = system_of("second", items=5, named_items=True, start=by_name)
    policy, catalogue = following(started, "hat", "gloves", "boots", "socks")
    rows = {one.item: one.row for one in catalogue.items()}
    assert (rows["boots"], rows["hat"]) == (0, 1)
    assert catalogue.left_out() == ["scarf"]
    schema, state = started.linear.layout.schema, policy.shared("private").state
    for visit in VISITS:
        scores = policy.scores(state, np.frombuffer(schema.encode(visit).row, np.uint8))
        np.testing.assert_allclose(scores[:2], by_name.scores(visit)[:2], rtol=1e-5)
    means = state.model.table[:, :5]
    np.testing.assert_allclose(means[:, rows["gloves"]], by_name.means[1], rtol=1e-5)
    np.testing.assert_allclose(means[:, rows["socks"]], by_name.means[:2].mean(axis=0), rtol=1e-5)
    cold, _ = following(system_of("second", items=5, named_items=True), "hat")
    assert np.array_equal(policy.shared("cold").state.model.table, cold.shared("cold").state.model.table)


def test_a_new_item_that_comes_before_all_known_ones_begins_with_nothing(by_name):
    started = system_of("second", items=5, named_items=True, start=by_name)
    policy, _ = following(started, "gloves", "socks")
    state = policy.shared("private").state
    assert not state.model.table[:, 3:5].any(), "means of both are 0"
    assert state.late is not None
    assert not state.late.any(), "so they lean on nobody in the first model"


def test_named_items_are_pooled_by_the_slots_since_they_entered(rigs, by_name):
    """Of two windows the hat was in the second one alone; the row that was kept for the scarf has another item."""
    entries = [[1, 0, 4, 5, 0], [1, 2, 4, 5, 0]]
    started = system_of("second", items=5, named_items=True, start=by_name)
    alone = system_of("second", items=5, named_items=True)
    own, both = (
        decode_model(one, codec.decode(released(rigs, one, 2, 9, entries)[-1])[1]).arrays for one in (alone, started)
    )
    slots = codec.decode(released(rigs, alone, 2, 9, entries)[-1])[1]["observations"]
    for row, part in ((0, 1.0), (1, 0.5)):
        weight = by_name.slots / (by_name.slots + part * slots)
        expected = weight * by_name.means[row] + (1 - weight) * own[0][row]
        np.testing.assert_allclose(both[0][row], expected)
        expected = weight**2 * by_name.variances[row] + (1 - weight) ** 2 * own[1][row]
        np.testing.assert_allclose(both[1][row], expected)
    assert np.array_equal(both[0][2:4], own[0][2:4])
    said = codec.decode(released(rigs, started, 2, 9, entries)[-1])[1]
    assert said["observations"] == pytest.approx(by_name.slots + slots)


def test_a_known_item_that_enters_later_has_what_the_model_said_of_it(rigs, by_name):
    started = system_of("second", items=5, named_items=True, start=by_name)
    policy, catalogue = following(started, "hat")
    published = codec.decode(released(rigs, started, 1, 9, [catalogue.entries.tolist()])[-1])[1]
    policy.adopt("private", 1, *decode_model(started, published).arrays)
    change = ItemChange("boots", catalogue.version + 1, True)
    policy.entered(catalogue.take(change, 0).row)
    table = policy.shared("private").state.model.table
    np.testing.assert_allclose(table[:, 0], by_name.means[0], rtol=1e-5)
    np.testing.assert_allclose(table[:, 5], by_name.variances[0], rtol=1e-5)


@pytest.mark.parametrize("sums", ["fresh", "counter"])
def test_named_items_fade_as_windows_do(rigs, by_name, sums):
    release = ReleaseConfig(form="features", sums=sums, windows=8)
    context = ContextConfig(declared=declare(FEATURES))
    config = P2BConfig("second", 3, context, 20_000, release=release, half_life=1.0, named_items=True)
    entries = [[1, 2, 3]] * 3
    alone, fading = P2BSystem.declared(config), P2BSystem.declared(config, start=by_name)
    own, both = (codec.decode(released(rigs, one, 3, 9, entries)[-1])[1] for one in (alone, fading))
    assert both["observations"] - own["observations"] == pytest.approx(by_name.slots / 8, rel=1e-6)
    weight = by_name.slots / 8 / both["observations"]
    means, known = (decode_model(one, said).arrays[0] for one, said in ((fading, both), (alone, own)))
    np.testing.assert_allclose(means, weight * by_name.means + (1 - weight) * known, rtol=1e-6)


def test_items_by_number_refuse_a_model_of_items_by_id(tmp_path, by_name):
    with pytest.raises(ConfigurationError, match=r"items 0, 1, 2, \.\.\., which are the items here, got 'one of other"):
        prepared(tmp_path, by_name.as_json().decode())
    system = prepared(tmp_path, by_name.as_json().decode(), items={"capacity": ITEMS, "named": True})
    (fact,) = system.before
    assert "It knows 3 items by id; others begin as new ones." in fact.text


def test_items_that_the_application_names_may_begin_with_a_model_of_items_that_are_named_by_numbers(tmp_path, exported):
    system = prepared(tmp_path, exported.as_json().decode(), items={"capacity": ITEMS, "named": True})
    assert system.requests.catalogue.known == ("0", "1", "2", "3")
