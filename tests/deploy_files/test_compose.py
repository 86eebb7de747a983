"""The Compose file: no Compose is at hand, so its structure is tested, and that what it names is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hushstream.systems.system import ALL_ROLES


@pytest.fixture
def compose(deploy: Path, documents: Any) -> Any:
    (found,) = documents(deploy / "compose" / "compose.yaml")
    return found


def test_every_role_has_a_worker_that_waits_for_its_topics_and_its_key(compose: Any) -> None:
    services = compose["services"]
    assert set(ALL_ROLES) <= services.keys()
    for role in ALL_ROLES:
        worker = services[role]
        assert worker["command"][:2] == ["worker", role]
        assert worker["depends_on"]["topics"] == {"condition": "service_completed_successfully"}
        keys = [mount for mount in worker["volumes"] if mount.startswith("keys-")]
        assert all(mount.endswith(":ro") for mount in keys)
        for mount in keys:
            job = services[mount.partition(":")[0]]
            assert mount.partition(":")[0] in worker["depends_on"]
            assert job.get("profiles") == worker.get("profiles"), "a job that does not run cannot be waited for"
            assert job["network_mode"] == "none"
            assert "networks" not in job


def test_a_key_is_in_the_worker_of_its_zone_alone(compose: Any) -> None:
    users: dict[str, list[str]] = {}
    for name, service in compose["services"].items():
        for mount in service.get("volumes", ()):
            if mount.startswith("keys-"):
                users.setdefault(mount.partition(":")[0], []).append(name)
    assert users == {
        "keys-edge": ["keys-edge", "learner"],
        "keys-shuffler": ["keys-shuffler", "shuffler"],
        "keys-counter": ["keys-counter", "counter"],
    }


def test_no_state_volume_serves_two_workers(compose: Any) -> None:
    mounts = [m.partition(":")[0] for s in compose["services"].values() for m in s.get("volumes", ())]
    states = [name for name in mounts if name.startswith("state-")]
    assert sorted(states) == sorted(f"state-{role}" for role in ALL_ROLES)


def test_every_container_is_confined_and_pinned(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        image = service["image"]
        assert re.search(r":v?\d+\.\d+\.\d+$|:\$\{HUSHSTREAM_VERSION:-\d+\.\d+\.\d+\}$", image), f"{name}: {image}"


def test_nothing_is_published_beyond_loopback_and_brokers_not_at_all(compose: Any) -> None:
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert set(published) == {"prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert compose["networks"]["stream"] == {"internal": True}
    on_stream = {name for name, service in compose["services"].items() if "stream" in service.get("networks", ())}
    assert not on_stream & set(published), "who is published cannot reach the broker"


def test_every_long_running_service_has_a_health_check(compose: Any) -> None:
    for name, service in compose["services"].items():
        if service["restart"] != "no":
            assert service["healthcheck"].get("test"), name


def test_everything_named_is_declared(compose: Any, deploy: Path) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("networks", ())) <= compose["networks"].keys(), name
        assert set(service.get("depends_on", ())) <= compose["services"].keys(), name
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            if source.startswith("."):
                assert (deploy / "compose" / source).is_dir(), f"{name}: {source}"
            elif not source.startswith("$"):
                assert source in compose["volumes"], f"{name}: {source}"
    containerfile = compose["services"]["learner"]["build"]["dockerfile"]
    assert (deploy / "compose" / compose["services"]["learner"]["build"]["context"] / containerfile).is_file()


def test_secrets_come_from_files_and_not_from_the_environment(compose: Any) -> None:
    for name, service in compose["services"].items():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN", key):
                assert key.endswith(("_FILE", "__FILE")), f"{name}: {key}"
                assert value.startswith("/run/secrets/"), f"{name}: {key}"


def test_prometheus_scrapes_workers_by_the_names_that_they_have_here(
    compose: Any, deploy: Path, documents: Any
) -> None:
    (groups,) = documents(deploy / "prometheus" / "targets" / "public.yml")
    targets = {target for group in groups for target in group["targets"]}
    assert targets
    for target in targets:
        name, _, port = target.partition(":")
        command = compose["services"][name]["command"]
        assert command[command.index("--metrics-port") + 1] == port
        assert set(compose["services"][name]["networks"]) & set(compose["services"]["prometheus"]["networks"])


def test_grafana_finds_its_data_and_its_dashboards(compose: Any, deploy: Path, documents: Any) -> None:
    (sources,) = documents(deploy / "compose" / "grafana" / "datasources" / "prometheus.yaml")
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    (providers,) = documents(deploy / "compose" / "grafana" / "dashboards" / "hushstream.yaml")
    path = providers["providers"][0]["options"]["path"]
    mounts = dict(mount.split(":")[:2][::-1] for mount in compose["services"]["grafana"]["volumes"])
    assert list((deploy / "compose" / mounts[path]).glob("**/*.json")), "no dashboards where Grafana looks for them"
