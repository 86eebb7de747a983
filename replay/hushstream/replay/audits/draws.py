"""Noise addresses that no release ever had, and scores of many runs."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.audits.audit import Attack
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES, KeyedStream, NoiseAddress

Score = Callable[[bool], float]
"""Is the unit there -> the score of one release under noise of its own."""


def fresh_key() -> Key:
    """A key that was never used."""
    return Key(os.urandom(KEY_BYTES))


def fresh_nonce() -> bytes:
    """The nonce of a journal that nobody else has."""
    return os.urandom(NONCE_BYTES)


def fresh_address(mechanism: str) -> NoiseAddress:
    """The address of a release in a world of its own."""
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
    """A stream that was never read."""
    return KeyedStream(key, fresh_address(mechanism))


def each_run(score: Score) -> Attack:
    """An attack out of the score of one run."""

    def attack(present: bool, runs: int) -> NDArray[np.float64]:
        return np.fromiter((score(present) for _ in range(runs)), dtype=np.float64, count=runs)

    return attack


def side_by_side(scores: Callable[[bool], NDArray[np.float64]], width: int) -> Attack:
    """An attack out of the scores of ``width`` independent runs under one nonce."""

    def attack(present: bool, runs: int) -> NDArray[np.float64]:
        parts = [scores(present) for _ in range(-(-runs // width))]
        return np.concatenate(parts)[:runs]

    return attack
