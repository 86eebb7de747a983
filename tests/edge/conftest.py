"""A deployment whose learners are devices, and devices of it; nothing is sent anywhere."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.engine.declare.declaration import System
from hushstream.engine.devices.envelope import ModelBody
from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.systems.p2b.edge.device import Agreement, Device
from hushstream.systems.p2b.models import Statement, content_of
from hushstream.systems.p2b.prepared import agreement_of

KEYS = KeySource(seed=5)
NOW_MS = 1_700_000_000_000
FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "se"]},
    "age": {"kind": "number", "range": [16, 96]},
    "hour": {"kind": "time_of_day"},
}
VALUES: dict[str, Any] = {
    "deployment": "shop",
    "kind": "edge",
    "items": {"capacity": 4},
    "features": FEATURES,
    "expected_slots": 2_000,
    "feedback": {"click_rate": 0.1},
    "release": {"sums": "fresh"},
}


def deployed(folder: Path, **changes: Any) -> System:
    return prepare(folder, parse_config({**VALUES, **changes}), keys=KEYS)


def agreed(system: System) -> Agreement:
    return Agreement.read(agreement_of(system.core))


def interact(device: Device, source: random.Random, now_ms: int, visits: int = 10, name: str = "visit") -> int:
    """A user visits, sees what is chosen, and clicks half of the time; when it ended."""
    for number in range(visits):
        values = {"country": source.choice(["de", "fr", "it"]), "age": source.uniform(10, 100)}
        item = device.decide(f"{name}-{number}", values, now_ms).arm
        device.shown(f"{name}-{number}", item, now_ms)
        if source.random() < 0.5:
            device.reward(f"{name}-{number}", item, 1.0, now_ms)
        now_ms += 1_000
    return now_ms


def model_of(system: System, version: int = 1, **changes: Any) -> ModelBody:
    """A signed model of a deployment, of means that grow with its version; some of its statement changed."""
    core = system.core
    layout, promise = core.linear.layout, core.guarantee()
    size = layout.arms * layout.cells
    means = np.linspace(0, 0.1 * version, size).astype("<f8").tobytes()
    content, digest = content_of(means, np.full(size, 0.05).astype("<f8").tobytes())
    values: dict[str, Any] = {
        "deployment": core.config.deployment,
        "configuration": core.digest.hex(),
        "layout": core.linear.layout_digest.hex(),
        "arms": layout.arms,
        "cells": layout.cells,
        "version": version,
        "issued_ms": NOW_MS,
        "expires_ms": NOW_MS + core.config.valid_ms,
        "reward_variance": 0.08,
        "epsilon_micro": promise.price.epsilon_micro,
        "delta_units": str(promise.price.delta_units),
        "private_as_stated": True,
        "content_sha256": digest,
        "content_bytes": len(content),
    }
    statement = Statement(**{**values, **changes}).as_bytes()
    number, signature = Signer(core.signing, (KEYS.key("signing"),)).sign(version, statement)
    return ModelBody(statement, number, signature, core.signing, core.sealing, content)


@pytest.fixture(scope="session")
def devices() -> Any:
    """This module: test files do not import one another."""
    return sys.modules[__name__]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    return deployed(tmp_path_factory.mktemp("shop") / "deployment")


@pytest.fixture(scope="module")
def agreement(system: System) -> Agreement:
    return agreed(system)


@pytest.fixture
def device(agreement: Agreement) -> Device:
    return Device.begun(agreement, random.Random(1).randbytes)


@pytest.fixture
def other_keys() -> Callable[[], tuple[Recipients, SigningKeys]]:
    other = KeySource(seed=6)
    return lambda: (Recipients.first(other.key("sealing")), SigningKeys.first(other.key("signing")))
