"""Measures how often audits of the correct product fail: counts the false alarms in many runs of each row.

An audit states the largest probability with which an honest mechanism fails it. The proof of this rate assumes exact
arithmetic, but some rows solve equations in floats, and a machine's linear algebra might break it. So the rate is
measured, with one implementation of BLAS in each process (``OPENBLAS_CORETYPE`` chooses the kernels of OpenBLAS). All
rows take hours. So a file can store the counts by row and BLAS, and later runs add to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.privacy.audits import FALSE_ALARM, upper_confidence
from hushstream.privacy.mechanisms.tuples import at_least, working
from hushstream.replay.audits import mechanisms
from hushstream.replay.audits.configured import RUNS, AuditReport, require_runs
from hushstream.replay.audits.row import Audit, Effort, Row
from hushstream.replay.study import studies, study_of
from hushstream.schemas.errors import HushstreamError

Asked = TypeVar("Asked")
Done = TypeVar("Done")
"""The result of `in_processes` for one row."""


def run_audits(
    names: Sequence[str] = (),
    effort: Effort = "full",
    false_alarm: float = FALSE_ALARM,
    processes: int | None = None,
) -> Iterator[Row]:
    """Run the named audits, or all, in the order of the table.

    Args:
        names: the names of the audits; all if empty.
        effort: how many runs each audit takes.
        false_alarm: the probability, for each row, that an honest mechanism fails.
        processes: how many processes work at the same time; None: one for each processor.

    Raises:
        HushstreamError: an unknown name, or a false-alarm rate outside (0, 1).
    """
    if not 0 < false_alarm < 1:
        raise HushstreamError(f"audit: expected a false alarm in (0, 1), got {false_alarm}")
    yield from in_processes(partial(_attack, effort=effort, false_alarm=false_alarm), chosen_audits(names), processes)


def in_processes(work: Callable[[Asked], Done], asked: Sequence[Asked], processes: int | None = None) -> Iterator[Done]:
    """Apply a function to each row in several processes; return the results in the order of the rows."""
    count = min(len(asked), processes or os.cpu_count() or 1)
    if count <= 1:
        yield from map(work, asked)
        return
    # New interpreters, as a forked process would inherit locks that threads of this process hold.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        yield from pool.map(work, asked)


def count_audits(names: Sequence[str] = ()) -> int:
    """How many rows `run_audits` gives.

    Raises:
        HushstreamError: an unknown name.
    """
    return len(chosen_audits(names))


def audit_config(config: Any, runs: int = RUNS, false_alarm: float = FALSE_ALARM) -> AuditReport:
    """Attack the releases of a configuration.

    Args:
        config: a configuration of any system.
        runs: releases on each of two neighbours.
        false_alarm: the probability that an honest mechanism fails.

    Raises:
        HushstreamError: the configuration's release has no noise, or ``runs`` or ``false_alarm`` is out of range.
    """
    require_runs(runs, false_alarm)
    return study_of(config.system).audit_config(config, runs, false_alarm)


def chosen_audits(names: Sequence[str]) -> list[str]:
    """The named rows, or all, in the order of the table.

    Raises:
        HushstreamError: an unknown name.
    """
    known = _known()
    for name in names:
        if name not in known:
            raise HushstreamError(f"audit: expected one of {', '.join(known)}, got {name!r}")
    return [name for name in known if not names or name in names]


def _attack(name: str, effort: Effort, false_alarm: float) -> Row:
    return make_audit(name)(effort, false_alarm)


def make_audit(name: str) -> Audit:
    """A known row, whose test is not made yet."""
    return replace(_known()[name])


def _one_thread() -> None:
    # Two processes with two linear algebra threads each would compete for two processors.
    threadpool_limits(limits=1)


def audit_names() -> tuple[str, ...]:
    """The names of all rows, in the order of the table."""
    return tuple(_known())


@cache
def _known() -> Mapping[str, Audit]:
    of_studies = (study.audits() for study in studies().values())
    return {audit.name: audit for audit in chain(mechanisms.rows(), *of_studies)}


SURPRISING = 1e-3
"""If the probability of at least this number of alarms at the stated rate is below this, the stated rate counts as
wrong."""

MOST_TIMES = 100_000

_UPPER_ERROR = 0.05

_PART = 5
"""The number of runs of a row between two writes of the counts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Alarms of one row of the table.

    Attributes:
        name: name of the row.
        times: number of runs.
        alarms: number of failed runs.
        false_alarm: the stated probability of a failure.
        structure: the places that share noise according to the first alarm, as text.
    """

    name: str
    times: int
    alarms: int
    false_alarm: float
    structure: str = ""

    def __add__(self, more: Calibration) -> Calibration:
        """Add the counts of further runs of the same row."""
        times, alarms = self.times + more.times, self.alarms + more.alarms
        return Calibration(self.name, times, alarms, self.false_alarm, self.structure or more.structure)

    @property
    def upper(self) -> float:
        """Upper confidence bound of the rate, at 95 %."""
        return float(upper_confidence(self.alarms, self.times, _UPPER_ERROR))

    @property
    def as_stated(self) -> bool:
        """Whether this number of alarms is plausible at the stated rate: its probability is above `SURPRISING`."""
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


class Counts:
    """The counts so far, in a file: one row for each audit, BLAS, effort and stated rate.

    Only one process at a time may use it.
    """

    def __init__(self, path: Path, effort: Effort, false_alarm: float) -> None:
        """Continue a file, or begin one.

        Raises:
            HushstreamError: the file holds something else.
        """
        self._path, self._kind = path, {"blas": kernels(), "effort": effort, "false_alarm": false_alarm}
        self._others: list[dict[str, Any]] = []
        self._rows: dict[str, Calibration] = {}
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))["counted"] if path.exists() else []
            for one in kept:
                if {key: one[key] for key in self._kind} == self._kind:
                    parts = (one[key] for key in ("name", "times", "alarms", "false_alarm", "structure"))
                    self._rows[one["name"]] = Calibration(*parts)
                else:
                    self._others.append(one)
        except (ValueError, KeyError, TypeError):
            raise HushstreamError(f"{path}: expected counts of alarms, as audit --calibrate keeps them") from None

    def of(self, name: str) -> Calibration | None:
        """The counts of a row under the BLAS of this process."""
        return self._rows.get(name)

    def keep(self, row: Calibration) -> None:
        """Replace the counts of a row; the file is complete at any time."""
        self._rows[row.name] = row
        ours = [
            {**self._kind, "name": row.name, "times": row.times, "alarms": row.alarms, "structure": row.structure}
            for row in self._rows.values()
        ]
        counted = sorted([*self._others, *ours], key=lambda one: (one["name"], one["blas"], one["effort"]))
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(json.dumps({"counted": counted}, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self._path)


def calibrate(
    times: int,
    names: Sequence[str] = (),
    effort: Effort = "quick",
    false_alarm: float = FALSE_ALARM,
    processes: int | None = None,
    kept: Path | None = None,
) -> Iterator[Calibration]:
    """Run each of the named audits, or of all, ``times`` times.

    Args:
        times: 1 to `MOST_TIMES`.
        names: the names of the audits; all if empty.
        effort: how many runs each audit takes each time.
        false_alarm: as in `hushstream.replay.audits.catalogue.run_audits`.
        processes: how many processes work at the same time.
        kept: a file for the counts, written during the run; rows that are complete in it are not run again.

    Raises:
        HushstreamError: an unknown name, a number out of range, or a file that holds something else.
    """
    if not 1 <= times <= MOST_TIMES or not 0 < false_alarm < 1:
        raise HushstreamError(
            f"audit: expected to calibrate with 1 to {MOST_TIMES} times and a false alarm in (0, 1), got {times} and "
            f"{false_alarm}"
        )
    counts = None if kept is None else Counts(kept, effort, false_alarm)
    rows = {name: Calibration(name, 0, 0, false_alarm) for name in chosen_audits(names)}
    if counts is not None:
        rows |= {name: counts.of(name) or row for name, row in rows.items()}
    parts = [(name, min(_PART, times - done)) for name, row in rows.items() for done in range(row.times, times, _PART)]
    found = in_processes(partial(_count, effort=effort, false_alarm=false_alarm), parts, processes)
    for row in rows.values():
        while row.times < times:
            row += next(found)
            if counts is not None:
                counts.keep(row)
        yield row


def _count(part: tuple[str, int], effort: Effort, false_alarm: float) -> Calibration:
    name, times = part
    audit = make_audit(name)
    results = [audit.result(effort, false_alarm) for _ in range(times)]
    failed = [result for result in results if not result.passed]
    return Calibration(name, times, len(failed), false_alarm, failed[0].structure if failed else "")


def kernels() -> str:
    """The BLAS of this process, and the kernels that it chose."""
    libraries = [one for one in threadpool_info() if one["user_api"] == "blas"]
    found = {f"{one['internal_api']} {one.get('architecture', '')}".strip() for one in libraries}
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
