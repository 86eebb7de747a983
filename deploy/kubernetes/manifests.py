"""The Kubernetes objects of one deployment as plain values; what the topic declarations say is taken from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.declare.role import Role
from hushstream.ops.access import Principals, accounts_of, rules_of
from hushstream.schemas.topics import physical

Manifest = dict[str, Any]

CLUSTER = "hushstream"
"""Name of the Strimzi cluster; everything lives in its namespace, where its operators look."""
BOOTSTRAP = f"{CLUSTER}-kafka-bootstrap:9093"
IMAGE = "hushstream"
USER_ID = 10001
METRICS, ZONE_METRICS = 9101, 9201
METRICS_PORT, ZONE_METRICS_PORT = "metrics", "zone-metrics"
"""The names of the two ports."""
GATEWAY = 8443
VERIFY = "verify-"
"""The first part of the duty of someone who checks a role."""
ASKS = "hushstream.io/asks"
"""A pod with this label and the deployment's name may call its gateway."""
WATCHER = "hushstream.io/watches"
"""A pod with this label may read metrics: `public`, or the zone that it names."""
WATCHED_FROM = "monitoring"
"""The namespace of the public Prometheus; that of a zone's own Prometheus is this, a dash and the zone."""
WORKERS = 2
"""Workers of each role that has at least as many partitions: if one is lost, another one is running. A worker without a
partition ends, so a role with one partition has one worker."""
GATEWAYS, BUSY_PERCENT = 8, 70
"""The most gateways, and the share of the CPU that they ask for from which there are more of them."""
STRIMZI = "kafka.strimzi.io/v1"
REPLICATION, IN_SYNC = 3, 2

_NOT_PRUNED = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
    "helm.sh/resource-policy": "keep",
}
"""Deleting a KafkaTopic deletes the topic, with what was released and paid: so tools that prune must leave it."""
_GATEWAY_ZONE = "edge"
_MOUNTS: Mapping[str, str] = {
    "state": "/var/lib/hushstream/state",
    "marks": "/var/lib/hushstream/marks",
    "keys": "/var/lib/hushstream/keys",
    "tokens": "/var/lib/hushstream/tokens",
    "tls": "/etc/hushstream/tls",
    "deployment": "/etc/hushstream/deployment",
    "ca": "/etc/hushstream/ca",
    "password": "/etc/hushstream/password",
}
"""Where a container finds each volume. The marks lie apart from the state, so that restoring a snapshot of one volume
restores no old marks."""
_CLAIMED: Mapping[str, str] = {"state": "10Gi", "marks": "1Gi"}
"""Sizes of the volumes that outlive a pod; only these may be written to."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods that run one thing: a role, a gateway, an auditor or a check.

    Attributes:
        deployment: the deployment's name.
        name: of their objects.
        user: their Kafka user.
        runs: what they run.
        zone: whose own metrics they serve; None: they serve none.
    """

    deployment: str
    name: str
    user: str
    runs: str
    zone: str | None

    @property
    def labels(self) -> dict[str, str]:
        """Labels that identify them."""
        zone = {} if self.zone is None else {"hushstream.io/zone": self.zone}
        deployment = {"app.kubernetes.io/name": "hushstream", "hushstream.io/deployment": self.deployment}
        return {**deployment, "hushstream.io/role": self.runs, **zone}


class Copied(NamedTuple):
    """A mounted secret that a pod copies: its group can read it, but keys and tokens must be their owner's alone."""

    what: str
    secret: Manifest
    files: str


def name_of(system: System, role: str) -> str:
    """The name of a role's objects, and of its Kafka user."""
    return f"{system.config.deployment}-{role}"


def prefix_of(system: System) -> str:
    """The prefix of the names of the deployment's topics, as in every command."""
    return f"{system.config.deployment}."


