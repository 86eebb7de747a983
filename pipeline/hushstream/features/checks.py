"""Checks that several kinds of features share: names, vocabularies, numbers and keys of a declaration.

*From rows.* A vocabulary, a range or a limit that was computed from rows of persons reveals something about them: one
more country in the list is a person who came from there. So a draft lists such settings in ``from_rows`` beside them,
and every command refuses a declaration that still has this list:

    features:
      country: {kind: category, vocabulary: [de, fr], from_rows: [vocabulary]}

Its owner replaces the value by a public one, or decides that it is public, and deletes the name from the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from hushstream.schemas.errors import HushstreamError


class FeatureError(HushstreamError):
    """Root of this package's errors. Each message names the key, the expected and the given value, never a payload."""


class BadDeclaration(FeatureError):
    """A declaration of features is impossible."""


class BadValue(FeatureError):
    """A value is not of its feature's type, or names no declared feature."""


class BadRows(FeatureError):
    """Bytes from the wire are not valid rows of the declared features."""


LONGEST_TEXT = 128
"""Largest size of a name or a value in bytes of UTF-8; ids in the log have the same limit."""

_LONGEST_NAME = 64


def require_name(name: object) -> str:
    """Check a feature's name, and return it.

    Raises:
        BadDeclaration: not 1 to 64 ASCII letters, digits, '-' or '_'.
    """
    ok = isinstance(name, str) and 1 <= len(name) <= _LONGEST_NAME and name.isascii()
    if not ok or not all(letter.isalnum() or letter in "-_" for letter in str(name)):
        raise BadDeclaration(f"features: expected names of 1 to 64 letters, digits, '-' or '_', got {_shown(name)}")
    return str(name)


def require_keys(place: str, given: Mapping[object, object], known: Iterable[str], needed: Iterable[str]) -> None:
    """Refuse unknown keys of a declaration, and the lack of a key that it needs.

    Raises:
        BadDeclaration: an unknown key, or else a missing one.
    """
    allowed = sorted(known)
    for key in given:
        if key not in allowed:
            raise BadDeclaration(f"{place}: expected keys among {', '.join(allowed)}, got {_shown(key)}")
    for key in needed:
        if key not in given:
            raise BadDeclaration(f"{place}: expected the key {key}, got none")


def vocabulary(place: str, given: object, most: int) -> tuple[str, ...]:
    """Check a list of distinct texts, and return them in the given order; a whole number counts as its decimal text.

    Raises:
        BadDeclaration: no list, an empty or too long one, duplicates, or an entry that is no text.
    """
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= most:
        raise BadDeclaration(f"{place}: expected a list of 1 to {most:,} texts, got {_size(given)}")
    entries = []
    for number, entry in enumerate(given, 1):
        if isinstance(entry, bool):
            # YAML reads an unquoted no, off or yes as a boolean. Without this error, Norway would be lost silently.
            raise BadDeclaration(f"{place}: entry {number}: expected a text, got a boolean (put it into quotes)")
        if isinstance(entry, Integral):
            entry = str(int(entry))
        if not isinstance(entry, str) or not entry:
            raise BadDeclaration(f"{place}: entry {number}: expected a text, got {type_name(entry)}")
        if len(entry) > LONGEST_TEXT or _bytes(entry) > LONGEST_TEXT:
            raise BadDeclaration(
                f"{place}: entry {number}: expected at most {LONGEST_TEXT} bytes of UTF-8, got {len(entry):,} letters"
            )
        entries.append(entry)
    places = {entry: number for number, entry in reversed(list(enumerate(entries, 1)))}
    for number, entry in enumerate(entries, 1):
        if places[entry] != number:
            raise BadDeclaration(
                f"{place}: entry {number}: expected distinct entries, got that of {places[entry]} again"
            )
    return tuple(entries)


def whole(place: str, given: object, least: int, most: int) -> int:
    """Check that a value is a whole number within bounds, and return it.

    Raises:
        BadDeclaration: something else.
    """
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise BadDeclaration(f"{place}: expected a whole number from {least} to {most:,}, got {_shown(given)}")
    return given


