"""P-DAP's records as values: outcomes, forwards, releases of blocks, and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdap.algorithm.aggregate import NAME_BYTES, TICKETS, ModelUpdate, Outcomes, Release
from hushstream.systems.pdap.algorithm.blocks import Blocks, joined
from hushstream.systems.pdap.cells import Int64, PdapError

MAX_ROWS_A_RECORD = 4096
"""Largest number of outcomes, or forwards, in one record."""

MAX_BLOCKS_A_PART = 16_384
"""Largest number of blocks, and of cells with arrivals, in one part of a release: they take 28 and 16 bytes each."""

_SMALL_ARMS = 1 << 16


class Forward(NamedTuple):
    """A context that was answered with another vendor's arm; see the record `Forwards`."""

    home: int
    name: bytes
    cell: int
    arm: int
    ticket: int
    model_version: int


def outcome_fields(counter: int, digest: bytes, outcomes: Outcomes) -> dict[str, Any]:
    """The fields of an `Outcomes` record."""
    return {
        "config_digest": digest,
        "counter": counter,
        "names": outcomes.names.tobytes(),
        "cells": outcomes.cells.astype("<i8").tobytes(),
        "arrivals": outcomes.arrivals.astype("<i8").tobytes(),
        "arms": outcomes.arms.astype("<i4").tobytes(),
        "rewards": outcomes.rewards.astype("<i4").tobytes(),
    }


def parse_outcomes(fields: Mapping[str, Any]) -> Outcomes:
    """The columns of an `Outcomes` record; the counter checks their values.

    Raises:
        PdapError: columns whose lengths do not match, no row, or too many.
    """
    count = len(fields["names"]) // NAME_BYTES
    widths = {"names": NAME_BYTES, "cells": 8, "arrivals": 8, "arms": 4, "rewards": 4}
    if not 1 <= count <= MAX_ROWS_A_RECORD or any(len(fields[name]) != count * of for name, of in widths.items()):
        raise PdapError(f"outcomes: expected columns of one length from 1 to {MAX_ROWS_A_RECORD}, got others")
    names = np.frombuffer(fields["names"], np.uint8).reshape(count, NAME_BYTES)
    cells, arrivals = whole(fields["cells"], "<i8"), whole(fields["arrivals"], "<i8")
    return Outcomes(cells, arrivals, whole(fields["arms"], "<i4"), whole(fields["rewards"], "<i4"), names)


def forward_fields(serving: int, digest: bytes, forwards: Sequence[Forward]) -> dict[str, Any]:
    """The fields of a `Forwards` record."""
    homes, names, cells, arms, tickets, versions = zip(*forwards, strict=True)
    return {
        "config_digest": digest,
        "serving": serving,
        "homes": np.array(homes, "<i4").tobytes(),
        "names": b"".join(names),
        "cells": np.array(cells, "<i8").tobytes(),
        "arms": np.array(arms, "<i4").tobytes(),
        "tickets": bytes(tickets),
        "model_versions": np.array(versions, "<i4").tobytes(),
    }


def release_parts(release: Release) -> list[dict[str, Any]]:
    """The columns of a release, cut into parts that each fit a record; one part at least."""
    longest = max(len(release.blocks), len(release.arrived))
    parts = max(1, -(-longest // MAX_BLOCKS_A_PART))
    return [_part(release, number, parts) for number in range(parts)]


def _part(release: Release, number: int, parts: int) -> dict[str, Any]:
    rows = slice(number * MAX_BLOCKS_A_PART, (number + 1) * MAX_BLOCKS_A_PART)
    blocks = release.blocks
    return {
        "window": release.window,
        "part": number,
        "parts": parts,
        "outcomes": release.outcomes,
        "cells": blocks.cells[rows].astype("<i8").tobytes(),
        "arms": blocks.arms[rows].astype("<i4").tobytes(),
        "counts": blocks.counts[rows].astype("<i8").tobytes(),
        "sums": blocks.sums[rows].astype("<i8").tobytes(),
        "arrived": release.arrived[rows].astype("<i8").tobytes(),
        "arrivals": release.arrivals[rows].astype("<i8").tobytes(),
    }


def parse_part(fields: Mapping[str, Any]) -> Release:
    """One part of a release.

    Raises:
        PdapError: columns whose lengths do not match, or an invalid part.
    """
    sizes = {name: len(fields[name]) // 8 for name in ("cells", "counts", "sums", "arrived", "arrivals")}
    sizes["arms"] = len(fields["arms"]) // 4
    blocks = {sizes[name] for name in ("cells", "arms", "counts", "sums")}
    if len(blocks) != 1 or sizes["arrived"] != sizes["arrivals"] or not 0 <= fields["part"] < fields["parts"]:
        raise PdapError("release: expected columns of one length and a part of its release, got others")
    cells, arms = whole(fields["cells"], "<i8"), whole(fields["arms"], "<i4")
    found = Blocks(cells, arms, whole(fields["counts"], "<i8"), whole(fields["sums"], "<i8"))
    if (found.counts < 1).any() or fields["outcomes"] < 0:
        raise PdapError("release: expected outcomes in every block, got none")
    arrived, arrivals = whole(fields["arrived"], "<i8"), whole(fields["arrivals"], "<i8")
    return Release(fields["window"], found, arrived, arrivals, fields["outcomes"])


def whole_release(parts: Sequence[Release]) -> Release:
    """A release from all of its parts, in their order."""
    blocks = joined([part.blocks for part in parts])
    arrived, arrivals = (np.concatenate([getattr(part, name) for part in parts]) for name in ("arrived", "arrivals"))
    return Release(parts[0].window, blocks, arrived, arrivals, parts[0].outcomes)


def model_fields(update: ModelUpdate, arms: int) -> dict[str, Any]:
    """The columns of a `TicketModel`."""
    return {
        "opened": update.opened.astype("<i8").tobytes(),
        "changed": update.changed.astype("<i4").tobytes(),
        "tickets": update.tickets.astype(ticket_type(arms)).tobytes(),
        "pool": update.pool,
        "shares": update.shares.tobytes(),
    }


def parse_model(fields: Mapping[str, Any], arms: int) -> ModelUpdate:
    """The update that a `TicketModel` holds.

    Raises:
        PdapError: columns whose lengths do not match, or unknown arms.
    """
    shares = np.frombuffer(fields["shares"], np.bool_)
    changed = whole(fields["changed"], "<i4")
    kind = ticket_type(arms)
    if len(fields["tickets"]) != len(changed) * TICKETS * kind.itemsize or len(fields["opened"]) % 8:
        raise PdapError(f"model: expected {TICKETS} tickets for each changed row, got others")
    tickets = whole(fields["tickets"], kind).reshape(-1, TICKETS)
    if tickets.size and not (tickets.min() >= 0 and tickets.max() < arms):
        raise PdapError(f"model: expected arms below {arms}, got another")
    return ModelUpdate(fields["version"], whole(fields["opened"], "<i8"), changed, tickets, fields["pool"], shares)


def ticket_type(arms: int) -> np.dtype[Any]:
    """Type of a ticket's arm in records."""
    return np.dtype("<u2" if arms <= _SMALL_ARMS else "<i4")


def whole(column: bytes, kind: Any) -> Int64:
    """A column of whole numbers, int64 (n,).

    Raises:
        PdapError: it ends within a number.
    """
    if len(column) % np.dtype(kind).itemsize:
        raise PdapError("column: expected whole numbers, got part of one")
    values: NDArray[Any] = np.frombuffer(column, kind)
    return values.astype(np.int64)
