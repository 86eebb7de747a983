"""Write the Kubernetes manifests of a deployment: ``python deploy/kubernetes/build.py [FOLDER ...] [--check]``.

A folder holds ``deployment/`` (what `hushstream prepare` made) and gets the manifests beside it. Without a folder,
those of the two examples of this repository are written, and rules and dashboards for all deployments into
``monitoring/``. ``--check`` writes nothing and exits 1 when a file differs from what would be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from manifests import VERIFY, auditor, disruptions, gateway, policies, services, topics, users, workers
from monitoring import RULES, auditor_monitor, dashboards, gateway_monitor, monitors, rules

from hushstream.agents.worker.deployment import CONFIGURATION, load
from hushstream.engine.declare.declaration import System
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


def manifests_of(system: System, prepared: Sequence[str], duties: Sequence[str] = ()) -> dict[str, str]:
    """The text of each file of manifests.

    Args:
        system: the deployment.
        prepared: names of the files that were prepared beside its configuration.
        duties: duties, besides the roles, that get a Kafka user.

    Raises:
        HushstreamError: the deployment has no such duty.
    """
    parts = {
        "topics.yaml": topics(system),
        "users.yaml": users(system),
        "workers.yaml": [*services(system), *workers(system), *disruptions(system)],
        "monitors.yaml": monitors(system),
        "network.yaml": policies(system),
    }
    if duties:
        parts["duties.yaml"] = users(system, duties)[-len(duties) :]
    gateways = [duty for duty in duties if duty.partition(".")[0] == "gateway"]
    if gateways:
        parts["gateway.yaml"] = [
            one for duty in gateways for one in (*gateway(system, duty), gateway_monitor(system, duty))
        ]
    audited = [duty for duty in duties if duty.startswith(VERIFY)]
    if audited:
        parts["auditors.yaml"] = [
            one for duty in audited for one in (*auditor(system, duty), auditor_monitor(system, duty))
        ]
    files = [f"deployment/{name}" for name in (CONFIGURATION, *prepared)]
    generators = [{"name": f"{system.config.deployment}-deployment", "files": files}]
    return _with_kustomization(parts, configMapGenerator=generators)


def monitoring() -> dict[Path, str]:
    """The texts of the files of rules and dashboards, for the public Prometheus and for one of a zone."""
    return {
        MONITORING / endpoint / name: text
        for endpoint in RULES
        for name, text in _with_kustomization(
            {"rules.yaml": rules(endpoint), "dashboards.yaml": dashboards(endpoint)}
        ).items()
    }


def wanted(folder: Path, duties: Sequence[str] = ()) -> dict[Path, str]:
    """The texts of the files of a folder.

    Raises:
        HushstreamError: its deployment cannot be read, or has no such duty.
    """
    inside = folder / "deployment"
    system = load(inside)
    prepared = [name for name in kind_of(system.kind).artefacts if (inside / name).exists()]
    return {folder / name: text for name, text in manifests_of(system, prepared, duties).items()}


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
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    try:
        files = {} if arguments.folders else monitoring()
        for folder in arguments.folders or EXAMPLES:
            files |= wanted(folder, arguments.duty)
    except HushstreamError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    differing = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in differing:
        if arguments.check:
            print(f"{path}: differs from the declarations; run deploy/kubernetes/build.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
            print(path)
    return 1 if arguments.check and differing else 0


def _with_kustomization(parts: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, str]:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(parts)}
    return {name: _text(objects) for name, objects in {**parts, "kustomization.yaml": [{**head, **more}]}.items()}


def _text(objects: list[dict[str, Any]]) -> str:
    return _HEADING + "---\n".join(yaml.dump(one, Dumper=_Plain, sort_keys=False, width=110) for one in objects)


if __name__ == "__main__":
    sys.exit(main())
