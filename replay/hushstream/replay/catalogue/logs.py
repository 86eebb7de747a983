"""How the log of a name is loaded."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.catalogue import LOGS, known_logs
from hushstream.replay.logged.log import LogError, LoggedDataset


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
    loader = LOGS.find(known, name, "" if name in known else hint(name))
    allowed = list(inspect.signature(loader).parameters)[1:]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise LogError(f"log {name!r} has no option {', '.join(unknown)}; known: {', '.join(allowed)}")
    return loader(locate(name, data_dir), **options)
