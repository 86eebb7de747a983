"""Results as runs make them: real guarantees, rewards and cells drawn from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.studies.p2b.report.results import CONDITIONS, CellRow, RunResult
from hushstream.replay.studies.p2b.report.summaries import summarise

MakeResult = Callable[..., RunResult]


def _public_figures() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    conditions, rows = {}, []
    for name, chance in zip(CONDITIONS, (0.12, 0.5, 0.44), strict=True):
        conditions[name], of_condition = summarise(name, (rng.random((300, 10)) < chance).astype(np.float64))
        rows += of_condition
    exact = rng.poisson(8, (2, 20))
    noised = exact + rng.integers(-3, 4, (2, 20))
    cells = [CellRow(i // 4, i % 4, *(int(v) for v in (*exact[:, i], *noised[:, i]))) for i in range(20)]
    return {
        "conditions": conditions,
        "rows": tuple(rows),
        "cells": tuple(cells),
        "counts": {"slot": 1400, "rewarded": 32_000},
    }


@pytest.fixture(scope="session")
def make_result() -> MakeResult:
    """A public run's result with any field replaced; with ``public_dataset=False`` a live one."""
    figures = _public_figures()

    def make(**changes: Any) -> RunResult:
        public = changes.get("public_dataset", True)
        values = {
            "system": "p2b",
            "dataset": "synthetic",
            "runner": "stream",
            "seed": 3,
            "deployment": "demo",
            "config_digest": "018dbbf12c2a1711938c4169a0651d66",
            "public_dataset": True,
            "release_mode": "slot-sums",
            "sampling": 1.0,
            "privacy": StatedGuarantee.of(slot_sums_guarantee(epsilon=1)),
            "throughput": {"events_per_second": 15_527.25, "decisions_per_second": 7763.5, "seconds": 4.125},
            "verify": {"learner": RoleCheck(27, ties=1), "shuffler": RoleCheck(3)},
            "environment": {"python": "3.11.2", "numpy": "2.2.0", "cores": 2},
            **(figures if public else {"counts": {"slot": 1400}}),
        }
        return RunResult(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def result(make_result: MakeResult) -> RunResult:
    """A public run's result."""
    return make_result()


@pytest.fixture(scope="session")
def live_result(make_result: MakeResult) -> RunResult:
    """A live run's result: the guarantee, slot-public counts and speed."""
    return make_result(public_dataset=False)
