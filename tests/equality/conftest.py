"""One closed loop, played once on each runner for every way of releasing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hushstream.agents.worker.deployment import prepare
from hushstream.engine.declare.declaration import System
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.playing import Place, Recording, play
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


@dataclass(frozen=True, slots=True)
class Both:
    """The same loop on both runners."""

    system: System
    folder: Path
    direct: Recording[Played]
    stream: Recording[Played]


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


async def both(folder: Path, mode: str) -> Both:
    """Two learner and two shuffler partitions; both runs under the same seeded keys."""
    system = system_of(folder, mode)

    async def on(runner: Any) -> Recording[Played]:
        world = make_world(
            "synthetic", users=CONTRIBUTORS + EVALUATED, seed=SEED, rounds=ROUNDS, dimension=DIMENSION, arms=ARMS
        )
        loop = ClosedLoop(world, Plan(CONTRIBUTORS, EVALUATED))
        return await play(system, Place(runner, folder, None, SEED), loop.run)

    direct, stream = await asyncio.gather(on("direct"), on("stream"))
    return Both(system, folder, direct, stream)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(RELEASES))
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both:
    """One mode on both runners."""
    return await both(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def key_seed() -> int:
    """The seed of the keys of all runs."""
    return SEED
