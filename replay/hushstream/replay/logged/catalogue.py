"""Published logs by name: the built-in ones and those that other packages offer by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hushstream.replay.datasets.registry import known_datasets
from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.logged.obd import load_obd

GROUP = "hushstream.logs"

Loader = Callable[..., LoggedDataset]
"""Takes the dataset's folder, then options by keyword."""

_BUILTIN: dict[str, Loader] = {"obd": load_obd}


def known_logs() -> dict[str, Loader]:
    """Return the loader of every published log by the name of its dataset, sorted.

    Raises:
        LogError: two packages claim one name.
    """
    found = dict(_BUILTIN)
    for entry in entry_points(group=GROUP):
        loader = entry.load()
        if found.setdefault(entry.name, loader) is not loader:
            raise LogError(f"two packages offer a log named {entry.name!r}; remove one of them")
    return dict(sorted(found.items()))


def load_log(name: str, data_dir: str | Path | None = None, **options: Any) -> LoggedDataset:
    """Load a published log by name.

    Args:
        name: one of `known_logs`.
        data_dir: a local folder in place of the cache.
        options: those of its loader.

    Raises:
        LogError: it is unknown, or is a world and no log, or an option is unknown or wrong.
        DatasetError: its files are absent or differ from the published ones.
    """
    known = known_logs()
    if name not in known:
        hint = "; it is no log of another policy: `hushstream replay` plays it" if name in known_datasets() else ""
        raise LogError(f"unknown log {name!r}; known: {', '.join(known)}{hint}")
    allowed = list(inspect.signature(known[name]).parameters)[1:]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise LogError(f"log {name!r} has no option {', '.join(unknown)}; known: {', '.join(allowed)}")
    return known[name](locate(name, data_dir), **options)
