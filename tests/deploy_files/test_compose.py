"""The Compose file: no Compose is at hand, so its structure is tested, and that what it names is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from modules import module_at

from hushstream.gateway.settings import GatewaySettings
from hushstream.systems.catalogue import builtin

MARKED = {role.name: role.marks is not None for kind in builtin() for role in kind.roles}
"""Every role that a deployment may have, and whether it has release marks."""
ALL_ROLES = tuple(MARKED)
ACCOUNTS = "/var/lib/hushstream/accounts"


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
            assert set(worker["profiles"]) <= set(job["profiles"]), "a job that does not run cannot be waited for"
            assert job["network_mode"] == "none"
            assert "networks" not in job


def test_a_key_is_in_the_worker_of_its_zone_alone(compose: Any) -> None:
    users: dict[str, list[str]] = {}
    for name, service in compose["services"].items():
        for mount in service.get("volumes", ()):
            if mount.startswith("keys-"):
                users.setdefault(mount.partition(":")[0], []).append(name)
    assert users == {
        "keys-edge": ["keys-edge", "learner", "node", "rater"],
        "keys-shuffler": ["keys-shuffler", "shuffler", "collector"],
        "keys-counter": ["keys-counter", "counter"],
    }


def test_no_state_volume_serves_two_workers(compose: Any) -> None:
    mounts = [m.partition(":")[0] for s in compose["services"].values() for m in s.get("volumes", ())]
    states = [name for name in mounts if name.startswith("state-")]
    assert sorted(states) == sorted(f"state-{role}" for role in ALL_ROLES)


def test_release_marks_lie_on_a_volume_of_their_own_for_every_role_that_has_any(compose: Any) -> None:
    for role in ALL_ROLES:
        service = compose["services"][role]
        command, mounts = " ".join(service["command"]), service["volumes"]
        kept = f"marks-{role}:/var/lib/hushstream/marks" in mounts
        assert kept == ("--release-marks /var/lib/hushstream/marks" in command) == MARKED[role], role


def test_every_container_is_confined_and_pinned(compose: Any, zone: Any) -> None:
    for name, service in (*compose["services"].items(), *zone["services"].items()):
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        image = service["image"]
        ours, others = (
            r"hushstream:\$\{HUSHSTREAM_VERSION:-\d+\.\d+\.\d+\}",
            r"docker\.io/\S+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}",
        )
        assert re.fullmatch(f"{ours}|{others}", image), f"{name}: {image}"


def test_nothing_is_published_beyond_loopback_and_brokers_not_at_all(compose: Any) -> None:
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert set(published) == {"prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert compose["networks"]["stream"] == {"internal": True}
    on_stream = {name for name, service in compose["services"].items() if "stream" in service.get("networks", ())}
    assert not on_stream & set(published), "who is published cannot reach the broker"


def test_every_long_running_service_has_a_health_check(compose: Any, zone: Any) -> None:
    for name, service in (*compose["services"].items(), *zone["services"].items()):
        if service["restart"] != "no":
            assert service["healthcheck"].get("test"), name


@pytest.mark.parametrize("file", ["compose.yaml", "zone.yaml"])
def test_everything_named_is_declared(file: str, compose: Any, deploy: Path, documents: Any) -> None:
    (project,) = documents(deploy / "compose" / file)
    for name, service in project["services"].items():
        assert set(service.get("networks", ())) <= project["networks"].keys(), name
        assert set(service.get("depends_on", ())) <= project["services"].keys(), name
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            if source.startswith("."):
                assert (deploy / "compose" / source).exists(), f"{name}: {source}"
            elif not source.startswith("$"):
                assert source in project["volumes"], f"{name}: {source}"
    containerfile = compose["services"]["learner"]["build"]["dockerfile"]
    assert (deploy / "compose" / compose["services"]["learner"]["build"]["context"] / containerfile).is_file()


def test_secrets_come_from_files_and_not_from_the_environment(compose: Any, zone: Any) -> None:
    for name, service in (*compose["services"].items(), *zone["services"].items()):
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN", key):
                assert key.endswith(("_FILE", "__FILE")), f"{name}: {key}"
                assert value.startswith(("/run/secrets/", f"{ACCOUNTS}/{name}/")), f"{name}: {key}"


def test_every_worker_has_an_account_of_its_own_and_no_other_can_read_its_password(compose: Any) -> None:
    holders: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        for mount in service.get("volumes", ()):
            if mount.startswith("account-"):
                holders.setdefault(mount.partition(":")[0], set()).add(name)
    jobs = {"passwords", "accounts"}
    assert holders == {"account-client": jobs, **{f"account-{role}": {*jobs, role} for role in ALL_ROLES}}
    for role in ALL_ROLES:
        worker = compose["services"][role]
        assert worker["environment"]["HUSHSTREAM_SECURITY__USERNAME"] == role
        assert worker["environment"]["HUSHSTREAM_SECURITY__PASSWORD_FILE"] == f"{ACCOUNTS}/{role}/password"
        assert f"account-{role}:{ACCOUNTS}/{role}:ro" in worker["volumes"]
    for job, place in (("passwords", ACCOUNTS), ("accounts", "/accounts")):
        mounts = [mount.removesuffix(":ro") for mount in compose["services"][job]["volumes"]]
        of_accounts = {mount for mount in mounts if mount.startswith("account-")}
        assert of_accounts == {f"account-{name}:{place}/{name}" for name in ("client", *ALL_ROLES)}


def test_whoever_administers_is_in_the_network_of_the_broker_and_nobody_else_is(
    compose: Any, gateway: Any, auditor: Any
) -> None:
    files = (compose, gateway, auditor)
    beside = {name for file in files for name, one in file["services"].items() if "network_mode" in one}
    in_it = {n for f in files for n, one in f["services"].items() if one.get("network_mode") == "service:kafka"}
    assert in_it == {"accounts", "topics", "rights-gateway", "rights-auditor"}
    assert beside - in_it == {"passwords", "targets", "keys-edge", "keys-shuffler", "keys-counter"}
    listeners = compose["services"]["kafka"]["environment"]["KAFKA_LISTENERS"].split(",")
    assert [one for one in listeners if "://127.0.0.1:" not in one] == ["STREAM://:9092"]


def test_a_password_is_made_once_and_its_file_is_for_its_owner_alone(deploy: Path, tmp_path: Path, script: Any) -> None:
    source = deploy / "container" / "accounts.py"
    assert script(source, "folders", tmp_path / "accounts").returncode == 0
    folders = {folder.name for folder in (tmp_path / "accounts").iterdir()}
    assert {*ALL_ROLES, "client", "gateway", *(f"verify-{role}" for role in ALL_ROLES)} <= folders
    # No volume is mounted here: a password would be lost with its container.
    assert script(source, "passwords", tmp_path / "accounts").stdout == "passwords made: none\n"
    module = module_at(source, "hushstream_container_accounts")
    two = [tmp_path / "accounts" / name for name in ("client", "learner")]
    assert module.make_passwords(two) == ["client", "learner"]
    first, second = (folder / "password" for folder in two)
    assert len(first.read_text(encoding="utf-8")) == 32
    assert first.read_bytes() != second.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600
    kept = first.read_bytes()
    assert module.make_passwords(two) == []
    assert first.read_bytes() == kept
    refused = script(source, "words")
    assert (refused.returncode, refused.stderr) == (
        2, "accounts.py: expected folders FOLDER or passwords FOLDER\n",
    )  # fmt: skip


@pytest.fixture
def auditor(deploy: Path, documents: Any) -> Any:
    """What the file of an auditor adds to the project."""
    (found,) = documents(deploy / "compose" / "auditor.yaml")
    return found


@pytest.fixture
def gateway(deploy: Path, documents: Any) -> Any:
    """What the file of a gateway adds to the project."""
    (found,) = documents(deploy / "compose" / "gateway.yaml")
    return found


def test_a_gateway_is_confined_published_on_loopback_and_takes_tokens(compose: Any, gateway: Any) -> None:
    service = gateway["services"]["gateway"]
    worker = compose["services"]["learner"]
    for name in ("image", "read_only", "cap_drop", "security_opt", "restart", "tmpfs", "stop_grace_period"):
        assert service[name] == worker[name], name
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert set(service["networks"]) <= {*compose["networks"], *gateway["networks"]}
    assert set(service["depends_on"]) <= {*compose["services"], *gateway["services"]}
    assert service["environment"]["HUSHSTREAM_SECURITY__PASSWORD_FILE"] == f"{ACCOUNTS}/gateway/password"
    assert gateway["networks"] == {"zone-gateway": {"internal": True}}
    assert not [mount for mount in service["volumes"] if mount.startswith("keys-")], "it needs no key"
    settings = {
        key.removeprefix("HUSHSTREAM_GATEWAY__").lower(): yaml.safe_load(value)
        for key, value in service["environment"].items()
        if key.startswith("HUSHSTREAM_GATEWAY__")
    }
    made = GatewaySettings.model_validate(settings)
    assert made.knows_callers
    assert str(made.tokens_file) == f"/run/secrets/{service['secrets'][0]}"
    assert set(gateway["secrets"]) == set(service["secrets"])
    assert service["ports"] == [f"127.0.0.1:{made.port}:{made.port}"]
    assert f"127.0.0.1:{made.port}/readyz" in service["healthcheck"]["test"][-1]


def test_an_auditor_is_confined_has_one_key_and_is_scraped(
    compose: Any, auditor: Any, deploy: Path, targets: Any
) -> None:
    found = auditor
    service, worker = found["services"]["auditor"], compose["services"]["learner"]
    for name in ("image", "read_only", "cap_drop", "security_opt", "restart", "tmpfs", "stop_grace_period"):
        assert service[name] == worker[name], name
    assert "ports" not in service
    assert set(service["networks"]) <= {*compose["networks"], *found["networks"]}
    mounts = [mount.partition(":")[0] for mount in service["volumes"]]
    (keys,) = [mount for mount in service["volumes"] if "keys" in mount.partition(":")[0]]
    assert keys.endswith("keys:ro")
    assert keys.replace("${HUSHSTREAM_ZONE:-edge}", "edge").partition(":")[0] in compose["volumes"]
    assert "state-auditor" in mounts
    job = found["services"]["targets"]["entrypoint"]
    assert job[:-2] == compose["services"]["targets"]["entrypoint"]
    targeted = targets(deploy / "kubernetes" / "base" / "shop" / "deployment", job[-2], "learner")
    assert targeted[-1] == {"targets": ["auditor:9101"], "labels": {"deployment": "shop", "role": "auditor-learner"}}


def test_a_gateway_is_scraped_beside_the_roles(compose: Any, gateway: Any, deploy: Path, targets: Any) -> None:
    job = gateway["services"]["targets"]["entrypoint"]
    assert job[:-1] == compose["services"]["targets"]["entrypoint"]
    found = targets(deploy / "kubernetes" / "base" / "shop" / "deployment", *job[-1:])
    assert found[-1] == {"targets": ["gateway:9101"], "labels": {"deployment": "shop", "role": "gateway"}}
    command = gateway["services"]["gateway"]["command"]
    assert command[:2] == ["worker", "gateway"]
    assert command[command.index("--metrics-port") + 1] == "9101"
    assert "watch" in gateway["services"]["gateway"]["networks"]


@pytest.fixture
def zone(deploy: Path, documents: Any) -> Any:
    """The project of one zone's operator."""
    (found,) = documents(deploy / "compose" / "zone.yaml")
    return found


