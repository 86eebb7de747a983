"""Write the types and calls of the TypeScript client: ``python deploy/clients/typescript/generate.py [--check]``.

They follow from the OpenAPI documents of the gateway (`deploy/openapi`): an interface for each schema, and a class for
each document with a method for each of its calls. ``--check`` writes nothing and exits 1 when the file differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hushstream.replay.report.committed import main as committed

HERE = Path(__file__).parent
DOCUMENTS = HERE.parents[1] / "openapi"
BYTES_ALONE = frozenset({"devices"})
"""Documents of calls that send bytes, not JSON; they have a client of their own."""
TARGET = HERE / "src" / "generated.ts"

_HEAD = """// Made by generate.py from deploy/openapi; `make manifests` makes it again.

import { Gateway, type CallOptions } from "./gateway.js";
"""
_PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}


def wanted() -> str:
    """The text that the file must have."""
    found = sorted(path for path in DOCUMENTS.glob("*.json") if path.stem not in BYTES_ALONE)
    documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}
    parts = [_HEAD]
    parts += (_interface(name, schema) for name, schema in _schemas(documents).items())
    parts.append('/** What a program tells problems apart by. */\nexport type ProblemCode = Problem["code"];\n')
    parts += (_client(name, document) for name, document in documents.items())
    return "\n".join(parts)


def _schemas(documents: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, document in documents.items():
        for key, schema in document["components"]["schemas"].items():
            if found.setdefault(key, schema) != schema:
                raise SystemExit(f"{name}: {key} is another schema in another document; give one of them a new name")
    return found


def _interface(name: str, schema: Mapping[str, Any]) -> str:
    return f"{_comment(schema.get('description'))}export interface {name} {_object(schema, 0)}\n"


def _object(schema: Mapping[str, Any], depth: int) -> str:
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not properties:
        return "Record<string, unknown>"
    pad = "  " * (depth + 1)
    lines = []
    for key, of in properties.items():
        optional = "" if key in schema.get("required", ()) else "?"
        lines.append(f"{_comment(of.get('description'), pad)}{pad}{key}{optional}: {_type(of, depth + 1)};\n")
    return "{\n" + "".join(lines) + "  " * depth + "}"


def _type(schema: Mapping[str, Any], depth: int = 0) -> str:
    """The TypeScript type of a schema; bounds of sizes are left out, because the gateway checks them.

    Raises:
        SystemExit: this program does not know something in the schema.
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(dict.fromkeys(_type(one, depth) for one in schema[union]))
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type")
    if kind == "array":
        inner = _type(schema["items"], depth)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object":
        return _object(schema, depth)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if not set(schema) - {"title", "description", "default", "examples"}:
        return "unknown"
    raise SystemExit(f"expected a schema that has a type in TypeScript, got one of {sorted(schema)}")


def _client(name: str, document: Mapping[str, Any]) -> str:
    methods = [method for path, operations in document["paths"].items() for method in _methods(path, operations)]
    kind = f"{name.removesuffix('s').title()}Client"
    return f"{_comment(document['info']['title'])}export class {kind} extends Gateway {{\n" + "\n".join(methods) + "}\n"


def _methods(path: str, operations: Mapping[str, Any]) -> Iterator[str]:
    for verb, operation in operations.items():
        answered = operation["responses"]["200"]["content"].get("application/json")
        if answered is None or not path.startswith("/v1/"):
            continue
        name = _camel(operation["operationId"])
        about = ". ".join(text for text in (operation["summary"], operation.get("description")) if text)
        comment, options = _comment(about, "  "), "options?: CallOptions"
        if verb == "get":
            gives = _type(answered["schema"], 1)
            yield f'{comment}  {name}({options}): Promise<{gives}> {{\n    return this.read("{path}", options);\n  }}\n'
            continue
        asked, many = _body(operation), _answers(answered["schema"])
        takes = f"requests: readonly {asked}[]" if many else f"asked: {asked}"
        gives = many or _type(answered["schema"])
        call = f'this.postBatch("{path}", requests, options)' if many else f'this.post("{path}", asked, options)'
        yield f"{comment}  {name}({takes}, {options}): Promise<{gives}> {{\n    return {call};\n  }}\n"


def _body(operation: Mapping[str, Any]) -> str:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    requests = schema.get("properties", {}).get("requests")
    return _type(schema if requests is None else requests["items"])


def _answers(schema: Mapping[str, Any]) -> str | None:
    """The type of a batch's answers; None for a call that is no batch."""
    answers = schema.get("properties", {}).get("answers")
    return None if answers is None else _type(answers)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.title() for other in others)


def _comment(text: str | None, pad: str = "") -> str:
    return f"{pad}/** {text.replace('*/', '* /')} */\n" if text else ""


if __name__ == "__main__":
    sys.exit(committed(lambda: {TARGET: wanted()}, __doc__))
