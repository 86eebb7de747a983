"""Requests made at random: by the OpenAPI document, next to it, and of raw bytes. No 500, and nothing accepted is lost.

A sample runs here; `make fuzz-gateway` sends 100,000 (HUSHSTREAM_FUZZ_REQUESTS).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from typing import Any

import pytest

from hushstream.gateway.openapi import SERVED, document
from hushstream.replay.runners.stream import free_port

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("HUSHSTREAM_FUZZ_REQUESTS", "2500"))
AT_ONCE = 16

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3, 4, 2**31, 2**63, 10**40, 0.5, -0.0, 1e308, 5e-324, "", "a", "e" * 200, "\u0000",
    "é\u200f", [], {}, [[]], [None], {"a": 1}, [0.5, 0.5], "0.5",
]  # fmt: skip
KNOWN = ("event_id", "user", "context", "items", "item", "baseline", "track", "reward", "requests", "answers", "x")
HEADERS = [
    b"Content-Type: application/json", b"Content-Type: text/html", b"Content-Encoding: br", b"Expect: 100-continue",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Connection: close", b"Upgrade: websocket",
    b"Connection: Upgrade", b"Authorization: Bearer x", b"Origin: null", b"Host: 127.0.0.1", b"Host: x",
    b"X-\xff: \xfe", b"Content-Length: 3", b"Content-Length: 99999999999999999999", b"Accept: */*", b"Cookie: a=b",
    b": empty", b"bad header",
]  # fmt: skip


class Maker:
    """Makes requests from a seed; each is the bytes that go out on a connection."""

    def __init__(self, seed: int, made: Any) -> None:
        self.draw = random.Random(seed)
        self.made = made
        self.paths = [(path, method) for path, of in made["paths"].items() for method in of]

    def request(self) -> tuple[bytes, bool]:
        """One request, and whether it is whole HTTP; every sixth is bytes that may be anything."""
        draw = self.draw
        kind = draw.random()
        path, method = draw.choice(self.paths)
        operation = self.made["paths"][path][method]
        if kind < 0.15:
            return draw.randbytes(draw.randrange(400)), False
        if "requestBody" in operation:
            body = self.value(operation["requestBody"]["content"]["application/json"]["schema"], "")
            if kind < 0.5:
                body = self.bent(body)
            sent = json.dumps(body).encode()
            if kind < 0.25 and sent:
                at = draw.randrange(len(sent))
                sent = sent[:at] + draw.randbytes(draw.randrange(4)) + sent[at + draw.randrange(4) :]
        else:
            sent = b""
        if kind > 0.95:
            path = path + draw.choice(["/", "?x=1", "%00", "/../..", "//", "/x" * 50])
            method = draw.choice(["get", "put", "post", "options", "head", "delete", "patch", "trace"])
        lines = [f"{method.upper()} {path} HTTP/1.1".encode(), b"Host: localhost"]
        lines += [b"Content-Type: application/json"] if kind < 0.9 else []
        lines += draw.sample(HEADERS, draw.randrange(3)) if kind > 0.85 else []
        lines += [b"Content-Length: %d" % len(sent), b"Connection: close"]
        return b"\r\n".join(lines) + b"\r\n\r\n" + sent, kind <= 0.85

    def value(self, schema: Any, name: str) -> Any:
        """A value that a schema allows."""
        draw = self.draw
        if "$ref" in schema:
            return self.value(self.made["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices and name in ("item", "items", "baseline"):
            # Items of this deployment are numbers; of ids nothing would be taken.
            return draw.randint(0, 3) if draw.random() < 0.9 else f"{name}-{draw.randrange(60)}"
        if choices and name == "context":
            # Contexts of this deployment are numbers; of values by name nothing would be taken.
            return [draw.random() for _ in range(2)]
        if choices:
            return self.value(draw.choice(choices), name)
        match schema.get("type"):
            case "object":
                keys = schema.get("properties", {})
                wanted = [key for key in keys if key in schema.get("required", ()) or draw.random() < 0.3]
                return {key: self.value(keys[key], key) for key in wanted}
            case "array":
                return [self.value(schema["items"], name) for _ in range(draw.randint(schema.get("minItems", 0), 3))]
            case "string":
                return "private" if name == "track" else f"{name}-{draw.randrange(draw.choice([200, REQUESTS]))}"
            case "integer":
                return draw.randint(0, 3)
            case "number":
                return draw.choice([0.0, 1.0, draw.random()])
            case _:
                return None

    def bent(self, value: Any) -> Any:
        """The same with something odd in one place or more."""
        draw = self.draw
        if draw.random() < 0.3:
            return draw.choice(ODD)
        if isinstance(value, dict):
            changed = {key: self.bent(one) if draw.random() < 0.5 else one for key, one in value.items()}
            if draw.random() < 0.2:
                changed[draw.choice(KNOWN)] = draw.choice(ODD)
            if changed and draw.random() < 0.2:
                del changed[draw.choice(list(changed))]
            return changed
        if isinstance(value, list):
            return [self.bent(one) for one in value]
        return draw.choice(ODD)


async def _sent(port: int, request: bytes, whole: bool) -> tuple[int, bytes]:
    """Status and body of the first answer; status 0 where there is none.

    What may be less than it says is ended when nothing has come for a while: ended at once, it would not be answered.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        answer = b""
        if not whole:
            with contextlib.suppress(TimeoutError):
                answer = await asyncio.wait_for(reader.read(65536), 0.5)
            if not answer:
                writer.write_eof()
        answer += await asyncio.wait_for(reader.read(), 120)
    except OSError:
        # It was closed before all of it was sent: by then the end cannot be told either.
        return 0, b""
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    return (int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.") else 0), body


@pytest.mark.timeout(180 + REQUESTS / 10)
async def test_nothing_that_is_sent_breaks_it_and_nothing_that_it_took_is_lost(gateways: Any, tmp_path: Any) -> None:
    served = next(iter(SERVED.values()))
    maker = Maker(26, document(served))
    port = free_port()
    statuses: dict[int, int] = {}
    logged: dict[str, int] = {}
    rewarded: set[str] = set()
    left = [REQUESTS]

    async def sender() -> None:
        while left[0] > 0:
            left[0] -= 1
            request, whole = maker.request()
            status, body = await _sent(port, request, whole)
            statuses[status] = statuses.get(status, 0) + 1
            assert status != 500, request
            if status >= 400 and not request.startswith(b"HEAD "):
                assert json.loads(body)["status"] == status, request
            if status == 200:
                note(request, body)

    def note(request: bytes, body: bytes) -> None:
        path = request.split(b" ", 2)[1].split(b"?")[0]
        if path == b"/v1/decide":
            answer = json.loads(body)
            if answer["logged"]:
                logged[answer["event_id"]] = answer["item"]
        if path == b"/v1/reward":
            rewarded.add(json.loads(request.partition(b"\r\n\r\n")[2])["event_id"])

    settings = {"idle_seconds": 2, "read_seconds": 2, "body_bytes": 65536, "answer_seconds": 60}
    async with gateways.placed("pdap", tmp_path / "d") as place, place.worker():
        async with place.gateway_process(port, **settings) as process, gateways.calling(port) as caller:
            await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
            assert (await caller.get("/readyz")).status == 200
        log = process.log.read_text(encoding="utf-8")
        assert "Traceback" not in log
        assert "failed" not in log
        decided: dict[str, int] = {}
        for row in await place.rows("decisions.north", "Decisions"):
            decided.update(zip(row["event_ids"], memoryview(row["arms"]).cast("i").tolist(), strict=True))
        assert {event: decided.get(event) for event in logged} == logged
        told = {row["event_id"] for row in await place.rows("clicks.north", "Feedback") if row["kind"] == "reward"}
        assert rewarded <= told
    print(f"{REQUESTS} requests: {dict(sorted(statuses.items()))}; {len(logged)} decided, {len(rewarded)} rewarded")
    assert len(logged) > 10, "some of it was taken"
    assert len(statuses) > 4, "it was refused in several ways"
