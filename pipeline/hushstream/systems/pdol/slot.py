"""What a domain remembers of single records."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.systems.pdol.rows import Rows


class Slot(NamedTuple):
    """A record whose label may still come.

    Attributes:
        node: where it came.
        user: tag of its person.
        rows: one row; null where it broke a bound, was beyond the allowance, or was erased.
        label: 1 or -1; 0 as long as none came.
        said: int8, what each expert of its node said; empty where nodes have none.
    """

    node: int
    user: bytes
    rows: Rows
    label: int = 0
    said: bytes = b""


class Past(NamedTuple):
    """What was answered for an event, and the tag of whose it is."""

    user: bytes
    predicted: int
