"""``results.json``: a run's result as one JSON document with stable keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from typing import Any

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.results import (
    CONDITIONS,
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
        "conditions": {name: asdict(result.conditions[name]) for name in CONDITIONS if name in result.conditions},
        "comparison": None if compared is None else compared.as_json(),
        "rows": [asdict(row) for row in result.rows],
        "privacy": {**result.privacy.values, "text": list(result.privacy.lines)},
        **counts_json(result.counts),
        "throughput": dict(result.throughput),
        "cells": None if result.cells is None else _columns(result.cells),
        "verify": verify_json(result.verify),
        "environment": dict(result.environment),
    }


def _columns(cells: tuple[CellRow, ...]) -> dict[str, list[int]]:
    columns = zip(*map(astuple, cells), strict=True) if cells else [()] * len(_CELL_COLUMNS)
    return {name: list(column) for name, column in zip(_CELL_COLUMNS, columns, strict=True)}


def counts_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """Counts and, under the same names, the privacy class of each."""
    return {"counts": dict(counts), "count_classes": {name: COUNT_CLASSES[name] for name in counts}}


def verify_json(verify: Mapping[str, RoleCheck] | None) -> dict[str, Any] | None:
    """What `verify` found, by role, the worst of it first; None where it was not asked."""
    return None if verify is None else {role: {"status": one.status, **asdict(one)} for role, one in verify.items()}