def topics(system: System) -> list[Manifest]:
    """One KafkaTopic for each topic; a record counts as written once two of three replicas have it."""
    found = []
    for topic in system.topics:
        name = physical(prefix_of(system), topic.name)
        spec = {
            "topicName": name,
            "partitions": system.partitions[topic.name],
            "replicas": REPLICATION,
            "config": {**topic.settings(), "min.insync.replicas": str(IN_SYNC)},
        }
        made = _object(STRIMZI, "KafkaTopic", name, spec, {"strimzi.io/cluster": CLUSTER})
        made["metadata"]["annotations"] = dict(_NOT_PRUNED)
        found.append(made)
    return found


def principals_of(system: System, duties: Sequence[str] = ()) -> tuple[str, ...]:
    """The value of ``--principals`` where users have the names of these manifests."""
    names = (*accounts_of(system), *duties)
    return tuple(f"{name}=User:{name_of(system, name)}" for name in names)


def users(system: System, duties: Sequence[str] = ()) -> list[Manifest]:
    """One KafkaUser with the declared rights for each role, the client, the operator and readers of dead letters.

    Args:
        system: the deployment.
        duties: further duties, named as in ``--principals``, for instance ``requeue-edge``.

    Returns:
        The users of the roles first, then those of the duties.

    Raises:
        HushstreamError: the deployment has no such duty.
    """
    principals = principals_of(system, duties)
    rules = rules_of(system, prefix_of(system), Principals.of(principals))
    found = []
    for role, _, principal in (text.partition("=") for text in principals):
        operations: dict[tuple[str, str], list[str]] = {}
        for rule in rules:
            if rule.principal == principal:
                operations.setdefault((rule.kind, rule.name), []).append(rule.operation)
        acls = [
            {"resource": {"type": kind, "name": name, "patternType": "literal"}, "operations": rights, "host": "*"}
            for (kind, name), rights in operations.items()
        ]
        spec = {"authentication": {"type": "scram-sha-512"}, "authorization": {"type": "simple", "acls": acls}}
        found.append(_object(STRIMZI, "KafkaUser", name_of(system, role), spec, {"strimzi.io/cluster": CLUSTER}))
    return found


def pods_of_role(system: System, role: Role) -> Pods:
    """The workers of a role."""
    name = name_of(system, role.name)
    return Pods(system.config.deployment, name, name, role.name, role.zone)


def pods_of_duty(system: System, duty: str) -> Pods:
    """The pods of a gateway (`gateway`, `gateway.PARTY`) or of an auditor (`verify-ROLE`).

    A party's user has a dot in its name, which a service's name must not have.
    """
    runs, zone = duty, _GATEWAY_ZONE
    if duty.startswith(VERIFY):
        role = role_of(system, duty.removeprefix(VERIFY))
        runs, zone = f"auditor-{role.name}", role.zone
    name = name_of(system, runs).replace(".", "-")
    return Pods(system.config.deployment, name, name_of(system, duty), runs, zone)


def workers(system: System) -> list[Manifest]:
    """One StatefulSet for each role; every worker has one volume for its state, and one for its release marks."""
    found = []
    for role in system.roles:
        pods, stored = pods_of_role(system, role), ("state", "marks") if role.marks else ("state",)
        marks = ["--release-marks", _MOUNTS["marks"]] if role.marks else []
        arguments = ["worker", role.name, *_deployment(), "--state", _MOUNTS["state"], *marks, *_endpoints()]
        pod = _pod(pods, role.name, arguments, stored=stored, copied=_keys(system, role), probes=_probes())
        replicas = min(WORKERS, system.homes(role))
        found.append(_stateful(pods, pod, replicas, stored, podManagementPolicy="Parallel"))
    return found


def services(system: System) -> list[Manifest]:
    """The headless service that a StatefulSet must name; only readers of its metrics connect to a worker."""
    return [_headless(pods_of_role(system, role)) for role in system.roles]


