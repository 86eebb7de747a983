"""The Kubernetes objects of one deployment as plain values; what the topic declarations say is taken from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
_KEYS = "/var/lib/hushstream/keys"
_STATE = "/var/lib/hushstream/state"
_MARKS = "/var/lib/hushstream/marks"
"""The marks lie apart from the state, so that restoring a snapshot of one volume restores no old marks."""
_TOKENS = "/var/lib/hushstream/tokens"
_TLS = "/etc/hushstream/tls"
_GATEWAY_ZONE = "edge"
_DEPLOYMENT = "/etc/hushstream/deployment"
_CA = "/etc/hushstream/ca"
_PASSWORD = "/etc/hushstream/password"


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


def workers(system: System) -> list[Manifest]:
    """One StatefulSet for each role; every worker has one volume for its state, and one for its release marks."""
    found = []
    for role in system.roles:
        claims = [_claim("state", "10Gi"), *([_claim("marks", "1Gi")] if role.marks else [])]
        spec = {
            "serviceName": name_of(system, role.name),
            "replicas": min(WORKERS, system.homes(role)),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels(system, role)},
            "template": {"metadata": {"labels": labels(system, role)}, "spec": _pod(system, role)},
            "volumeClaimTemplates": claims,
        }
        found.append(_object("apps/v1", "StatefulSet", name_of(system, role.name), spec, labels(system, role)))
    return found


def _claim(name: str, size: str) -> Manifest:
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }


def services(system: System) -> list[Manifest]:
    """The headless service that a StatefulSet must name; only readers of its metrics connect to a worker."""
    return [_headless(name_of(system, role.name), labels(system, role)) for role in system.roles]


def policies(system: System) -> list[Manifest]:
    """Policies: a worker may reach the broker and the name service, and two readers of metrics it; no others."""
    deployment = system.config.deployment
    everything = {
        "podSelector": {"matchLabels": {"hushstream.io/deployment": deployment}},
        "policyTypes": ["Ingress", "Egress"],
    }
    found = [_object("networking.k8s.io/v1", "NetworkPolicy", f"{deployment}-closed", everything)]
    return [
        *found,
        *(
            _policy(f"{deployment}-zone-{role.zone}", labels(system, role), _metrics_read(role.zone))
            for role in system.roles
        ),
    ]


def gateway(system: System, duty: str) -> list[Manifest]:
    """A gateway: two pods without stored data, a service for them, and who may call it.

    Args:
        system: the deployment.
        duty: the duty of its Kafka user: `gateway`, or `gateway.PARTY` where each party has applications of its own.
    """
    name = gateway_name(system, duty)
    marks = gateway_labels(system, duty)
    port = {"name": "https", "port": GATEWAY, "targetPort": "https"}
    service = {"selector": marks, "ports": [port]}
    deployment = {
        "selector": {"matchLabels": marks},
        "template": {"metadata": {"labels": marks}, "spec": _gateway_pod(system, duty)},
    }
    # A caller shows itself by its pod's labels, in this namespace; access from outside is a patch in an overlay.
    asks = {"podSelector": {"matchLabels": {ASKS: system.config.deployment}}}
    called = {"from": [asks], "ports": [{"protocol": "TCP", "port": GATEWAY}]}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    # Callers of a pod that goes are at its peers at once, so pods may come fast; they go one at a time.
    scaling = {
        "scaleTargetRef": target,
        "minReplicas": WORKERS,
        "maxReplicas": GATEWAYS,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": BUSY_PERCENT}},
            }
        ],
        "behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}},
    }
    return [
        _object("v1", "Service", name, service, marks),
        _object("apps/v1", "Deployment", name, deployment, marks),
        _object("autoscaling/v2", "HorizontalPodAutoscaler", name, scaling, marks),
        _budget(name, marks),
        _policy(name, marks, [called, *_metrics_read(_GATEWAY_ZONE)]),
    ]


def checks(system: System) -> list[Manifest]:
    """`topics check` every hour, as the operator: a job that fails names what is no longer as declared."""
    user = name_of(system, "operator")
    name, marks = name_of(system, "check"), {**_deployment_labels(system), "hushstream.io/role": "check"}
    mounts = {"deployment": _DEPLOYMENT, "ca": _CA, "password": _PASSWORD}
    container = {
        "name": "check",
        "image": IMAGE,
        "args": ["topics", "check", "--no-acls", "--deployment", _DEPLOYMENT],
        "env": [{"name": key, "value": value} for key, value in _environment(user).items()],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": _confined(),
        "volumeMounts": [{"name": key, "mountPath": path, "readOnly": True} for key, path in mounts.items()],
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": _pod_security(),
        "containers": [container],
        "volumes": _common_volumes(system, user),
    }
    job = {"backoffLimit": 1, "template": {"metadata": {"labels": marks}, "spec": pod}}
    spec = {"schedule": "17 * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}}
    return [_object("batch/v1", "CronJob", name, spec, marks), _policy(name, marks, [])]


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
    role = role_of(system, duty.removeprefix(VERIFY))
    name, marks = auditor_name(system, role), auditor_labels(system, role)
    pod = _pod(system, role)
    (worker,) = pod["containers"]
    arguments = ["verify", "--follow", "--role", role.name, "--deployment", _DEPLOYMENT, "--state", _STATE]
    # It has no heartbeat and no partitions; its health is that it answers, and its lag shows how far it is behind.
    asks = {"tcpSocket": {"port": METRICS_PORT}, "periodSeconds": 20, "failureThreshold": 3}
    pod["topologySpreadConstraints"] = _spread(marks)
    pod["containers"] = [
        {
            **{key: value for key, value in worker.items() if not key.endswith("Probe")},
            "name": "auditor",
            "args": [*arguments, *_endpoints()],
            "env": [{"name": key, "value": value} for key, value in _environment(name_of(system, duty)).items()],
            "livenessProbe": asks,
            "volumeMounts": [one for one in worker["volumeMounts"] if one["name"] != "marks"],
        }
    ]
    own = {one["name"]: one for one in _common_volumes(system, name_of(system, duty))}
    pod["volumes"] = [own.get(one["name"], one) for one in pod["volumes"]]
    spec = {
        "serviceName": name,
        "replicas": 1,
        "selector": {"matchLabels": marks},
        "template": {"metadata": {"labels": marks}, "spec": pod},
        "volumeClaimTemplates": [_claim("state", "10Gi")],
    }
    return [
        _headless(name, marks),
        _object("apps/v1", "StatefulSet", name, spec, marks),
        _policy(name, marks, _metrics_read(role.zone)),
    ]


def auditor_name(system: System, role: Role) -> str:
    """The name of an auditor's objects; a party's role has a dot in its name, which a service's name must not have."""
    return name_of(system, f"auditor-{role.name}").replace(".", "-")


