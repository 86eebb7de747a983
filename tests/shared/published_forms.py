"""Small made files in the forms in which MediaMill and Criteo's log are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FEATURES, LABELS = 120, 101
NUMBERS, CATEGORIES = 13, 26


def arff_head() -> list[str]:
    """The attributes of MediaMill, as Mulan declares them."""
    numeric = [f"@attribute Att{number} numeric" for number in range(1, FEATURES + 1)]
    labels = [f"@attribute Class{number} {{0,1}}" for number in range(1, LABELS + 1)]
    return ["@relation MediaMill", "", *numeric, *labels, "", "@data"]


def arff_rows(count: int, seed: int = 0) -> list[str]:
    """Instances: feature f is high where label f holds, most of the time; the first labels are the most frequent."""
    draws = np.random.default_rng(seed)
    labels = draws.random((count, LABELS)) < np.linspace(0.5, 0.02, LABELS)
    features = 0.4 * draws.random((count, FEATURES))
    features[:, :LABELS] += 0.5 * (labels & (draws.random((count, LABELS)) < 0.9))
    return [
        ",".join([*(f"{value:.4f}" for value in row), *("1" if label else "0" for label in held)])
        for row, held in zip(features.tolist(), labels.tolist(), strict=True)
    ]


def write_mediamill(folder: Path, rows: int, name: str = "mediamill.arff", seed: int = 0) -> Path:
    """One file of MediaMill's form."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join([*arff_head(), *arff_rows(rows, seed)]) + "\n", encoding="utf-8")
    return path


def criteo_rows(count: int, seed: int = 0) -> list[str]:
    """Impressions with blanks in every column but the first; what is clicked goes with the first number."""
    draws = np.random.default_rng(seed)
    numbers = draws.integers(-3, 60, (count, NUMBERS))
    clicks = draws.random(count) < np.where(numbers[:, 0] > 30, 0.9, 0.3)
    numbers_blank = draws.random((count, NUMBERS)) < np.linspace(0.0, 0.7, NUMBERS)
    categories = draws.integers(0, 1 << 32, (60, CATEGORIES))[draws.integers(0, 60, count)]
    categories_blank = draws.random((count, CATEGORIES)) < 0.002
    rows = []
    for row in range(count):
        whole = ["" if blank else str(value) for value, blank in zip(numbers[row], numbers_blank[row], strict=True)]
        hashed = [
            "" if blank else f"{value:08x}" for value, blank in zip(categories[row], categories_blank[row], strict=True)
        ]
        rows.append("\t".join(["1" if clicks[row] else "0", *whole, *hashed]))
    return rows


def write_criteo(folder: Path, rows: int, seed: int = 0) -> Path:
    """A train.txt of Criteo's form."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.txt"
    path.write_bytes("".join(f"{row}\n" for row in criteo_rows(rows, seed)).encode())
    return path