def policies(system: System) -> list[Manifest]:
    """Policies: a worker may reach the broker and the name service, and two readers of metrics it; no others."""
    deployment = system.config.deployment
    everything = {
        "podSelector": {"matchLabels": {"hushstream.io/deployment": deployment}},
        "policyTypes": ["Ingress", "Egress"],
    }
    closed = _object("networking.k8s.io/v1", "NetworkPolicy", f"{deployment}-closed", everything)
    zones = [
        _policy(pods_of_role(system, role), _metrics_read(role.zone), f"{deployment}-zone-{role.zone}")
        for role in system.roles
    ]
    return [closed, *zones]


def gateway(system: System, duty: str) -> list[Manifest]:
    """A gateway: two pods without stored data, a service for them, and who may call it.

    Args:
        system: the deployment.
        duty: the duty of its Kafka user: `gateway`, or `gateway.PARTY` where each party has applications of its own.
    """
    pods = pods_of_duty(system, duty)
    port = {"name": "https", "port": GATEWAY, "targetPort": "https"}
    service = {"selector": pods.labels, "ports": [port]}
    deployment = {"selector": {"matchLabels": pods.labels}, "template": _template(pods, _gateway_pod(pods, duty))}
    # A caller shows itself by its pod's labels, in this namespace; access from outside is a patch in an overlay.
    asks = {"podSelector": {"matchLabels": {ASKS: system.config.deployment}}}
    called = {"from": [asks], "ports": [{"protocol": "TCP", "port": GATEWAY}]}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": pods.name}
    busy = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": BUSY_PERCENT}}
    # Callers of a pod that goes are at its peers at once, so pods may come fast; they go one at a time.
    scaling = {
        "scaleTargetRef": target,
        "minReplicas": WORKERS,
        "maxReplicas": GATEWAYS,
        "metrics": [{"type": "Resource", "resource": busy}],
        "behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}},
    }
    return [
        _object("v1", "Service", pods.name, service, pods.labels),
        _object("apps/v1", "Deployment", pods.name, deployment, pods.labels),
        _object("autoscaling/v2", "HorizontalPodAutoscaler", pods.name, scaling, pods.labels),
        _budget(pods),
        _policy(pods, [called, *_metrics_read(_GATEWAY_ZONE)]),
    ]


