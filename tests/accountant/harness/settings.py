"""Every privacy setting of the repository, found in its files: deployments, experiments, audits, benchmarks and tests.

How: each YAML file, each YAML block of a page and each text of a test that says ``deployment:`` is read. Of each Python
file the syntax tree is walked: every call's keywords and every literal mapping whose names are fields of one of `KINDS`
are taken as a setting of that kind, whoever they are for. Values are evaluated in the file's module (experiments,
audits, benchmarks) or among its literal constants (tests); what a run alone knows stays at its default. What the kind
refuses is no setting: refusals are tested so.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hushstream.agents.worker.deployment import parse_config
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.system import DeploymentValues
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig
from hushstream.systems.p2b.configuration import MeasurementConfig, ReleaseConfig, SlotConfig

ROOT = Path(__file__).parents[3]
KINDS = {kind.__name__: kind for kind in (ReleaseConfig, ContinualConfig, MeasurementConfig, BudgetConfig,
                                          FeatureConfig, SlotConfig)}  # fmt: skip
_NAMES = {name: tuple(field.name for field in fields(kind)) for name, kind in KINDS.items()}
_DEPLOYMENT = re.compile(r"^deployment:", re.MULTILINE)
_BLOCKS = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SOURCES = ("tests", "deploy", "replay/hushstream/replay")


@dataclass(frozen=True)
class Found:
    """Whole configurations, and settings by kind; each once."""

    whole: tuple[DeploymentValues, ...]
    by_kind: Mapping[str, tuple[Any, ...]]


@cache
def all_settings() -> Found:
    """Walk the repository."""
    found: dict[str, dict[Any, None]] = {name: {} for name in KINDS}
    whole: dict[DeploymentValues, None] = dict.fromkeys(_deployments())
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            whole |= dict.fromkeys(_in_strings(tree))
            for name, values in _candidates(tree, _names_in(path)):
                try:
                    found[name][KINDS[name](**values)] = None
                except (HushstreamError, TypeError):
                    continue
    return Found(tuple(whole), {name: tuple(settings) for name, settings in found.items()})


def _deployments() -> Iterator[DeploymentValues]:
    for path in sorted([*ROOT.glob("*/**/*.yaml"), *ROOT.glob("**/*.md")]):
        # `former` has configurations in the keys of earlier releases, which are refused; `build` pages of any release.
        if {".venv", "build", "former"} & set(path.parts):
            continue
        text = path.read_text("utf-8")
        for block in _BLOCKS.findall(text) if path.suffix == ".md" else [text]:
            if _DEPLOYMENT.search(block):
                yield parse_config(yaml.safe_load(block), str(path))


def _in_strings(tree: ast.AST) -> Iterator[DeploymentValues]:
    """Deployments that a test writes to a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _DEPLOYMENT.search(node.value):
            try:
                yield parse_config(yaml.safe_load(node.value))
            except (HushstreamError, yaml.YAMLError):
                continue


def _names_in(path: Path) -> dict[str, Any]:
    """What expressions of a file may name."""
    if "replay" in path.relative_to(ROOT).parts[:1]:
        return dict(vars(importlib.import_module(".".join(path.with_suffix("").relative_to(ROOT / "replay").parts))))
    names: dict[str, Any] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.update((node.targets[0].id, value) for value in _value(node.value, names))
    return names


def _candidates(tree: ast.AST, names: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in ast.walk(tree):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        kinds = [called] if called in KINDS else list(KINDS)
        for kind in kinds:
            pairs = dict(_pairs(node, _NAMES[kind] if called in KINDS else ()))
            if (pairs or called in KINDS) and pairs.keys() <= set(_NAMES[kind]):
                yield kind, {name: value for name, given in pairs.items() for value in _value(given, names)}


def _pairs(node: ast.AST, positional: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Call):
        yield from zip(positional, node.args, strict=False)
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _value(expression: ast.expr, names: dict[str, Any]) -> list[Any]:
    """What an expression is, or nothing, where only a run can tell."""
    if isinstance(expression, ast.Constant):
        return [expression.value]
    if any(isinstance(node, ast.Call) for node in ast.walk(expression)):
        return []
    try:
        return [eval(compile(ast.Expression(expression), "setting", "eval"), {"__builtins__": {}}, names)]
    except (NameError, TypeError, AttributeError, KeyError, IndexError, ValueError, SyntaxError):
        return []