@pytest.fixture
def targets(deploy: Path, script: Any, documents: Any, tmp_path: Path) -> Any:
    """Run the script that writes targets; returns what it wrote, or what it said."""

    def run(folder: Path, *arguments: str) -> Any:
        answer = script(deploy / "container" / "targets.py", folder, tmp_path, *arguments)
        if answer.returncode:
            return answer.stderr
        (found,) = documents(tmp_path / ("zone.yml" if "--zone-of" in arguments else "public.yml"))
        return found

    return run


@pytest.fixture
def at_the_edge(deploy: Path, tmp_path: Path) -> Path:
    """The collaborative example, with the noise added by its learners."""
    folder = tmp_path / "edge"
    shutil.copytree(deploy / "kubernetes" / "base" / "circle" / "deployment", folder)
    values = yaml.safe_load((folder / "deployment.yaml").read_text(encoding="utf-8"))
    release = {**values.get("release", {}), "noise_at": "learner"}
    (folder / "deployment.yaml").write_text(yaml.safe_dump({**values, "release": release}), encoding="utf-8")
    return folder


def test_every_role_of_a_system_is_scraped_under_its_deployments_name_and_no_other(
    compose: Any, deploy: Path, targets: Any, at_the_edge: Path
) -> None:
    base = deploy / "kubernetes" / "base"
    for folder, name, roles in (
        (base / "shop" / "deployment", "shop", ["learner", "shuffler", "aggregator"]),
        (base / "circle" / "deployment", "circle", ["learner", "counter", "aggregator"]),
        (at_the_edge, "circle", ["learner", "aggregator"]),
    ):
        found = targets(folder)
        assert [entry["labels"] for entry in found] == [{"deployment": name, "role": role} for role in roles]
        for entry, role in zip(found, roles, strict=True):
            command = compose["services"][role]["command"]
            port = command[command.index("--metrics-port") + 1]
            assert entry["targets"] == [f"{role}:{port}"]
            assert "watch" in compose["services"][role]["networks"]
    assert "watch" in compose["services"]["prometheus"]["networks"]


