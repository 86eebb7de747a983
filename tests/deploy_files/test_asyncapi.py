"""The AsyncAPI document says what the topic declarations say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema

from hushstream.engine.declare.declaration import readers, writers
from hushstream.schemas.catalogue import CATALOGUE
from hushstream.systems.catalogue import builtin


@pytest.fixture
def document(deploy: Path, documents: Any) -> Any:
    (found,) = documents(deploy / "asyncapi" / "asyncapi.yaml")
    return found


def test_the_committed_document_is_the_one_that_the_declarations_give(deploy, script):
    answer = script(deploy / "asyncapi" / "build.py", "--check")
    assert answer.returncode == 0, answer.stderr


def test_every_topic_is_a_channel_and_every_right_an_operation(document):
    assert document["asyncapi"].startswith("3.")
    assert document["channels"].keys() == {topic.name for kind in builtin() for topic in kind.topics}
    found = {(one["x-role"], one["action"], one["channel"]["$ref"]) for one in document["operations"].values()}
    assert found == {
        (role, action, f"#/channels/{topic.name}")
        for kind in builtin()
        for topic in kind.topics
        for action, roles in (("send", writers), ("receive", readers))
        for role in roles(topic, kind.roles)
    }


def test_a_channel_says_what_every_system_that_has_the_topic_declares(document):
    for kind in builtin():
        for topic in kind.topics:
            channel = document["channels"][topic.name]
            assert kind.name in channel["x-systems"]
            assert {name.partition(".")[0] for name in channel["messages"]} >= set(topic.schemas)
            said = [
                channel[f"x-{name}"] for name in ("zone", "partition-rule", "partition-count", "noised", "names-users")
            ]
            assert said == [topic.zone, topic.partition_rule, topic.count, topic.noised, topic.names_users]
            kept = channel["bindings"]["kafka"]["topicConfiguration"]
            assert (kept["retention.ms"], kept["cleanup.policy"]) == (
                int(topic.settings()["retention.ms"]), topic.cleanup.split(","),
            )  # fmt: skip


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


def test_every_reference_leads_somewhere(document):
    found = references(document)
    assert len(found) > 100
    assert all(resolved(document, reference) for reference in found)


def test_every_committed_schema_is_a_message_with_its_fingerprint(document):
    messages = document["components"]["messages"]
    assert messages.keys() == CATALOGUE.keys()
    for name, schema in CATALOGUE.items():
        message = messages[name]
        assert message["payload"]["schema"] == json.loads(schema.text)
        assert message["x-fingerprint"] == schema.fingerprint.hex()
        parse_schema(message["payload"]["schema"])
