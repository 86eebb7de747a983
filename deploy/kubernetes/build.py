"""Write the Kubernetes manifests of a deployment: ``python deploy/kubernetes/build.py [FOLDER ...] [--check]``.

A folder holds ``deployment/`` (what `hushstream prepare` made) and gets the manifests beside it. Without a folder,
those of the two examples of this repository are written, and rules and dashboards for all deployments into
``monitoring/``. ``--check`` writes nothing and exits 1 when a file differs from what would be written.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from manifests import (
    BOOTSTRAP,
    IMAGE,
    VERIFY,
    auditor,
    checks,
    disruptions,
    external_secrets,
    gateway,
    named,
    pods_of_duty,
    policies,
    services,
    topics,
    users,
    workers,
)
from monitoring import RULES, dashboards, monitor_of, monitors, rules

from hushstream.agents.worker.deployment import CONFIGURATION, load
from hushstream.engine.declare.declaration import System
from hushstream.replay.report.committed import settle
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

EXAMPLES = tuple(Path(__file__).parent / "base" / name for name in ("shop", "circle"))
MONITORING = Path(__file__).parent / "monitoring"
_HEADING = "# Made by deploy/kubernetes/build.py from the declarations; change those, or patch it in an overlay.\n"


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full, and keeps the lines of a text: other forms are hard to read and to patch."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Plain.add_representer(str, _Plain.represent_str)


def manifests_of(system: System, duties: Sequence[str], store: str | None) -> dict[str, list[dict[str, Any]]]:
    """The objects of each file of manifests.

    Args:
        system: the deployment.
        duties: duties, besides the roles, that get a Kafka user.
        store: the SecretStore with the zones' keys; None: you make their secrets.

    Raises:
        HushstreamError: the deployment has no such duty.
    """
    parts = {
        "topics.yaml": topics(system),
        "users.yaml": users(system),
        "workers.yaml": [*services(system), *workers(system), *disruptions(system)],
        "monitors.yaml": monitors(system),
        "network.yaml": policies(system),
        "checks.yaml": checks(system),
    }
    if store is not None:
        parts["secrets.yaml"] = external_secrets(system, store)
    if duties:
        parts["duties.yaml"] = users(system, duties)[-len(duties) :]
    for part, first, made in (("gateway.yaml", "gateway", gateway), ("auditors.yaml", VERIFY, auditor)):
        those = [duty for duty in duties if duty.startswith(first)]
        if those:
            objects = [(*made(system, duty), monitor_of(pods_of_duty(system, duty))) for duty in those]
            parts[part] = list(itertools.chain.from_iterable(objects))
    return parts


def chart(system: System, parts: dict[str, list[dict[str, Any]]], folder: Path, files: Sequence[str]) -> dict[str, str]:
    """The texts of the files of a Helm chart: the same manifests, with what differs between clusters as values.

    Args:
        system: the deployment.
        parts: its manifests (`manifests_of`).
        folder: where ``deployment/`` is.
        files: what the workers read of that.
    """
    name, replicas = system.config.deployment, {}
    made = {file: (folder / file).read_text(encoding="utf-8") for file in files}
    for part, objects in parts.items():
        texts = []
        for one in objects:
            text = _dumped(one).replace(f"image: {IMAGE}\n", "image: {{ .Values.image | quote }}\n")
            text = text.replace(BOOTSTRAP, "{{ .Values.bootstrap }}")
            if one["kind"] == "StatefulSet":
                role, count = one["metadata"]["labels"]["hushstream.io/role"], one["spec"]["replicas"]
                replicas[role] = count
                text = text.replace(
                    f"  replicas: {count}\n", f'  replicas: {{{{ index .Values.replicas "{role}" }}}}\n'
                )
            texts.append(text)
        made[f"templates/{part}"] = _HEADING + "---\n".join(texts)
    data = '{{ (.Files.Glob "deployment/*").AsConfig | indent 2 }}\n'
    made["templates/deployment.yaml"] = f"{_dumped(named('v1', 'ConfigMap', f'{name}-deployment'))}data:\n{data}"
    version = importlib.metadata.version("hushstream")
    about = {"apiVersion": "v2", "name": name, "version": version, "appVersion": version, "type": "application"}
    made["Chart.yaml"] = _dumped({**about, "description": f"The deployment {name} of hushstream"})
    made["values.yaml"] = _dumped({"image": f"{IMAGE}:{version}", "bootstrap": BOOTSTRAP, "replicas": replicas})
    return {f"chart/{file}": text for file, text in made.items()}


def monitoring() -> dict[Path, str]:
    """The texts of the files of rules and dashboards, for the public Prometheus and for one of a zone."""
    return {
        MONITORING / endpoint / name: text
        for endpoint in RULES
        for name, text in _with_kustomization(
            {"rules.yaml": rules(endpoint), "dashboards.yaml": dashboards(endpoint)}
        ).items()
    }


def wanted(folder: Path, duties: Sequence[str] = (), store: str | None = None, helm: bool = False) -> dict[Path, str]:
    """The texts of the files of a folder, with ``helm`` those of a chart in it, too.

    Raises:
        HushstreamError: its deployment cannot be read, or has no such duty.
    """
    inside = folder / "deployment"
    system = load(inside)
    prepared = [name for name in kind_of(system.kind).artefacts if (inside / name).exists()]
    files = [f"deployment/{name}" for name in (CONFIGURATION, *prepared)]
    parts = manifests_of(system, duties, store)
    texts = _with_kustomization(
        parts, configMapGenerator=[{"name": f"{system.config.deployment}-deployment", "files": files}]
    )
    return {
        folder / name: text for name, text in (texts | (chart(system, parts, folder, files) if helm else {})).items()
    }


def main() -> int:
    """Write the files, or compare them with the existing ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="where deployment/ is")
    parser.add_argument(
        "--duty",
        action="append",
        default=[],
        metavar="NAME",
        help="a user besides the roles', for instance requeue-edge; of gateway also what runs it, and of "
        "verify-ROLE an auditor of that role",
    )
    parser.add_argument("--secret-store", metavar="NAME", help="fill the zones' secrets from this SecretStore")
    parser.add_argument("--chart", action="store_true", help="also a Helm chart, in chart/")
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    try:
        files = {} if arguments.folders else monitoring()
        for folder in arguments.folders or EXAMPLES:
            files |= wanted(folder, arguments.duty, arguments.secret_store, arguments.chart)
    except HushstreamError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return settle(files, check=arguments.check)


def _with_kustomization(parts: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, str]:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(parts)}
    return {name: _text(objects) for name, objects in {**parts, "kustomization.yaml": [{**head, **more}]}.items()}


def _text(objects: list[dict[str, Any]]) -> str:
    return _HEADING + "---\n".join(map(_dumped, objects))


def _dumped(one: dict[str, Any]) -> str:
    text: str = yaml.dump(one, Dumper=_Plain, sort_keys=False, width=110)
    return text


if __name__ == "__main__":
    sys.exit(main())
