"""Finds a dataset by name, among the built-in ones and the entry points of other packages.

Another package adds a dataset with an entry point of the group ``hushstream.datasets`` that names a
`Dataset`.
"""

from __future__ import annotations

from hushstream.replay.datasets.builtin import BUILTIN
from hushstream.replay.datasets.dataset import Dataset, DatasetError
from hushstream.replay.registry import Registry
from hushstream.replay.study import studies

DATASETS: Registry[Dataset] = Registry("dataset", "hushstream.datasets", Dataset, DatasetError)


def known_datasets() -> dict[str, Dataset]:
    """Return every dataset by name, sorted.

    Raises:
        DatasetError: two packages claim one name, or an entry point does not name a `Dataset`.
    """
    brought = (dataset for study in studies().values() for dataset in study.datasets)
    return DATASETS.known({dataset.name: dataset for dataset in (*BUILTIN, *brought)})


def find_dataset(name: str) -> Dataset:
    """Return the dataset of this name.

    Raises:
        DatasetError: no dataset has this name; the message lists the known names.
    """
    return DATASETS.find(known_datasets(), name)
