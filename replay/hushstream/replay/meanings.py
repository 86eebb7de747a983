"""Reads the meaning of a class's fields from its docstring."""

from __future__ import annotations

import inspect
import re

_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.+)")


def meanings(made: type) -> dict[str, str]:
    """The meaning of each field by its name: the entries below ``Attributes:`` of a class, each joined to one line."""
    _, _, below = (inspect.getdoc(made) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in below.splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found
