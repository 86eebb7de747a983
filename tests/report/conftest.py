"""Results as runs make them: real guarantees, and rewards drawn from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.report.parts import RoleCheck
from hushstream.replay.report.replayed import RunResult
from hushstream.replay.studies.p2b.play import CONDITION_NAMES, CONDITIONS
from hushstream.replay.studies.p2b.run import reached_text, reward_figures

MakeResult = Callable[..., RunResult]
NOT_PRIVATE_LINE = CONDITION_NAMES["warm_nonprivate"]


def _public_figures() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    rewards = {
        name: (rng.random((300, 10)) < chance).astype(np.float64)
        for name, chance in zip(CONDITIONS, (0.12, 0.5, 0.44), strict=True)
    }
    rows, curve = reward_figures(rewards)
    return {
        "rows": rows,
        "curve": curve,
        "reached": reached_text(rewards, None),
        "unprotected": {NOT_PRIVATE_LINE: NOT_PRIVATE},
        "counts": {"slot": 1400, "rewarded": 32_000},
    }


def _live_figures() -> dict[str, Any]:
    rows, curve = reward_figures({})
    remark = "This is a live run: rewards are exact figures on content and are not shown."
    return {"rows": rows, "curve": curve, "remarks": (remark,), "counts": {"slot": 1400}}


@pytest.fixture(scope="session")
def make_result() -> MakeResult:
    """A public run's result with any field replaced; with ``public=False`` a live one."""
    figures = _public_figures()

    def make(**changes: Any) -> RunResult:
        values = {
            "system": "p2b",
            "title": f"p2b on {changes.get('dataset', 'synthetic')}",
            "dataset": "synthetic",
            "runner": "stream",
            "seed": 3,
            "deployment": "demo",
            "config_digest": "018dbbf12c2a1711938c4169a0651d66",
            "facts": {"release mode": "slot-sums", "sampling": 1.0},
            "privacy": slot_sums_guarantee(epsilon=1),
            "throughput": {"events_per_second": 15_527.25, "decisions_per_second": 7763.5, "seconds": 4.125},
            "verify": {"learner": RoleCheck(27, ties=1), "shuffler": RoleCheck(3)},
            "environment": {"python": "3.11.2", "numpy": "2.2.0", "cores": 2},
            **(figures if changes.get("public", True) else _live_figures()),
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
    return make_result(public=False)
