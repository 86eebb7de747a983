"""Makes noise addresses that no release uses, and builds attacks from the scores of many runs."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.audits.audit import Attack
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES, KeyedStream, NoiseAddress

Score = Callable[[bool], float]
"""A function of whether the unit is present; it returns the score of one release under noise of its own."""


def fresh_key() -> Key:
    """A new key."""
    return Key(os.urandom(KEY_BYTES))


def fresh_nonce() -> bytes:
    """The nonce of a new journal."""
    return os.urandom(NONCE_BYTES)


def fresh_address(mechanism: str) -> NoiseAddress:
    """The address of a release in a new journal."""
    return NoiseAddress(
        purpose="release-noise",
        deployment="audit",
        genesis_nonce=fresh_nonce(),
        system="audit",
        mechanism=mechanism,
        parameters={},
        config_digest=b"audit",
        epoch=0,
    )


def fresh_stream(key: Key, mechanism: str) -> KeyedStream:
    """A noise stream that was not read yet."""
    return KeyedStream(key, fresh_address(mechanism))


def each_run(score: Score) -> Attack:
    """Make an attack from the score of one run."""

    def attack(present: bool, runs: int) -> NDArray[np.float64]:
        return np.fromiter((score(present) for _ in range(runs)), dtype=np.float64, count=runs)

    return attack


def side_by_side(scores: Callable[[bool], NDArray[np.float64]], width: int) -> Attack:
    """Make an attack from the scores of ``width`` independent runs under one nonce."""

    def attack(present: bool, runs: int) -> NDArray[np.float64]:
        parts = [scores(present) for _ in range(-(-runs // width))]
        return np.concatenate(parts)[:runs]

    return attack
