from __future__ import annotations

import json
from dataclasses import asdict, fields

from hushstream.privacy.mechanisms.guarantee import tuples_guarantee
from hushstream.replay.report.results import StatedGuarantee
from hushstream.replay.studies.p2b.report.document import as_json
from hushstream.replay.studies.p2b.report.results import CellRow


def through_text(result):
    return json.loads(json.dumps(as_json(result), allow_nan=False))


def test_every_field_of_a_result_stands_in_the_document_exactly(result, live_result, make_result):
    tuples = StatedGuarantee.of(tuples_guarantee(threshold=50, sampling=0.5, lifetime_slots=2).under_key(True))
    variants = [
        result,
        live_result,
        make_result(cells=None, verify=None, seed=None, marks=("SHORT RUN",)),
        make_result(cells=(), conditions={}, rows=(), privacy=tuples, release_mode="tuples", sampling=0.5),
    ]
    for variant in variants:
        document = through_text(variant)
        given = {**document, **document["run"]}
        for one in fields(variant):
            assert given[one.name] == json.loads(json.dumps(shown(one.name, getattr(variant, one.name)))), one.name


def shown(name, value):
    """How a field's value stands in the document, written down a second time."""
    if name == "privacy":
        return {**value.values, "text": value.lines}
    if name == "rows":
        return [asdict(row) for row in value]
    if name == "conditions":
        return {condition: asdict(summary) for condition, summary in value.items()}
    if name == "cells" and value is not None:
        return {column.name: [getattr(cell, column.name) for cell in value] for column in fields(CellRow)}
    if name == "verify" and value is not None:
        return {role: {"status": check.status, **asdict(check)} for role, check in value.items()}
    return value


def test_the_promised_keys_stand_in_the_document(result):
    document = through_text(result)
    assert set(document["conditions"]) == {"cold", "warm_nonprivate", "warm_private"}
    assert all({"mean", "ci95"} <= set(condition) for condition in document["conditions"].values())
    assert {"epsilon", "delta", "relation", "unit", "lifetime", "deployment", "text"} <= set(document["privacy"])
    assert document["privacy"]["epsilon"] == 1.0
    assert document["counts"] == {"slot": 1400, "rewarded": 32_000}
    assert document["count_classes"] == {"slot": "slot-public", "rewarded": "zone-private"}
    assert document["throughput"]["events_per_second"] == 15_527.25
    assert document["schema_version"] == 1


def test_the_comparison_follows_from_the_arms(result):
    document = through_text(result)
    assert document["comparison"]["low"] < document["comparison"]["ratio"] < document["comparison"]["high"]
