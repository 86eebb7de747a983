"""What a gateway is sent that it must not take: each ends in a problem document with its code, and in nothing else."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hushstream.gateway.http_server import Connection
from hushstream.replay.runners.stream import free_port
from patience import patience

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SECRET = "canary"
ASKED = {"event_id": f"{SECRET}-event", "user": f"{SECRET}-user", "context": [0.7, 0.2]}
JSON = {"Content-Type": "application/json"}
BODY_BYTES = 4096


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(gateways: Any, tmp_path_factory: Any) -> AsyncIterator[Any]:
    async with gateways.placed("pdap", tmp_path_factory.mktemp("bad") / "d") as made, made.worker():
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(place: Any) -> AsyncIterator[Any]:
    async with place.gateway(
        body_bytes=BODY_BYTES, batch_requests=3, idle_seconds=0.5, read_seconds=0.5, answer_seconds=60.0
    ) as made:
        yield made


def body(**changes: Any) -> bytes:
    kept = {key: value for key, value in {**ASKED, **changes}.items() if value is not ...}
    return json.dumps(kept).encode()


BODIES = [
    (b"", "malformed-json"),
    (b"{", "malformed-json"),
    (b"\xff\xfe", "malformed-json"),
    (b'{"event_id": "\\ud800"}', "malformed-json"),
    (b"[" * 2000, "malformed-json"),
    (body()[:-1] + b', "user": "bob"}', "malformed-json"),
    (body()[:-1] + b', "\\u0075ser": "bob"}', "malformed-json"),
    (body(event_id="a\nb"), "invalid-request"),
    (body(event_id="a\r"), "invalid-request"),
    (body(event_id="a\u2028b"), "invalid-request"),
    (body(user="a\nb"), "invalid-request"),
    (body(user=" "), "invalid-request"),
    (body(event_id="\u00a0\u3000"), "invalid-request"),
    (body(user="a\u200b"), "invalid-request"),
    (body(event_id="a\u202eb"), "invalid-request"),
    (b"[]", "invalid-request"),
    (b"null", "invalid-request"),
    (body(event_id=...), "invalid-request"),
    (body(event_id=""), "invalid-request"),
    (body(event_id="e" * 129), "invalid-request"),
    (body(event_id="é" * 100), "invalid-request"),
    (body(event_id=7), "invalid-request"),
    (body(user=None), "invalid-request"),
    (body(context="0.7"), "invalid-request"),
    (body(context=["0.7", 0.2]), "invalid-request"),
    (body(context=[True, 0.2]), "invalid-request"),
    (body(context=[None]), "invalid-request"),
    (b'{"event_id":"e","user":"u","context":[NaN,0]}', "invalid-request"),
    (b'{"event_id":"e","user":"u","context":[1e999,0]}', "invalid-request"),
    (body(context=[1e300, 0.2]), "bad-context"),
    (body(context=[0.7, 0.2, 0.1]), "bad-context"),
    (body(context=[0.7, 1.7]), "bad-context"),
    (body(context=[-0.1, 0.5]), "bad-context"),
    (body(context=[]), "bad-context"),
    (body(items=[]), "invalid-request"),
    (body(items=[-1]), "invalid-request"),
    (body(items=[10**30]), "invalid-request"),
    (body(items=[4]), "unknown-item"),
    (body(items=["0"]), "unknown-item"),
    (body(items=[0.5]), "invalid-request"),
    (body(baseline=4), "unknown-item"),
    (body(baseline=1, items=[0]), "unknown-item"),
    (body(track="nowhere"), "unknown-track"),
    (body(**{SECRET: 1}), "invalid-request"),
    (body(context=[0.1] * 2000), "body-too-large"),
]


@pytest.mark.parametrize(("sent", "code"), BODIES, ids=range(len(BODIES)))
async def test_a_body_that_is_not_taken_ends_in_its_code(caller: Any, sent: bytes, code: str) -> None:
    answer = await caller.post("/v1/decide", data=sent, headers=JSON)
    assert answer.code == code, answer.body
    assert answer.status == answer.json["status"]
    assert SECRET.encode() not in answer.body, "what was sent is not repeated"


TOLD = [
    ("decide", b"\xef\xbb\xbf" + body(), "got: a byte order mark"),
    ("decide", body().decode().encode("utf-16"), "got: a byte order mark"),
    ("decide", body()[:-1] + b",}", "at line 1 column"),
    ("decide", body()[:-1] + b', "user": "bob"}', "send each key once"),
    ("rank", body()[:-1] + b', "user": "bob"}', "send each key once"),
    ("reward", b'{"event_id": "e", "reward": 1, "event_id": "f"}', "send each key once"),
    ("decide/batch", b'{"requests": [' + body()[:-1] + b', "user": "bob"}]}', "send each key once"),
    ("decide", body()[:-1].replace(b"[0.7, 0.2]", b'{"a": 1, "a": 2}') + b"}", "send each key once"),
    ("decide", body(event_id=7), "got a whole number"),
    ("decide", body(user=None), "got nothing"),
    ("decide", body(context=[{}]), "got an object"),
    ("decide", body(event_id="e" * 129), "got 129 characters"),
    ("decide", body(event_id="a\nb"), "expected 1 to 128 bytes of UTF-8 in one line"),
    ("decide", body(baseline=1, items=[0]), "baseline: expected one of the items that may be shown"),
    ("rank", body(event_id="e" * 127, positions=2), "event_id: expected at most 126 bytes"),
    ("rank", body(event_id="e" * 126), "event_id: expected at most 125 bytes"),
]


@pytest.mark.parametrize(("call", "sent", "words"), TOLD)
async def test_a_refusal_says_what_came(caller: Any, call: str, sent: bytes, words: str) -> None:
    answer = await caller.post(f"/v1/{call}", data=sent, headers=JSON)
    assert 400 <= answer.status < 500
    told = [answer.json["detail"], *(one["detail"] for one in answer.json.get("errors", ()))]
    assert any(words in one for one in told), told
    assert not any(one.startswith("Value error") for one in told)
    assert SECRET.encode() not in answer.body


async def test_a_fault_is_named_by_its_place(caller: Any) -> None:
    answer = await caller.post("/v1/decide", {**ASKED, "context": [0.5, "x"], "items": [0, -1]})
    assert [one["pointer"] for one in answer.json["errors"]] == ["/context/1", "/items/1"]


FEEDBACK = [
    ("/v1/reward", {"event_id": "e", "reward": 1.5}, "invalid-request"),
    ("/v1/reward", {"event_id": "e", "reward": "1"}, "invalid-request"),
    ("/v1/reward", {"event_id": "e"}, "invalid-request"),
    ("/v1/reward", {"event_id": "nobodys", "reward": 1.0}, "unknown-event"),
    ("/v1/reward", {"event_id": "nobodys", "user": "ann", "reward": 1.0}, "unknown-event"),
    ("/v1/reward", {"event_id": "nobodys", "user": "ann", "item": 4, "reward": 1.0}, "unknown-item"),
    ("/v1/shown", {"event_id": "nobodys"}, "unknown-event"),
    ("/v1/shown", {"event_id": "e", "reward": 1.0}, "invalid-request"),
    ("/v1/harm", {"event_id": "nobodys", "user": "ann", "harm": 1.5}, "invalid-request"),
    ("/v1/harm", {"event_id": "nobodys", "harm": 1.0}, "unknown-event"),
    ("/v1/harm", {"event_id": "nobodys", "user": "ann", "harm": 1.0}, "no-guardrail"),
    ("/v1/decide/batch", {"requests": []}, "invalid-request"),
    ("/v1/decide/batch", {"requests": [ASKED] * 4}, "invalid-request"),
    ("/v1/decide/batch", {"requests": [ASKED, {}]}, "invalid-request"),
    ("/v1/decide/batch", [ASKED], "invalid-request"),
    ("/v1/rank", {**ASKED, "items": [-1]}, "invalid-request"),
]


@pytest.mark.parametrize(("path", "sent", "code"), FEEDBACK)
async def test_feedback_and_batches_that_are_not_taken_end_in_their_code(
    caller: Any, path: str, sent: Any, code: str
) -> None:
    assert (await caller.post(path, sent)).code == code


async def test_methods_types_and_paths_are_held_to(caller: Any) -> None:
    assert (await caller.get("/v1/decide")).code == "method-not-allowed"
    assert (await caller.get("/v1/decide")).headers["Allow"] == "POST"
    assert (await caller.post("/v1/items", {})).code == "method-not-allowed"
    assert (await caller.get("/v1/nothing")).code == "not-found"
    assert (await caller.get("/../etc/passwd")).code == "not-found"
    assert (await caller.call("OPTIONS", "/v1/decide", headers={"Origin": "https://shop.example"})).code == (
        "method-not-allowed"
    )
    assert (await caller.post("/v1/decide", data=body(), headers={"Content-Type": "text/plain"})).code == (
        "unsupported-media-type"
    )
    zipped = {**JSON, "Content-Encoding": "gzip"}
    assert (await caller.post("/v1/decide", data=body(), headers=zipped)).code == "unsupported-media-type"


async def test_an_id_that_was_refused_is_free(caller: Any) -> None:
    asked = {**ASKED, "event_id": "once"}
    assert (await caller.post("/v1/decide", {**asked, "context": [0.5]})).code == "bad-context"
    assert (await caller.post("/v1/decide", asked)).status == 200
    assert (await caller.post("/v1/decide", {**asked, "user": "eve"})).code == "event-conflict"


async def test_a_site_whose_name_was_made_to_lead_here_is_not_answered(caller: Any) -> None:
    for path in ("/", "/v1/items", "/metrics"):
        assert (await caller.get(path, headers={"Host": "evil.example"})).code == "wrong-host"
    assert (await caller.get("/v1/items", headers={"Host": "localhost:8080"})).status == 200


async def _raw(caller: Any, sent: bytes, *, close: bool = False) -> bytes:
    """All that comes back on a connection, until the gateway closes it."""
    host, port = caller.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        if close:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


HEAD = b"POST /v1/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

RAW = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"malformed-http"),
    (b"GARBAGE canary\r\n\r\n", b"malformed-http"),
    (b"GET / HTTP/9.9\r\n\r\n", b"malformed-http"),
    (HEAD + b"canary\r\n\r\n", b"malformed-http"),
    (HEAD + b"X-Long: " + b"canary" * 4000 + b"\r\n\r\n", b"malformed-http"),
    (HEAD + b"".join(b"X-%d: canary\r\n" % number for number in range(500)) + b"\r\n", b"malformed-http"),
    (HEAD + b"Content-Length: -1\r\n\r\n", b"malformed-http"),
    (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"malformed-http"),
    (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"malformed-http"),
    (HEAD + b"Content-Length: 99999999\r\n\r\n", b"body-too-large"),
    (HEAD + b"Content-Length: " + b"0" * 5000 + b"2\r\n\r\n{}", b"body-too-large"),
    (HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + b"fff\r\n" + b"x" * 4095 + b"\r\n"
     + b"fff\r\n" + b"x" * 4095 + b"\r\n0\r\n\r\n", b"body-too-large"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), RAW, ids=range(len(RAW)))
async def test_bytes_that_are_no_http_end_in_a_problem_document(caller: Any, sent: bytes, code: bytes) -> None:
    answer = await _raw(caller, sent)
    assert b"application/problem+json" in answer
    assert code in answer, answer
    assert b"canary" not in answer


async def test_an_answer_is_the_same_whether_the_connection_is_kept_or_not(caller: Any) -> None:
    asked = body(event_id="kept")
    length = b"Content-Length: %d\r\n" % len(asked)
    kept, closed = HEAD + length + b"\r\n" + asked, HEAD + length + b"Connection: close\r\n\r\n" + asked
    older = closed.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Connection: close\r\n", b"")
    both, alone = await _raw(caller, kept + closed), await _raw(caller, older)
    answers = (both + alone).split(b"HTTP/1.")[1:]
    assert [answer[:8] for answer in answers] == [b"1 200 OK", b"1 200 OK", b"0 200 OK"]
    heads, bodies = zip(*(answer.split(b"\r\n\r\n") for answer in answers), strict=True)
    assert set(bodies) == {bodies[0]}
    assert json.loads(bodies[0])["event_id"] == "kept"
    found = [dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:]) for head in heads]
    assert all(one.pop(b"Date").endswith(b" GMT") for one in found)
    assert [one.pop(b"Connection", None) for one in found] == [None, b"close", None]
    assert found[0] == found[1] == found[2]
    assert found[0][b"Content-Length"] == b"%d" % len(bodies[0])


async def test_who_sends_nothing_or_not_all_is_let_go(caller: Any) -> None:
    for begun in (b"", HEAD[:20], HEAD):
        assert await _raw(caller, begun) == b"", "closed without an answer: there was no request"
    answer = await _raw(caller, HEAD + b"Content-Length: 50\r\n\r\n{")
    assert b" 408 " in answer.partition(b"\r\n")[0]
    assert b"slow-request" in answer


async def test_who_does_not_read_the_answers_is_let_go(caller: Any) -> None:
    host, port = caller.base.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking.setblocking(False)
        await loop.sock_connect(asking, (host, int(port)))

        async def ask_on() -> None:
            while True:
                await loop.sock_sendall(asking, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 16)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_on(), patience(60))
    assert (await caller.get("/healthz")).status == 200


async def test_requests_sent_at_once_are_answered_in_their_order_however_many(caller: Any) -> None:
    """Also behind those that are read ahead, and around bodies that come in chunks or are refused."""
    chunked = body(event_id="chunked")
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    sent, expected = b"", []
    for number in range(40):
        asked = body(event_id=f"piped-{number}")
        sent += HEAD + b"Content-Length: %d\r\n\r\n" % len(asked) + asked
        sent += head + b"%x\r\n" % len(chunked) + chunked + b"\r\n0\r\n\r\n"
        sent += b"GET /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nabc"
        expected += [f"piped-{number}", "chunked", None]
    answers = (await _raw(caller, sent)).split(b"HTTP/1.1 ")[1:]
    found = [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers]
    assert [one.get("event_id") for one in found] == expected
    assert {one["code"] for one in found if "code" in one} == {"not-found"}


@pytest.mark.parametrize("before", [0, 14, 15, 16, 40])
async def test_requests_sent_at_once_are_answered_at_once_whatever_was_answered_before(
    caller: Any, before: int
) -> None:
    """The parser counts the requests that it has read ahead, until it is told that they are answered."""
    alive = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    host, port = caller.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for number in [1] * before + [2, 40, 40]:
        writer.write(alive * number)
        for _ in range(number):
            assert (await reader.readuntil(b"\r\n\r\nalive")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()


async def test_at_a_stop_no_later_answer_takes_the_place_of_one_that_was_given_up(gateways: Any, tmp_path: Any) -> None:
    asked = body(event_id="given-up")
    sent = HEAD + b"Content-Length: %d\r\n\r\n" % len(asked) + asked + b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    async with gateways.placed("pdap", tmp_path / "d") as place:  # Without a worker nobody answers.
        async with place.gateway(answer_seconds=600.0, stop_seconds=0.1) as caller:
            host, port = caller.base.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await asyncio.sleep(0.3)
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_that_was_closed_waits_for_no_collector(caller: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        for closing in (b"Connection: close\r\n", b""):
            await _raw(caller, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + closing + b"\r\n")
            await _raw(caller, HEAD + closing + b"Content-Length: 2\r\n\r\n{}")
            await _raw(caller, HEAD + closing + b"Content-Length: 20\r\n\r\n{}")
        await _raw(caller, b"no request\r\n\r\n")
        await asyncio.sleep(0)
        made = [one for one in gc.get_objects() if isinstance(one, Connection)]
        assert all(one.transport is not None for one in made), "those of the session that calls are open"
    finally:
        gc.enable()


async def test_who_goes_away_leaves_nothing_behind(caller: Any, gateways: Any) -> None:
    host, port = caller.base.removeprefix("http://").split(":")
    for number in range(20):
        _, writer = await asyncio.open_connection(host, int(port))
        sent = json.dumps({**ASKED, "event_id": f"gone-{number}"}).encode()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(sent) + sent)
        writer.transport.abort()

    async def idle() -> bool:
        return 'in_flight{role="gateway"} 0.0' in await caller.zone_metrics()

    await gateways.until(idle)
    assert (await caller.post("/v1/decide", {**ASKED, "event_id": "after"})).status == 200


async def test_nothing_that_was_asked_is_in_a_log_or_a_metric(place: Any, gateways: Any) -> None:
    port = free_port()
    async with (
        place.gateway_process(
            port,
            options=("--log-level", "debug", "--zone-metrics-port", str(zone := free_port())),
            body_bytes=BODY_BYTES,
            idle_seconds=0.5,
        ) as process,
        gateways.calling(port) as caller,
    ):
        for sent, _ in BODIES:
            await caller.post("/v1/decide", data=sent, headers=JSON)
        for sent, _ in RAW:
            await _raw(caller, sent)
        answer = await caller.post("/v1/decide", {**ASKED, "event_id": f"{SECRET}-2"})
        assert answer.status == 200, answer.body
        await caller.post("/v1/reward", {"event_id": f"{SECRET}-2", "reward": 1.0})
        public = (await caller.get("/metrics")).body.decode()
        async with caller.session.get(f"http://127.0.0.1:{zone}/metrics") as page:
            zones = await page.text()
    log = process.log.read_text(encoding="utf-8")
    assert "listens at" in log
    assert SECRET not in log
    assert "Traceback" not in log
    assert SECRET not in public + zones
    assert 'call="decide",code="bad-context"' in zones
    assert "reward" not in public, "how much was rewarded is for the zone alone"
