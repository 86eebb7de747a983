"""How often audits of the product, which keeps its claims, fail all the same: many runs of each row, counted.

An audit states the largest probability with which an honest mechanism fails it. That statement rests on exact
arithmetic: where something is solved for in floats, the linear algebra of a machine may break it. So the rate is
measured, under one implementation of BLAS a process (``OPENBLAS_CORETYPE`` chooses the kernels of OpenBLAS).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from rich.table import Table
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]  # ships no types

from hushstream.privacy.audits.audit import FALSE_ALARM, upper_confidence
from hushstream.privacy.mechanisms.binomial import at_least, working
from hushstream.replay.audits.catalogue import abreast, chosen_audits, make_audit
from hushstream.replay.audits.row import Effort
from hushstream.schemas.errors import HushstreamError

SURPRISING = 1e-3
"""More alarms than come with this probability at the stated rate are taken for a fault of the audit."""

MOST_TIMES = 100_000

_UPPER_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Calibration:
    """Alarms of one row of the table.

    Attributes:
        name: of the row.
        times: how often it was run.
        alarms: how often it failed.
        false_alarm: the probability of that which it states.
        structure: what the first alarm saw of places that share noise, in words.
    """

    name: str
    times: int
    alarms: int
    false_alarm: float
    structure: str = ""

    @property
    def upper(self) -> float:
        """Upper confidence bound of the rate, at 95 %."""
        return float(upper_confidence(self.alarms, self.times, _UPPER_ERROR))

    @property
    def as_stated(self) -> bool:
        """Whether so many alarms may come at the stated rate; False at a probability of at most `SURPRISING`."""
        return bool(at_least(self.times, self.alarms, working(Fraction(self.false_alarm))) > SURPRISING)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "name": self.name,
            "times": self.times,
            "alarms": self.alarms,
            "false_alarm": self.false_alarm,
            "upper_95": self.upper,
            "structure": self.structure,
            "as_stated": self.as_stated,
        }


def calibrate(
    times: int,
    names: Sequence[str] = (),
    effort: Effort = "quick",
    false_alarm: float = FALSE_ALARM,
    processes: int | None = None,
) -> Iterator[Calibration]:
    """Run the named audits, or all, so many times each.

    Args:
        times: 1 to `MOST_TIMES`.
        names: which; all unless given.
        effort: how many runs each takes each time.
        false_alarm: as in `hushstream.replay.audits.catalogue.run_audits`.
        processes: how many rows run abreast.

    Raises:
        HushstreamError: an unknown name, or a number out of range.
    """
    if not 1 <= times <= MOST_TIMES or not 0 < false_alarm < 1:
        raise HushstreamError(
            f"audit: expected to calibrate with 1 to {MOST_TIMES} times and a false alarm in (0, 1), got {times} and "
            f"{false_alarm}"
        )
    count = partial(_count, times=times, effort=effort, false_alarm=false_alarm)
    return abreast(count, chosen_audits(names), processes)


def _count(name: str, times: int, effort: Effort, false_alarm: float) -> Calibration:
    audit = make_audit(name)
    results = [audit(effort, false_alarm).result for _ in range(times)]
    failed = [result for result in results if not result.passed]
    return Calibration(name, times, len(failed), false_alarm, failed[0].structure if failed else "")


def kernels() -> str:
    """The BLAS of this process, and which kernels it chose."""
    found = {f"{one['internal_api']} {one.get('architecture', '')}".strip() for one in threadpool_info()}
    return ", ".join(sorted(found))


def calibration_table(rows: Sequence[Calibration]) -> Table:
    """One line for each row."""
    table = Table("mechanism", "alarms", "of", "stated rate", "rate at most (95 %)", "", caption=f"BLAS: {kernels()}.")
    for row in rows:
        said = "as stated" if row.as_stated else "MORE OFTEN THAN STATED"
        cells = row.name, str(row.alarms), f"{row.times:,}", f"{row.false_alarm:g}", f"{row.upper:.3g}", said
        table.add_row(*cells, style=None if row.as_stated else "bold red")
    return table


def calibration_json(rows: Sequence[Calibration], effort: Effort) -> dict[str, Any]:
    """Stable keys: effort, blas, as_stated, audits."""
    return {
        "effort": effort,
        "blas": kernels(),
        "as_stated": all(row.as_stated for row in rows),
        "audits": [row.as_json() for row in rows],
    }
