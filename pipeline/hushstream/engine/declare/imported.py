"""Functions of a declaration that are imported when they are called.

A worker reads the whole declaration of its system. It would otherwise start with the machines of all other roles, too,
and with reports and plans that only commands print: together an eighth of the CPU time of its start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any


def imported_by(package: str) -> Callable[[str], Callable[..., Any]]:
    """Gives functions and classes of a package by name (`module:attribute`); each is imported at its first call."""
    return lambda name: partial(_call, package, *name.split(":"))


def _call(package: str, module: str, attribute: str, *arguments: Any, **named: Any) -> Any:
    return getattr(import_module(f"{package}.{module}"), attribute)(*arguments, **named)
