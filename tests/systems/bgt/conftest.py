"""A small world: users with two tastes, so that there is a factor to be found, and sums made by the plain formulas."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.privacy.keys import seeded_key
from hushstream.systems.bgt.artefacts import bgt_address
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, ScaleConfig, bgt_digest
from hushstream.systems.bgt.edge.agent import Ratings, make_slots, ratings_of
from hushstream.systems.bgt.records import Round, Slots
from hushstream.systems.bgt.server import Server
from hushstream.systems.bgt.shuffler import Collector

ITEMS = 60


def config_of(items: int = ITEMS, features: int = 0, **release) -> BgtConfig:
    release.setdefault("top", 20)
    release.setdefault("pairs", 32)
    release.setdefault("factors", 3)
    return BgtConfig("tests", items, features, ScaleConfig(0, 1), ReleaseConfig(**release))


def ratings(config: BgtConfig, users: int, seed: int = 0, taste: float = 0.2) -> tuple[Ratings, Ratings]:
    """Ratings to learn from and to judge by: items of even number please one half of users, the others the other."""
    draw = np.random.default_rng(seed)
    popular = draw.random((users, config.items)) < np.linspace(0.7, 0.1, config.items)
    side = np.where(np.arange(users) % 2, 1.0, -1.0)[:, None] * np.where(np.arange(config.items) % 2, 1.0, -1.0)
    means = 0.6 + 0.1 * np.sin(np.arange(config.items)) + taste * side + 0.05 * draw.standard_normal((users, 1))
    values = np.clip(means + 0.1 * draw.standard_normal(means.shape), 0, 1)
    parts = []
    later = (np.arange(users)[:, None] + np.arange(config.items)) % 5 == 0
    for there in (popular & ~later, popular & later):
        rows, items = np.nonzero(there)
        parts.append(ratings_of(rows, items, values[rows, items], config, users))
    return parts[0], parts[1]


def salts(users: int) -> np.ndarray:
    return np.random.default_rng(9).integers(0, 2**63, users).astype(np.uint64)


def ids(count: int, first: int = 0) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(first, first + count)]


def collector_of(asked: Round, config: BgtConfig, seed: int = 1, nonce: bytes = bytes(32)) -> Collector:
    key = None if config.release.noise == "exact" else seeded_key(seed, "collector")
    return Collector(asked, config, key, bgt_address(config, bgt_digest(config), nonce, 0))


def slots_of(known: Ratings, asked: Round, config: BgtConfig) -> Slots:
    return make_slots(known, asked, config, salts(known.users))


def run_rounds(config: BgtConfig, known: Ratings, seed: int = 1) -> tuple[Server, list[Round]]:
    """All rounds, everybody answering; the server, and what was asked."""
    server, asked = Server(config), []
    while server.asked is not None:
        asked.append(server.asked)
        collector = collector_of(server.asked, config, seed)
        assert not collector.take(slots_of(known, server.asked, config), ids(known.users)).why.any()
        server.take(collector.release())
    return server, asked


@pytest.fixture
def config() -> BgtConfig:
    return config_of()
