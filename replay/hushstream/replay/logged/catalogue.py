"""Published logs by name: the built-in ones and those that other packages offer by entry point."""

from __future__ import annotations

from collections.abc import Callable

from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.logged.obd import load_obd
from hushstream.replay.registry import Registry

Loader = Callable[..., LoggedDataset]
"""A function that reads a log from the dataset's folder; options are passed by keyword."""

LOGS: Registry[Loader] = Registry("log", "hushstream.logs", Callable, LogError)

_BUILTIN: dict[str, Loader] = {"obd": load_obd}


def known_logs() -> dict[str, Loader]:
    """Return the loader of every published log by the name of its dataset, sorted.

    Raises:
        LogError: two packages claim one name.
    """
    return LOGS.known(_BUILTIN)
