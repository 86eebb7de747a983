"""Measures the speed and the environment of every run, under the same names for all systems."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence

import numpy as np

_REPORTED = ("shown", "rewarded")
"""Names of the counts of what an application reports after a decision."""


def throughput(
    seconds: float, decisions: int, latencies: Sequence[float], counts: Mapping[str, int], memory: Mapping[str, int]
) -> dict[str, float]:
    """The speed of a run.

    Args:
        seconds: from the first context to the end of the play.
        decisions: how many decisions were made.
        latencies: seconds from request to answer, for a sample of the decisions.
        counts: events by outcome; every display and every reward that was reported is an event beside its decision. A
            live run gives no counts, as the number of rewards is zone-private: its events are its decisions.
        memory: peak resident bytes by process.
    """
    events = decisions + sum(counts.get(name, 0) for name in _REPORTED)
    figures = {
        "seconds": seconds,
        "decisions": float(decisions),
        "decisions_per_second": decisions / seconds,
        "events_per_second": events / seconds,
        "decision_seconds_p50": float(np.percentile(latencies, 50)),
        "decision_seconds_p99": float(np.percentile(latencies, 99)),
    }
    return figures | {f"peak_memory_bytes_{name}": float(size) for name, size in memory.items()}


def environment() -> dict[str, str | int]:
    """The versions of Python and numpy, and the number of cores."""
    return {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count() or 1}
