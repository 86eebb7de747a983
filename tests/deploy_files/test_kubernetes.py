"""The Kubernetes manifests against the published schemas, the topic declarations and the rules of the zones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from command_line import parse
from hushstream.agents.observe.metrics import METRICS
from hushstream.agents.worker.deployment import CONFIGURATION, KeySource, load, parse_config, prepare, read_config
from hushstream.engine.declare.declaration import readers, writers
from hushstream.gateway.settings import GatewaySettings
from hushstream.ops.access import duty_names
from hushstream.privacy.keys import generate_keys

EXAMPLES = ("shop", "circle")
VERSION = "1.33"
OTHERS = ("kafka.strimzi.io/", "monitoring.coreos.com/", "kustomize.config.k8s.io/")
"""Kinds that Kubernetes itself does not have."""


@pytest.fixture(scope="module")
def base(deploy: Path) -> Path:
    return deploy / "kubernetes" / "base"


@pytest.fixture(scope="module")
def manifests(base: Path, documents: Any) -> dict[str, list[Any]]:
    """All objects of each example, but for its kustomization."""
    return {
        name: [one for part in sorted((base / name).glob("*.yaml")) for one in documents(part) if "metadata" in one]
        for name in EXAMPLES
    }


def of_kind(objects: list[Any], kind: str) -> list[Any]:
    return [one for one in objects if one["kind"] == kind]


def each_pod(manifests: dict[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    for name, objects in manifests.items():
        for one in of_kind(objects, "StatefulSet"):
            yield name, one


@pytest.mark.slow
def test_the_committed_manifests_are_those_that_the_declarations_give(deploy, script):
    answer = script(deploy / "kubernetes" / "build.py", "--check")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_a_deployment_of_ones_own_is_built_and_a_changed_file_is_found(deploy, base, script, tmp_path):
    shutil.copytree(base / "shop" / "deployment", tmp_path / "deployment")
    build = deploy / "kubernetes" / "build.py"
    assert script(build, tmp_path).returncode == 0
    assert (tmp_path / "topics.yaml").read_text(encoding="utf-8") == (base / "shop" / "topics.yaml").read_text(
        encoding="utf-8"
    )
    (tmp_path / "users.yaml").write_text("[]", encoding="utf-8")
    answer = script(build, tmp_path, "--check")
    assert answer.returncode == 1
    assert "users.yaml: differs" in answer.stderr
    (tmp_path / "deployment" / CONFIGURATION).unlink()
    assert "build: " in script(build, tmp_path).stderr


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A shop whose learners are users' devices; the keys are random, as an operator's are."""
    values = {
        "deployment": "shop",
        "kind": "edge",
        "items": {"capacity": 20},
        "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
        "expected_slots": 20000,
    }
    config = parse_config(values)
    generate_keys(tmp_path / "keys", ["sealing", "signing"])
    prepare(tmp_path / "deployment", config, keys=KeySource(tmp_path / "keys"))
    return tmp_path


@pytest.mark.slow
def test_sealed_slots_take_their_public_keys_to_everybody_and_the_key_to_the_shuffler(
    sealed, deploy, documents, script
):
    answer = script(deploy / "kubernetes" / "build.py", sealed)
    assert answer.returncode == 0, answer.stderr
    (kustomization,) = documents(sealed / "kustomization.yaml")
    assert "deployment/sealing.json" in kustomization["configMapGenerator"][0]["files"]
    for worker in of_kind(documents(sealed / "workers.yaml"), "StatefulSet"):
        role, pod = worker["metadata"]["labels"]["hushstream.io/role"], worker["spec"]["template"]["spec"]
        wanted = {
            "shuffler": ["shuffler.key", "sealing.key", "storage-shuffler.key"],
            "aggregator": ["signing.key", "storage-server.key"],
        }[role]
        items = [item for one in pod["volumes"] if one["name"] == "key-secret" for item in one["secret"]["items"]]
        assert [item["key"] for item in items] == wanted
        copied = [one["command"][-1] for one in pod.get("initContainers", ())]
        # All that is mounted: a secret of an earlier release has no storage key.
        assert [one.endswith(" /run/key-secret/*.key") for one in copied] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_of_kubernetes_is_valid(example, manifests):
    own = [one for one in manifests[example] if not one["apiVersion"].startswith(OTHERS)]
    assert {one["kind"] for one in own} == {"StatefulSet", "Service", "NetworkPolicy", "PodDisruptionBudget", "CronJob"}
    for one in own:
        kubernetes_validate.validate(one, VERSION, strict=True)