def test_a_zones_prometheus_scrapes_its_zone_alone(compose: Any, deploy: Path, targets: Any) -> None:
    shop = deploy / "kubernetes" / "base" / "shop" / "deployment"
    for role in ("learner", "shuffler", "aggregator"):
        command = compose["services"][role]["command"]
        host, port = (command[command.index(f"--zone-metrics-{part}") + 1] for part in ("host", "port"))
        assert targets(shop, "--zone-of", role) == [
            {"targets": [f"{host}:{port}"], "labels": {"deployment": "shop", "role": role}}
        ]
    assert "expected one of learner, shuffler, aggregator" in targets(shop, "--zone-of", "counter")


def test_zone_private_metrics_are_served_on_the_zones_network_and_on_no_other(compose: Any, zone: Any) -> None:
    for role in ALL_ROLES:
        worker = compose["services"][role]
        host = worker["command"][worker["command"].index("--zone-metrics-host") + 1]
        named = {network for network, on in worker["networks"].items() if host in on.get("aliases", ())}
        assert named == {f"zone-{role}"}, "the name must stand for the address in the zone's network alone"
        assert compose["networks"][f"zone-{role}"] == {"internal": True}
        on_it = [name for name, service in compose["services"].items() if f"zone-{role}" in service.get("networks", ())]
        assert on_it == [role]
    outside = [network for network, made in zone["networks"].items() if (made or {}).get("external")]
    assert [zone["networks"][one]["name"] for one in outside] == [
        "${HUSHSTREAM_PROJECT:-hushstream}_zone-${HUSHSTREAM_ROLE}"
    ]
    assert [name for name, service in zone["services"].items() if "zone" in service.get("networks", ())] == [
        "prometheus"
    ]
    assert compose["name"] == "hushstream"


