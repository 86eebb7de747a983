"""Write the AsyncAPI document of all topics: ``python deploy/asyncapi/build.py [--check]``.

Channels, messages and operations come from the topic declarations and the committed Avro schemas. ``--check`` writes
nothing and exits 1 when the file differs from what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from hushstream.schemas.catalogue import CATALOGUE, SchemaVersion
from hushstream.schemas.topics import TOPICS, Role, TopicSpec

DOCUMENT = Path(__file__).with_name("asyncapi.yaml")
_HEADING = "# Made by deploy/asyncapi/build.py from the topic declarations and the Avro schemas; change those.\n"
_KAFKA_BINDING = "0.5.0"
_AVRO = "application/vnd.apache.avro+json;version=1.9.0"
_WHOLE_NUMBERS = ("retention.ms", "retention.bytes", "max.message.bytes")


class _Plain(yaml.SafeDumper):
    """Repeats what occurs twice: anchors and aliases are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def document() -> dict[str, Any]:
    """The whole document as plain values."""
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
        "channels": {spec.name: _channel(spec) for spec in TOPICS.values()},
        "operations": _operations(),
        "components": {
            "messages": {
                _message_name(version): _message(version) for versions in CATALOGUE.values() for version in versions
            }
        },
    }


def text() -> str:
    """The document as it is committed."""
    return _HEADING + yaml.dump(document(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def main() -> int:
    """Write, or compare with what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    made = text()
    if DOCUMENT.exists() and DOCUMENT.read_text("utf-8") == made:
        return 0
    if check:
        print(f"{DOCUMENT}: differs from the declarations; run deploy/asyncapi/build.py", file=sys.stderr)
        return 1
    DOCUMENT.write_text(made, encoding="utf-8")
    return 0


def _channel(spec: TopicSpec) -> dict[str, Any]:
    settings = {
        name: int(value) if name in _WHOLE_NUMBERS else value.split(",") if name == "cleanup.policy" else value
        for name, value in spec.settings().items()
        if name != "message.timestamp.type"  # which the binding does not know
    }
    return {
        "address": f"{{prefix}}{spec.name}",
        "summary": f"Zone {spec.zone}; partition by {spec.partition_rule}; of {', '.join(spec.systems)}.",
        "parameters": {"prefix": {"description": "What the deployment's topic names begin with.", "default": ""}},
        "messages": {
            _message_name(version): {"$ref": f"#/components/messages/{_message_name(version)}"}
            for schema in spec.schemas
            for version in CATALOGUE[schema]
        },
        "bindings": {"kafka": {"topicConfiguration": settings, "bindingVersion": _KAFKA_BINDING}},
        "x-zone": str(spec.zone),
        "x-partition-rule": str(spec.partition_rule),
        "x-partition-count": str(spec.count),
        "x-systems": list(spec.systems),
        "x-public-data-only": spec.public_only,
    }


def _operations() -> dict[str, Any]:
    found = {}
    for spec in TOPICS.values():
        for action, verb, roles in (("send", "writes", spec.writers), ("receive", "reads", spec.readers)):
            for role in roles:
                found[f"{role}-{verb}-{spec.name}"] = _operation(spec, action, role)
    return found


def _operation(spec: TopicSpec, action: str, role: Role) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{spec.name}"},
        "messages": [
            {"$ref": f"#/channels/{spec.name}/messages/{_message_name(version)}"}
            for schema in spec.schemas
            for version in CATALOGUE[schema]
        ],
        "x-role": str(role),
    }


def _message_name(version: SchemaVersion) -> str:
    return f"{version.name}.v{version.version}"


def _message(version: SchemaVersion) -> dict[str, Any]:
    schema = json.loads(version.text)
    return {
        "name": version.name,
        "title": f"{version.name}, version {version.version}",
        "summary": schema.get("doc", version.name),
        "contentType": "application/vnd.apache.avro",
        "payload": {"schemaFormat": _AVRO, "schema": schema},
        "x-fingerprint": version.fingerprint.hex(),
    }


if __name__ == "__main__":
    sys.exit(main())
