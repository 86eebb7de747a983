"""Who may call a gateway, and what is written down of a call."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.engine.declare.declaration import conversation_of
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.callers import LOOK_SECONDS, Callers, TokensFile
from hushstream.gateway.settings import GatewaySettings, read_gateway
from hushstream.ops.access import Principals, rules_of
from hushstream.schemas.errors import HushstreamError

GOOD, OTHER = "shop-token-" + "a" * 32, "shop-token-" + "b" * 32


def tokens(folder: Path, *lines: str) -> Path:
    path = folder / "tokens"
    path.write_text("\n".join(lines), encoding="utf-8")
    path.chmod(0o600)
    return path


async def test_only_who_has_a_token_is_answered(gateways: Any, tmp_path: Any) -> None:
    path = tokens(tmp_path, "# of the shop", f"web {GOOD}", f"old {OTHER} 2020-01-01")
    async with gateways.placed("pdap", tmp_path / "d") as place, place.gateway(tokens_file=path) as caller:
        for header in (
            None,
            "",
            GOOD,
            f"Basic {GOOD}",
            "Bearer ",
            f"Bearer {GOOD}x",
            f"Bearer {GOOD[:-1]}",
            "Bearer \xe9",
        ):
            headers = {} if header is None else {"Authorization": header}
            for asked in (caller.get("/v1/items", headers=headers), caller.post("/v1/decide", {}, headers=headers)):
                refused = await asked
                assert (refused.status, refused.code) == (401, "unauthorized")
                assert refused.headers["WWW-Authenticate"] == "Bearer"
        ended = {"Authorization": f"Bearer {OTHER}"}
        assert (await caller.get("/v1/items", headers=ended)).code == "unauthorized", "its last day is over"
        good = {"Authorization": f"Bearer {GOOD}"}
        assert (await caller.get("/v1/items", headers=good)).status == 200
        assert (await caller.get("/metrics")).code == "unauthorized"
        for probe in ("/healthz", "/readyz", "/openapi.json", "/"):
            assert (await caller.get(probe)).status == 200


def test_a_token_that_is_taken_out_of_the_file_is_good_no_longer(tmp_path: Any) -> None:
    path, now = tokens(tmp_path, f"web {GOOD}"), [0.0]
    known = TokensFile("tokens_file", path, clock=lambda: now[0])
    assert known.name_of(GOOD) == "web"
    tokens(tmp_path, f"web {OTHER}", "")
    now[0] += LOOK_SECONDS + 1
    assert known.name_of(GOOD) is None
    assert known.name_of(OTHER) == "web"
    path.unlink()
    now[0] += LOOK_SECONDS + 1
    assert known.name_of(OTHER) is None, "without the file nobody is let in"


@pytest.mark.parametrize("line", ["web short", "web", f"web {GOOD} tomorrow", f"web {GOOD} 2027-01-01 more"])
def test_a_line_that_is_no_token_is_refused_and_not_repeated(tmp_path: Any, line: str) -> None:
    with pytest.raises(ConfigurationError, match="line 1") as raised:
        TokensFile("tokens_file", tokens(tmp_path, line))
    assert GOOD not in str(raised.value)


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_tokens_that_others_can_read_are_refused(tmp_path: Any) -> None:
    path = tokens(tmp_path, f"web {GOOD}")
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        TokensFile("tokens_file", path)


@pytest.mark.parametrize("setting", ["tokens_file", "operators_file"])
@pytest.mark.parametrize("content", [None, b"\xff", b"web short", f"web {GOOD} tomorrow".encode()])
def test_a_file_of_tokens_is_refused_under_the_setting_that_names_it(
    tmp_path: Any, setting: str, content: bytes | None
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.touch(mode=0o600)
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"^{setting}[:,]"):
        Callers(GatewaySettings(**{setting: path}))


WRONG = [
    ({"host": "0.0.0.0"}, "gateway.yaml: host: expected loopback where anybody may call"),
    ({"host": "0.0.0.0", "tokens_file": "t"}, "expected a certificate_file where others can listen in"),
    ({"host": "shop.example", "allow_plaintext": True}, "expected loopback"),
    ({"certificate_file": "c"}, "expected both or none"),
    ({"client_ca_file": "c"}, "expected a certificate_file of the gateway"),
    ({"burst": 10}, "at least batch_requests"),
    ({"portt": 1}, "portt: there is no such key; known are host, port"),
    ({"port": "many"}, "gateway.yaml: port: expected a whole number"),
    ({"answer_seconds": 0}, "answer_seconds"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_settings_that_let_anybody_in_or_mean_nothing_are_refused(tmp_path: Any, values: Any, words: str) -> None:
    file = tmp_path / "gateway.yaml"
    lines = [f"{key}: {str(value).lower()}" for key, value in values.items()]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=words):
        read_gateway(file, {})


def test_the_environment_overrides_the_file(tmp_path: Any) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("port: 81\nin_flight: 7\n", encoding="utf-8")
    found = read_gateway(file, {"HUSHSTREAM_GATEWAY__PORT": "82"})
    assert (found.port, found.in_flight) == (82, 7)
    with pytest.raises(ConfigurationError, match="HUSHSTREAM_GATEWAY__PORT: port"):
        read_gateway(file, {"HUSHSTREAM_GATEWAY__PORT": "many"})


async def test_pages_of_other_sites_are_let_in_by_name_alone(gateways: Any, tmp_path: Any) -> None:
    origins = ("https://shop.example",)
    shop, evil = {"Origin": origins[0]}, {"Origin": "https://evil.example"}
    async with gateways.placed("pdap", tmp_path / "d") as place:
        async with place.gateway(cors_origins=origins) as caller:
            allowed = await caller.call("OPTIONS", "/v1/decide", headers=shop)
            assert (allowed.status, allowed.headers["Access-Control-Allow-Origin"]) == (204, origins[0])
            assert (await caller.get("/v1/items", headers=shop)).headers["Access-Control-Allow-Origin"] == origins[0]
            assert (await caller.call("OPTIONS", "/v1/decide", headers=evil)).code == "method-not-allowed"
            assert "Access-Control-Allow-Origin" not in (await caller.get("/v1/items", headers=evil)).headers
        async with place.gateway() as caller:
            assert (await caller.call("OPTIONS", "/v1/decide", headers=shop)).code == "method-not-allowed"
            assert "Access-Control-Allow-Origin" not in (await caller.get("/v1/items", headers=shop)).headers


def _issued(folder: Path, name: str, by: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """A key and a certificate, which another one has signed, or itself; written as NAME.pem and NAME.key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer, issuer = (key, subject) if by is None else (by[0], by[1].subject)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(*form))
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return key, made


