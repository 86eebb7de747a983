from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from hushstream.agents.errors import AllStopped, code_of
from hushstream.agents.observe.metric_table import role_gauges_of
from hushstream.agents.observe.metrics import EXIT_REASONS, METRICS, OTHER, STOP_REASONS, Labels, Metrics
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker import worker
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.engine.declare.role import Role
from hushstream.engine.records import Output
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kinds
from patience import patience

LABELS = Labels(
    "learner", ("decided",), ("bad_float",), ("contexts", "reports"), 4, ("learner", "aggregator"), 2,
    private_work=True, private_lag={"clicks"}, scope_classes=("slot",),
)  # fmt: skip
FIXED_LABELS = {
    "role", "outcome", "reason", "topic", "partition", "scope_class", "declared", "use", "source", "bound",
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


def test_every_registered_metric_stands_in_the_table_with_a_class(metrics: Metrics) -> None:
    by_name = {spec.name: spec for spec in METRICS}
    assert len(by_name) == len(METRICS)
    for registry, zone in ((metrics.public, False), (metrics.zone, True)):
        for family in registry.collect():
            spec = by_name[family.name + ("_total" if family.type == "counter" else "")]
            assert (spec.metric_class == "zone-private") == zone
            assert spec.help


def test_content_is_served_only_on_the_zones_own_endpoint(metrics: Metrics) -> None:
    private = {spec.name for spec in METRICS if spec.metric_class == "zone-private"}
    assert {"hushstream_events_total", "hushstream_dead_letters_total"} <= private
    assert not {name for name, _ in samples(metrics.public)} & private


def test_a_figure_of_a_record_is_shown_once_the_record_has_left() -> None:
    figures = {"lift_reward_ratio_model": 0.25}
    made = Metrics(LABELS, figures_of=lambda topic, _: figures if topic == "lift" else {})
    made.journaled()
    name = ("hushstream_lift_reward_ratio", (("group", "model"), ("partition", "1"), ("role", "learner")))
    assert name not in samples(made.public)
    made.released([Output("lift", 1, b""), Output("reports", 0, b"")])
    assert samples(made.public)[name] == 0.25
    made.keep_partitions({0})
    assert name not in samples(made.public)


def test_no_label_comes_from_data(metrics: Metrics) -> None:
    assert {label for spec in METRICS for label in spec.labels} <= FIXED_LABELS
    allowed = {"learner", "decided", "bad_float", "contexts", "reports", "slot", "0", "1", "2", "3", OTHER}
    allowed |= {"aggregator", "reads", "writes"}
    for registry in (metrics.public, metrics.zone):
        for (name, labels), _ in samples(registry).items():
            for label, value in labels:
                assert label == "le" or value in allowed, (name, label, value)


def test_what_is_not_on_the_list_is_counted_as_other(metrics: Metrics) -> None:
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
def test_how_long_a_learner_took_is_told_in_its_zone_alone(role: Role) -> None:
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


def test_names_follow_the_conventions() -> None:
    for spec in METRICS:
        assert spec.name.startswith("hushstream_")
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        assert spec.kind != "histogram" or spec.name.endswith("_seconds")
    shown = role_gauges_of(scope for kind in kinds().values() for role in kind.roles for scope in role.scope_classes)
    assert {gauge.metric for gauge in shown.values()} <= {spec.name for spec in METRICS if spec.kind == "gauge"}


def test_the_two_endpoints_answer_on_loopback(metrics: Metrics) -> None:
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


def test_no_endpoint_is_opened_unless_a_port_is_given(metrics: Metrics) -> None:
    assert metrics.serve("127.0.0.1", None, None) == (None, None)


def test_a_heartbeat_tells_of_a_hang_and_not_of_a_batch() -> None:
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


async def test_the_loop_that_sets_gauges_beats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "_GAUGE_SECONDS", 0.01)
    running = worker.RoleWorker(
        WorkerSettings(bootstrap="127.0.0.1:9092", role="learner", group="g", datadir=tmp_path),
        make_machine=lambda _: pytest.fail("no machine is needed"),
        topics=RoleTopics(("contexts",), (), 1),
    )
    beaten = asyncio.Event()
    monkeypatch.setattr(running, "_homes", SimpleNamespace(drivers={}), raising=False)
    metrics = Metrics(LABELS)
    monkeypatch.setattr(metrics, "beat", beaten.set)
    monkeypatch.setattr(running, "_metrics", metrics, raising=False)
    loop = asyncio.create_task(running._gauge_loop())
    await asyncio.wait_for(beaten.wait(), patience(60))
    loop.cancel()


def test_a_worker_says_which_roles_its_deployment_has_and_which_generations_it_knows(metrics: Metrics) -> None:
    found = samples(metrics.public)
    for declared in ("learner", "aggregator"):
        assert found["hushstream_roles_declared", (("declared", declared), ("role", "learner"))] == 1
    assert found["hushstream_schema_generation", (("role", "learner"), ("use", "writes"))] == 2
    assert found["hushstream_schema_generation", (("role", "learner"), ("use", "reads"))] == codec.NEWEST_GENERATION


def test_a_stopped_partition_has_its_reason_until_it_is_taken_up_again_and_outlasts_the_driver(
    metrics: Metrics,
) -> None:
    metrics.stopped({0: "inputs_deleted", 2: "an error of nobody's list"})
    metrics.keep_partitions(())

    def shown() -> dict[str, str]:
        found = samples(metrics.public)
        pairs = [dict(labels) for name, labels in found if name == "hushstream_partition_stopped"]
        return {pair["partition"]: pair["reason"] for pair in pairs}

    assert shown() == {"0": "inputs_deleted", "2": OTHER}
    metrics.stopped({2: "older_than_paid"})
    assert shown() == {"2": "older_than_paid"}


def test_a_worker_that_ended_shows_why_until_it_works_again(metrics: Metrics) -> None:
    metrics.ended("datadir_unusable")
    place = ("hushstream_exit_reason", (("reason", "datadir_unusable"), ("role", "learner")))
    assert samples(metrics.public)[place] == 1
    metrics.works_again()
    assert place not in samples(metrics.public)


def test_every_reason_is_the_name_of_an_error() -> None:
    known = {code_of(kind.__new__(kind)) for kind in subclasses_of(HushstreamError)}
    assert {*STOP_REASONS, *EXIT_REASONS} <= known


def subclasses_of(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(subclasses_of(one) for one in kind.__subclasses__() if one is not AllStopped))