def checks(system: System) -> list[Manifest]:
    """`topics check` every hour, as the operator: a job that fails names what is no longer as declared."""
    pods = Pods(system.config.deployment, name_of(system, "check"), name_of(system, "operator"), "check", None)
    pod = _pod(pods, "check", ["topics", "check", "--no-acls", *_deployment()], size=("100m", "256Mi", "512Mi"))
    job = {"backoffLimit": 1, "template": _template(pods, pod)}
    spec = {"schedule": "17 * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}}
    return [_object("batch/v1", "CronJob", pods.name, spec, pods.labels), _policy(pods, [])]


def external_secrets(system: System, store: str) -> list[Manifest]:
    """The secret of each zone's keys as an ExternalSecret: the External Secrets operator fills it from a secret store.

    Args:
        system: the deployment.
        store: name of the SecretStore; it holds each key file under ``DEPLOYMENT/FILE``.
    """
    deployment = system.config.deployment
    files: dict[str, dict[str, None]] = {}
    for role in system.roles:
        if keys_of(role):
            files.setdefault(role.zone, {}).update(dict.fromkeys((*keys_of(role), f"{role.storage_zone}.key")))
    return [
        _object(
            "external-secrets.io/v1",
            "ExternalSecret",
            f"{deployment}-key-{zone}",
            {
                "refreshInterval": "1h",
                "secretStoreRef": {"kind": "SecretStore", "name": store},
                "data": [{"secretKey": key, "remoteRef": {"key": f"{deployment}/{key}"}} for key in keys],
            },
        )
        for zone, keys in files.items()
    ]


def auditor(system: System, duty: str) -> list[Manifest]:
    """`verify --follow`: a pod that checks what a role published, with the zone's key, and stores how far it is.

    Args:
        system: the deployment.
        duty: the duty of its Kafka user: `verify-ROLE`.
    """
    role, pods, stored = role_of(system, duty.removeprefix(VERIFY)), pods_of_duty(system, duty), ("state",)
    follow = ["verify", "--follow", "--role", role.name]
    arguments = [*follow, *_deployment(), "--state", _MOUNTS["state"], *_endpoints()]
    # It has no heartbeat and no partitions; its health is that it answers, and its lag shows how far it is behind.
    probes = {"livenessProbe": {"tcpSocket": {"port": METRICS_PORT}, "periodSeconds": 20, "failureThreshold": 3}}
    pod = _pod(pods, "auditor", arguments, stored=stored, copied=_keys(system, role), probes=probes)
    return [_headless(pods), _stateful(pods, pod, 1, stored), _policy(pods, _metrics_read(role.zone))]


def keys_of(role: Role) -> tuple[str, ...]:
    """The key files of a role's workers."""
    return tuple(f"{zone}.key" for zone in role.key_zones)


def named(version: str, kind: str, name: str, marks: Mapping[str, str] | None = None) -> Manifest:
    """The first part of an object: its kind, name, and labels."""
    metadata: Manifest = {"name": name, **({"labels": dict(marks)} if marks else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def disruptions(system: System) -> list[Manifest]:
    """An eviction may remove one worker of a role at a time; a worker that is not ready does not block it."""
    return [_budget(pods_of_role(system, role)) for role in system.roles]


def _budget(pods: Pods) -> Manifest:
    selector = {"matchLabels": pods.labels}
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}
    return _object("policy/v1", "PodDisruptionBudget", pods.name, spec, pods.labels)


def _headless(pods: Pods) -> Manifest:
    port = {"name": METRICS_PORT, "port": METRICS, "targetPort": METRICS_PORT}
    spec = {"clusterIP": "None", "selector": pods.labels, "ports": [port]}
    return _object("v1", "Service", pods.name, spec, pods.labels)


def _policy(pods: Pods, ingress: list[Manifest], name: str = "") -> Manifest:
    """These pods reach brokers and names alone, and take connections from ``ingress`` alone."""
    spec = {
        "podSelector": {"matchLabels": pods.labels},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": _ways_out(),
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", name or pods.name, spec, pods.labels)


def _stateful(pods: Pods, pod: Manifest, replicas: int, stored: Sequence[str], **more: str) -> Manifest:
    spec = {
        "serviceName": pods.name,
        "replicas": replicas,
        **more,
        "selector": {"matchLabels": pods.labels},
        "template": _template(pods, pod),
        "volumeClaimTemplates": [_claim(name) for name in stored],
    }
    return _object("apps/v1", "StatefulSet", pods.name, spec, pods.labels)


def _template(pods: Pods, pod: Manifest) -> Manifest:
    return {"metadata": {"labels": pods.labels}, "spec": pod}


def _claim(name: str) -> Manifest:
    size = {"requests": {"storage": _CLAIMED[name]}}
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}}


def _metrics_read(zone: str) -> list[Manifest]:
    return [_from("public", METRICS), _from(zone, ZONE_METRICS)]


def _pod(
    pods: Pods,
    container: str,
    arguments: Sequence[str],
    *,
    size: tuple[str, str, str] = ("500m", "512Mi", "2Gi"),
    settings: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    stored: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
    copied: Copied | None = None,
    probes: Manifest | None = None,
) -> Manifest:
    """The pod of everything that runs: confined, with the deployment's files, and reaching the broker as its user.

    Args:
        pods: which pods these are; those that serve no metrics belong to a job, and end.
        container: the container's name.
        arguments: of `hushstream`.
        size: CPU and memory that it asks for, and the most memory that it gets.
        settings: further environment variables.
        ports: further ports, by name.
        stored: volumes that outlive it.
        secrets: names of further secrets to mount, by volume.
        copied: a secret to copy.
        probes: what Kubernetes asks it.
    """
    cpu, memory, most = size
    serves = {**(ports or {}), METRICS_PORT: METRICS, ZONE_METRICS_PORT: ZONE_METRICS}
    own = {name: {"secretName": secret} for name, secret in (secrets or {}).items()}
    copies = [f"{copied.what}s"] if copied else []
    volumes = [*_common_volumes(pods), *({"name": name, "secret": secret} for name, secret in own.items())]
    if copied:
        volumes.append({"name": f"{copied.what}-secret", "secret": copied.secret})
        volumes.append({"name": copies[0], "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    ends = pods.zone is None
    stays = {"terminationGracePeriodSeconds": 30, "topologySpreadConstraints": _spread(pods.labels)}
    return {
        "automountServiceAccountToken": False,
        # Otherwise services would put variables into the environment, where settings are read from.
        "enableServiceLinks": False,
        **({"restartPolicy": "Never"} if ends else stays),
        "securityContext": _pod_security(),
        **({"initContainers": [_own_copy(copied, copies[0])]} if copied else {}),
        "containers": [
            {
                "name": container,
                "image": IMAGE,
                "args": list(arguments),
                "env": [
                    {"name": key, "value": value}
                    for key, value in {**_environment(pods.user), **(settings or {})}.items()
                ],
                **({} if ends else {"ports": [{"name": key, "containerPort": at} for key, at in serves.items()]}),
                **(probes or {}),
                "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": most}},
                "securityContext": _confined(),
                "volumeMounts": [_mount(name) for name in (*stored, "deployment", "ca", "password", *own, *copies)],
            }
        ],
        "volumes": volumes,
    }


def _mount(name: str) -> Manifest:
    return {"name": name, "mountPath": _MOUNTS[name], **({} if name in _CLAIMED else {"readOnly": True})}


def _keys(system: System, role: Role) -> Copied | None:
    if not (keys := keys_of(role)):
        return None
    # Optional: a secret of an earlier release has no storage key; a worker without its zone's key reports it.
    items = [_item(key) for key in (*keys, f"{role.storage_zone}.key")]
    name = f"{system.config.deployment}-key-{role.zone}"
    return Copied("key", {"secretName": name, "items": items, "optional": True}, "*.key")


def _gateway_pod(pods: Pods, duty: str) -> Manifest:
    party = duty.partition(".")[2]
    settings = {
        "HOST": "0.0.0.0",
        "PORT": str(GATEWAY),
        "TOKENS_FILE": f"{_MOUNTS['tokens']}/tokens",
        "CERTIFICATE_FILE": f"{_MOUNTS['tls']}/tls.crt",
        "KEY_FILE": f"{_MOUNTS['tls']}/tls.key",
        **({"PARTY": party} if party else {}),
    }
    asks = {"port": "https", "scheme": "HTTPS"}
    alive, ready = ({"httpGet": {"path": path, **asks}} for path in ("/healthz", "/readyz"))
    return _pod(
        pods,
        "gateway",
        ["worker", "gateway", *_deployment(), *_endpoints()],
        size=("500m", "256Mi", "1Gi"),
        settings={f"HUSHSTREAM_GATEWAY__{key}": value for key, value in settings.items()},
        ports={"https": GATEWAY},
        secrets={"tls": f"{pods.name}-tls"},
        copied=Copied("token", {"secretName": f"{pods.name}-tokens", "items": [_item("tokens")]}, "*"),
        probes={
            "startupProbe": {**alive, "periodSeconds": 5, "failureThreshold": 60},
            "livenessProbe": {**alive, "periodSeconds": 20, "failureThreshold": 3},
            "readinessProbe": {**ready, "periodSeconds": 5},
        },
    )


def _spread(marks: Mapping[str, str]) -> list[Manifest]:
    """Spread the pods of a role over nodes and zones of nodes, so that no single failure stops all of them."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(marks)},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def _common_volumes(pods: Pods) -> list[Manifest]:
    return [
        {"name": "deployment", "configMap": {"name": f"{pods.deployment}-deployment"}},
        {"name": "ca", "secret": {"secretName": f"{CLUSTER}-cluster-ca-cert", "items": [_item("ca.crt")]}},
        {"name": "password", "secret": {"secretName": pods.user, "items": [_item("password")]}},
    ]


def _pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _own_copy(copied: Copied, volume: str) -> Manifest:
    source, path = f"/run/{copied.what}-secret", _MOUNTS[volume]
    return {
        "name": copied.what,
        "image": IMAGE,
        "command": ["/bin/sh", "-c", f"install --mode=0600 --target-directory={path} {source}/{copied.files}"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": f"{copied.what}-secret", "mountPath": source, "readOnly": True},
            {"name": volume, "mountPath": path},
        ],
    }


def _deployment() -> list[str]:
    return ["--deployment", _MOUNTS["deployment"]]


def _endpoints() -> list[str]:
    # Not on loopback: the probes and Prometheus connect from outside of the pod, and network policies limit who may.
    ports = ["--metrics-host", "0.0.0.0", "--metrics-port", str(METRICS)]
    return [*ports, "--zone-metrics-host", "0.0.0.0", "--zone-metrics-port", str(ZONE_METRICS)]


def _environment(user: str) -> Mapping[str, str]:
    return {
        "HUSHSTREAM_BOOTSTRAP": BOOTSTRAP,
        "HUSHSTREAM_SECURITY__PROTOCOL": "SASL_SSL",
        "HUSHSTREAM_SECURITY__USERNAME": user,
        "HUSHSTREAM_SECURITY__PASSWORD_FILE": f"{_MOUNTS['password']}/password",
        "HUSHSTREAM_SECURITY__CA_FILE": f"{_MOUNTS['ca']}/ca.crt",
    }


def _probes() -> Manifest:
    health = ["python", "/opt/hushstream/health.py"]
    # A separate thread serves metrics, so an answer does not show that the event loop runs; its heartbeat does.
    turns = {"exec": {"command": [*health, "--live"]}, "timeoutSeconds": 10}
    works = {"exec": {"command": health}, "timeoutSeconds": 10}
    return {
        "startupProbe": {**turns, "periodSeconds": 5, "failureThreshold": 60},
        "livenessProbe": {**turns, "periodSeconds": 20, "failureThreshold": 3},
        # A recovery takes time, and a restart does not help a stopped partition: so both only make the pod not ready,
        # and hold up a rolling update.
        "readinessProbe": {**works, "periodSeconds": 15},
    }


def _confined() -> Manifest:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _item(key: str) -> dict[str, str]:
    return {"key": key, "path": key}


def _ways_out() -> list[Manifest]:
    broker = {"podSelector": {"matchLabels": {"strimzi.io/cluster": CLUSTER, "strimzi.io/kind": "Kafka"}}}
    names = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    return [
        {"to": [broker], "ports": [{"protocol": "TCP", "port": 9093}]},
        {"to": [names], "ports": [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]},
    ]


def _from(watches: str, port: int) -> Manifest:
    # Also by namespace: with only a pod's label, anybody who may start a pod in any namespace could reach the port.
    namespace = WATCHED_FROM if watches == "public" else f"{WATCHED_FROM}-{watches}"
    watcher = {
        "podSelector": {"matchLabels": {WATCHER: watches}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    return {"from": [watcher], "ports": [{"protocol": "TCP", "port": port}]}


def _object(version: str, kind: str, name: str, spec: Manifest, marks: Mapping[str, str] | None = None) -> Manifest:
    return named(version, kind, name, marks) | {"spec": spec}