def auditor_labels(system: System, role: Role) -> dict[str, str]:
    """Labels that identify an auditor's pod; its own metrics are of the zone of the role that it checks."""
    return {**labels(system, role), "hushstream.io/role": f"auditor-{role.name}"}


def gateway_name(system: System, duty: str) -> str:
    """The name of a gateway's objects; its Kafka user may have a dot in its name, which a service's must not have."""
    return name_of(system, duty).replace(".", "-")


def gateway_labels(system: System, duty: str) -> dict[str, str]:
    """Labels that identify a gateway's pods; its own metrics are of the zone of the applications."""
    return {**_deployment_labels(system), "hushstream.io/role": duty, "hushstream.io/zone": _GATEWAY_ZONE}


def labels(system: System, role: Role) -> dict[str, str]:
    """Labels that identify a role's pods."""
    return {**_deployment_labels(system), "hushstream.io/role": role.name, "hushstream.io/zone": role.zone}


def _deployment_labels(system: System) -> dict[str, str]:
    return {"app.kubernetes.io/name": "hushstream", "hushstream.io/deployment": system.config.deployment}


def keys_of(role: Role) -> tuple[str, ...]:
    """The key files of a role's workers."""
    return tuple(f"{zone}.key" for zone in role.key_zones)


def named(version: str, kind: str, name: str, marks: Mapping[str, str] | None = None) -> Manifest:
    """The first part of an object: its kind, name, and labels."""
    metadata: Manifest = {"name": name, **({"labels": dict(marks)} if marks else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def disruptions(system: System) -> list[Manifest]:
    """An eviction may remove one worker of a role at a time; a worker that is not ready does not block it."""
    return [_budget(name_of(system, role.name), labels(system, role)) for role in system.roles]


def _budget(name: str, marks: Mapping[str, str]) -> Manifest:
    selector = {"matchLabels": dict(marks)}
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}
    return _object("policy/v1", "PodDisruptionBudget", name, spec, marks)


def _headless(name: str, marks: Mapping[str, str]) -> Manifest:
    port = {"name": METRICS_PORT, "port": METRICS, "targetPort": METRICS_PORT}
    return _object("v1", "Service", name, {"clusterIP": "None", "selector": dict(marks), "ports": [port]}, marks)


def _policy(name: str, marks: Mapping[str, str], ingress: list[Manifest]) -> Manifest:
    """Pods with these labels reach brokers and names alone, and take connections from ``ingress`` alone."""
    spec = {
        "podSelector": {"matchLabels": dict(marks)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": _ways_out(),
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", name, spec, marks)


def _metrics_read(zone: str) -> list[Manifest]:
    return [_from("public", METRICS), _from(zone, ZONE_METRICS)]


def _pod(system: System, role: Role) -> Manifest:
    name, keys = name_of(system, role.name), keys_of(role)
    mounts = [
        {"name": "state", "mountPath": _STATE},
        *([{"name": "marks", "mountPath": _MARKS}] if role.marks else []),
        {"name": "deployment", "mountPath": _DEPLOYMENT, "readOnly": True},
        {"name": "ca", "mountPath": _CA, "readOnly": True},
        {"name": "password", "mountPath": _PASSWORD, "readOnly": True},
        *([{"name": "keys", "mountPath": _KEYS, "readOnly": True}] if keys else []),
    ]
    volumes = _common_volumes(system, name)
    if keys:
        secret = f"{system.config.deployment}-key-{role.zone}"
        # Optional: a secret of an earlier release has no storage key; a worker without its zone's key reports it.
        items = [_item(key) for key in (*keys, f"{role.storage_zone}.key")]
        volumes.append({"name": "key-secret", "secret": {"secretName": secret, "items": items, "optional": True}})
        volumes.append({"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    return {
        "automountServiceAccountToken": False,
        # Otherwise services would put variables into the environment, where settings are read from.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": _spread(labels(system, role)),
        "securityContext": _pod_security(),
        **({"initContainers": [_own_copy("key", _KEYS, "keys", "*.key")]} if keys else {}),
        "containers": [
            {
                "name": role.name,
                "image": IMAGE,
                "args": _arguments(role),
                "env": [{"name": key, "value": value} for key, value in _environment(name).items()],
                "ports": [
                    {"name": METRICS_PORT, "containerPort": METRICS},
                    {"name": ZONE_METRICS_PORT, "containerPort": ZONE_METRICS},
                ],
                **_probes(),
                "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
                "securityContext": _confined(),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _gateway_pod(system: System, duty: str) -> Manifest:
    name, user = gateway_name(system, duty), name_of(system, duty)
    party = duty.partition(".")[2]
    settings = {
        "HOST": "0.0.0.0",
        "PORT": str(GATEWAY),
        "TOKENS_FILE": f"{_TOKENS}/tokens",
        "CERTIFICATE_FILE": f"{_TLS}/tls.crt",
        "KEY_FILE": f"{_TLS}/tls.key",
        **({"PARTY": party} if party else {}),
    }
    environment = {**_environment(user), **{f"HUSHSTREAM_GATEWAY__{key}": value for key, value in settings.items()}}
    mounts = {"deployment": _DEPLOYMENT, "ca": _CA, "password": _PASSWORD, "tls": _TLS, "tokens": _TOKENS}
    ports = {"https": GATEWAY, METRICS_PORT: METRICS, ZONE_METRICS_PORT: ZONE_METRICS}
    asks = {"port": "https", "scheme": "HTTPS"}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": _spread(gateway_labels(system, duty)),
        "securityContext": _pod_security(),
        "initContainers": [_own_copy("token", _TOKENS, "tokens", "*")],
        "containers": [
            {
                "name": "gateway",
                "image": IMAGE,
                "args": ["worker", "gateway", "--deployment", _DEPLOYMENT, *_endpoints()],
                "env": [{"name": key, "value": value} for key, value in environment.items()],
                "ports": [{"name": key, "containerPort": port} for key, port in ports.items()],
                "startupProbe": {"httpGet": {"path": "/healthz", **asks}, "periodSeconds": 5, "failureThreshold": 60},
                "livenessProbe": {"httpGet": {"path": "/healthz", **asks}, "periodSeconds": 20, "failureThreshold": 3},
                "readinessProbe": {"httpGet": {"path": "/readyz", **asks}, "periodSeconds": 5},
                "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
                "securityContext": _confined(),
                "volumeMounts": [{"name": key, "mountPath": path, "readOnly": True} for key, path in mounts.items()],
            }
        ],
        "volumes": [
            *_common_volumes(system, user),
            {"name": "tls", "secret": {"secretName": f"{name}-tls"}},
            {"name": "token-secret", "secret": {"secretName": f"{name}-tokens", "items": [_item("tokens")]}},
            {"name": "tokens", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ],
    }


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


def _common_volumes(system: System, name: str) -> list[Manifest]:
    return [
        {"name": "deployment", "configMap": {"name": f"{system.config.deployment}-deployment"}},
        {"name": "ca", "secret": {"secretName": f"{CLUSTER}-cluster-ca-cert", "items": [_item("ca.crt")]}},
        {"name": "password", "secret": {"secretName": name, "items": [_item("password")]}},
    ]


def _pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _own_copy(what: str, path: str, volume: str, files: str) -> Manifest:
    """Copy a mounted secret, which its group can read: keys and tokens must be readable by their owner alone."""
    source = f"/run/{what}-secret"
    return {
        "name": what,
        "image": IMAGE,
        "command": ["/bin/sh", "-c", f"install --mode=0600 --target-directory={path} {source}/{files}"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": f"{what}-secret", "mountPath": source, "readOnly": True},
            {"name": volume, "mountPath": path},
        ],
    }


def _arguments(role: Role) -> list[str]:
    marks = ["--release-marks", _MARKS] if role.marks else []
    return ["worker", role.name, "--deployment", _DEPLOYMENT, "--state", _STATE, *marks, *_endpoints()]


def _endpoints() -> list[str]:
    # Not on loopback: the probes and Prometheus connect from outside of the pod, and network policies limit who may.
    ports = ["--metrics-host", "0.0.0.0", "--metrics-port", str(METRICS)]
    return [*ports, "--zone-metrics-host", "0.0.0.0", "--zone-metrics-port", str(ZONE_METRICS)]


def _environment(user: str) -> Mapping[str, str]:
    return {
        "HUSHSTREAM_BOOTSTRAP": BOOTSTRAP,
        "HUSHSTREAM_SECURITY__PROTOCOL": "SASL_SSL",
        "HUSHSTREAM_SECURITY__USERNAME": user,
        "HUSHSTREAM_SECURITY__PASSWORD_FILE": f"{_PASSWORD}/password",
        "HUSHSTREAM_SECURITY__CA_FILE": f"{_CA}/ca.crt",
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