def test_prometheus_waits_for_its_targets_and_reads_them_where_they_are_written(compose: Any, zone: Any) -> None:
    for project, config in ((compose, "prometheus.yml"), (zone, "zone.yml")):
        prometheus, job = project["services"]["prometheus"], project["services"]["targets"]
        assert f"--config.file=/etc/prometheus/{config}" in prometheus["command"]
        assert "targets:/etc/prometheus/targets:ro" in prometheus["volumes"]
        assert prometheus["depends_on"]["targets"] == {"condition": "service_completed_successfully"}
        deployment, written = job["entrypoint"][2:4]
        assert job["volumes"] == [f"${{HUSHSTREAM_DEPLOYMENT:-./shop}}:{deployment}:ro", f"targets:{written}"]
    assert zone["services"]["targets"]["entrypoint"][4:] == ["--zone-of", "${HUSHSTREAM_ROLE}"]


def test_grafana_finds_its_data_and_the_dashboards_of_its_kind(
    compose: Any, zone: Any, deploy: Path, documents: Any
) -> None:
    (sources,) = documents(deploy / "compose" / "grafana" / "datasources" / "prometheus.yaml")
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    (providers,) = documents(deploy / "compose" / "grafana" / "dashboards" / "hushstream.yaml")
    path = providers["providers"][0]["options"]["path"]
    for project, kind in ((compose, "public"), (zone, "zone")):
        mounts = dict(mount.split(":")[:2][::-1] for mount in project["services"]["grafana"]["volumes"])
        assert (deploy / "compose" / mounts[path]).resolve() == deploy / "grafana" / "dashboards" / kind
        assert set(project["services"]["grafana"]["networks"]) & set(project["services"]["prometheus"]["networks"])
    secrets = [project["secrets"]["grafana-password"]["file"] for project in (compose, zone)]
    assert len(set(secrets)) == 2, "who may see the public dashboards may not see a zone's by that"
