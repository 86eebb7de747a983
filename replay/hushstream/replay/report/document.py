"""``results.json``: a run's result as one JSON document with stable keys."""

from __future__ import annotations

from dataclasses import asdict, astuple, fields
from typing import Any

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.results import (
    ARMS,
    CellRow,
    RoleCheck,
    RunResult,
)
from hushstream.replay.report.summaries import headline

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


def as_json(result: RunResult) -> dict[str, Any]:
    """The whole result as plain values.

    ``comparison`` (warm private against cold) and ``count_classes`` follow from the rest and stand there for
    readers.
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


def _columns(cells: tuple[CellRow, ...]) -> dict[str, list[int]]:
    columns = zip(*map(astuple, cells), strict=True) if cells else [()] * len(_CELL_COLUMNS)
    return {name: list(column) for name, column in zip(_CELL_COLUMNS, columns, strict=True)}


def _check(check: RoleCheck) -> dict[str, Any]:
    return {"status": check.status, **asdict(check)}