def limits(place: str, given: object) -> tuple[float, float]:
    """Check the low and the high end of a range, and return them.

    Raises:
        BadDeclaration: not two finite numbers, the first below the second and not too close to it.
    """
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise BadDeclaration(f"{place}: expected [low, high], got {_size(given)}")
    found = [float(end) if is_number(end) else math.nan for end in given]
    low, high = found
    if not all(map(math.isfinite, found)):
        raise BadDeclaration(f"{place}: expected two finite numbers, got others")
    if not low < high:
        raise BadDeclaration(f"{place}: expected the low end below the high end, got {low:g} and {high:g}")
    if not math.isfinite(high - low) or high - low < 1e-9 * max(abs(low), abs(high)):
        raise BadDeclaration(f"{place}: expected ends that differ as 64-bit numbers, got {low:g} and {high:g}")
    return low, high


def fraction(place: str, given: object) -> float:
    """Check that a value is a number from 0 to 1, and return it.

    Raises:
        BadDeclaration: something else.
    """
    if not is_number(given) or not 0 <= given <= 1:  # type: ignore[operator]  # is_number says that it compares
        raise BadDeclaration(f"{place}: expected a number from 0 to 1, got {_shown(given)}")
    return float(given)  # type: ignore[arg-type]


def is_number(value: object) -> bool:
    """Whether a value is a real number and no boolean."""
    # The plain types are checked first, because a check against the abstract type takes ten times as long.
    if type(value) is float or type(value) is int:
        return True
    return isinstance(value, Real) and type(value).__name__ not in ("bool", "bool_")


def finite(name: str, value: object, expected: str) -> float:
    """Convert a value to a float.

    Raises:
        BadValue: no number, NaN, infinite, or beyond what 64 bits hold.
    """
    if not is_number(value):
        raise wrong_type(name, expected, value)
    try:
        found = float(value)  # type: ignore[arg-type]  # is_number says that it converts
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise BadValue(f"{name}: expected {expected}, got {'NaN' if math.isnan(found) else 'an infinite number'}")
    return found


def text(name: str, value: object, expected: str) -> str:
    """Check that a value is a text, and return it; a whole number counts as its decimal text.

    Raises:
        BadValue: something else, or a text of more than `LONGEST_TEXT` bytes.
    """
    if type(value) is not str and isinstance(value, Integral) and not isinstance(value, bool):
        # A whole number of a million digits takes minutes to write out.
        if abs(int(value)) >> 400:
            raise BadValue(f"{name}: expected at most {LONGEST_TEXT} bytes, got a larger whole number")
        value = str(int(value))
    if not isinstance(value, str):
        raise wrong_type(name, expected, value)
    if len(value) > LONGEST_TEXT // 4 and (len(value) > LONGEST_TEXT or _bytes(value) > LONGEST_TEXT):
        raise BadValue(f"{name}: expected at most {LONGEST_TEXT} bytes of UTF-8, got {len(value):,} letters")
    return value


def wrong_type(name: str, expected: str, value: object) -> BadValue:
    """The error of a value of another type."""
    return BadValue(f"{name}: expected {expected}, got {type_name(value)}")


def type_name(value: object) -> str:
    """The type of a value in words; never the value."""
    if value is None:
        return "nothing"
    known = {"bool": "a boolean", "int": "a whole number", "float": "a number", "str": "a text", "dict": "an object"}
    return known.get(type(value).__name__, f"a {type(value).__name__}")


def _bytes(given: str) -> int:
    return len(given.encode("utf-8", "surrogatepass"))


def _size(given: object) -> str:
    return f"a list of {len(given):,}" if isinstance(given, list | tuple) else type_name(given)


def _shown(given: object) -> str:
    """A key or a number of a declaration, which is public, cut to a length that fits a line."""
    if isinstance(given, str):
        return repr(given if len(given) <= 40 else f"{given[:40]}...")
    return (
        repr(given)
        if isinstance(given, float) or (isinstance(given, int) and abs(given) < 10**40)
        else type_name(given)
    )


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
        super().__init__(
            f"expected public settings, got some that were taken from rows: {', '.join(settings)}; put public values "
            f"in their place or decide that they are public, and delete them from `{FROM_ROWS}`"
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
