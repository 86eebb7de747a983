"""The first and second form of equality for BGTplanner, and what three rounds bring on a stream.

Users in two partitions play three rounds once on each runner, under the same seeded keys, on the embedded broker.
Partitions race; what is released, published and predicted must be the same.
"""

from __future__ import annotations

import pytest
import pytest_asyncio
from two_runners import Both, on_both, require_recomputed

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.engine.configuration import PartitionConfig
from hushstream.replay.studies.bgt.play import RatingLoop, RatingsPlayed, baseline_of, scored
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, Split, tastes
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = KeySource(seed=11)


def ratings() -> Split:
    return tastes(users=240, items=60, ratings=12, strength=0.2, seed=11).split(11)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> Both[RatingsPlayed]:
    folder, split = tmp_path_factory.mktemp("ratings"), ratings()
    release = ReleaseConfig(epsilon=20.0, pairs=16, top=20)
    config = BgtConfig("equal-ratings", 60, 0, UNIT_SCALE, release, partitions=PartitionConfig(2, 1))
    system = prepare(folder, config, public_dataset="tastes")
    return await on_both(system, folder, 11, lambda: RatingLoop(split, config))


@pytest.mark.process
def test_every_release_round_and_debit_is_the_same_bytes(run):
    for topic, schema, count in (
        ("releases", "RatingSums", 3),
        ("rounds", "RatingRound", 3),
        ("ledger", "LedgerEntry", 3),
    ):
        assert len(run.equal(topic, schema)) == count


def test_every_slot_is_the_same_whatever_their_order(run):
    assert len(run.equal("updates", "RatingSlot", ordered=False)) == 3 * 240


def test_models_and_predictions_are_the_same(run):
    assert run.equal("models", "RatingModel", "version", "biases", "factors", "next_kind", "top", "gains")
    run.require_played("predicted")


def test_what_both_leave_follows_from_their_logs(run):
    require_recomputed(run.system, KEYS, run.direct, run.stream)


def test_three_rounds_on_the_stream_are_better_than_each_device_alone(run):
    """Seeded: no chance is in it."""
    split = ratings()
    world, truth = split.world, split.world.values[split.later]
    errors = [scored(found, truth)[0] for found in run.stream.played.predicted]
    local = baseline_of(world, "alone", 11)[0]
    print(f"rounds {errors}, local {local:.4f}")
    assert errors[-1] < errors[0] < local
