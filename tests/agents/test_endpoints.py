"""Metrics are served where they were asked for, a zone's own apart from the public ones, and to whom they are meant."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hushstream.agents.observe.endpoints import MetricsAccess, ports_named
from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.engine.values import ConfigurationError
from patience import patience


def listening(port: int | None) -> set[str]:
    """The local addresses on which a port listens, by the kernel's own list."""
    assert port is not None
    found = set()
    with open("/proc/net/tcp", encoding="utf-8") as table:
        for line in list(table)[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    return found


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(Labels("learner", ("decided",), (), ("contexts",), partitions=1))
    made.batch({"decided": 3}, 0.01)
    return made


def test_opening_the_public_endpoint_to_others_leaves_the_zones_own_on_loopback(metrics: Metrics) -> None:
    public, zone = metrics.serve("0.0.0.0", 0, 0)
    try:
        assert listening(public) == {"0.0.0.0"}
        assert listening(zone) == {"127.0.0.1"}
    finally:
        metrics.close()


def test_an_endpoint_may_be_told_where_by_a_name_that_one_network_alone_knows(metrics: Metrics) -> None:
    _, zone = metrics.serve("127.0.0.1", None, 0, "localhost")
    try:
        page = urllib.request.urlopen(f"http://localhost:{zone}/metrics", timeout=60).read().decode()
    finally:
        metrics.close()
    assert "hushstream_events_total" in page


def test_each_endpoint_listens_where_it_was_told_and_serves_its_own_class_alone(metrics: Metrics) -> None:
    public, zone = metrics.serve("127.0.0.1", 0, 0, "127.0.0.2")
    try:
        assert (listening(public), listening(zone)) == ({"127.0.0.1"}, {"127.0.0.2"})
        pages = [
            urllib.request.urlopen(f"http://{place}/metrics", timeout=patience(5)).read().decode()
            for place in (f"127.0.0.1:{public}", f"127.0.0.2:{zone}")
        ]
    finally:
        metrics.close()
    assert ["hushstream_events_total" in page for page in pages] == [False, True]
    assert ["hushstream_partitions_held" in page for page in pages] == [True, False]


TOKEN = "t" * 32


@pytest.fixture
def guarded(metrics: Metrics, tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The public endpoint behind a token and HTTPS: its address, and what trusts its certificate."""
    token = private(tmp_path / "token", f"{TOKEN}\n")
    certificate, key = self_signed()
    pem = private(tmp_path / "metrics.pem", certificate + key)
    (tmp_path / "ca.pem").write_text(certificate, encoding="utf-8")
    port, _ = metrics.serve("127.0.0.1", 0, None, access=MetricsAccess.of_files(token, pem))
    yield f"https://127.0.0.1:{port}/metrics", ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    metrics.close()


def private(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def self_signed() -> tuple[str, str]:
    """A certificate of 127.0.0.1 and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metrics")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM).decode(), secret.decode()


def test_metrics_behind_a_token_are_read_with_it_alone(guarded: tuple[str, ssl.SSLContext]) -> None:
    url, trusts = guarded
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    page = urllib.request.urlopen(asked, timeout=patience(5), context=trusts).read().decode()
    assert "hushstream_partitions_held" in page
    for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}t"}, {"Authorization": "Bearer é"}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=patience(5), context=trusts)
        assert (refused.value.code, refused.value.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert b"hushstream_" not in refused.value.read().replace(b"--metrics-token", b"")


def test_who_connects_and_says_nothing_holds_up_nobody(guarded: tuple[str, ssl.SSLContext]) -> None:
    url, trusts = guarded
    port = int(url.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(b"no TLS\r\n\r\n")
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        assert urllib.request.urlopen(asked, timeout=patience(5), context=trusts).status == 200


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("short", 0o600, "at least 32 printable ASCII characters"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "one line"),
        (TOKEN, 0o640, "readable by its owner only"),
        (None, 0o600, "expected a readable file, got No such file"),
    ],
)
def test_a_token_that_is_none_or_that_others_read_is_refused(
    tmp_path: Path, text: str | None, mode: int, says: str
) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
    with pytest.raises(ConfigurationError, match=says) as refused:
        MetricsAccess.of_files(path, None)
    assert TOKEN not in str(refused.value)
    assert TOKEN not in repr(MetricsAccess(TOKEN))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificate, _ = self_signed()
    with pytest.raises(ConfigurationError, match="PEM with a certificate and its key"):
        MetricsAccess.of_files(None, private(tmp_path / "metrics.pem", certificate))


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ((None, None), "no metrics are served"),
        ((9101, None), "metrics on port 9101"),
        ((9101, 9201), "metrics on port 9101, zone metrics on port 9201"),
    ],
)
def test_the_ports_in_use_are_said_in_words(ports: tuple[int | None, int | None], said: str) -> None:
    assert ports_named(ports) == said
