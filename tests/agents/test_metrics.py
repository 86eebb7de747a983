"""Metrics: their classes and endpoints, who may read them, and log lines that are limited."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from hushstream.agents.errors import AllStopped, code_of
from hushstream.agents.observe.endpoints import MetricsAccess, ports_named
from hushstream.agents.observe.metric_table import role_gauges_of
from hushstream.agents.observe.metrics import EXIT_REASONS, METRICS, OTHER, STOP_REASONS, Labels, Metrics
from hushstream.agents.process import RateLimitedLog, limit_warnings
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker import worker
from hushstream.agents.worker.health import StallTimer
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.engine.records import Output
from hushstream.engine.values import ConfigurationError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kinds
from patience import Patience, patience

LABELS = Labels(
    "learner", ("decided",), ("bad_float",), ("contexts", "reports"), 4, ("learner", "aggregator"),
    private_work=True, private_lag={"clicks"}, scope_classes=("slot",),
)  # fmt: skip
FIXED_LABELS = {
    "role", "outcome", "reason", "topic", "setting", "partition", "scope_class", "declared", "use", "source", "bound",
    "group",
}  # fmt: skip


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(LABELS, reason_of=lambda value: value.decode())
    made.batch({"decided": 3, "user-4711": 1, "slot": 2}, 0.01)
    made.journaled()
    made.released([Output("reports", 0, b""), Output("secret-user-topic", 1, b"")])
    made.dead_letters([Output("dead", 0, b"bad_float"), Output("dead", 0, b"payload of a user")])
    made.lag("contexts", 2, 5)
    made.lag("contexts", 99, 5)
    made.role_gauges(1, {"model_version": 7, "slot_limit_micro_epsilon": 10})
    made.recovered(0.2)
    made.reloaded()
    made.partitions(3, 2, 1)
    return made


def test_every_registered_metric_stands_in_the_table_with_a_class(metrics):
    by_name = {spec.name: spec for spec in METRICS}
    assert len(by_name) == len(METRICS)
    for registry, zone in ((metrics.public, False), (metrics.zone, True)):
        for family in registry.collect():
            spec = by_name[family.name + ("_total" if family.type == "counter" else "")]
            assert (spec.metric_class == "zone-private") == zone
            assert spec.help


def test_content_is_served_only_on_the_zones_own_endpoint(metrics):
    private = {spec.name for spec in METRICS if spec.metric_class == "zone-private"}
    assert {"hushstream_events_total", "hushstream_dead_letters_total"} <= private
    assert not {name for name, _ in samples(metrics.public)} & private


def test_a_figure_of_a_record_is_shown_once_the_record_has_left():
    figures = {"lift_reward_ratio_model": 0.25}
    made = Metrics(LABELS, figures_of=lambda topic, _: figures if topic == "lift" else {})
    made.journaled()
    name = ("hushstream_lift_reward_ratio", (("group", "model"), ("partition", "1"), ("role", "learner")))
    assert name not in samples(made.public)
    made.released([Output("lift", 1, b""), Output("reports", 0, b"")])
    assert samples(made.public)[name] == 0.25
    made.keep_partitions({0})
    assert name not in samples(made.public)


def test_no_label_comes_from_data(metrics):
    assert {label for spec in METRICS for label in spec.labels} <= FIXED_LABELS
    allowed = {"learner", "decided", "bad_float", "contexts", "reports", "slot", "0", "1", "2", "3", OTHER}
    allowed |= {"aggregator", "reads", "writes"}
    for registry in (metrics.public, metrics.zone):
        for (name, labels), _ in samples(registry).items():
            for label, value in labels:
                assert label == "le" or value in allowed, (name, label, value)


def test_what_is_not_on_the_list_is_counted_as_other(metrics):
    found = samples(metrics.zone)
    assert found["hushstream_events_total", (("outcome", "decided"), ("role", "learner"))] == 3
    assert found["hushstream_events_total", (("outcome", OTHER), ("role", "learner"))] == 3
    assert found["hushstream_dead_letters_total", (("reason", OTHER), ("role", "learner"))] == 1


PRIVATE_WORK = {
    **dict.fromkeys(("learner", "node", "rater"), True),
    **dict.fromkeys(("shuffler", "counter", "collector", "aggregator"), False),
}


@pytest.mark.parametrize(
    "role",
    [pytest.param(role, id=f"{name} {role.name}") for name, kind in kinds().items() for role in kind.roles],
)
def test_how_long_a_learner_took_is_told_in_its_zone_alone(role):
    private = PRIVATE_WORK[role.name]
    made = Metrics(Labels(role.name, private_work=role.private_work))
    made.batch({}, 0.3)
    made.journaled()
    made.recovered(0.2)
    for registry, tells in ((made.zone, private), (made.public, not private)):
        seen = {
            name: value for (name, _), value in samples(registry).items() if name.endswith(("_sum", "_appends_total"))
        }
        prefix = "hushstream_edge_" if private else "hushstream_"
        told = {"batch_seconds_sum": 0.3, "recovery_seconds_sum": 0.2, "journal_appends_total": 1}
        assert seen == ({prefix + name: value for name, value in told.items()} if tells else {})


def test_names_follow_the_conventions():
    for spec in METRICS:
        assert spec.name.startswith("hushstream_")
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        assert spec.kind != "histogram" or spec.name.endswith("_seconds")
    shown = role_gauges_of(scope for kind in kinds().values() for role in kind.roles for scope in role.scope_classes)
    assert {gauge.metric for gauge in shown.values()} <= {spec.name for spec in METRICS if spec.kind == "gauge"}


def test_the_two_endpoints_answer_on_loopback(metrics):
    public, zone = metrics.serve("127.0.0.1", 0, 0)
    try:
        pages = [
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(5)).read().decode()
            for port in (public, zone)
        ]
    finally:
        metrics.close()
    assert "hushstream_journal_appends_total" in pages[0]
    assert "hushstream_events_total" not in pages[0]
    assert "hushstream_events_total" in pages[1]


def test_no_endpoint_is_opened_unless_a_port_is_given(metrics):
    assert metrics.serve("127.0.0.1", None, None) == (None, None)


def test_a_heartbeat_tells_of_a_hang_and_not_of_a_batch():
    now = [100.0]
    metrics = Metrics(LABELS, clock=lambda: now[0])
    name = ("hushstream_heartbeat_age_seconds", (("role", "learner"),))
    seen = []
    for seconds in (0.5, 9.0, 25.0, 39.9):
        now[0] = 100.0 + seconds
        seen.append(samples(metrics.public)[name])
    metrics.beat()
    seen.append(samples(metrics.public)[name])
    assert seen == [0, 0, 20, 30, 0]


async def test_the_loop_that_watches_the_group_beats(monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "_WATCH_SECONDS", 0.01)
    running = worker.RoleWorker(
        WorkerSettings(bootstrap="127.0.0.1:9092", role="learner", group="g", datadir=tmp_path),
        make_machine=lambda _: pytest.fail("no machine is needed"),
        topics=RoleTopics(("contexts",), (), 1),
    )
    beaten = asyncio.Event()
    monkeypatch.setattr(running, "_homes", SimpleNamespace(occupied=True), raising=False)
    monkeypatch.setattr(running, "_stream", SimpleNamespace(raise_refusal=AsyncMock()), raising=False)
    metrics = Metrics(LABELS)
    monkeypatch.setattr(metrics, "beat", beaten.set)
    monkeypatch.setattr(running, "_metrics", metrics, raising=False)
    loop = asyncio.create_task(running._watch_membership())
    await asyncio.wait_for(beaten.wait(), patience(60))
    loop.cancel()


def test_a_worker_says_which_roles_its_deployment_has(metrics):
    found = samples(metrics.public)
    for declared in ("learner", "aggregator"):
        assert found["hushstream_roles_declared", (("declared", declared), ("role", "learner"))] == 1


def test_a_stopped_partition_has_its_reason_until_it_is_taken_up_again_and_outlasts_the_driver(metrics):
    metrics.stopped({0: "inputs_deleted", 2: "an error of nobody's list"})
    metrics.keep_partitions(())

    def shown() -> dict[str, str]:
        found = samples(metrics.public)
        pairs = [dict(labels) for name, labels in found if name == "hushstream_partition_stopped"]
        return {pair["partition"]: pair["reason"] for pair in pairs}

    assert shown() == {"0": "inputs_deleted", "2": OTHER}
    metrics.stopped({2: "older_than_released"})
    assert shown() == {"2": "older_than_released"}


def test_a_worker_that_ended_shows_why_until_it_works_again(metrics):
    metrics.ended("datadir_unusable")
    place = ("hushstream_exit_reason", (("reason", "datadir_unusable"), ("role", "learner")))
    assert samples(metrics.public)[place] == 1
    metrics.works_again()
    assert place not in samples(metrics.public)


def test_every_reason_is_the_name_of_an_error():
    known = {code_of(kind.__new__(kind)) for kind in subclasses_of(HushstreamError)}
    assert {*STOP_REASONS, *EXIT_REASONS} <= known


def subclasses_of(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(subclasses_of(one) for one in kind.__subclasses__() if one is not AllStopped))


def test_each_form_has_its_own_interval_and_what_was_left_out_is_counted(caplog):
    now = [0.0]
    limited_log = RateLimitedLog(logging.getLogger("quiet-test"), 10.0, lambda: now[0])
    with caplog.at_level("WARNING", "quiet-test"):
        for moment in (0, 1, 9):
            now[0] = moment
            limited_log.warning("broker %s does not answer", "b")
        limited_log.warning("another form")
        now[0] = 10
        limited_log.warning("broker %s does not answer", "c")
        now[0] = 20
        limited_log.warning("broker %s does not answer", "d")
    assert [record.getMessage() for record in caplog.records] == [
        "broker b does not answer",
        "another form",
        "broker c does not answer (2 more since the last such line)",
        "broker d does not answer",
    ]


def test_a_library_that_tries_again_without_end_says_so_once_in_a_while(caplog):
    module = logging.getLogger("noisy_library.conn")
    limit_warnings("noisy_library")
    with caplog.at_level("INFO", "noisy_library"):
        for attempt in range(1000):
            module.error("unable to connect to %s", f"broker {attempt}")
            module.info("attempt %d", attempt)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("unable")] == ["unable to connect to broker 0"]
    assert len(lines) == 1001


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
def endpoints() -> Metrics:
    made = Metrics(Labels("learner", ("decided",), (), ("contexts",), partitions=1))
    made.batch({"decided": 3}, 0.01)
    return made


def test_opening_the_public_endpoint_to_others_leaves_the_zones_own_on_loopback(endpoints):
    public, zone = endpoints.serve("0.0.0.0", 0, 0)
    try:
        assert listening(public) == {"0.0.0.0"}
        assert listening(zone) == {"127.0.0.1"}
    finally:
        endpoints.close()


def test_an_endpoint_may_be_told_where_by_a_name_that_one_network_alone_knows(endpoints):
    _, zone = endpoints.serve("127.0.0.1", None, 0, "localhost")
    try:
        page = urllib.request.urlopen(f"http://localhost:{zone}/metrics", timeout=60).read().decode()
    finally:
        endpoints.close()
    assert "hushstream_events_total" in page


def test_each_endpoint_listens_where_it_was_told_and_serves_its_own_class_alone(endpoints):
    public, zone = endpoints.serve("127.0.0.1", 0, 0, "127.0.0.2")
    try:
        assert (listening(public), listening(zone)) == ({"127.0.0.1"}, {"127.0.0.2"})
        pages = [
            urllib.request.urlopen(f"http://{place}/metrics", timeout=patience(5)).read().decode()
            for place in (f"127.0.0.1:{public}", f"127.0.0.2:{zone}")
        ]
    finally:
        endpoints.close()
    assert ["hushstream_events_total" in page for page in pages] == [False, True]
    assert ["hushstream_partitions_held" in page for page in pages] == [True, False]


TOKEN = "t" * 32


@pytest.fixture
def guarded(endpoints: Metrics, tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The public endpoint behind a token and HTTPS: its address, and what trusts its certificate."""
    token = private(tmp_path / "token", f"{TOKEN}\n")
    certificate, key = self_signed()
    pem = private(tmp_path / "metrics.pem", certificate + key)
    (tmp_path / "ca.pem").write_text(certificate, encoding="utf-8")
    port, _ = endpoints.serve("127.0.0.1", 0, None, access=MetricsAccess.of_files(token, pem))
    yield f"https://127.0.0.1:{port}/metrics", ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    endpoints.close()


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


