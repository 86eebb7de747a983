"""A released model as a file: it decides what a learner decides, and a file that was changed is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from hushstream.engine.catalogue import Catalogue, ItemChange
from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.models import decode_model
from hushstream.systems.p2b.machines.release import terms_of
from hushstream.systems.p2b.model_file import ExportedModel
from hushstream.systems.p2b.reports.model_export import export_model

ARMS = 4
FEATURES = {
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
    context = ContextConfig(declared=declare(FEATURES))
    release = ReleaseConfig(form="features", sums="fresh")
    return P2BSystem.declared(P2BConfig("shop", ARMS, context, 20_000, release=release, named_items=named))


def released(rigs, system: P2BSystem, entries: Sequence[int] = ()) -> list[bytes]:
    """Two versions of a model, as the aggregator publishes them, in which items and cells differ."""
    layout, draw = system.linear.layout, np.random.default_rng(5)
    aggregator = rigs.AggregatorRig(system)
    crowds = []
    for window in range(2):
        shown = draw.integers(200, 600, (ARMS, layout.cells)) * rigs.cell_budgets(layout)
        clicked = (draw.uniform(0.05, 0.6, shown.shape) * shown).astype(np.int64)
        rows = {"catalogue": 3, "entries": np.array(entries, "<i4").tobytes()} if entries else {}
        own = {"window_id": bytes([window]) * 16, "slots": 1_000, "variance": 1e6, "private_as_stated": True}
        sums = {"ones": clicked.astype("<i8").tobytes(), "zeros": (shown - clicked).astype("<i8").tobytes()}
        said = {**terms_of(system).crowd, **system.price_fields, **own, **sums, **rows}
        crowds.append(codec.encode(system.form.crowd_record, said))
    made = aggregator.give(crowds)
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
    records = released(rigs, system)
    model = ExportedModel.read(getattr(export_model(system, records), form)())
    _, fields = codec.decode(records[-1])
    terms, draw = system.edge_terms(), np.random.default_rng(9)
    terms.policy.adopt("private", 2, *decode_model(system, fields).arrays)
    decided = set()
    for number in range(200):
        values = context(draw)
        agent = EdgeAgent(terms, seeded_key(number, "edge").derive("user", "ann"), "private")
        row = np.frombuffer(system.linear.layout.schema.encode(values).row, np.uint8)
        assert model.decide(values) == agent.decide_new("event", row, 0).arm
        decided.add(model.decide(values))
    assert len(decided) > 1
    assert model.decide(values, eligible=[2]) == 2
    assert (model.rewards(values) < model.scores(values)).all()


def test_it_says_where_it_comes_from_and_what_was_paid(rigs):
    system = system_of()
    records = released(rigs, system)
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
    records = released(rigs, system, (1, 2, 3, 0))
    model = ExportedModel.read(export_model(system, records, None, catalogue).as_json())
    assert model.items == ("boots", "hat", "scarf")
    assert model.decide({"country": "de"}, eligible=["hat"]) == "hat"
    with pytest.raises(HushstreamError, match="expected an item of the model"):
        model.decide({}, eligible=["gloves"])


def test_a_file_of_which_a_golden_decision_does_not_come_out_is_refused(rigs):
    system = system_of()
    values = json.loads(export_model(system, released(rigs, system)).as_json())
    bent = [[*values["means"][0][:1], *[one + 1e-3 for one in values["means"][0][1:]]], *values["means"][1:]]
    other = [{**values["golden"][3], "item": (values["golden"][3]["item"] + 1) % ARMS}]
    for change, expected in (({"means": bent}, "the scores of golden decision"), ({"golden": other}, "decision 0")):
        with pytest.raises(HushstreamError, match=expected):
            ExportedModel.read(json.dumps({**values, **change}).encode())


@pytest.mark.parametrize("content", [b"", b"{}", b"PK not an archive", b"[1]", b'{"format": "another"}'])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(HushstreamError, match="model file: expected an exported model"):
        ExportedModel.read(content)


@pytest.mark.parametrize("learned_on", ["centroid", "onehot"])
def test_a_file_of_codes_decides_as_an_agent_does_who_was_never_seen(rigs, learned_on):
    system = rigs.make_system(encoder={"features": learned_on})
    steps = rigs.AggregatorRig(system).give(rigs.crowd_values(system, 3)).steps
    records = [step.journal for step in steps if step.journal is not None]
    model = ExportedModel.read(export_model(system, records).as_npz())
    terms = system.edge_terms()
    terms.policy.adopt("private", 3, *decode_model(system, codec.decode(records[-1])[1]).arrays)
    for number in range(40):
        parts = np.random.default_rng(number).multinomial(10, np.full(system.config.context.dimension, 0.25))
        context = (parts / 10).astype(np.float32)
        agent = EdgeAgent(terms, seeded_key(number, "edge").derive("user", "ann"), "private")
        scores = model.scores(context.tolist())
        assert scores[agent.decide_new("event", context, 0).arm] == pytest.approx(scores.max(), abs=1e-6)
        assert (model.rewards(context.tolist()) <= scores).all()
    assert len(model.golden) == 12


def test_a_change_that_no_golden_decision_shows_is_told_by_the_digest(rigs):
    system = system_of()
    values = json.loads(export_model(system, released(rigs, system)).as_json())
    paid = {**values["about"]["paid"], "which": {**values["about"]["paid"]["which"], "epsilon_micro": 0}}
    for change in ({"paid": paid}, {"slots": 1.0}, {"deployment": "another"}):
        with pytest.raises(HushstreamError, match=f"expected content with the digest {values['digest']}, got "):
            ExportedModel.read(json.dumps({**values, "about": {**values["about"], **change}}).encode())
