"""Declares BGTplanner's study, which `hushstream.replay.study` finds.

Measures how fast the collector takes slots and ends a round, and the size of a round, for ``make bench``.

Rates are per second of the thread's CPU time, medians over rounds. Slots come from the columns of many users. Every id
is counted once, in batches and one by one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.privacy.keys import seeded_key
from hushstream.replay.datasets.builtin import ML_100K, simulated_dataset
from hushstream.replay.experiments.rows import BenchRow, at_least, at_most, figure
from hushstream.replay.experiments.rows import Progress as Told
from hushstream.replay.experiments.systems import foretold_worlds
from hushstream.replay.studies.bgt.audits import audit_config, rows
from hushstream.replay.studies.bgt.experiments import (
    EXPERIMENTS,
    foretold,
    paper_line,
    run_three_slots,
)
from hushstream.replay.studies.bgt.play import BgtOptions, run_bgt
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, RatingWorld, filmtrust, load_ratings, ml_100k, tastes
from hushstream.replay.study import Study
from hushstream.systems.bgt.artefacts import bgt_address
from hushstream.systems.bgt.configuration import BgtConfig, bgt_digest
from hushstream.systems.bgt.edge.agent import make_slots
from hushstream.systems.bgt.records import (
    Model,
    Round,
    Slots,
    first_round,
    slot_bytes,
)
from hushstream.systems.bgt.shuffler import Collector

ML_RATINGS = replace(
    ML_100K,
    name="ml-ratings",
    description="MovieLens-100K as ratings on users' devices, with genres and years of films",
    note="The same files as ml-100k; `replay bgt` accepts that name, too.",
)

TASTES = simulated_dataset(
    "tastes",
    "Simulated ratings of users with offsets and tastes",
    page="https://arxiv.org/abs/2412.05564",
)


ITEMS, USERS, RATINGS = 1_700, 8_000, 100
SINGLE = 2_000


class _Rounds:
    """Slots of each kind of round, and collectors for them."""

    def __init__(self, seed: int) -> None:
        world = tastes(users=USERS, items=ITEMS, ratings=RATINGS, seed=seed)
        self.config = BgtConfig("bench", ITEMS, scale=UNIT_SCALE)
        known = world.split(seed).known(self.config)
        draw = np.random.default_rng(seed)
        salts = draw.integers(0, 2**63, USERS).astype(np.uint64)
        top = np.arange(self.config.top, dtype=np.int64)
        none, some = np.zeros((ITEMS, 0)), 0.1 * draw.standard_normal((ITEMS, self.config.release.factors))
        self.rounds = (
            first_round(self.config),
            Round(1, "pairs", Model(np.zeros(ITEMS), none), top, np.ones(len(top))),
            Round(2, "factors", Model(np.zeros(ITEMS), some)),
        )
        begin = time.thread_time()
        self.slots = [make_slots(known, asked, self.config, salts) for asked in self.rounds]
        self.made = len(self.rounds) * USERS / (time.thread_time() - begin)
        self.ids = [user.to_bytes(16, "big") for user in range(USERS)]
        self._key = seeded_key(seed, "collector")

    def collector(self, asked: Round) -> Collector:
        """A collector of a round without answers."""
        return Collector(asked, self.config, self._key, bgt_address(self.config, bgt_digest(self.config), bytes(32), 0))

    def batched(self, place: int) -> tuple[float, float]:
        """Slots per second in one batch, and the seconds that the end of the round takes."""
        collector = self.collector(self.rounds[place])
        begin = time.thread_time()
        collector.take(self.slots[place], self.ids)
        taken = time.thread_time()
        collector.release()
        return USERS / (taken - begin), time.thread_time() - taken

    def single(self) -> float:
        """Slots of kind A per second, taken one at a time."""
        collector = self.collector(self.rounds[0])
        parts: list[tuple[Slots, list[bytes]]] = [
            (self.slots[0][place : place + 1], self.ids[place : place + 1]) for place in range(SINGLE)
        ]
        begin = time.thread_time()
        for slots, ids in parts:
            collector.take(slots, ids)
        return SINGLE / (time.thread_time() - begin)


def bgt_rows(progress: Told, rounds: int = 5) -> list[BenchRow]:
    """Measure making, taking and sealing.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    progress("BGTplanner")
    with threadpool_limits(limits=1):
        played = [_Rounds(seed) for seed in range(rounds)]
        batches = [[one.batched(place) for one in played] for place in range(3)]
        single = [one.single() for one in played]
    shape = f"{ITEMS:,} items, slots of {played[0].config.release.pairs} pairs"
    size = float(slot_bytes(played[0].config))
    rows = [
        at_least("BGTplanner, take A slots one at a time", single, "slots/CPU s", 5_000),
        at_least(
            f"BGTplanner, take A slots in one batch, {shape}", [rate for rate, _ in batches[0]], "slots/CPU s", 1e5
        ),
        figure("BGTplanner, take B slots in one batch", [rate for rate, _ in batches[1]], "slots/CPU s"),
        figure("BGTplanner, take C slots in one batch", [rate for rate, _ in batches[2]], "slots/CPU s"),
        figure("BGTplanner, make slots of many users", [one.made for one in played], "slots/CPU s"),
    ]
    for kind, found in zip("ABC", batches, strict=True):
        rows.append(at_most(f"BGTplanner, end a round of kind {kind}", [end for _, end in found], "CPU s", 1.0))
    return [
        *rows,
        figure("BGTplanner, content of one slot, of any kind", [size], "bytes"),
        figure(f"BGTplanner, content of a round of {USERS:,} users", [size * USERS], "bytes"),
    ]


STUDY = Study(
    system="bgt",
    options=BgtOptions,
    dataset="filmtrust",
    play=run_bgt,
    worlds={"filmtrust": filmtrust, "ml-ratings": ml_100k, "tastes": tastes, "own-ratings": load_ratings},
    own_table="own-ratings",
    datasets=(ML_RATINGS, TASTES),
    plays=lambda made: made is RatingWorld,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_three_slots,
    audits=rows,
    audit_config=audit_config,
    bench=bgt_rows,
)
