"""``results.json``: a run's result as one JSON document with stable keys, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, fields
from typing import Any, TypeVar

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.errors import BadResult
from hushstream.replay.report.results import (
    ARMS,
    ArmRow,
    ArmSummary,
    CellRow,
    RoleCheck,
    RunResult,
    StatedGuarantee,
)
from hushstream.replay.report.summaries import headline

T = TypeVar("T")

SCHEMA = "hushstream.run"
SCHEMA_VERSION = 1

_RUN = (
    "system",
    "dataset",
    "runner",
    "seed",
    "deployment",
    "config_digest",
    "public_dataset",
    "release_mode",
    "sampling",
)
_CELL_COLUMNS = tuple(column.name for column in fields(CellRow))
_DERIVED = ("comparison", "count_classes")
_KEYS = (
    "schema",
    "schema_version",
    "run",
    "marks",
    "arms",
    "rows",
    "privacy",
    "counts",
    "throughput",
    "cells",
    "verify",
    "environment",
)


def as_json(result: RunResult) -> dict[str, Any]:
    """The whole result as plain values.

    ``comparison`` (warm private against cold) and ``count_classes`` follow from the rest and stand there for
    readers; `from_json` does not read them.
    """
    compared = headline(result)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run": {name: getattr(result, name) for name in _RUN},
        "marks": list(result.marks),
        "arms": {name: asdict(result.arms[name]) for name in ARMS if name in result.arms},
        "comparison": None if compared is None else compared.as_json(),
        "rows": [asdict(row) for row in result.rows],
        "privacy": {**result.privacy.values, "text": list(result.privacy.lines)},
        "counts": dict(result.counts),
        "count_classes": {name: COUNT_CLASSES[name] for name in result.counts},
        "throughput": dict(result.throughput),
        "cells": None if result.cells is None else _columns(result.cells),
        "verify": None if result.verify is None else {role: _check(check) for role, check in result.verify.items()},
        "environment": dict(result.environment),
    }


def from_json(document: Mapping[str, Any]) -> RunResult:
    """The result that `as_json` wrote.

    Raises:
        BadResult: another schema or version, a missing or unknown key, or a value that a result refuses.
    """
    if document.get("schema") != SCHEMA or document.get("schema_version") != SCHEMA_VERSION:
        raise BadResult(
            f"results: expected schema {SCHEMA} version {SCHEMA_VERSION}, "
            f"got {document.get('schema')!r} version {document.get('schema_version')!r}"
        )
    _require_keys("results", set(document) - set(_DERIVED), _KEYS)
    _require_keys("results.run", set(document["run"]), _RUN)
    privacy = dict(document["privacy"])
    lines = tuple(privacy.pop("text", ()))
    cells, verify = document["cells"], document["verify"]
    return RunResult(
        **document["run"],
        privacy=StatedGuarantee(privacy, lines),
        arms={name: _build("arms", ArmSummary, values) for name, values in document["arms"].items()},
        rows=tuple(_build("rows", ArmRow, row) for row in document["rows"]),
        counts=document["counts"],
        throughput=document["throughput"],
        cells=None if cells is None else _rows(cells),
        verify=None if verify is None else {role: _role_check(check) for role, check in verify.items()},
        marks=tuple(document["marks"]),
        environment=document["environment"],
    )


def _columns(cells: tuple[CellRow, ...]) -> dict[str, list[int]]:
    columns = zip(*map(astuple, cells), strict=True) if cells else [()] * len(_CELL_COLUMNS)
    return {name: list(column) for name, column in zip(_CELL_COLUMNS, columns, strict=True)}


def _rows(columns: Mapping[str, list[int]]) -> tuple[CellRow, ...]:
    _require_keys("results.cells", set(columns), _CELL_COLUMNS)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise BadResult(f"results.cells: expected columns of one length, got lengths {sorted(lengths)}")
    return tuple(CellRow(*row) for row in zip(*(columns[name] for name in _CELL_COLUMNS), strict=True))


def _check(check: RoleCheck) -> dict[str, Any]:
    return {"status": check.status, **asdict(check)}


def _role_check(values: Mapping[str, Any]) -> RoleCheck:
    return _build("verify", RoleCheck, {name: value for name, value in values.items() if name != "status"})


def _build(name: str, make: Callable[..., T], values: Mapping[str, Any]) -> T:
    try:
        return make(**values)
    except TypeError:
        raise BadResult(f"results.{name}: expected other keys than {', '.join(sorted(values))}") from None


def _require_keys(name: str, got: set[str], expected: tuple[str, ...]) -> None:
    if got != set(expected):
        raise BadResult(
            f"{name}: expected the keys {', '.join(expected)}; missing: "
            f"{', '.join(sorted(set(expected) - got)) or 'none'}; unknown: "
            f"{', '.join(sorted(got - set(expected))) or 'none'}"
        )