async def test_a_certificate_that_was_not_signed_for_callers_is_no_caller(gateways: Any, tmp_path: Any) -> None:
    authority = _issued(tmp_path, "ca")
    for name in ("gateway", "web"):
        _issued(tmp_path, name, authority)
    _issued(tmp_path, "stranger", _issued(tmp_path, "other-ca"))
    settings = {
        "certificate_file": tmp_path / "gateway.pem",
        "key_file": tmp_path / "gateway.key",
        "client_ca_file": tmp_path / "ca.pem",
    }
    async with gateways.placed("pdap", tmp_path / "d") as place, place.gateway(**settings) as caller:
        url = caller.base.replace("http://127.0.0.1", "https://localhost") + "/v1/items"

        async def status(name: str | None) -> int:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            if name is not None:
                context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
            async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
                return response.status

        assert await status("web") == 200
        for name in ("stranger", None):
            with pytest.raises(aiohttp.ClientError):
                await status(name)
        with pytest.raises(aiohttp.ClientError):
            await caller.get("/v1/items")


async def test_who_does_not_end_the_greeting_of_tls_is_hung_up_on(gateways: Any, tmp_path: Any) -> None:
    """Python waits a minute by itself; the test gives up long before that."""
    _issued(tmp_path, "gateway")
    settings = {"certificate_file": tmp_path / "gateway.pem", "key_file": tmp_path / "gateway.key", "read_seconds": 0.5}
    async with gateways.placed("pdap", tmp_path / "d") as place, place.gateway(**settings) as caller:
        port = int(caller.base.rpartition(":")[2])
        for begun in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            async with asyncio.timeout(40):
                assert await reader.read() == b""
            writer.close()


def test_files_that_do_not_fit_together_are_refused(tmp_path: Any) -> None:
    from hushstream.gateway.callers import server_context

    _issued(tmp_path, "a")
    _issued(tmp_path, "b")
    with pytest.raises(ConfigurationError, match="expected PEM that fits together"):
        server_context(GatewaySettings(certificate_file=tmp_path / "a.pem", key_file=tmp_path / "b.key"))


@pytest.mark.parametrize("name", ["colin", "pdap", "pdol", "bgt"])
def test_a_gateway_may_do_what_applications_do_and_nobody_is_one_unnamed(
    gateways: Any, tmp_path: Any, name: str
) -> None:
    system = prepare(tmp_path / "d", parse_config(gateways.CONFIGURATIONS[name]), gateways.INPUTS.get(name))
    party = gateways.PARTY.get(name, "")
    own = f".{party}" if party else ""
    rules = rules_of(system, "d.", Principals.of([f"gateway{own}=User:web"]))
    of = {
        who: {(rule.kind, rule.name, rule.operation) for rule in rules if rule.principal == f"User:{who}"}
        for who in ("web", f"client{own}")
    }
    talked = conversation_of(system, party)
    written = {("topic", f"d.{topic}", "Write") for topic in (talked.requests, *talked.feedback)}
    read = {("topic", f"d.{topic}", "Read") for topic in (talked.answers, *system.overview_topics)}
    assert of["web"] == {*written, *read}
    assert of["web"] <= {*of[f"client{own}"], *read}
    unnamed = rules_of(system, "d.", Principals.of())
    assert not [rule for rule in unnamed if "gateway" in rule.principal]


def test_of_a_party_that_there_is_not_there_is_no_gateway(gateways: Any, tmp_path: Any) -> None:
    system = prepare(tmp_path / "d", parse_config(gateways.CONFIGURATIONS["pdap"]))
    for name in ("gateway", "gateway.west"):
        with pytest.raises(HushstreamError, match="expected one of its parties"):
            rules_of(system, "d.", Principals.of([f"{name}=User:web"]))
