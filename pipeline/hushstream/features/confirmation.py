"""Marks settings of a drafted declaration that were taken from rows of persons.

The owner must confirm that they are public before use. A vocabulary, a range or a limit that was computed from rows
reveals something about them: one more country in the list is a person who came from there. So a draft lists such
settings in ``from_rows`` beside them, and every command refuses a declaration that still has this list:

    features:
      country: {kind: category, vocabulary: [de, fr], from_rows: [vocabulary]}

Its owner replaces the value by a public one, or decides that it is public, and deletes the name from the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hushstream.features.checks import FeatureError

FROM_ROWS = "from_rows"
"""The key of the mark; its value lists keys of the same mapping."""

_MOST_NAMED = 8


class Unconfirmed(FeatureError):
    """A declaration has settings that were taken from rows, and were not confirmed as public.

    Attributes:
        settings: their paths.
    """

    def __init__(self, settings: list[str]) -> None:
        self.settings = settings
        named = ", ".join(settings[:_MOST_NAMED])
        more = f" and {len(settings) - _MOST_NAMED} more" if len(settings) > _MOST_NAMED else ""
        super().__init__(
            f"expected public settings, got some that were taken from rows: {named}{more}; put public values in their "
            f"place or decide that they are public, and delete them from `{FROM_ROWS}`"
        )


def private_settings(given: Any, place: str = "") -> list[str]:
    """The paths of all settings below ``given`` that are marked as taken from rows."""
    return list(_marked(given, place))


def require_confirmed(given: Any, place: str = "") -> None:
    """Refuse a configuration, or a part of one at ``place``, that still has a mark.

    Raises:
        Unconfirmed: names every marked setting.
    """
    found = private_settings(given, place)
    if found:
        raise Unconfirmed(found)


def without_marks(given: Any) -> Any:
    """The declaration without marks, to look at rows with a draft, never for a deployment."""
    if isinstance(given, Mapping):
        return {key: without_marks(value) for key, value in given.items() if key != FROM_ROWS}
    return given


def _marked(given: Any, place: str) -> Iterator[str]:
    if not isinstance(given, Mapping):
        return
    for key, value in given.items():
        if key != FROM_ROWS:
            yield from _marked(value, f"{place}.{key}" if place else str(key))
        elif isinstance(value, list | tuple):
            yield from (f"{place}.{name}" if place else str(name) for name in value)
        else:
            # A mark that cannot be read counts as a mark. Dropping it would publish settings that were taken from rows.
            yield f"{place}.{FROM_ROWS}" if place else FROM_ROWS
