from __future__ import annotations

import json

import pytest

from hushstream.privacy.guarantee import tuples_guarantee
from hushstream.replay.report.document import as_json, from_json
from hushstream.replay.report.errors import BadResult
from hushstream.replay.report.results import StatedGuarantee


def through_text(result):
    return json.loads(json.dumps(as_json(result), allow_nan=False))


def test_a_result_comes_back_from_its_json_unchanged(result, live_result, make_result):
    tuples = StatedGuarantee.of(tuples_guarantee(threshold=50, sampling=0.5, lifetime_slots=2).under_key(True))
    variants = [
        result,
        live_result,
        make_result(cells=None, verify=None, seed=None, marks=("SHORT RUN",)),
        make_result(cells=(), arms={}, rows=(), privacy=tuples, release_mode="tuples", sampling=0.5),
    ]
    for variant in variants:
        assert from_json(through_text(variant)) == variant


def test_the_promised_keys_stand_in_the_document(result):
    document = through_text(result)
    assert set(document["arms"]) == {"cold", "warm_nonprivate", "warm_private"}
    assert all({"mean", "ci95"} <= set(arm) for arm in document["arms"].values())
    assert {"epsilon", "delta", "relation", "unit", "lifetime", "deployment", "text"} <= set(document["privacy"])
    assert document["privacy"]["epsilon"] == 1.0
    assert document["counts"] == {"slot": 1400, "rewarded": 32_000}
    assert document["count_classes"] == {"slot": "slot-public", "rewarded": "zone-private"}
    assert document["throughput"]["events_per_second"] == 15_527.25
    assert document["schema_version"] == 1


def test_the_comparison_follows_from_the_arms(result):
    document = through_text(result)
    assert document["comparison"]["low"] < document["comparison"]["ratio"] < document["comparison"]["high"]
    document["comparison"] = None
    assert from_json(document) == result


def test_a_document_cannot_turn_a_public_result_into_a_live_one(result):
    document = through_text(result)
    document["run"]["public_dataset"] = False
    with pytest.raises(BadResult, match="live run"):
        from_json(document)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d.update(schema_version=2), "version 1, got 'hushstream.run' version 2"),
        (lambda d: d.update(schema="other"), "got 'other'"),
        (lambda d: d.update(extra=1), "unknown: extra"),
        (lambda d: d.pop("arms"), "missing: arms"),
        (lambda d: d["run"].update(extra=1), "unknown: extra"),
        (lambda d: d["run"].pop("seed"), "missing: seed"),
        (lambda d: d["arms"]["cold"].update(extra=1), "results.arms"),
        (lambda d: d["rows"][0].pop("mean"), "results.rows"),
        (lambda d: d["cells"]["code"].pop(), "one length"),
        (lambda d: d["cells"].pop("code"), "missing: code"),
        (lambda d: d["verify"]["learner"].update(extra=1), "results.verify"),
        (lambda d: d["privacy"].pop("epsilon_micro"), "epsilon_micro"),
        (lambda d: d["privacy"].pop("text"), "privacy.text"),
    ],
)
def test_a_document_of_another_shape_is_refused(result, edit, says):
    document = through_text(result)
    edit(document)
    with pytest.raises(BadResult, match=says):
        from_json(document)
