"""What every gateway does, over a deployment of each system, and the OpenAPI document that says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hushstream.client import records
from hushstream.engine.declare.declaration import DECISIONS
from hushstream.gateway.devices import calls as devices
from hushstream.gateway.openapi import SERVED, document
from hushstream.gateway.problems import PROBLEMS

CONTEXTS = {
    "p2b": ("ann", [0.7, 0.2, 0.1]),
    "colin": ("ann", [0.1] * 6),
    "pdap": ("ann", [0.5, 0.5]),
}


@pytest.mark.slow
@pytest.mark.sweep(keep=["p2b"])
@pytest.mark.parametrize("name", list(CONTEXTS))
async def test_a_decision_is_asked_for_shown_and_rewarded(gateways: Any, tmp_path: Any, name: str) -> None:
    user, context = CONTEXTS[name]
    async with gateways.placed(name, tmp_path / "d") as place, place.worker(), place.gateway() as caller:
        asked = {"event_id": "e1", "user": user, "context": context}
        first = await caller.post("/v1/decide", asked)
        assert first.status == 200, first.body
        assert first.json["logged"] is True
        assert 0.0 <= first.json["propensity"] <= 1.0
        item = first.json["item"]
        assert {"item": item} in (await caller.get("/v1/items")).json["items"]

        # The same request gets the same answer; another one under its id is refused.
        assert (await caller.post("/v1/decide", asked)).body == first.body
        other = await caller.post("/v1/decide", {**asked, "items": [item]})
        assert (other.status, other.code) == (409, "event-conflict")

        # Feedback names no user: the gateway knows the event. The same again is taken without another record.
        for _ in range(2):
            assert (await caller.post("/v1/shown", {"event_id": "e1"})).json == {"logged": True}
            assert (await caller.post("/v1/reward", {"event_id": "e1", "reward": 1.0})).json == {"logged": True}
        assert (await caller.post("/v1/reward", {"event_id": "e1", "reward": 0.0})).code == "feedback-conflict"
        assert (await caller.post("/v1/reward", {"event_id": "e1", "user": "bob", "reward": 1.0})).code == (
            "event-conflict"
        )
        assert (await caller.post("/v1/reward", {"event_id": "e2", "reward": 1.0})).code == "unknown-event"
        # Of an event of another gateway it names both.
        told = {"event_id": "e1-elsewhere", "user": user, "item": item, "reward": 1.0}
        assert (await caller.post("/v1/reward", told)).json == {"logged": True}

        batch = [{**asked, "event_id": f"b{number}"} for number in range(4)] + [
            {**asked, "event_id": "b0", "items": [0]}
        ]
        answers = (await caller.post("/v1/decide/batch", {"requests": batch})).json["answers"]
        assert [answer.get("event_id") for answer in answers[:4]] == ["b0", "b1", "b2", "b3"]
        assert all(answer["logged"] for answer in answers[:4])
        assert answers[4]["code"] == "event-conflict"
        told = [{"event_id": f"b{number}", "reward": 1.0} for number in range(4)] + [{"event_id": "b9", "reward": 1.0}]
        answers = (await caller.post("/v1/reward/batch", {"requests": told})).json["answers"]
        assert answers[:4] == [{"logged": True}] * 4
        assert answers[4]["code"] == "unknown-event"

        topics = [f"{topic}.{place.party}" if place.party else topic for topic in ("clicks", "decisions")]
        clicks = await place.rows(topics[0], "Feedback")
        assert sorted((row["event_id"], row["kind"]) for row in clicks) == [
            ("b0", "reward"),
            ("b1", "reward"),
            ("b2", "reward"),
            ("b3", "reward"),
            ("e1", "reward"),
            ("e1", "shown"),
            ("e1-elsewhere", "reward"),
        ]
        decided = [event for row in await place.rows(topics[1], "Decisions") for event in row["event_ids"]]
        assert sorted(decided) == ["b0", "b1", "b2", "b3", "e1"], "each was asked for once"


@pytest.mark.slow
@pytest.mark.sweep(keep=["p2b"])
@pytest.mark.parametrize("name", list(CONTEXTS))
async def test_a_slate_is_ranked_and_each_position_takes_feedback(gateways: Any, tmp_path: Any, name: str) -> None:
    user, context = CONTEXTS[name]
    async with (
        gateways.placed(name, tmp_path / "d") as place,
        place.worker(),
        place.gateway(answer_seconds=60.0) as caller,
    ):
        asked = {"event_id": "s1", "user": user, "context": context, "positions": 2}
        first = await caller.post("/v1/rank", asked)
        assert first.status == 200, first.body
        ranked = first.json["ranked"]
        assert [one["event_id"] for one in ranked] == ["s1", "s1#2"]
        assert len({one["item"] for one in ranked}) == 2
        assert first.json["logged"] is True
        assert all(0.0 < one["propensity"] <= 1.0 for one in ranked)

        # The same request gets the same slate; its events are taken.
        assert (await caller.post("/v1/rank", asked)).json["ranked"] == ranked
        assert (await caller.post("/v1/rank", {**asked, "positions": 1})).code == "event-conflict"
        single = {"event_id": "s1#2", "user": user, "context": context}
        assert (await caller.post("/v1/decide", single)).code == "event-conflict"
        for told in ({"event_id": "s1"}, {"event_id": "s1#2"}):
            assert (await caller.post("/v1/shown", told)).json == {"logged": True}
        assert (await caller.post("/v1/reward", {"event_id": "s1#2", "reward": 1.0})).json == {"logged": True}

        batch = {"requests": [{**asked, "event_id": "s2"}, {**asked, "event_id": "s1", "items": [0]}]}
        answers = (await caller.post("/v1/rank/batch", batch)).json["answers"]
        assert len(answers[0]["ranked"]) == 2
        assert answers[1]["code"] == "event-conflict"
        refused = await caller.post("/v1/rank", {**asked, "event_id": "s3", "positions": 99})
        assert refused.status == 400


@pytest.mark.slow
async def test_a_label_is_predicted_and_told(gateways: Any, tmp_path: Any) -> None:
    async with gateways.placed("pdol", tmp_path / "d") as place, place.worker(), place.gateway() as caller:
        asked = {"event_id": "e1", "user": "ann", "node": 1, "indices": [0, 3], "values": [0.5, -0.5]}
        first = await caller.post("/v1/predict", asked)
        assert first.status == 200, first.body
        assert first.json["label"] in (-1, 1)
        assert first.json["logged"] is True
        assert (await caller.post("/v1/predict", asked)).body == first.body
        assert (await caller.post("/v1/predict", {**asked, "values": [0.5, 0.5]})).code == "event-conflict"
        for _ in range(2):
            assert (await caller.post("/v1/label", {"event_id": "e1", "label": 1})).json == {"logged": True}
        assert (await caller.post("/v1/label", {"event_id": "e1", "label": -1})).code == "feedback-conflict"
        assert (await caller.post("/v1/label", {"event_id": "e0", "label": 1})).code == "unknown-event"
        assert (await caller.post("/v1/predict", {**asked, "event_id": "e2", "indices": [0, 4]})).code == "bad-record"
        assert (
            await caller.post("/v1/predict", {**asked, "event_id": "e2", "values": [0.9, 0.9]})
        ).code == "bad-record"
        assert (await caller.post("/v1/predict", {**asked, "event_id": "e2", "node": 2})).code == "bad-record"
        # What was refused was not asked: its id is free.
        batch = {"requests": [{**asked, "event_id": "e2"}, {**asked, "event_id": "e3", "node": 0}]}
        answers = (await caller.post("/v1/predict/batch", batch)).json["answers"]
        assert [answer["event_id"] for answer in answers] == ["e2", "e3"]
        assert (await caller.get("/v1/items")).json["items"] == [{"node": 0}, {"node": 1}]
        assert len(await place.rows("records", "Record")) == 3
        assert len(await place.rows("records", "Label")) == 1


@pytest.mark.slow
async def test_ratings_are_told_and_predicted(gateways: Any, tmp_path: Any) -> None:
    async with gateways.placed("bgt", tmp_path / "d") as place, place.worker(), place.gateway() as caller:
        told = {"user": "ann", "items": [0, 2], "ratings": [5.0, 3.0]}
        assert (await caller.post("/v1/rate", told)).json == {"logged": True}
        asked = {"event_id": "e1", "user": "ann", "items": [1, 4]}
        first = await caller.post("/v1/predict", asked)
        assert first.status == 200, first.body
        assert len(first.json["values"]) == 2
        assert (await caller.post("/v1/predict", asked)).body == first.body
        assert (await caller.post("/v1/predict", {**asked, "items": [1]})).code == "event-conflict"
        assert (await caller.post("/v1/rate", {**told, "ratings": [5.0, 9.0]})).code == "bad-ratings"
        assert (await caller.post("/v1/rate", {**told, "items": [0, 5]})).code == "unknown-item"
        assert (await caller.post("/v1/predict", {**asked, "event_id": "e2", "items": [5]})).code == "unknown-item"
        batch = {"requests": [told, {**told, "user": "bob", "items": [0, 7]}]}
        answers = (await caller.post("/v1/rate/batch", batch)).json["answers"]
        assert answers[0] == {"logged": True}
        assert answers[1]["code"] == "unknown-item"
        assert len(await place.rows("ratings", "RatingQuery")) == 1


# The OpenAPI document: as committed, as served, and true of what the gateway answers.

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("served", SERVED.values(), ids=lambda served: served.name)
def test_the_committed_document_is_what_the_code_makes(served: Any) -> None:
    committed = json.loads((ROOT / "deploy" / "openapi" / f"{served.name}.json").read_text(encoding="utf-8"))
    assert committed == document(served), "run `make manifests`"


@pytest.mark.parametrize("served", SERVED.values(), ids=lambda served: served.name)
def test_every_schema_is_one_and_every_reference_leads_somewhere(served: Any) -> None:
    made = document(served)
    assert made["openapi"].startswith("3.1.")
    schemas = made["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(made)))
    assert named <= set(schemas)
    operations = [one["operationId"] for path in made["paths"].values() for one in path.values()]
    assert len(operations) == len(set(operations))


def test_every_problem_that_is_raised_is_in_the_table_and_every_one_of_a_call_in_its_document() -> None:
    files = (ROOT / "agents/hushstream/gateway").rglob("*.py")
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    raised = set(re.findall(r'Problem\(\s*"([a-z-]+)"', source))
    assert raised <= set(PROBLEMS)
    mapped = set(re.findall(r'\(\w+(?:\.\w+)?, "([a-z-]+)"\)', source))
    documented = {
        code
        for made in (devices.document(), *map(document, SERVED.values()))
        for code in re.findall(r"`([a-z-]+)`: ", json.dumps(made["paths"]))
    }
    # Methods and paths that a document does not have are not in it, nor what the retired protocol alone ends with.
    beyond = {"not-found", "method-not-allowed", "bad-item", "catalogue-full"}
    assert documented >= (raised | mapped) & set(PROBLEMS) - beyond


def _validator(made: Any, reference: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": reference, "components": made["components"]})


async def test_what_is_served_is_the_document_and_answers_keep_to_it(gateways: Any, tmp_path: Any) -> None:
    async with (
        gateways.placed("pdap", tmp_path / "d") as place,
        place.gateway(answer_seconds=0.2) as caller,
    ):
        made = (await caller.get("/openapi.json")).json
        assert made == document(SERVED[DECISIONS])
        asked = {"event_id": "e1", "user": "ann", "context": [0.5, 0.5], "baseline": 1}
        _validator(made, "#/components/schemas/DecisionAsked").validate(asked)
        answer = await caller.post("/v1/decide", asked)
        _validator(made, "#/components/schemas/DecisionAnswered").validate(answer.json)
        for sent in ({}, {**asked, "context": [7]}):
            refused = await caller.post("/v1/decide", sent)
            _validator(made, "#/components/schemas/Problem").validate(refused.json)
            responses = made["paths"]["/v1/decide"]["post"]["responses"]
            assert f"`{refused.code}`" in responses[str(refused.status)]["description"]
        for path, operations in made["paths"].items():
            if "get" in operations:
                of_operators = "not-an-operator" in json.dumps(operations["get"])
                assert (await caller.get(path)).status == (403 if of_operators else 200), path


async def test_the_page_to_try_it_on_loads_nothing_from_elsewhere(gateways: Any, tmp_path: Any) -> None:
    async with gateways.placed("pdol", tmp_path / "d") as place, place.gateway() as caller:
        assert (await caller.get("/openapi.json")).json == document(SERVED[records.PREDICTIONS])
        page = await caller.get("/")
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        texts = [page.body.decode()]
        for name in re.findall(r'(?:src|href)="(/[^"]+)"', texts[0]):
            found = await caller.get(name)
            assert found.status == 200, name
            texts.append(found.body.decode())
        assert not [text for text in texts[:3] if re.search(r"https?://|//\w+\.", text)]
        assert "innerHTML" not in "".join(texts), "what a gateway answers is shown as text"
