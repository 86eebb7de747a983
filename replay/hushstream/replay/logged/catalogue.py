"""Published logs by name: the built-in ones and those that other packages offer by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.logged.obd import load_obd
from hushstream.replay.offers import Offers

Loader = Callable[..., LoggedDataset]
"""Takes the dataset's folder, then options by keyword."""

LOGS: Offers[Loader] = Offers("log", "hushstream.logs", Callable, LogError)

_BUILTIN: dict[str, Loader] = {"obd": load_obd}


def known_logs() -> dict[str, Loader]:
    """Return the loader of every published log by the name of its dataset, sorted.

    Raises:
        LogError: two packages claim one name.
    """
    return LOGS.known(_BUILTIN)


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
    # What plays a name asks this module, too.
    from hushstream.replay.players import hint

    known = known_logs()
    loader = LOGS.find(known, name, "" if name in known else hint(name))
    allowed = list(inspect.signature(loader).parameters)[1:]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise LogError(f"log {name!r} has no option {', '.join(unknown)}; known: {', '.join(allowed)}")
    return loader(locate(name, data_dir), **options)
