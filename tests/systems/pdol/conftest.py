from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hushstream.privacy.keys import seeded_key
from hushstream.systems.pdol.algorithm.counters import Counters, NodeState, counter_address, plan_of
from hushstream.systems.pdol.algorithm.rows import Rows, quantise, unit_rows
from hushstream.systems.pdol.configuration import UNIT, PdolConfig, RecordConfig, SharingConfig, pdol_digest

DIMENSION = 130
"""More features than moments are released for: leaves hold gradients."""
SLOTS, HORIZON = 3, 4


def config_of(counter: str = "blt", nodes: int = 2, epsilon: float = 8.0, **options) -> PdolConfig:
    return PdolConfig(
        "tests",
        nodes,
        RecordConfig(DIMENSION),
        SharingConfig(counter, epsilon, 1e-6, SLOTS, HORIZON),
        **options,
    )


def counters_of(config: PdolConfig, domain: int = 0, seed: int = 1) -> Counters:
    plan = plan_of(config.sharing, config.records.dimension)
    address = counter_address(config, pdol_digest(config), bytes(32), 0, domain, 0)
    silent = config.sharing.counter == "exact"
    return Counters(plan, seeded_key(seed, f"domain-{domain}"), address, config.records.dimension, silent)


def node_of(config: PdolConfig, domain: int = 0, seed: int = 1) -> NodeState:
    return NodeState(domain, counters_of(config, domain, seed), config.slots_of(domain))


def records(count: int, seed: int = 0, dimension: int = DIMENSION) -> Rows:
    draw = np.random.default_rng(seed)
    present = draw.random((count, dimension)) < 0.3
    present[:, -1] = True
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    values = unit_rows(ends, draw.normal(size=ends[-1]))
    labels = np.where(draw.random(count) < 0.5, 1, -1)
    rows, why = quantise(ends, np.nonzero(present)[1], values, labels, dimension)
    assert not why.any()
    return rows


def random_model(seed: int = 0, dimension: int = DIMENSION) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2 * UNIT, 2 * UNIT, dimension).astype(np.int32)


@pytest.fixture(params=["blt", "negative-digit", "exact"])
def config(request: pytest.FixtureRequest) -> PdolConfig:
    return config_of(request.param)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """The slots of all parts, one after the other."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Rows(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
