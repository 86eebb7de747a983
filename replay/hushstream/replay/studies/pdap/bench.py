"""The benchmarks of P-DAP: stages alone, and a vendor's learner on a stream.

Measures how fast P-DAP chooses and learns, and the time of a model, for ``make bench``.

Choose and learn: a batch of contexts is answered, and its outcomes go into the counter. Windows are closed, and models
drawn and applied, outside of that time, as on the stream. Rates are per second of the thread's CPU time, medians over
rounds.

On a stream, a vendor's learner answers contexts that are on the log already. Rates are computed from the broker's log
times, as in every stream benchmark.
"""

from __future__ import annotations

import time
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.privacy.keys import seeded_key
from hushstream.replay.bench.journal import WorkerRun, worker_rows
from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, figure
from hushstream.replay.studies.pdap.play import keyed_noise
from hushstream.replay.studies.pdap.worlds import names as names_from
from hushstream.schemas import codec
from hushstream.schemas.topics import of_party
from hushstream.systems.pdap.algorithm.aggregate import Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.configuration import BlockConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter import Counter

Contexts: TypeAlias = NDArray[np.float32]

DIMENSION, VENDORS, ARMS = 5, 4, 1_000
BATCH = 256
EVENTS = 64 * BATCH
WARM = 60_000
"""The number of outcomes of a window; after two windows about 1,000 cells are open."""


class _Deployment:
    """A warm model, and batches that were not seen before."""

    def __init__(self, seed: int) -> None:
        self.config = PdapConfig("bench", _vendors(), DIMENSION, release=BlockConfig(first_window=WARM))
        key = seeded_key(seed, "counter")
        self.counter = Counter(self.config, keyed_noise(self.config, key, 0))
        self.aggregate = Aggregate(self.config)
        self.serving = Serving(self.config.grid, key)
        self.serving.apply(self.aggregate.publish())
        self.draws = np.random.default_rng(seed)
        self.users = [b"user %08d" % place for place in range(EVENTS)]
        self.events = [b"%d" % place for place in range(EVENTS)]
        self.learn(WARM, WARM)
        self.turn()
        self.learn(WARM, WARM)
        self.seconds = self.turn()

    def learn(self, count: int, batch: int) -> float:
        """Answer ``count`` contexts in batches, and count their outcomes; return the CPU seconds."""
        contexts = self.draws.random((count, DIMENSION)).astype(np.float32)
        clicks = (self.draws.random(count) < 0.4).astype(np.int64)
        users, events = (names * (-(-count // EVENTS)) for names in (self.users, self.events))
        begin = time.thread_time()
        for first in range(0, count, batch):
            part = slice(first, first + batch)
            some = contexts[part]
            found = self.serving.choose(some, users[part], events[part])
            named = names_from(self.counter.taken, len(some))
            self.counter.take(Outcomes(found.cells, found.arrivals, found.arms, clicks[part], named))
        return time.thread_time() - begin

    def turn(self) -> float:
        """Close the window and publish a model; return the CPU seconds."""
        begin = time.thread_time()
        self.aggregate.fold(self.counter.close(self.counter.window))
        self.serving.apply(self.aggregate.publish())
        return time.thread_time() - begin


def pdap_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure choosing and learning in batches, and the close of a window with its model.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    progress("P-DAP")
    with threadpool_limits(limits=1):
        deployments = [_Deployment(seed) for seed in range(rounds)]
        batched = [EVENTS / one.learn(EVENTS, BATCH) for one in deployments]
    shape = f"d={DIMENSION}, {VENDORS} x {ARMS:,} arms"
    cells = [float(len(one.aggregate.partition)) for one in deployments]
    return [
        at_least(f"P-DAP, choose and learn in batches of {BATCH}, {shape}", batched, "events/CPU s", 160_000),
        figure(f"P-DAP, close a window of {WARM:,} and publish a model", [one.seconds for one in deployments], "CPU s"),
        figure("P-DAP, open cells of that model", cells, "cells"),
    ]


USERS, CONTEXTS = 400, 40_000
FIRST = "vendor-0"


def pdap_stream_rows(progress: Progress, rounds: int = 5, contexts: int = CONTEXTS) -> list[BenchRow]:
    """Measure one vendor's learner.

    Args:
        progress: called with what is being measured.
        rounds: figures are medians over them.
        contexts: how many contexts are on the log when the worker starts.

    Raises:
        BenchFailed: the worker ended, or made no more progress.
    """
    run = WorkerRun(
        f"P-DAP, a vendor's learner, one context a record, d={DIMENSION}, {VENDORS} x {ARMS:,}",
        "contexts",
        PdapConfig("bench", _vendors(), DIMENSION),
        zone=of_party("edge", FIRST),
        role=of_party("learner", FIRST),
        topic=of_party("contexts", FIRST),
        values=[_contexts(contexts)],
        output=of_party("decisions", FIRST),
        enough=contexts,
    )
    return worker_rows(run, progress, rounds)


def _vendors() -> tuple[VendorConfig, ...]:
    return tuple(VendorConfig(f"vendor-{place}", ARMS) for place in range(VENDORS))


def _contexts(count: int) -> list[bytes]:
    points = np.random.default_rng(0).random((count, DIMENSION)).astype("<f4")
    return [
        codec.encode(
            "Context",
            {
                "event_id": f"event-{number:08d}",
                "user": f"user-{number % USERS:04d}",
                "line": FIRST,
                "context": point.tobytes(),
            },
        )
        for number, point in enumerate(points)
    ]
