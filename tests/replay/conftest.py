"""Small datasets made by the tests themselves, and where the real ones lie if somebody has them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hushstream.replay.worlds.arff import ArffTable
from hushstream.replay.worlds.movielens import Ratings
from hushstream.replay.worlds.multilabel import LABELS


@pytest.fixture
def data_folder() -> Path:
    """The user's folder of real datasets."""
    given = os.environ.get("HUSHSTREAM_DATA")
    if not given:
        pytest.skip("HUSHSTREAM_DATA is not set: no folder with the real datasets")
    return Path(given)


@pytest.fixture
def corpus() -> ArffTable:
    """400 made-up texts of 12 words and 22 labels; word w says label w, most of the time."""
    generator = np.random.default_rng(5)
    labels = generator.random((400, LABELS)) < np.linspace(0.5, 0.02, LABELS)
    words = generator.random((400, 12)) < 0.05
    words |= labels[:, :12] & (generator.random((400, 12)) < 0.9)
    names = (
        *(f"word{number}" for number in range(12)),
        *(f"class{number:02d}" for number in range(1, LABELS + 1)),
    )
    return ArffTable((), names, np.zeros((400, 0), dtype=np.float32), np.concatenate([words, labels], axis=1))


@pytest.fixture
def ratings() -> Ratings:
    """40 made-up people, 60 films of 4 genres (and unknown), 20 to 50 ratings each."""
    generator = np.random.default_rng(6)
    genres = np.zeros((60, 5), dtype=np.bool_)
    genres[np.arange(60), 1 + np.arange(60) % 4] = True
    genres[::7, 2] = True
    rows = []
    for user in range(40):
        films = generator.permutation(60)[: generator.integers(20, 51)]
        seconds = generator.integers(0, 10**6, films.size)
        stars = np.clip(generator.integers(1, 6, films.size) + (films % 4 == user % 4), 1, 5)
        rows.extend(zip([user] * films.size, films, stars, seconds, strict=True))
    table = np.array(rows, dtype=np.int64)
    names = ("unknown", "calm", "loud", "short", "long")
    return Ratings(table[:, 0], table[:, 1], table[:, 2], table[:, 3], genres, names)
