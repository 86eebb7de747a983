"""Write the AsyncAPI document of all topics: ``python deploy/asyncapi/build.py [--check]``.

Channels, messages and operations come from the topic declarations and the committed Avro schemas. ``--check`` writes
nothing and exits 1 when the file differs from what would be written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hushstream.engine.declare.declaration import Kind, readers, writers
from hushstream.replay.report.committed import main as committed
from hushstream.schemas.catalogue import CATALOGUE, Schema
from hushstream.systems.catalogue import builtin

DOCUMENT = Path(__file__).with_name("asyncapi.yaml")
_HEADING = "# Made by deploy/asyncapi/build.py from the topic declarations and the Avro schemas; change those.\n"
_KAFKA_BINDING = "0.5.0"
_AVRO = "application/vnd.apache.avro+json;version=1.9.0"
_WHOLE_NUMBERS = ("retention.ms", "retention.bytes", "max.message.bytes")


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full, because anchors and aliases are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def document(kinds: Sequence[Kind] = builtin()) -> dict[str, Any]:
    """The document of the given systems as plain values."""
    topics = _topics(kinds)
    travelling = {record for name, those in topics.items() for record in _records(name, those)}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "hushstream",
            "version": "0.1.0",
            "description": (
                "Private online recommendation as a stream job. Values are Avro single-object encoded (Avro 1.12): "
                "C3 01, the CRC-64-AVRO fingerprint of the schema, the body. A topic's name on the broker is the "
                "deployment's prefix and the name here."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/vnd.apache.avro",
        "channels": {name: _channel(name, those) for name, those in topics.items()},
        "operations": _operations(topics),
        "components": {
            "messages": {name: _message(schema) for name, schema in CATALOGUE.items() if name in travelling}
        },
    }


def text() -> str:
    """The text of the committed document."""
    return _HEADING + yaml.dump(document(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def _topics(kinds: Sequence[Kind]) -> dict[str, list[Kind]]:
    """The systems that have each topic, by the topic's name."""
    found: dict[str, list[Kind]] = {}
    for kind in kinds:
        for topic in kind.topics:
            found.setdefault(topic.name, []).append(kind)
    return found


def _channel(name: str, kinds: list[Kind]) -> dict[str, Any]:
    topic = kinds[0].topic(name)
    settings = {
        name: int(value) if name in _WHOLE_NUMBERS else value.split(",") if name == "cleanup.policy" else value
        for name, value in topic.settings().items()
        if name != "message.timestamp.type"  # which the binding does not know
    }
    systems = [kind.name for kind in kinds]
    each = [kind.name for kind in kinds if kind.topic(name).each]
    own = f" Each party of {', '.join(each)} has one of its own, with a dot and its name behind." if each else ""
    return {
        "address": f"{{prefix}}{topic.name}",
        "summary": f"Zone {topic.zone}; partition by {topic.partition_rule}; of {', '.join(systems)}.{own}",
        "parameters": {"prefix": {"description": "What the deployment's topic names begin with.", "default": ""}},
        "messages": {record: {"$ref": f"#/components/messages/{record}"} for record in _records(name, kinds)},
        "bindings": {"kafka": {"topicConfiguration": settings, "bindingVersion": _KAFKA_BINDING}},
        "x-zone": str(topic.zone),
        "x-partition-rule": str(topic.partition_rule),
        "x-partition-count": topic.count,
        "x-systems": systems,
        "x-of-each-party": each,
        "x-noised": topic.noised,
        "x-names-users": topic.names_users,
    }


def _records(name: str, kinds: list[Kind]) -> list[str]:
    return list(dict.fromkeys(schema for kind in kinds for schema in kind.topic(name).schemas))


def _operations(topics: Mapping[str, list[Kind]]) -> dict[str, Any]:
    found = {}
    for name, kinds in topics.items():
        for action, verb, who in (("send", "writes", writers), ("receive", "reads", readers)):
            named = dict.fromkeys(role for kind in kinds for role in who(kind.topic(name), kind.roles))
            for role in named:
                found[f"{role}-{verb}-{name}"] = _operation(name, kinds, action, role)
    return found


def _operation(name: str, kinds: list[Kind], action: str, role: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{record}"} for record in _records(name, kinds)],
        "x-role": role,
    }


def _message(described: Schema) -> dict[str, Any]:
    schema = json.loads(described.text)
    return {
        "name": described.name,
        "summary": schema.get("doc", described.name),
        "contentType": "application/vnd.apache.avro",
        "payload": {"schemaFormat": _AVRO, "schema": schema},
        "x-fingerprint": described.fingerprint.hex(),
    }


if __name__ == "__main__":
    sys.exit(committed(lambda: {DOCUMENT: text()}, __doc__))
