"""Values of declared features that say nothing are counted by learners, for the operator of their zone alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.features.schema import declare
from hushstream.schemas import codec

FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr"]},
    "age": {"kind": "number", "range": [16, 96]},
    "spend": {"kind": "number", "range": [1, 1000], "scale": "log"},
    "member": {"kind": "boolean"},
    "hour": {"kind": "time_of_day"},
    "day": {"kind": "day_of_week"},
}
WHOLE = {"country": "de", "age": 40, "spend": 30, "member": False, "hour": 12.5, "day": "mon"}


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, (0, 0)),
        ({"country": "it"}, (1, 0)),
        ({"age": None, "hour": None}, (2, 0)),
        (dict.fromkeys(WHOLE), (6, 0)),
        ({"age": 120, "spend": 0.5}, (0, 2)),
        ({"age": 16, "spend": 1000}, (0, 2)),
        ({"age": 1, "member": None}, (1, 1)),
    ],
)
def test_a_row_says_how_many_of_its_values_are_missing_or_at_an_end(changes: dict[str, Any], lost: Any) -> None:
    schema = declare(FEATURES)
    row = schema.encode({**WHOLE, **changes}).row
    assert schema.losses(row) == [lost]
    assert schema.losses(schema.encode(WHOLE).row + row) == [(0, 0), lost]


def test_tags_and_vectors_have_no_sign_of_it() -> None:
    declared = {
        "likes": {"kind": "tags", "vocabulary": ["a"], "most": 1},
        "taste": {"kind": "embedding", "dimension": 2},
    }
    schema = declare({**declared, "member": {"kind": "boolean"}})
    assert schema.losses(schema.encode({}).row) == [(1, 0)]


@pytest.mark.parametrize("system", ["p2b", "pdap"])
def test_learners_count_them_once_for_each_context(system: str, tmp_path: Any) -> None:
    own = {"items": {"capacity": 3}, "expected_slots": 40} if system == "p2b" else {}
    vendors = {"vendors": [{"name": "one", "items": {"capacity": 3}}]} if system == "pdap" else {}
    values = {"system": system, "deployment": "d", "features": FEATURES, **own, **vendors}
    deployed = prepare(tmp_path, parse_config(values))
    rules, keys = deployed.requests, KeySource(seed=1)
    learner = next(one for one in all_machines(deployed, keys) if "learner" in type(one).__module__)
    learner.start(learner.genesis(bytes(32)))
    topic, counts = learner.inputs[0][0], Counter[str]()
    changes: list[dict[str, Any]] = [{"country": "it"}, {"age": None, "spend": 5000}, {}]
    line = "one" if system == "pdap" else "private"
    for offset, one in enumerate(changes):
        fields = {"event_id": f"e{offset}", "user": "ann", "line": line, "features_digest": rules.features.digest}
        value = codec.encode("FeatureContext", {**fields, "row": rules.row_of({**WHOLE, **one})})
        part = InputSlice(topic, 0, offset, offset + 1, [InputRecord(offset, 1_700_000_000_000 + offset, value)])
        for step in learner.fold(learner.ready([part])):
            counts.update(step.counts)
    assert (counts[Outcome.VALUE_MISSING], counts[Outcome.VALUE_AT_END], counts[Outcome.DECIDED]) == (2, 1, 3)


def test_they_are_the_zones_own() -> None:
    assert {OUTCOMES[one] for one in (Outcome.VALUE_MISSING, Outcome.VALUE_AT_END)} == {"zone-private"}
