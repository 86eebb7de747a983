"""The first and second form of equality for BGTplanner, and what three rounds bring on a stream.

Users in two partitions play three rounds once on each runner, under the same seeded keys, on the embedded broker.
Partitions race; what is released, published and predicted must be the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from two_runners import decoded, require_recomputed

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.engine.configuration import PartitionConfig
from hushstream.engine.declare.declaration import System
from hushstream.replay.runners.playing import Place, Recording, play
from hushstream.replay.studies.bgt.play import baseline_of, scored
from hushstream.replay.studies.bgt.run import RatingLoop, RatingsPlayed
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, Split, tastes
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = KeySource(seed=11)


@dataclass(frozen=True, slots=True)
class Both:
    """The same loop on both runners."""

    system: System
    split: Split
    direct: Recording[RatingsPlayed]
    streamed: Recording[RatingsPlayed]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("ratings")
    split = tastes(users=240, items=60, ratings=12, strength=0.2, seed=11).split(11)
    release = ReleaseConfig(epsilon=20.0, pairs=16, top=20)
    config = BgtConfig("equal-ratings", 60, 0, UNIT_SCALE, release, partitions=PartitionConfig(2, 1))
    system = prepare(folder, config, public_dataset="tastes")

    async def on(runner: Any) -> Recording[RatingsPlayed]:
        return await play(system, Place(runner, folder, None, 11), RatingLoop(split, config).run)

    direct, streamed = await asyncio.gather(on("direct"), on("stream"))
    return Both(system, split, direct, streamed)


@pytest.mark.process
def test_every_release_round_and_debit_is_the_same_bytes(run: Both) -> None:
    for topic, schema, count in (
        ("releases", "RatingSums", 3),
        ("rounds", "RatingRound", 3),
        ("ledger", "LedgerEntry", 3),
    ):
        ours, theirs = (
            [codec.encode(schema, fields) for fields in decoded(recording, topic, schema)]
            for recording in (run.direct, run.streamed)
        )
        assert ours == theirs, topic
        assert len(ours) == count


def test_every_slot_is_the_same_whatever_their_order(run: Both) -> None:
    ours, theirs = (
        sorted(codec.encode("RatingSlot", fields) for fields in decoded(recording, "updates", "RatingSlot"))
        for recording in (run.direct, run.streamed)
    )
    assert ours == theirs
    assert len(ours) == 3 * 240


def test_models_and_predictions_are_the_same(run: Both) -> None:
    names = ("version", "biases", "factors", "next_kind", "top", "gains")
    ours, theirs = (
        [{name: model[name] for name in names} for model in decoded(recording, "models", "RatingModel")]
        for recording in (run.direct, run.streamed)
    )
    assert ours == theirs
    np.testing.assert_array_equal(run.direct.played.predicted, run.streamed.played.predicted)


def test_what_both_leave_follows_from_their_logs(run: Both) -> None:
    require_recomputed(run.system, KEYS, run.direct, run.streamed)


def test_three_rounds_on_the_stream_are_better_than_each_device_alone(run: Both) -> None:
    """Seeded: no chance is in it."""
    world, truth = run.split.world, run.split.world.values[run.split.later]
    errors = [scored(found, truth)[0] for found in run.streamed.played.predicted]
    local = baseline_of(world, "alone", 11)[0]
    print(f"rounds {errors}, local {local:.4f}")
    assert errors[-1] < errors[0] < local
