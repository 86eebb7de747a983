"""The Compose file: no Compose is at hand, so its structure is tested, and the image's command as a process."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from hushstream.agents.worker.deployment import load
from hushstream.gateway.settings import GatewaySettings
from hushstream.replay.runners.stream import free_port
from hushstream.replay.runners.up import UpOptions, gateway_settings
from patience import patience

METRICS = ("HUSHSTREAM_METRICS_HOST", "HUSHSTREAM_ZONE_METRICS_HOST")
WATCHED = {"prometheus": "watch", "prometheus-zone": "watch-zone"}
IN_THE_IMAGE = "/var/lib/hushstream"


@pytest.fixture
def compose(deploy: Path, documents: Any) -> Any:
    (found,) = documents(deploy / "compose" / "compose.yaml")
    return found


@pytest.fixture
def command(deploy: Path) -> list[str]:
    """What the image does by default."""
    recipe = (deploy / "container" / "Containerfile").read_text(encoding="utf-8")
    (said,) = [line for line in recipe.splitlines() if line.startswith("CMD ")]
    found: list[str] = json.loads(said.removeprefix("CMD "))
    return found


def mounts(service: Any) -> dict[str, str]:
    """Volume or folder by the place where a container has it."""
    split = (mount.removesuffix(":ro").rpartition(":") for mount in service["volumes"])
    return {place: source for source, _, place in split}


def test_every_container_is_confined_pinned_and_has_a_health_check(compose):
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert service["healthcheck"].get("test"), name
        ours = r"hushstream:\$\{HUSHSTREAM_VERSION:-\d+\.\d+\.\d+\}"
        others = r"docker\.io/\S+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}"
        assert re.fullmatch(f"{ours}|{others}", service["image"]), name


def test_nothing_is_published_beyond_loopback_and_the_broker_not_at_all(compose, command):
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    assert compose["services"]["hushstream"]["ports"] == ["127.0.0.1:8080:8080"]
    assert "--bootstrap" not in command, "the broker listens on the container's own loopback"


def test_everything_named_is_declared(compose, deploy):
    for name, service in compose["services"].items():
        assert set(service["networks"]) <= compose["networks"].keys(), name
        assert set(service.get("depends_on", ())) <= compose["services"].keys(), name
        for source in mounts(service).values():
            if source.startswith("."):
                assert (deploy / "compose" / source).exists(), f"{name}: {source}"
            elif not source.startswith("$"):
                assert source in compose["volumes"], f"{name}: {source}"
    build = compose["services"]["hushstream"]["build"]
    assert (deploy / "compose" / build["context"] / build["dockerfile"]).is_file()


def test_secrets_come_from_files_and_not_from_the_environment(compose):
    for name, service in compose["services"].items():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN", key):
                assert key.endswith("__FILE"), f"{name}: {key}"
                assert value.startswith("/run/secrets/"), f"{name}: {key}"
    files = [one["file"] for one in compose["secrets"].values()]
    assert len(set(files)) == 2, "who may see the public dashboards may not see the zones' by that"


def test_release_marks_lie_on_a_volume_of_their_own(compose, command):
    """A data volume that is put back to an earlier day must not take the marks with it."""
    kept = mounts(compose["services"]["hushstream"])
    data, marks = (command[command.index(option) + 1] for option in ("--data", "--marks"))
    assert (kept[data], kept[marks]) == ("data", "marks")
    assert kept[command[1]].startswith("${HUSHSTREAM_CONFIG")
    users = [name for name, one in compose["services"].items() if {"data", "marks"} & set(mounts(one).values())]
    assert users == ["hushstream"], "keys are in the data: no other container has them"


def test_each_kind_of_metrics_has_a_network_and_a_prometheus_of_its_own(compose):
    service = compose["services"]["hushstream"]
    for (name, network), variable, config in zip(WATCHED.items(), METRICS, ("prometheus", "zone"), strict=True):
        host = service["environment"][variable]
        assert [one for one, on in service["networks"].items() if host in on.get("aliases", ())] == [network]
        assert compose["networks"][network] == {"internal": True}
        watcher = compose["services"][name]
        assert network in watcher["networks"]
        assert not (set(WATCHED.values()) - {network}) & set(watcher["networks"])
        assert f"--config.file=/etc/prometheus/{config}.yml" in watcher["command"]
        assert mounts(watcher)["/etc/prometheus/targets"] == "targets"
    assert mounts(service)[f"{IN_THE_IMAGE}/data/targets"] == "targets"


def test_grafana_finds_its_data_and_the_dashboards_of_its_kind(compose, deploy, documents):
    (sources,) = documents(deploy / "compose" / "grafana" / "datasources" / "prometheus.yaml")
    assert sources["datasources"][0]["url"] == "http://$PROMETHEUS:9090"
    (providers,) = documents(deploy / "compose" / "grafana" / "dashboards" / "hushstream.yaml")
    path = providers["providers"][0]["options"]["path"]
    for name, kind in (("grafana", "public"), ("grafana-zone", "zone")):
        service = compose["services"][name]
        assert (deploy / "compose" / mounts(service)[path]).resolve() == deploy / "grafana" / "dashboards" / kind
        prometheus = service["environment"]["PROMETHEUS"]
        assert WATCHED[prometheus] in service["networks"]
        assert service["depends_on"] == {prometheus: {"condition": "service_healthy"}}


def test_beyond_loopback_applications_need_a_token_that_is_made_once(deploy, tmp_path):
    """Catches a gateway that anybody on a network may ask, and a token that changes with each start."""
    system = load(deploy / "kubernetes" / "base" / "shop" / "deployment")
    near, far = (UpOptions(config=tmp_path, data=tmp_path, listen=one) for one in ("127.0.0.1", "0.0.0.0"))
    assert not GatewaySettings.model_validate(gateway_settings(near, system)).knows_callers
    made = GatewaySettings.model_validate(gateway_settings(far, system))
    assert made.tokens_file == tmp_path / "tokens"
    assert made.tokens_file.stat().st_mode & 0o777 == 0o600
    before = made.tokens_file.read_bytes()
    assert before != (tmp_path / "operators").read_bytes(), "an application may not change the catalogue"
    gateway_settings(far, system)
    assert made.tokens_file.read_bytes() == before


def served(address: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=patience(20)) as answer:
        found: bytes = answer.read()
        return found


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_images_command_runs_a_deployment_whose_metrics_are_where_they_are_said_to_be(command, deploy, tmp_path):
    """Catches a command that its own command line refuses, and metrics at an address that nobody was told."""
    file = tmp_path / "deployment.yaml"
    text = (deploy / "examples" / "demo.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("deployment: demo", f"deployment: d{secrets.token_hex(4)}"), encoding="utf-8")
    places = {"/etc/hushstream/deployment.yaml": str(file), "0.0.0.0": "127.0.0.1"}
    words = [places.get(word, word.replace(IN_THE_IMAGE, str(tmp_path))) for word in command]
    ports = ["--port", str(free_port()), "--broker-port", str(free_port())]
    hosts = dict(zip(METRICS, ("127.0.0.2", "127.0.0.3"), strict=True))
    said = (tmp_path / "said").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "hushstream.cli", *words, *ports], env={**os.environ, **hosts}, stdout=said, stderr=said
    )
    try:
        while b"ready after" not in (tmp_path / "said").read_bytes():
            assert process.poll() is None, (tmp_path / "said").read_text(encoding="utf-8")
            time.sleep(0.2)
        for kind, host in (("public", "127.0.0.2"), ("zone", "127.0.0.3")):
            path = tmp_path / "data" / "targets" / f"{kind}.yml"
            assert path.stat().st_mode & 0o777 == 0o644
            targets = yaml.safe_load(path.read_text(encoding="utf-8"))
            assert [one["labels"]["role"] for one in targets] == ["learner", "shuffler", "aggregator", "gateway"]
            for target in (one["targets"][0] for one in targets):
                assert target.startswith(f"{host}:")
                assert b"hushstream_" in served(target)
                with pytest.raises(OSError, match="refused"):
                    served(target.replace(host, "127.0.0.1"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience(60)) == 0
        assert (tmp_path / "said").read_text(encoding="utf-8").rstrip().endswith("goes on from here")
    finally:
        process.kill()
