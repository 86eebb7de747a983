"""What the tests of the deployment's files share: the files, Grafana's modules, and what a query may name."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hushstream.agents.observe.metrics import METRICS
from hushstream.gateway.metrics import GATEWAY_METRICS
from hushstream.ops.check.follow import AUDIT_METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
CLASSES = {spec.name: spec.metric_class for spec in (*METRICS, *GATEWAY_METRICS, *AUDIT_METRICS)}
ALLOWED = {
    "released": {"released"},
    "slot-public": {"released", "slot-public"},
    "zone-private": {"released", "slot-public", "zone-private"},
}
_METRIC = re.compile(r"\b(hushstream[:_][a-z0-9_:]*|up|ALERTS)\b")


@pytest.fixture(scope="session")
def grafana() -> Iterator[Any]:
    """The modules of ``deploy/grafana``."""
    folder = str(DEPLOY / "grafana")
    names = ("panels", "build", "live")
    sys.path.insert(0, folder)
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(folder)
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def rules() -> dict[str, list[dict[str, Any]]]:
    """Every rule, by file."""
    return {
        path.stem: [
            rule for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
        ]
        for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
    }


@pytest.fixture(scope="session")
def classes_in(rules: dict[str, list[dict[str, Any]]]) -> Any:
    """The classes of all metrics that a query reads, also through recording rules; an unknown name is an error."""
    recorded = {rule["record"]: rule["expr"] for found in rules.values() for rule in found if "record" in rule}

    def classes(expr: str) -> set[str]:
        found: set[str] = set()
        for name in _METRIC.findall(re.sub(r'"[^"]*"', '""', expr)):
            if name in recorded:
                found |= classes(recorded[name])
            elif name in ("up", "ALERTS"):
                found.add("slot-public")
            else:
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                found.add(CLASSES[name if name in CLASSES else base])
        return found

    return classes


@pytest.fixture(scope="session")
def promtool() -> Any:
    """Run promtool in a folder; returns what it printed and its exit code."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")

    def run(*arguments: str, cwd: Path = DEPLOY / "prometheus") -> tuple[int, str]:
        done = subprocess.run(
            [program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300, check=False, encoding="utf-8"
        )
        return done.returncode, done.stdout + done.stderr

    return run
