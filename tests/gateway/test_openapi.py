"""The OpenAPI document: as committed, as served, and true of what the gateway answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hushstream.client import records
from hushstream.engine.declare.declaration import DECISIONS
from hushstream.gateway.conversation.conversations import SERVED
from hushstream.gateway.devices import calls as devices
from hushstream.gateway.openapi import document
from hushstream.gateway.problems import PROBLEMS

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