def test_metrics_behind_a_token_are_read_with_it_alone(guarded):
    url, trusts = guarded
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    page = urllib.request.urlopen(asked, timeout=patience(5), context=trusts).read().decode()
    assert "hushstream_partitions_held" in page
    for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}t"}, {"Authorization": "Bearer é"}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=patience(5), context=trusts)
        assert (refused.value.code, refused.value.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert b"hushstream_" not in refused.value.read().replace(b"--metrics-token", b"")


def test_who_connects_and_says_nothing_holds_up_nobody(guarded):
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
def test_a_token_that_is_none_or_that_others_read_is_refused(tmp_path, text, mode, says):
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
    with pytest.raises(ConfigurationError, match=says) as refused:
        MetricsAccess.of_files(path, None)
    assert TOKEN not in str(refused.value)
    assert TOKEN not in repr(MetricsAccess(TOKEN))


def test_a_certificate_without_its_key_is_refused(tmp_path):
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
def test_the_ports_in_use_are_said_in_words(ports, said):
    assert ports_named(ports) == said


# An outage is seen while it lasts: each fault moves the metric that its alert reads, and its end moves it back.

EVENTS = [(1_000_000 + i, b"k%d" % (i % 5)) for i in range(20)]


def deployment(bench: Any, harness: Any, machines: Any, name: str, **settings: Any) -> Any:
    return harness.Deployment(
        bench, name, f"{machines.__file__}:counting", {"targets": 1}, machines.counting(targets=1),
        {("events", 0): EVENTS}, 1, {"schedule": "live", **settings},
    )  # fmt: skip


def values(port: int) -> dict[str, float]:
    """Each series of the public page, by the metric's name without its prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r"^hushstream_(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def values_if_served(port: int) -> dict[str, float]:
    """The same, empty before the page is there."""
    try:
        return values(port)
    except urllib.error.URLError:
        return {}


async def shows(port: int, wanted: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Wait until the metrics are as wanted."""
    waiting = Patience(60)
    while not wanted(found := await asyncio.to_thread(values_if_served, port)):
        assert not waiting.over, found
        await asyncio.sleep(0.5)
    return found


def still(found: dict[str, float]) -> bool:
    """Whether the broker has just been heard, for all that is measured of it."""
    ages = ("fetch_age_seconds", "group_commit_age_seconds")
    return all(found.get(age) == 0 for age in ages)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_broker_that_is_gone_is_seen_in_metrics_and_in_the_log_until_it_is_back(bench, harness, machines):
    port = harness.free_port()
    target = int(bench.bootstrap.rpartition(":")[2])
    async with harness.Tunnel(target) as tunnel, deployment(bench, harness, machines, "outage") as run:
        worker = await run.start(bootstrap=f"127.0.0.1:{tunnel.port}", metrics_port=port)
        await run.folded_all()
        await shows(port, still)
        tunnel.open = False
        tunnel.cut()
        await shows(port, lambda found: min(found["fetch_age_seconds"], found["group_commit_age_seconds"]) >= 5)
        await worker.logged("no broker has answered a fetch for")
        tunnel.open = True
        await worker.logged("brokers answer fetches again")
        await shows(port, still)
        await shows(port, lambda found: found["partitions_held"] == 1)
        worker.kill(signal.SIGTERM)
        await worker.exit_code()
    lines = worker.log.read_text(encoding="utf-8").count("no broker has answered")
    assert lines == 1, f"{lines} lines of one outage"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_state_folder_that_takes_nothing_is_seen_and_so_is_the_room_on_its_disk(bench, harness, machines):
    port = harness.free_port()
    async with deployment(bench, harness, machines, "unsaved") as run:
        folder = Path(run.values["datadir"]) / run.values["deployment"]
        worker = await run.start(metrics_port=port)
        await run.folded_all()
        saved = folder / run.values["role"] / "0.snapshot"
        calm = await shows(port, lambda found: saved.exists() and "state_disk_free_ratio" in found)
        shutil.rmtree(folder)
        folder.write_bytes(b"")  # no folder can be made in its place
        await run.append({("events", 0): EVENTS})
        stale = await shows(port, lambda found: found.get("snapshot_age_seconds", 0) >= 5)
        worker.kill()
        await worker.exit_code()
    usage = shutil.disk_usage(folder.parent)
    assert calm["snapshot_age_seconds"] == 0
    assert stale["state_disk_free_ratio"] == pytest.approx(usage.free / usage.total, abs=0.05)
    assert stale["state_disk_free_ratio"] in [whole / 100 for whole in range(101)], "it tells no size of a state"
    assert stale["fetch_age_seconds"] == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_partition_that_folds_nothing_of_what_waits_is_seen(bench, harness, machines):
    port = harness.free_port()
    logs = {("left", 0): [(1_000_000, machines.pack([1, 10**9]))], ("right", 0): [(999_000, b"0")]}
    run = harness.Deployment(
        bench, "dark", f"{machines.__file__}:joining", {}, machines.joining(), logs, 1,
        {"schedule": "live", "named_wait_seconds": 8}, {"rules": 1},
    )  # fmt: skip
    async with run:
        worker = await run.start(metrics_port=port)
        dark = await shows(port, lambda found: found.get("partition_dark_seconds", 0) >= 5)
        light = await shows(port, lambda found: found["partition_dark_seconds"] == 0)
        worker.kill(signal.SIGTERM)
        await worker.exit_code()
    assert dark["fetch_age_seconds"] == light["fetch_age_seconds"] == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_folded_or_empty_is_not_dark(base):
    now = [base]
    seen = StallTimer()

    def after(seconds: float, folded_to: int, end: int) -> float:
        now[0] += seconds
        return round(seen.seconds(3, folded_to, end, now[0]), 3)

    assert [after(0, 0, 5), after(10, 0, 5), after(10, 0, 9)] == [0, 10, 20]
    assert [after(10, 1, 9), after(10, 1, 9), after(10, 9, 9), after(50, 9, 9)] == [0, 10, 0, 0]
    assert after(1, 9, 10) == 1
    seen.keep(set())
    assert after(5, 9, 10) == 0, "one that comes back begins anew"
