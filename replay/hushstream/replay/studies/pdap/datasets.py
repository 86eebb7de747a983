"""The datasets of P-DAP: its worlds, one of them made of another dataset's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hushstream.replay.datasets.builtin import ML_100K
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.studies.pdap.worlds.ml_vendors import ml_vendors
from hushstream.replay.studies.pdap.worlds.vendors import VendorWorld, vendors


def _summary(world: VendorWorld) -> Summary:
    return {"vendors": int(world.owners.max()) + 1, "arms": len(world.owners), "dimension": world.dimension}


def _vendors(folder: Path) -> Summary:
    return _summary(vendors())


def _films(folder: Path) -> Summary:
    return _summary(ml_vendors(data_dir=str(folder)))


VENDORS = simulated_dataset(
    "vendors",
    "Simulated vendors with items of their own, specialised or alike, stationary or drifting",
    _vendors,
    page="https://arxiv.org/abs/1509.00181",
)

FILM_VENDORS = replace(
    ML_100K,
    name="ml-vendors",
    description="MovieLens-100K with its films shared out among vendors; clicks are those of a fitted model",
    note="The files of ml-100k.",
    summarise=_films,
)
