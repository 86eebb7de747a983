"""The objects that the Prometheus operator and Grafana's sidecar use: scrapes of one deployment, rules, dashboards.

Every object has the label ``hushstream.io/watches``. ``public`` is for the Prometheus that anybody may see, a zone's
name for that of the zone's operator, and ``zone`` for that of any zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from manifests import METRICS_PORT, WATCHER, ZONE_METRICS_PORT, Manifest, Pods, named, pods_of_role

from hushstream.engine.declare.declaration import System

Endpoint = Literal["public", "zone"]

DEPLOY = Path(__file__).resolve().parents[1]
JOBS: Mapping[Endpoint, str] = {"public": "hushstream", "zone": "hushstream-zone"}
"""Names of jobs as in ``deploy/prometheus``; the operator would name a job after its PodMonitor."""
RULES: Mapping[Endpoint, tuple[str, ...]] = {"public": ("recording", "alerts"), "zone": ("zone",)}
"""Files of ``deploy/prometheus/rules``."""
SIDECAR = "grafana_dashboard"
"""Grafana's sidecar reads ConfigMaps with this label."""


def monitors(system: System) -> list[Manifest]:
    """One PodMonitor for the public Prometheus, and one for each zone's own."""
    everywhere = {"hushstream.io/deployment": system.config.deployment}
    name = system.config.deployment
    found = [_monitor(f"{name}-public", {**everywhere, WATCHER: "public"}, everywhere, "public")]
    for role in system.roles:
        zone = role.zone
        own = {**everywhere, "hushstream.io/zone": zone, WATCHER: zone}
        found.append(_monitor(f"{name}-zone-{zone}", own, pods_of_role(system, role).labels, "zone"))
    return found


def monitor_of(pods: Pods) -> Manifest:
    """The PodMonitor of a duty's own endpoint of the zone; the public one is scraped with those of the workers."""
    own = {**pods.labels, WATCHER: str(pods.zone)}
    return _monitor(f"{pods.name}-zone", own, pods.labels, "zone")


def rules(endpoint: Endpoint) -> list[Manifest]:
    """One PrometheusRule for each file of rules that a Prometheus of this kind evaluates."""
    found = []
    for name in RULES[endpoint]:
        spec = yaml.safe_load((DEPLOY / "prometheus" / "rules" / f"{name}.yml").read_text(encoding="utf-8"))
        marks = {WATCHER: endpoint}
        found.append(named("monitoring.coreos.com/v1", "PrometheusRule", f"hushstream-{name}", marks) | {"spec": spec})
    return found


def dashboards(endpoint: Endpoint) -> list[Manifest]:
    """One ConfigMap for each dashboard over the metrics of this kind of endpoint."""
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards" / endpoint).glob("*.json")):
        data = {path.name: path.read_text(encoding="utf-8")}
        found.append(named("v1", "ConfigMap", path.stem, {WATCHER: endpoint, SIDECAR: "1"}) | {"data": data})
    return found


def _monitor(name: str, own: dict[str, str], pods: dict[str, str], endpoint: Endpoint) -> Manifest:
    # Prometheus' own series (`up`) get these labels from the pod only: a worker that is down serves no labels.
    told: list[Manifest] = [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_hushstream_io_{label}"], "targetLabel": label}
        for label in ("deployment", "role")
    ]
    told.append({"targetLabel": "job", "replacement": JOBS[endpoint]})
    port = METRICS_PORT if endpoint == "public" else ZONE_METRICS_PORT
    scrape = {"port": port, "interval": "15s", "honorLabels": True, "relabelings": told}
    spec = {"selector": {"matchLabels": pods}, "podMetricsEndpoints": [scrape]}
    return named("monitoring.coreos.com/v1", "PodMonitor", name, own) | {"spec": spec}
