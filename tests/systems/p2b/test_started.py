"""A deployment that begins with another one's model: its users, its own models, and what was paid for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import load, parse_config, prepare
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.ops.statement.statement import OperatorFacts, statement_of
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.release import terms_of
from hushstream.systems.p2b.model_file import ExportedModel
from hushstream.systems.p2b.reports.model_export import export_model

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


def released(rigs: Any, system: P2BSystem, windows: int, seed: int) -> list[bytes]:
    """Versions of a model, as the aggregator publishes them; items and cells differ."""
    layout, draw = system.linear.layout, np.random.default_rng(seed)
    aggregator, crowds = rigs.AggregatorRig(system), []
    for window in range(windows):
        shown = draw.integers(200, 600, (layout.arms, layout.cells)) * rigs.cell_budgets(layout)
        clicked = (draw.uniform(0.05, 0.6, shown.shape) * shown).astype(np.int64)
        said = {
            **terms_of(system).crowd,
            **system.price_fields,
            "window_id": bytes([window]) * 16,
            "slots": 1_000,
            "variance": 1e6,
            "private_as_stated": True,
            "ones": clicked.astype("<i8").tobytes(),
            "zeros": (shown - clicked).astype("<i8").tobytes(),
        }
        crowds.append(codec.encode(system.form.crowd_record, said))
    made = aggregator.give(crowds)
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


def test_new_users_are_shown_what_the_model_says_and_cold_ones_are_not_touched(exported: ExportedModel) -> None:
    started = system_of("second", start=exported)
    assert decisions(started) == [exported.decide(visit) for visit in VISITS]
    assert len(set(decisions(started))) > 1, "it prefers different items for different visits"
    policy = started.policy()
    cold = system_of("second").policy().shared("cold").state.model.table
    assert np.array_equal(policy.shared("cold").state.model.table, cold)
    assert started.digest != system_of("second").digest
    assert system_of("second").digest == system_of("second", start=None).digest


def test_its_own_windows_are_pooled_with_it_by_slots(rigs: Any, exported: ExportedModel) -> None:
    """w = n0 / (n0 + n1) of what was known, by hand; an item that it has not is its own alone."""
    alone, started = system_of("second", items=5), system_of("second", items=5, start=exported)
    own, both = (export_model(one, released(rigs, one, 1, seed=9)) for one in (alone, started))
    weight = exported.slots / (exported.slots + own.slots)
    assert both.slots == pytest.approx(exported.slots + own.slots)
    np.testing.assert_allclose(both.means[:ITEMS], weight * exported.means + (1 - weight) * own.means[:ITEMS])
    variances = weight**2 * exported.variances + (1 - weight) ** 2 * own.variances[:ITEMS]
    np.testing.assert_allclose(both.variances[:ITEMS], variances)
    assert np.array_equal(both.means[ITEMS:], own.means[ITEMS:])


def test_where_windows_fade_what_it_began_with_fades_with_them(rigs: Any, exported: ExportedModel) -> None:
    fading = system_of("second", start=exported, half_life=1.0)
    alone = system_of("second", half_life=1.0)
    own, both = (export_model(one, released(rigs, one, 3, seed=9)) for one in (alone, fading))
    assert both.slots - own.slots == pytest.approx(exported.slots / 8, rel=1e-6)


def test_what_it_exports_is_taken_up_again_and_what_was_paid_adds_up(rigs: Any, exported: ExportedModel) -> None:
    second = system_of("second", start=exported)
    again = ExportedModel.read(export_model(second, released(rigs, second, 1, seed=9)).as_npz())
    one = system_of("first").promises.together
    assert exported.paid == one
    assert again.paid == one + one
    third = system_of("third", start=again)
    assert third.paid == one + one + one
    assert decisions(third) == [again.decide(visit) for visit in VISITS]


CONFIG = {
    "deployment": "second",
    "items": {"capacity": ITEMS},
    "features": FEATURES,
    "expected_slots": 20_000,
    "release": {"sums": "fresh"},
}


def prepared(tmp_path: Path, text: str, **changed: Any) -> Any:
    return prepare(tmp_path / "shop", parse_config({**CONFIG, **changed}), {"start": ("model.json", text)})


def test_guarantee_and_statement_say_what_was_paid_before(tmp_path: Path, exported: ExportedModel) -> None:
    system = prepared(tmp_path, exported.as_json().decode())
    assert load(tmp_path / "shop").digest == system.digest
    (fact,) = system.before
    assert "version 2 of the model of deployment first" in fact.text
    assert "has paid epsilon 2" in fact.text
    assert "who is in both pays epsilon 4" in fact.text
    from hushstream.agents.worker.deployment import artefacts_of

    facts = kind_of("p2b").facts(system.config, artefacts_of(tmp_path / "shop"))
    assert fact in facts
    statement = statement_of(system, OperatorFacts(), None)
    (section,) = [one for one in statement.sections if one.title == "What was paid before"]
    assert section.facts[0][1] == fact.text


def test_a_file_that_cannot_be_begun_with_is_refused(tmp_path: Path, exported: ExportedModel) -> None:
    plain = json.loads(exported.as_json())
    changed = json.loads(exported.as_json())
    changed["means"][0][0] += 0.01
    older = {**plain, "about": {name: one for name, one in plain["about"].items() if name != "paid"}}
    for values, said in (
        (changed, "expected the scores of golden decision 0, got others"),
        (older, "expected its paid, got none: export it again"),
        ({**plain, "format_version": 9}, "expected an exported model, got another"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            prepared(tmp_path, json.dumps(values))
    for config, said in (
        ({"items": {"capacity": 2}}, "at most 2, got 4"),
        ({"items": {"capacity": ITEMS, "named": True}}, "none where items have names"),
        ({"features": {"country": FEATURES["country"]}}, "features that this deployment declares, got 'another'"),
        ({"features": {"dimension": 4}, "release": {}}, "none for form codes"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            prepared(tmp_path, exported.as_json().decode(), **config)
    assert not (tmp_path / "shop").exists(), "nothing is left of what was refused"
    prepared(tmp_path, exported.as_json().decode())
    other = json.dumps({**plain, "about": {**plain["about"], "slots": 1.0}})
    with pytest.raises(HushstreamError, match="the model that this deployment began with, got another"):
        prepared(tmp_path, other)
