"""One closed loop, played once on each runner for every way of releasing."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from two_runners import Both, on_both

from hushstream.agents.worker.deployment import prepare
from hushstream.engine.declare.declaration import System
from hushstream.replay.catalogue import make_world
from hushstream.replay.studies.p2b.run import ClosedLoop, Plan, Played
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
)

SEED = 11
CONTRIBUTORS = 60
EVALUATED = 10
ROUNDS = 5
DIMENSION = 5
ARMS = 3
WAIT_FOR_THE_PHASE_END_SECONDS = 1e6
"""Slots settle at the phase end and at no other time: log time, which the runners do not share, decides nothing."""

RELEASES = {
    "slot-sums": ReleaseConfig("slot-sums", epsilon=1.0, sampling=0.5),
    "tuples": ReleaseConfig("tuples", sampling=0.5, threshold=2),
    "paper": ReleaseConfig("paper", sampling=0.5, threshold=3),
}
"""All with secret sampling: a coin must meet the same slot on both runners."""


def system_of(folder: Path, mode: str) -> System:
    return prepare(
        folder,
        P2BConfig(
            deployment=f"equal-{mode}",
            arms=ARMS,
            context=ContextConfig(DIMENSION),
            expected_slots=CONTRIBUTORS,
            encoder=EncoderConfig(codes=3),
            slot=SlotConfig(ROUNDS, settle_seconds=WAIT_FOR_THE_PHASE_END_SECONDS),
            release=RELEASES[mode],
            partitions=PartitionConfig(learner=2, shuffler=2),
        ),
        public_dataset="synthetic",
    )


async def both(folder: Path, mode: str) -> Both[Played]:
    """Two learner and two shuffler partitions; both runs under the same seeded keys."""
    system = system_of(folder, mode)

    def loop() -> ClosedLoop:
        world = make_world(
            "synthetic", users=CONTRIBUTORS + EVALUATED, seed=SEED, rounds=ROUNDS, dimension=DIMENSION, arms=ARMS
        )
        return ClosedLoop(world, Plan(CONTRIBUTORS, EVALUATED))

    return await on_both(system, folder, SEED, loop)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(RELEASES))
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both[Played]:
    """One mode on both runners."""
    return await both(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def key_seed() -> int:
    """The seed of the keys of all runs."""
    return SEED
