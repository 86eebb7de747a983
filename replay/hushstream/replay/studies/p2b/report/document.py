"""``results.json``: a run's result as one JSON document with stable keys."""

from __future__ import annotations

from dataclasses import asdict, astuple, fields
from typing import Any

from hushstream.replay.report.counts import counts_json
from hushstream.replay.report.results import verify_json
from hushstream.replay.studies.p2b.report.results import CONDITIONS, CellRow, RunResult
from hushstream.replay.studies.p2b.report.summaries import headline
from hushstream.replay.studies.p2b.report.wording import figures_of

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

    ``comparison`` (warm private against cold) and ``count_classes`` follow from the rest; they are for readers.
    """
    compared = headline(result)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "answers": list(result.answers),
        "payoff": None if result.payoff is None else result.payoff.as_json(),
        "kept": None if result.kept is None else result.kept.as_json(),
        "run": {name: getattr(result, name) for name in _RUN},
        "marks": list(result.marks),
        "figures": figures_of(result),
        "conditions": {name: asdict(result.conditions[name]) for name in CONDITIONS if name in result.conditions},
        "comparison_arm": None if result.comparison_arm is None else result.comparison_arm.as_json(),
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
