"""The AsyncAPI document says what the topic declarations say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema

from hushstream.schemas.catalogue import CATALOGUE
from hushstream.schemas.topics import TOPICS


@pytest.fixture
def document(deploy: Path, documents: Any) -> Any:
    (found,) = documents(deploy / "asyncapi" / "asyncapi.yaml")
    return found


def test_the_committed_document_is_the_one_that_the_declarations_give(deploy: Path, script: Any) -> None:
    answer = script(deploy / "asyncapi" / "build.py", "--check")
    assert answer.returncode == 0, answer.stderr


def test_every_topic_is_a_channel_and_every_right_an_operation(document: Any) -> None:
    assert document["asyncapi"].startswith("3.")
    assert document["channels"].keys() == TOPICS.keys()
    found = {(one["x-role"], one["action"], one["channel"]["$ref"]) for one in document["operations"].values()}
    assert found == {
        (str(role), action, f"#/channels/{spec.name}")
        for spec in TOPICS.values()
        for action, roles in (("send", spec.writers), ("receive", spec.readers))
        for role in roles
    }


def resolved(document: Any, reference: str) -> Any:
    node = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return resolved(document, node["$ref"]) if "$ref" in node else node


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


def test_every_reference_leads_somewhere(document: Any) -> None:
    found = references(document)
    assert len(found) > 100
    assert all(resolved(document, reference) for reference in found)


def test_every_committed_schema_is_a_message_with_its_fingerprint(document: Any) -> None:
    messages = document["components"]["messages"]
    versions = [version for versions in CATALOGUE.values() for version in versions]
    assert messages.keys() == {f"{version.name}.v{version.version}" for version in versions}
    for version in versions:
        message = messages[f"{version.name}.v{version.version}"]
        assert message["payload"]["schema"] == json.loads(version.text)
        assert message["x-fingerprint"] == version.fingerprint.hex()
        parse_schema(message["payload"]["schema"])
