"""Finds datasets, worlds, logs and experiments by name: those that come with hushstream, and those of other packages.

Another package offers one by an entry point of the group that its `Registry` names. The object's attribute ``name`` is
its name; an object without this attribute has the name of its entry point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from hushstream.schemas.errors import HushstreamError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """One kind of things that are found by name.

    Attributes:
        what: the word for one of them, for messages.
        group: the group of entry points by which other packages offer theirs.
        kind: what each must be.
        error: raised where a name is unknown or claimed twice, or an entry point names something else.
    """

    what: str
    group: str
    kind: Any
    error: type[HushstreamError]

    def known(self, builtin: Mapping[str, T]) -> dict[str, T]:
        """Return everything of this kind by name, sorted.

        Args:
            builtin: what comes with hushstream, by name.

        Raises:
            HushstreamError: of the class `error`: two packages claim one name, or an entry point names no object of
                `kind`.
        """
        found = dict(builtin)
        for entry in entry_points(group=self.group):
            offered = entry.load()
            if not isinstance(offered, self.kind):
                raise self.error(
                    f"entry point {entry.name} of {self.group}: expected {self.kind.__name__}, "
                    f"got {type(offered).__name__}"
                )
            name = getattr(offered, "name", entry.name)
            if found.setdefault(name, offered) is not offered:
                raise self.error(f"two packages offer a {self.what} named {name!r}; remove one of them")
        return dict(sorted(found.items()))

    def find(self, known: Mapping[str, T], name: str, hint: str = "") -> T:
        """Return the entry of this name.

        Args:
            known: what the method `known` returned.
            name: the name that was asked for.
            hint: what else the name may stand for.

        Raises:
            HushstreamError: of the class `error`: nothing has this name; the message lists the known names.
        """
        if name not in known:
            raise self.error(f"unknown {self.what} {name!r}; known: {', '.join(known)}{hint}")
        return known[name]
