"""Says in plain words what was expected of an option's value, and what came in its place.

Typer lets pydantic check values, and prints pydantic's own text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

_NOT_A_CHOICE = " is not one of "
"""Stands in Typer's text between the value and the choices."""


def say_plainly(error: typer.BadParameter) -> None:
    """Replace the message of a value that pydantic refused; other messages stay, because they are our own."""
    # Imported here: a command that is used rightly needs neither of them.
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):
        error.message = _said(error.__cause__.errors(include_url=False)[0])


def _said(found: Any) -> str:
    from hushstream.agents.faults import expected_of

    expected = expected_of(found)
    if expected is None:
        raised = str(found.get("ctx", {}).get("error", found["msg"]))
        _, told, choices = raised.partition(_NOT_A_CHOICE)
        if not told:
            return raised
        expected = f"one of {choices.rstrip('.').replace(chr(39), '')}"
    return f"expected {expected}, got {found['input']!r}"
