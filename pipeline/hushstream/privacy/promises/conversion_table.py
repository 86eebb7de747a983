"""One mechanism's price in every currency: pure epsilon, rho of zCDP, and epsilon at the usual deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hushstream.privacy.amounts import DELTA_ONE, delta_units, epsilon_float, epsilon_text
from hushstream.privacy.conversions import pure_to_rho_micro, rho_to_epsilon_micro
from hushstream.privacy.promises.promise import Guarantee

DELTAS = ("1e-5", "1e-6", "1e-7", "1e-8", "1e-9")


@dataclass(frozen=True, slots=True)
class ConversionRow:
    """A price, converted. All amounts are rounded up; the residue of the noise's tables comes on top of each delta.

    Attributes:
        covers: what it is the price of.
        pure_micro: pure epsilon in millionths; None where there is none.
        rho_micro: zCDP in millionths.
        at_micro: epsilon in millionths at each of `DELTAS`.
    """

    covers: str
    pure_micro: int | None
    rho_micro: int
    at_micro: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "covers": self.covers,
            "pure_epsilon": None if self.pure_micro is None else epsilon_float(self.pure_micro),
            "rho": epsilon_float(self.rho_micro),
            "epsilon_at_delta": {
                delta: epsilon_float(micro) for delta, micro in zip(DELTAS, self.at_micro, strict=True)
            },
        }


def conversion_rows(promise: Guarantee) -> tuple[ConversionRow, ...]:
    """The price of one unit, and of all units of one user, over all redraws of the noise.

    Empty for a mechanism that is priced by (epsilon, delta) alone: no rho follows from one. A life whose delta is 1 has
    no row: the residue that comes on top of each delta is 1 there, so no epsilon of it is a bound.

    Guarantee:
        n units of one person move the sums n times as far: n epsilon, n^2 rho (group privacy; for Gaussian noise see
        `hushstream.counting.counter`). Redraws are independent draws over the same units: rhos add. Epsilon at a
        delta is the least of the pure one and of what rho gives.
    """
    pure = promise.rho_micro is None and promise.delta_units == promise.residue_units and promise.claimed is None
    if promise.rho_micro is None and not pure:
        return ()
    times = 1 if promise.redraws is None else promise.redraws.most
    units = promise.lifetime.units * promise.lifetime.devices
    found = [_row(promise, times, 1, promise.unit)]
    if units > 1 and promise.lifetime.cost.delta_units < DELTA_ONE:
        found.append(_row(promise, times, units, f"all {units} of one user"))
    return tuple(found)


def conversion_lines(promise: Guarantee, rows: Sequence[ConversionRow]) -> list[str]:
    """The rows as lines of a table, below a line that says which question they price; one line if there are no rows."""
    if not rows:
        return ["None: this mechanism is priced by epsilon and delta together."]
    head = ["covers", "pure epsilon", "rho", *(f"epsilon at {delta}" for delta in DELTAS)]
    lines = [head]
    for row in rows:
        pure = "-" if row.pure_micro is None else epsilon_text(row.pure_micro)
        lines.append([row.covers, pure, epsilon_text(row.rho_micro), *map(epsilon_text, row.at_micro)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    query = "Which of two it was"
    if not promise.public_participation:
        query = "Whether it was there at all; which of two it was costs twice the pure epsilon, or four times the rho"
    text = [f"{query}. The tables' residue comes on top of each delta.", *table]
    if promise.lifetime.cost.delta_units >= DELTA_ONE:
        text.append(f"{promise.units_in_life} together pay a delta of 1: nothing is promised, in any currency.")
    return text


def _row(promise: Guarantee, times: int, units: int, covers: str) -> ConversionRow:
    if promise.rho_micro is not None:
        rho, pure = times * units**2 * promise.rho_micro, None
    else:
        one = units * promise.price.epsilon_micro
        rho, pure = times * pure_to_rho_micro(one), times * one
    found = tuple(rho_to_epsilon_micro(rho, delta_units(delta)) for delta in DELTAS)
    return ConversionRow(covers, pure, rho, found if pure is None else tuple(min(pure, micro) for micro in found))
