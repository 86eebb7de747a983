"""Features of a request: dictionaries of values, or of dictionaries of values, found by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hushstream.gateway.problems import Problem

MOST_VALUES = 4096
DEEPEST = 8


class RequestFeatures:
    """Values of a request by path: `age` in `{"User": {"age": 31}}` is at `User.age`.

    A name is a path, or the last part of just one. A value that is said later stands in place of an earlier one at the
    same path: a slot's features stand in place of the context's.
    """

    def __init__(self, features: Iterable[Mapping[str, Any]]) -> None:
        """Read dictionaries, one after another.

        Raises:
            Problem: they hold too many values, or lie too deep in one another.
        """
        self._by_path: dict[tuple[str, ...], Any] = {}
        for one in features:
            self._read(one, ())
        self._by_last: dict[str, list[tuple[str, ...]]] = {}
        for path in self._by_path:
            self._by_last.setdefault(path[-1], []).append(path)

    def value(self, name: str) -> Any:
        """What stands under a name; None where nothing does.

        Raises:
            Problem: the name is the last part of several paths, and is none.
        """
        path = tuple(name.split("."))
        for exact in (path, (name,)):
            if exact in self._by_path:
                return self._by_path[exact]
        paths = self._by_last.get(name, ())
        if len(paths) > 1:
            raise Problem("bad-context", f"contextFeatures: expected {name} in one place, got it in {len(paths)}")
        return self._by_path[paths[0]] if paths else None

    def _read(self, features: Mapping[str, Any], above: tuple[str, ...]) -> None:
        if len(above) > DEEPEST:
            raise Problem("bad-context", f"contextFeatures: expected at most {DEEPEST} dictionaries in one another")
        for name, value in features.items():
            if isinstance(value, dict):
                self._read(value, (*above, name))
                continue
            if len(self._by_path) >= MOST_VALUES:
                raise Problem("bad-context", f"contextFeatures: expected at most {MOST_VALUES} values")
            self._by_path[(*above, name)] = value
