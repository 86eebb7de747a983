"""The reference of the kinds of features: one row for each kind, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hushstream.features.kinds import Feature
from hushstream.features.schema import declare


class KindRow(NamedTuple):
    """The facts about one kind.

    Attributes:
        kind: its name in a declaration.
        settings: its keys in a declaration, with an example.
        takes: what the application passes.
        missing, outside: the encoding of a missing value, and of an unknown one or one out of range.
        row_bytes: bytes of the example on the wire.
        cells, places: number of cells of the example's block, and in how many of them one value has a share at most.
    """

    kind: str
    settings: str
    takes: str
    missing: str
    outside: str
    row_bytes: int
    cells: int
    places: int


_OWN_CELL, _EMPTY = "a cell of its own", "an empty block"
_BESIDE = {"country": {"kind": "category", "vocabulary": ["de", "fr", "se"]}, "subscribed": {"kind": "boolean"}}
"""The features that the example of a cross uses."""

_ROWS: Mapping[str, tuple[dict[str, Any], str, str, str]] = {
    "category": (
        {"vocabulary": ["de", "fr", "se"]},
        "a text (or a whole number, by its digits)",
        "the cell of all others",
        "unknown: the cell of all others",
    ),
    "number": (
        {"range": [1, 10000], "scale": "log", "nodes": 8},
        "a finite number",
        _OWN_CELL,
        "out of range: moved to the end of the range",
    ),
    "boolean": ({}, "true or false", _OWN_CELL, "there is nothing else"),
    "time_of_day": ({}, "hours as a number, or HH:MM", _EMPTY, "below 0 or from 24 on: around the clock"),
    "day_of_week": ({}, "mon or monday, or 1 for Monday to 7", _EMPTY, "refused"),
    "tags": (
        {"vocabulary": ["books", "games", "toys"], "most": 2, "redundancy": 0.2},
        "a list of texts",
        "the cell of none",
        "unknown: left out; more than `most`: the first ones count",
    ),
    "embedding": ({"dimension": 16}, "a list of finite numbers", _EMPTY, "longer than 1: scaled to length 1"),
    "histogram": (
        {"bins": 10},
        "a list of numbers of at least 0",
        _EMPTY,
        "scaled to sum 1; a negative one is refused",
    ),
    "cross": (
        {"of": ["country", "subscribed"]},
        "nothing: it follows from both",
        "as both features say",
        "as both say",
    ),
}


def kind_rows() -> list[KindRow]:
    """Make a row for each kind; its figures are those of the row's example."""
    return [_row(kind, *facts) for kind, facts in _ROWS.items()]


def _row(kind: str, settings: dict[str, Any], takes: str, missing: str, outside: str) -> KindRow:
    beside = _BESIDE if kind == "cross" else {}
    schema = declare({**beside, "example": {"kind": kind, **settings}})
    feature: Feature = schema.features["example"]
    row_bytes = 0 if kind == "cross" else schema.row_bytes
    shown = ", ".join(f"{key}: {_plain(value)}" for key, value in settings.items())
    return KindRow(kind, shown, takes, missing, outside, row_bytes, feature.cells, feature.places)


def _plain(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
