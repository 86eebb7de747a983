"""Compares the time to release windows of null slots with the time to release windows of reports.

The number of slots in a window is public, but their content is private, so the time of a release may not depend on the
content: metrics (`hushstream.agents.observe.metric_table`) and log times show this time. All figures are the thread's
CPU time; ratios are taken within a round. BLAS uses one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.privacy.keys import Key, seeded_key
from hushstream.replay.bench.rows import BenchRow, Progress, at_most, figure
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.contribution.encoder import CENTROID_STEPS
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.release import release_address, release_window
from hushstream.systems.p2b.machines.running import open_running
from hushstream.systems.p2b.shuffler.windows import ClosedBy, ClosedWindow

CODES, ARMS = 32, 10
SLOTS = (1_000, 10_000, 100_000)
MODES = {
    "slot sums": ReleaseConfig(sums="fresh", window_slots=100_000_000),
    "slot sums through a counter": ReleaseConfig(sums="counter", windows=64, window_slots=100_000_000),
    "sampled slot sums": ReleaseConfig(sums="fresh", sampling=0.5, window_slots=100_000_000),
    "tuples": ReleaseConfig(mode="tuples", sampling=0.5, threshold=100, window_slots=100_000_000),
}
RATIO = 1.1
"""With `SLOTS`[-1] slots, the slower kind of window should take at most this many times as long as the faster one."""

_GENESIS = bytes(32)


def release_time_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure each release mode at each size.

    Args:
        progress: called with the name of each measurement.
        rounds: repetitions; figures are medians over them.
    """
    rows: list[BenchRow] = []
    with threadpool_limits(limits=1):
        for name, release in MODES.items():
            for slots in SLOTS:
                progress(f"release of {slots:,} slots, {name}")
                rows += _rows_of(name, release, slots, rounds)
    return rows


def _rows_of(name: str, release: ReleaseConfig, slots: int, rounds: int) -> list[BenchRow]:
    system = _system(release)
    windows = {kind: make(slots) for kind, make in _CONTENTS.items()}
    times: dict[str, list[float]] = {kind: [] for kind in windows}
    for number in range(rounds + 1):
        for kind, contents in windows.items():
            seconds = _seconds(system, seeded_key(number, "bench-release"), contents)
            if number:  # the first release fills the tables' caches
                times[kind].append(seconds)
    ratios = [one / other for one, other in zip(times["reports"], times["nulls"], strict=True)]
    spread = max(median(ratios), 1 / median(ratios))
    what = f"{slots:,} slots, {name}"
    rows = [
        figure(f"release of {what}: {kind} alone", [1e3 * one for one in of], "CPU ms") for kind, of in times.items()
    ]
    if slots < SLOTS[-1]:
        return [*rows, figure(f"release of {what}: reports over nulls", ratios, "x")]
    return [*rows, at_most(f"release of {what}: the slower over the faster", [spread], "x", RATIO)]


def _seconds(system: P2BSystem, key: Key, contents: Sequence[bytes]) -> float:
    running = open_running(system.window_tree, key, release_address(system, _GENESIS, 0))
    closed = ClosedWindow(0, ClosedBy.SLOTS, tuple(contents))
    begin = time.thread_time()
    release_window(system, key, _GENESIS, 0, closed, running)
    return time.thread_time() - begin


def _nulls(slots: int) -> list[bytes]:
    return [bytes(bytearray(pack(None))) for _ in range(slots)]


def _reports(slots: int) -> list[bytes]:
    draws = np.random.default_rng(0)
    codes, arms, levels = (draws.integers(below, size=slots).tolist() for below in (CODES, ARMS, 2))
    return [pack(Report(*fields)) for fields in zip(codes, arms, levels, strict=True)]


_CONTENTS: dict[str, Callable[[int], list[bytes]]] = {"nulls": _nulls, "reports": _reports}


def _system(release: ReleaseConfig) -> P2BSystem:
    """A deployment with an encoder that was not fitted: releases do not depend on its centroids."""
    config = P2BConfig(
        deployment="bench",
        arms=ARMS,
        context=ContextConfig(CODES),
        expected_slots=SLOTS[-1],
        encoder=EncoderConfig(codes=CODES),
        release=release,
    )
    return P2BSystem.of(config, np.eye(CODES, dtype=np.int64) * CENTROID_STEPS)