@pytest.mark.slow
def test_the_validation_would_find_a_fault(manifests):
    worker = of_kind(manifests["shop"], "StatefulSet")[0]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**worker, "spec": {**worker["spec"], "replica": 1}}, VERSION, strict=True)


def closed(schema: Any) -> Any:
    """The same schema refusing fields that it does not name, as the API server warns of them."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


@pytest.fixture(scope="module")
def strimzi(deploy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schemas of the specs of Strimzi's resources, from its own generator."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        pytest.skip("Java and Maven are not here: they make the schemas of Strimzi's resources")
    folder = tmp_path_factory.mktemp("strimzi")
    pom = deploy / "kubernetes" / "crds" / "pom.xml"
    copy = [maven, "--quiet", "--batch-mode", "--file", str(pom), "dependency:copy-dependencies"]
    subprocess.run([*copy, f"-DoutputDirectory={folder / 'libs'}"], check=True, capture_output=True, timeout=150)
    kinds = {"KafkaTopic": "topic", "KafkaUser": "user", "KafkaNodePool": "nodepool", "Kafka": "kafka"}
    wanted = [f"io.strimzi.api.kafka.model.{part}.{kind}={folder / kind}.yaml" for kind, part in kinds.items()]
    generate = [java, "-cp", f"{folder / 'libs'}/*", "io.strimzi.crdgenerator.CrdGenerator", "--yaml", *wanted]
    subprocess.run(generate, check=True, capture_output=True, timeout=150)
    schemas = {}
    for kind in kinds:
        # That of Kafka has a megabyte: libyaml reads it in a tenth of the time.
        definition = yaml.load((folder / f"{kind}.yaml").read_bytes(), yaml.CSafeLoader)
        versions = {one["name"]: one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"]}
        schemas[kind] = closed(versions["v1beta2"]["properties"]["spec"])
    return schemas


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_of_strimzi_is_valid(example, deploy, documents, manifests, strimzi):
    objects = [one for one in manifests[example] if one["apiVersion"].startswith("kafka.strimzi.io/")]
    assert {one["kind"] for one in objects} == {"KafkaTopic", "KafkaUser"}
    pool, kafka = documents(deploy / "kubernetes" / "kafka" / "kafka.yaml")
    assert {one["metadata"]["labels"]["strimzi.io/cluster"] for one in (pool, *objects)} == {kafka["metadata"]["name"]}
    (replicas,) = {one["spec"]["replicas"] for one in objects if one["kind"] == "KafkaTopic"}
    assert replicas == pool["spec"]["replicas"] == kafka["spec"]["kafka"]["config"]["default.replication.factor"]
    for one in (pool, kafka, *objects):
        jsonschema.Draft202012Validator(strimzi[one["kind"]]).validate(one["spec"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(strimzi["KafkaTopic"]).validate({"partitions": 0, "replica": 3})


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_declared_topic_is_there_with_its_partitions(example, manifests, base):
    system = load(base / example / "deployment")
    found = {one["spec"]["topicName"]: one["spec"] for one in of_kind(manifests[example], "KafkaTopic")}
    assert {name: spec["partitions"] for name, spec in found.items()} == {
        f"{example}.{t}": n for t, n in system.partitions.items()
    }
    for topic in system.topics:
        assert topic.settings().items() <= found[f"{example}.{topic.name}"]["config"].items()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_users_open_what_is_declared_for_their_role_and_together_every_topic(example, manifests, base):
    system = load(base / example / "deployment")
    for what, side in (("Write", writers), ("Read", readers)):
        opened_by_any = set()
        for user in of_kind(manifests[example], "KafkaUser"):
            role = user["metadata"]["name"].removeprefix(f"{example}-")
            opened = {
                acl["resource"]["name"].removeprefix(f"{example}.")
                for acl in user["spec"]["authorization"]["acls"]
                if acl["resource"]["type"] == "topic" and what in acl["operations"]
            }
            assert opened <= {t.name for t in system.topics if role in side(t, system.roles)}, f"{role} {what}"
            opened_by_any |= opened
        assert opened_by_any == system.partitions.keys(), what


@pytest.mark.slow
def test_who_has_a_duty_beside_the_roles_has_a_user_by_request_alone(
    base, deploy, script, documents, manifests, tmp_path
):
    names = [one["metadata"]["name"] for objects in manifests.values() for one in objects]
    assert not [name for name in names if any(duty in name for duty in duty_names())]
    shutil.copytree(base / "shop" / "deployment", tmp_path / "deployment")
    build = deploy / "kubernetes" / "build.py"
    duty = ("--duty", "requeue-edge", "--duty", "verify-shuffler")
    assert script(build, tmp_path, *duty).returncode == 0
    (kustomization,) = documents(tmp_path / "kustomization.yaml")
    assert "duties.yaml" in kustomization["resources"]
    opened = {
        user["metadata"]["name"]: {
            acl["resource"]["name"]: acl["operations"] for acl in user["spec"]["authorization"]["acls"]
        }
        for user in documents(tmp_path / "duties.yaml")
    }
    assert opened.keys() == {"shop-requeue-edge", "shop-verify-shuffler"}
    assert {operation for rights in opened["shop-verify-shuffler"].values() for operation in rights} == {"Read"}
    assert opened["shop-requeue-edge"] == {
        "shop.clicks": ["Read", "Write"],
        "shop.contexts": ["Read", "Write"],
        "shop.dead-letters-edge": ["Read"],
    }
    assert (tmp_path / "users.yaml").read_text(encoding="utf-8") == (base / "shop" / "users.yaml").read_text(
        encoding="utf-8"
    )
    assert (script(build, tmp_path, *duty, "--check").returncode, script(build, tmp_path, "--check").returncode) == (
        0,
        1,
    )
    refused = script(build, tmp_path, "--duty", "requeue-counter")
    assert (refused.returncode, "got requeue-counter" in refused.stderr) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["shop", "mall"])
def test_a_gateway_comes_by_request_with_a_way_in_tokens_and_a_certificate(
    system, base, deploy, script, documents, tmp_path
):
    if system == "shop":
        shutil.copytree(base / "shop" / "deployment", tmp_path / "deployment")
        duty, name = "gateway", "shop-gateway"
    else:
        prepare(tmp_path / "deployment", read_config(deploy / "examples" / "mall.yaml"))
        party = load(tmp_path / "deployment").config.vendors[0].name
        duty, name = f"gateway.{party}", f"mall-gateway-{party}"
    assert script(deploy / "kubernetes" / "build.py", tmp_path, "--duty", duty).returncode == 0
    (kustomization,) = documents(tmp_path / "kustomization.yaml")
    assert {"duties.yaml", "gateway.yaml"} <= set(kustomization["resources"])
    objects = documents(tmp_path / "gateway.yaml")
    for one in objects:
        if not one["apiVersion"].startswith(OTHERS):
            kubernetes_validate.validate(one, VERSION, strict=True)
    (pods,) = of_kind(objects, "Deployment")
    assert pods["metadata"]["name"] == name
    assert_spread(pods["spec"]["template"])
    (user,) = documents(tmp_path / "duties.yaml")
    pod = pods["spec"]["template"]["spec"]
    (main,), (copy,) = pod["containers"], pod["initContainers"]
    # It is confined as workers are, and has neither a key nor a state.
    for container in (main, copy):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    secrets = {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    assert secrets == {
        "hushstream-cluster-ca-cert", user["metadata"]["name"], f"{name}-tls", f"{name}-tokens"
    }  # fmt: skip
    assert copy["command"][-1].startswith("install --mode=0600 ")
    settings = {
        one["name"].removeprefix("HUSHSTREAM_GATEWAY__").lower(): yaml.safe_load(one["value"])
        for one in main["env"]
        if one["name"].startswith("HUSHSTREAM_GATEWAY__")
    }
    made = GatewaySettings.model_validate(settings)
    assert made.knows_callers
    assert made.certificate_file is not None
    assert made.party == duty.partition(".")[2]
    assert {"name": "https", "containerPort": made.port} in main["ports"]
    mounted = {one["mountPath"] for one in main["volumeMounts"]}
    assert {str(path.parent) for path in (made.tokens_file, made.certificate_file, made.key_file)} <= mounted
    # Only who says so may ask, and it reaches brokers and names alone.
    (scaling,) = [one.pop("spec") for one in of_kind(objects, "HorizontalPodAutoscaler")]
    objects = [one for one in objects if "spec" in one]
    assert (scaling["scaleTargetRef"]["name"], "replicas" in pods["spec"]) == (name, False)
    assert scaling["minReplicas"] >= 2
    (policy,) = of_kind(objects, "NetworkPolicy")
    asked, public, zone = policy["spec"]["ingress"]
    assert asked["from"] == [{"podSelector": {"matchLabels": {"hushstream.io/asks": system}}}]
    assert [rule["ports"][0]["port"] for rule in (asked, public, zone)] == [made.port, 9101, 9201]
    assert {one["port"] for rule in policy["spec"]["egress"] for one in rule["ports"]} == {9093, 53}
    marks = pods["spec"]["template"]["metadata"]["labels"]
    for one in objects:
        spec = one["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector).items() <= marks.items(), one["kind"]
    (monitor,) = of_kind(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["hushstream.io/watches"] == "edge"


@pytest.mark.slow
def test_an_auditor_comes_by_request_with_the_key_of_its_zone_and_an_account_that_reads_alone(
    base, deploy, script, documents, tmp_path
):
    shutil.copytree(base / "shop" / "deployment", tmp_path / "deployment")
    assert script(deploy / "kubernetes" / "build.py", tmp_path, "--duty", "verify-shuffler").returncode == 0
    objects = documents(tmp_path / "auditors.yaml")
    for one in objects:
        if not one["apiVersion"].startswith(OTHERS):
            kubernetes_validate.validate(one, VERSION, strict=True)
    (pods,) = of_kind(objects, "StatefulSet")
    pod = pods["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    assert main["args"][:4] == ["verify", "--follow", "--role", "shuffler"]
    (user,) = documents(tmp_path / "duties.yaml")
    rights = {right for rule in user["spec"]["authorization"]["acls"] for right in rule["operations"]}
    assert rights == {"Read"}
    secrets = {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    assert secrets == {"hushstream-cluster-ca-cert", user["metadata"]["name"], "shop-key-shuffler"}
    assert {"name": "HUSHSTREAM_SECURITY__USERNAME", "value": user["metadata"]["name"]} in main["env"]
    mounted = {one["name"] for one in main["volumeMounts"]}
    claimed = {one["metadata"]["name"] for one in pods["spec"]["volumeClaimTemplates"]}
    assert claimed == {"state"}
    assert mounted == {*(one["name"] for one in pod["volumes"]), *claimed} - {"key-secret"}
    marks = pods["spec"]["template"]["metadata"]["labels"]
    # The services and budgets of the role's workers do not take it for one of them.
    for one in documents(tmp_path / "workers.yaml"):
        selector = one["spec"]["selector"]
        assert not selector.get("matchLabels", selector).items() <= marks.items()
    for one in objects:
        spec = one["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector).items() <= marks.items(), one["kind"]


@pytest.mark.slow
def test_topics_are_checked_every_hour_as_the_operator_and_each_pod_is_spread_over_nodes(manifests):
    for name, objects in manifests.items():
        (job,) = of_kind(objects, "CronJob")
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        (main,) = pod["containers"]
        assert main["args"][:3] == ["topics", "check", "--no-acls"]
        assert {"name": "HUSHSTREAM_SECURITY__USERNAME", "value": f"{name}-operator"} in main["env"]
        assert main["securityContext"]["readOnlyRootFilesystem"] is True
        for worker in of_kind(objects, "StatefulSet"):
            template = worker["spec"]["template"]
            assert_spread(template)


def assert_spread(template: dict[str, Any]) -> None:
    rules = template["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in rules] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for one in rules:
        assert one["labelSelector"]["matchLabels"] == template["metadata"]["labels"]


def rendered(chart: Path, values: dict[str, Any]) -> list[Any]:
    """What Helm makes of the chart; without Helm, what the three forms of expressions in it stand for."""
    if helm := shutil.which("helm"):
        subprocess.run([helm, "lint", "--strict", str(chart)], check=True, capture_output=True)
        made = subprocess.run(
            [helm, "template", str(chart)], check=True, capture_output=True, text=True, encoding="utf-8"
        )
        return [one for one in yaml.safe_load_all(made.stdout) if one]

    def stands_for(found: re.Match[str]) -> str:
        expression = found[1]
        if expression.startswith("(.Files.Glob"):
            files = {path.name: path.read_text(encoding="utf-8") for path in (chart / "deployment").iterdir()}
            return "".join(f"  {key}: {json.dumps(text)}\n" for key, text in files.items())
        if index := re.fullmatch(r'index \.Values\.replicas "([a-z.-]+)"', expression):
            return str(values["replicas"][index[1]])
        name = re.fullmatch(r"\.Values\.([a-z]+)( \| quote)?", expression)
        assert name is not None, expression
        return json.dumps(values[name[1]]) if name[2] else str(values[name[1]])

    texts = [path.read_text(encoding="utf-8") for path in sorted((chart / "templates").iterdir())]
    return [one for text in texts for one in yaml.safe_load_all(re.sub(r"\{\{ (.*?) \}\}", stands_for, text))]


@pytest.mark.slow
def test_a_chart_of_helm_gives_the_same_objects_and_a_secret_store_the_keys(base, deploy, script, documents, tmp_path):
    """Catches a value without a template, a template that is not YAML, and a secret that lacks a key of its pod."""
    shutil.copytree(base / "shop" / "deployment", tmp_path / "deployment")
    more = ("--chart", "--duty", "gateway", "--duty", "verify-shuffler", "--secret-store", "vault")
    answer = script(deploy / "kubernetes" / "build.py", tmp_path, *more)
    assert answer.returncode == 0, answer.stderr
    (values,), (about,) = documents(tmp_path / "chart" / "values.yaml"), documents(tmp_path / "chart" / "Chart.yaml")
    assert (about["apiVersion"], about["name"]) == ("v2", "shop")
    objects = rendered(tmp_path / "chart", values)
    (configuration,) = of_kind(objects, "ConfigMap")
    assert configuration["data"] == {
        path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "deployment").iterdir()
    }
    plain = [one for path in sorted(tmp_path.glob("*.yaml")) for one in documents(path) if "metadata" in one]
    image = f'"image": "{values["image"]}"'
    made = sorted(json.dumps(one, sort_keys=True).replace(image, '"image": "hushstream"') for one in objects)
    made.remove(json.dumps(configuration, sort_keys=True))
    assert made == sorted(json.dumps(one, sort_keys=True) for one in plain)
    for one in objects:
        if not one["apiVersion"].startswith((*OTHERS, "external-secrets.io/")):
            kubernetes_validate.validate(one, VERSION, strict=True)
    stored = {
        one["metadata"]["name"]: {key["secretKey"] for key in one["spec"]["data"]}
        for one in of_kind(objects, "ExternalSecret")
    }
    assert stored
    for pods in of_kind(objects, "StatefulSet"):
        for volume in pods["spec"]["template"]["spec"]["volumes"]:
            if volume["name"] == "key-secret":
                assert {item["key"] for item in volume["secret"]["items"]} <= stored[volume["secret"]["secretName"]]


@pytest.mark.slow
def test_the_page_names_every_principal_by_the_user_that_is_made(deploy, manifests):
    page = (deploy / "kubernetes" / "README.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"--principals ([a-z-]+)=User:([a-z-]+)", page.partition("Nobody may put")[0]))
    users = {one["metadata"]["name"] for one in of_kind(manifests["shop"], "KafkaUser")}
    assert named == {name.removeprefix("shop-"): name for name in users}


@pytest.mark.slow
def test_nothing_that_prunes_takes_a_topic_away(deploy, documents, manifests):
    for objects in manifests.values():
        for topic in of_kind(objects, "KafkaTopic"):
            assert topic["metadata"]["annotations"] == {
                "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
                "kustomize.toolkit.fluxcd.io/prune": "disabled",
                "helm.sh/resource-policy": "keep",
            }
    (component,) = documents(deploy / "kubernetes" / "components" / "unmanaged-topics" / "kustomization.yaml")
    (patch,) = component["patches"]
    assert patch["target"] == {"kind": "KafkaTopic"}
    (change,) = yaml.safe_load(patch["patch"])
    # The annotations that are there already make the place that it is added to.
    assert change == {"op": "add", "path": "/metadata/annotations/strimzi.io~1managed", "value": "false"}


@pytest.mark.slow
def test_every_worker_is_confined(manifests):
    for name, worker in each_pod(manifests):
        pod = worker["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
        (main,) = pod["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= main.keys()
        claims = [claim["metadata"]["name"] for claim in worker["spec"]["volumeClaimTemplates"]]
        role = worker["metadata"]["labels"]["hushstream.io/role"]
        assert claims == (["state", "marks"] if role != "aggregator" else ["state"])
        assert set(claims) <= {mount["name"] for mount in main["volumeMounts"]}
        assert ("--release-marks" in main["args"]) == ("marks" in claims)


@pytest.mark.slow
def test_secrets_are_named_and_each_key_is_in_its_zone_alone(manifests):
    assert not [one for objects in manifests.values() for one in of_kind(objects, "Secret")]
    for name, worker in each_pod(manifests):
        pod, role = worker["spec"]["template"]["spec"], worker["metadata"]["labels"]["hushstream.io/role"]
        zone = worker["metadata"]["labels"]["hushstream.io/zone"]
        secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        keys = {f"{name}-key-{zone}"} if role != "aggregator" else set()
        assert secrets == {"hushstream-cluster-ca-cert", f"{name}-{role}", *keys}
        for container in pod["containers"]:
            secret = [one["name"] for one in container["env"] if "PASSWORD" in one["name"]]
            assert secret == ["HUSHSTREAM_SECURITY__PASSWORD_FILE"]
            assert "key-secret" not in {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.slow
def test_a_zone_lets_in_its_own_reader_of_metrics_and_reaches_brokers_and_names_alone(manifests):
    for name, objects in manifests.items():
        policies = of_kind(objects, "NetworkPolicy")
        zones = [one for one in policies if "hushstream.io/zone" in one["metadata"].get("labels", {})]
        check, closed_to_all = [one for one in policies if one not in zones]
        assert closed_to_all["spec"].keys() == {"podSelector", "policyTypes"}
        assert (check["metadata"]["name"], check["spec"]["ingress"]) == (f"{name}-check", [])
        roles = {worker["metadata"]["labels"]["hushstream.io/zone"] for n, worker in each_pod(manifests) if n == name}
        assert {policy["metadata"]["labels"]["hushstream.io/zone"] for policy in zones} == roles
        for policy in zones:
            zone = policy["metadata"]["labels"]["hushstream.io/zone"]
            allowed = {
                (rule["from"][0]["podSelector"]["matchLabels"]["hushstream.io/watches"], rule["ports"][0]["port"])
                for rule in policy["spec"]["ingress"]
            }
            assert allowed == {("public", 9101), (zone, 9201)}
            assert [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]] == [9093, 53, 53]


@pytest.mark.slow
def test_the_shared_prometheus_is_never_sent_to_a_zones_own_endpoint(manifests):
    for objects in manifests.values():
        for monitor in of_kind(objects, "PodMonitor"):
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            private = "hushstream.io/zone" in monitor["metadata"]["labels"]
            assert endpoint["port"] == ("zone-metrics" if private else "metrics")
            assert private == ("hushstream.io/zone" in monitor["spec"]["selector"]["matchLabels"])


def targets_of(monitor: Any, objects: list[Any]) -> Iterator[dict[str, str]]:
    """The labels that Prometheus gives to `up` of each pod that a monitor selects, of those that it takes from pods."""
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for one in of_kind(objects, "StatefulSet"):
        template = one["spec"]["template"]
        if wanted <= template["metadata"]["labels"].items():
            ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
            assert endpoint["port"] in ports
            found = {
                f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": value
                for name, value in template["metadata"]["labels"].items()
            }
            yield {
                rule["targetLabel"]: found[rule["sourceLabels"][0]] if "sourceLabels" in rule else rule["replacement"]
                for rule in endpoint["relabelings"]
            }


@pytest.mark.slow
def test_a_worker_that_is_down_is_seen_by_the_alert_with_its_role_and_deployment(deploy, documents, manifests):
    (rules,) = documents(deploy / "prometheus" / "rules" / "alerts.yml")
    (alert,) = [one for group in rules["groups"] for one in group["rules"] if one.get("alert") == "WorkerDown"]
    seen = re.fullmatch(r'up\{job="([^"]*)", role=~"([^"]*)"\} == 0', alert["expr"])
    assert seen is not None
    (board,) = documents(deploy / "grafana" / "dashboards" / "public" / "hushstream-overview.json")
    assert f'up{{job="{seen[1]}"' in board["panels"][0]["targets"][0]["expr"], "where workers that answer are counted"
    for name, objects in manifests.items():
        for monitor in of_kind(objects, "PodMonitor"):
            found = list(targets_of(monitor, objects))
            assert found
            assert {one["deployment"] for one in found} == {name}
            assert all(re.fullmatch(seen[2], one["role"]) for one in found)
            public = monitor["metadata"]["name"] == f"{name}-public"
            # A zone's endpoint answers its own Prometheus alone; to another it must not look like one that is down.
            assert {one["job"] for one in found} == {seen[1] if public else "hushstream-zone"}
            if public:
                assert len(found) == len(of_kind(objects, "StatefulSet"))


@pytest.mark.slow
def test_a_prometheus_selects_its_monitors_by_the_label_that_policies_let_in(manifests):
    for objects in manifests.values():
        admitted = {
            (rule["ports"][0]["port"], rule["from"][0]["podSelector"]["matchLabels"]["hushstream.io/watches"])
            for policy in of_kind(objects, "NetworkPolicy")
            for rule in policy["spec"].get("ingress", ())
        }
        selected = {
            (
                {"metrics": 9101, "zone-metrics": 9201}[monitor["spec"]["podMetricsEndpoints"][0]["port"]],
                monitor["metadata"]["labels"]["hushstream.io/watches"],
            )
            for monitor in of_kind(objects, "PodMonitor")
        }
        assert selected == admitted


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "files"), [("public", ["alerts", "recording"]), ("zone", ["zone"])])
def test_rules_and_dashboards_reach_the_prometheus_and_the_grafana_of_their_kind(endpoint, files, deploy, documents):
    folder = deploy / "kubernetes" / "monitoring" / endpoint
    rules = {one["metadata"]["name"]: one for one in documents(folder / "rules.yaml")}
    assert sorted(rules) == [f"hushstream-{name}" for name in files]
    for name in files:
        (written,) = documents(deploy / "prometheus" / "rules" / f"{name}.yml")
        assert rules[f"hushstream-{name}"]["spec"] == written
    boards = {one["metadata"]["name"]: one for one in documents(folder / "dashboards.yaml")}
    assert boards.keys() == {path.stem for path in (deploy / "grafana" / "dashboards" / endpoint).iterdir()}
    for one in (*rules.values(), *boards.values()):
        assert one["metadata"]["labels"]["hushstream.io/watches"] == endpoint
    for name, one in boards.items():
        kubernetes_validate.validate(one, VERSION, strict=True)
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(one["data"][f"{name}.json"])["uid"] == name
    shown = (folder / "dashboards.yaml").read_text(encoding="utf-8") + (folder / "rules.yaml").read_text(
        encoding="utf-8"
    )
    private = [spec.name for spec in METRICS if spec.metric_class == "zone-private" and spec.name in shown]
    assert bool(private) == (endpoint == "zone")


@pytest.mark.slow
def test_a_worker_is_ready_by_its_partitions_and_alive_by_its_heartbeat(manifests):
    health = ["python", "/opt/hushstream/health.py"]
    for _, worker in each_pod(manifests):
        (main,) = worker["spec"]["template"]["spec"]["containers"]
        assert main["readinessProbe"]["exec"]["command"] == health
        assert main["livenessProbe"]["exec"]["command"] == [*health, "--live"]
        assert main["startupProbe"]["exec"]["command"] == [*health, "--live"]


@pytest.mark.slow
def test_an_eviction_takes_one_worker_of_a_role_at_a_time(manifests):
    for name, objects in manifests.items():
        workers = {worker["metadata"]["name"]: worker for n, worker in each_pod(manifests) if n == name}
        budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "PodDisruptionBudget")}
        assert budgets.keys() == workers.keys()
        for one, spec in budgets.items():
            assert spec["maxUnavailable"] == 1
            assert spec["selector"]["matchLabels"] == workers[one]["spec"]["selector"]["matchLabels"]


@pytest.mark.slow
def test_every_kustomization_names_what_is_there(deploy, documents, manifests):
    found = sorted((deploy / "kubernetes").glob("**/kustomization.yaml"))
    assert len(found) == 6
    for path in found:
        (kustomization,) = documents(path)
        assert all((path.parent / name).exists() for name in kustomization.get("resources", ()))
        for generator in kustomization.get("configMapGenerator", ()):
            assert all((path.parent / name).is_file() for name in generator["files"])
    (overlay,) = documents(deploy / "kubernetes" / "overlays" / "production" / "kustomization.yaml")
    workers = {one["metadata"]["name"] for one in of_kind(manifests["shop"], "StatefulSet")}
    assert {one["name"] for one in overlay["replicas"]} <= workers
    assert {one["target"]["name"] for one in overlay["patches"]} <= workers


# Commands that deployment files name.


def of_kubernetes(objects: list[Any]) -> Iterator[list[str]]:
    for one in objects:
        if one["kind"] == "StatefulSet":
            for container in one["spec"]["template"]["spec"]["containers"]:
                yield container["args"]


@pytest.mark.parametrize("example", ["shop", "circle"])
def test_the_command_line_takes_every_command_of_kubernetes(example, deploy, documents):
    commands = list(of_kubernetes(documents(deploy / "kubernetes" / "base" / example / "workers.yaml")))
    assert len(commands) == 3
    for command in commands:
        parse(command)


def test_an_option_that_is_not_there_would_be_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "learner", "--deployment", "x", "--metrics-prot", "1"])
