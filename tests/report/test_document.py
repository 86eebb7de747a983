import json
from dataclasses import asdict, fields

from hushstream.privacy.mechanisms.guarantee import tuples_guarantee
from hushstream.privacy.promises.page import page_json
from hushstream.replay.report.replayed import document


def through_text(result):
    return json.loads(json.dumps(document(result), allow_nan=False))


def test_every_field_of_a_result_stands_in_the_document_exactly(result, live_result, make_result):
    tuples = tuples_guarantee(threshold=50, sampling=0.5, lifetime_slots=2).under_key(True)
    variants = [result, live_result, make_result(verify=None, seed=None), make_result(privacy=tuples)]
    elsewhere = {"reached": "answers", "verdict": "answers", "warnings": "marks", "unprotected": "figures"}
    shown_alone = {"picture", "sections", "ending", "details"}
    for variant in variants:
        found = through_text(variant)
        for one in fields(variant):
            if one.name in elsewhere:
                assert elsewhere[one.name] in found
            elif one.name not in shown_alone:
                wanted = json.loads(json.dumps(shown(one.name, getattr(variant, one.name))))
                assert found[one.name] == wanted, one.name


def shown(name, value):
    """How a field's value stands in the document, written down a second time."""
    if name == "privacy":
        return page_json(value)
    if name == "rows":
        return value.plain
    if name == "curve":
        return value.points
    if name == "facts":
        return {key.replace(" ", "_"): one for key, one in value.items()}
    if name == "verify" and value is not None:
        return {role: {"status": check.status, **asdict(check)} for role, check in value.items()}
    return value


def test_the_promised_keys_stand_in_the_document(result):
    found = through_text(result)
    assert {row["condition"] for row in found["rows"]} == {
        "shared private model",
        "own learning only",
        "shared, non-private",
    }
    assert all({"users", "mean_reward", "ci95"} <= set(row) for row in found["rows"])
    assert all({"line", "at", "value", "ci95"} == set(point) for point in found["curve"])
    assert {"sentence", "person", "unit", "mechanism", "not_protected"} <= set(found["privacy"])
    assert found["privacy"]["unit"]["zero_out"]["epsilon"] == 1.0
    assert found["counts"] == {"slot": 1400, "rewarded": 32_000}
    assert found["count_classes"] == {"slot": "slot-public", "rewarded": "zone-private"}
    assert found["throughput"]["events_per_second"] == 15_527.25
