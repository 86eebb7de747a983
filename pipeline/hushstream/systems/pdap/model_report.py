"""Reports which arms a released model of P-DAP shows in each cell, from the models topic and the configuration alone.

A model has open cells and 256 tickets for each. In a cell, an arm is shown as often as it has tickets there. So an
arm's share of the tickets is both the model's preference and its certainty: tickets are drawn from beliefs that include
the noise (`hushstream.systems.pdap.algorithm.aggregate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.catalogue import OF
from hushstream.engine.declare.declaration import Catalogues
from hushstream.privacy.amounts import count_text
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdap.algorithm.aggregate import TICKETS, Aggregate, ModelUpdate
from hushstream.systems.pdap.cells import ROOT, Int64, level_of
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.records import parse_model

_MOST_TOLD = 3
_MOST_LINES = 40
_RECORD = "TicketModel"


@dataclass(frozen=True, slots=True)
class ShownCell:
    """An open cell.

    Attributes:
        number: of the grid.
        name: the contexts of the cell; a deeper cell may have the same name if the cut separates no values.
        level: number of cuts of each side.
        tickets: of each arm that has some, by the arm's name, the most first.
    """

    number: int
    name: str
    level: int
    tickets: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "cell": self.name,
            "level": self.level,
            "items": [{"item": item, "share": count / TICKETS} for item, count in self.tickets],
        }

    def as_text(self) -> str:
        """One line of text."""
        told = ", ".join(f"{item} {100 * count / TICKETS:.3g} %" for item, count in self.tickets[:_MOST_TOLD])
        more = len(self.tickets) - _MOST_TOLD
        return f"{self.name}: {told or 'nothing'}{f', {more} more' if more > 0 else ''}"


@dataclass(frozen=True, slots=True)
class TicketTable:
    """One version of a model.

    Attributes:
        version: its number.
        outcomes: number of rewards behind it, from the record.
        pool: number of arms that could be shown.
        cells: the open ones, from the root down.
        shares: of the tickets of all open cells together, by the arm's name, the largest first.
        private_as_stated: False if a release was made under a seeded key.
    """

    version: int
    outcomes: int
    pool: int
    cells: tuple[ShownCell, ...]
    shares: tuple[tuple[str, float], ...]
    private_as_stated: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "version": self.version,
            "outcomes": self.outcomes,
            "private_as_stated": self.private_as_stated,
            "pool": self.pool,
            "items": [{"item": item, "share": share} for item, share in self.shares],
            "cells": [one.as_json() for one in self.cells],
        }

    def as_text(self) -> str:
        """The arms by their share in all cells, then the cells, largest first."""
        lines = [] if self.private_as_stated else ["REPRODUCIBLE, NOT PRIVATE"]
        lines.append(
            f"Version {self.version}, of {count_text(self.outcomes, 'outcome', ',')}: "
            f"{count_text(len(self.cells), 'open cell', ',')}, {count_text(self.pool, 'item', ',')} that may be shown."
        )
        lines += ["", "Items, by how often they are shown where every cell has as many visits"]
        lines += [f"  {item}: {100 * share:.3g} %" for item, share in self.shares[:_MOST_LINES]]
        lines += _left_out(len(self.shares), "item")
        lines += ["", "What is shown in each cell to contexts that no deeper cell takes"]
        lines += [f"  {one.as_text()}" for one in self.cells[:_MOST_LINES]]
        lines += _left_out(len(self.cells), "cell")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class TicketChange:
    """The difference between two versions.

    Attributes:
        older, newer: their numbers.
        opened: cells of the newer version alone.
        changed: cells whose first item changed: (older, newer).
        moved: items with the growth of their share of all tickets, the largest change first.
    """

    older: int
    newer: int
    opened: tuple[ShownCell, ...]
    changed: tuple[tuple[ShownCell, ShownCell], ...]
    moved: tuple[tuple[str, float], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "older": self.older,
            "newer": self.newer,
            "opened": [one.as_json() for one in self.opened],
            "changed": [{"older": old.as_json(), "newer": new.as_json()} for old, new in self.changed],
            "moved": [{"item": item, "by": by} for item, by in self.moved],
        }

    def as_text(self) -> str:
        """The difference as lines of text."""
        lines = [
            f"From version {self.older} to {self.newer}: another item is shown most in "
            f"{count_text(len(self.changed), 'cell', ',')}, {count_text(len(self.opened), 'cell', ',')} opened."
        ]
        lines += [f"  {new.as_text()}; before, {_first(old)}" for old, new in self.changed[:_MOST_LINES]]
        lines += [f"  new: {one.as_text()}" for one in self.opened[:_MOST_LINES]]
        lines += [f"  {item}: {100 * by:+.3g} % of all tickets" for item, by in self.moved[:_MOST_TOLD]]
        return "\n".join(lines) + "\n"


def read_tickets(
    system: PdapSystem, values: Iterable[bytes], version: int | None, catalogues: Catalogues
) -> TicketTable:
    """A version of the released model, the newest if none is named.

    Args:
        system: the deployment.
        values: of the records on the models topic, in log order.
        version: its number.
        catalogues: names of each vendor's items; none if they have no names.

    Raises:
        HushstreamError: there is no such version, or an earlier one was deleted (each version holds changes only).
    """
    records = [fields for name, fields in codec.readable(values) if name == _RECORD]
    wanted = max((fields["version"] for fields in records), default=0) if version is None else version
    applied = [fields for fields in records if fields["version"] <= wanted]
    if not applied or [fields["version"] for fields in applied] != list(range(1, wanted + 1)):
        asked = f"versions 1 to {wanted} of the model" if wanted else "a released model"
        raise HushstreamError(
            f"model: expected {asked} on topic models, got {len(applied)} of them: a version holds only what it "
            f"changed, so none before it may have been trimmed"
        )
    updates = [Aggregate(system.config).publish(), *(parse_model(one, system.config.arms) for one in applied)]
    cells, tickets = _joined(updates)
    names = _names(system, catalogues)
    shown = [
        ShownCell(cell, cell_text(system, cell), level_of(cell), _counted(row, names))
        for cell, row in zip(cells.tolist(), tickets, strict=True)
    ]
    shares = [(item, count / tickets.size) for item, count in _counted(tickets.ravel(), names)]
    newest = applied[-1]
    return TicketTable(
        wanted,
        newest["observations"],
        newest["pool"],
        tuple(sorted(shown, key=lambda one: one.level)),
        tuple(shares if newest["pool"] else ()),
        newest["private_as_stated"],
    )


def change_of_tickets(older: TicketTable, newer: TicketTable) -> TicketChange:
    """The difference between two versions of one deployment."""
    before = {one.number: one for one in older.cells}
    both = [(before[one.number], one) for one in newer.cells if one.number in before]
    shares, grown = dict(older.shares), dict(newer.shares)
    moved = {item: grown.get(item, 0.0) - shares.get(item, 0.0) for item in {**shares, **grown}}
    return TicketChange(
        older.version,
        newer.version,
        tuple(one for one in newer.cells if one.number not in before),
        tuple((old, new) for old, new in both if _first(old) != _first(new)),
        tuple(sorted(((item, by) for item, by in moved.items() if by), key=lambda one: -abs(one[1]))),
    )


def cell_text(system: PdapSystem, cell: int) -> str:
    """The contexts of a cell, by declared features or by intervals of each number."""
    grid, declared = system.config.grid, system.config.declared
    if cell == ROOT:
        return "everywhere"
    sides = grid.sides(cell)
    if declared is None:
        return ", ".join(f"number {place} from {low:.4g} to {high:.4g}" for place, (low, high) in enumerate(sides))
    told = zip(declared.features.items(), sides, strict=True)
    return ", ".join(f"{name} {feature.within(low, high)}" for (name, feature), (low, high) in told)


def _joined(updates: Sequence[ModelUpdate]) -> tuple[Int64, Int64]:
    """The open cells and their tickets (cells, 256) after all versions."""
    cells = np.concatenate([one.opened for one in updates])
    tickets = np.zeros((len(cells), TICKETS), dtype=np.int64)
    for one in updates:
        tickets[one.changed] = one.tickets
    return cells, tickets


def _counted(tickets: Int64, names: dict[int, str]) -> tuple[tuple[str, int], ...]:
    """How many tickets each arm has, the most first."""
    arms, counts = np.unique(tickets, return_counts=True)
    order = np.argsort(-counts, kind="stable").tolist()
    return tuple((names.get(int(arms[one]), f"item {arms[one]}"), int(counts[one])) for one in order)


def _names(system: PdapSystem, catalogues: Catalogues) -> dict[int, str]:
    """The name of each arm: its vendor with the item's title and id, or with its number."""
    if catalogues:
        return {
            one.rules.arms[item.row]: one.rules.named(item.called)
            for one in catalogues.values()
            for item in one.items()
        }
    return {
        arm: f"{vendor}{OF}{number}" for vendor, arms in system.config.items.items() for number, arm in enumerate(arms)
    }


def _first(cell: ShownCell) -> str:
    return cell.tickets[0][0] if cell.tickets else "nothing"


def _left_out(count: int, what: str) -> list[str]:
    return [f"  and {count_text(count - _MOST_LINES, f'more {what}', ',')}"] if count > _MOST_LINES else []
