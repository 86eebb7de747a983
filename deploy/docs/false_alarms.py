"""Count how often audits of the correct product fail, in the file beside it, and make the page of these counts.

    python deploy/docs/false_alarms.py 200 [ROW ...]    runs each row 200 times in all under this BLAS, then makes it
    python deploy/docs/false_alarms.py                  makes the page; --check compares alone

An audit states the largest probability with which an honest mechanism fails it. The proof of this rate assumes exact
arithmetic, but some rows solve equations in floats, and a machine's linear algebra might break it. So the rate is
measured, with one implementation of BLAS in each run (``OPENBLAS_CORETYPE`` chooses the kernels of OpenBLAS).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info, threadpool_limits

from hushstream.privacy.audits import FALSE_ALARM, AuditResult, upper_confidence
from hushstream.privacy.mechanisms.tuples import at_least, working
from hushstream.replay.audits.catalogue import audit_names, chosen_audits, make_audit
from hushstream.replay.audits.row import Audit
from hushstream.replay.report.committed import settle

HERE = Path(__file__).parent
RESULT, PAGE = HERE / "false-alarms.json", HERE / "false-alarms.md"

_HEAD = """\
# False alarms of the audits

An audit that fails should mean a fault. Each row of `hushstream audit --all` states that an honest mechanism fails it
with a probability of at most {stated}. That follows from exact arithmetic; where an audit solves for single draws in
floats, a machine's linear algebra could break it. So the rows are run again and again on the product as it is, under
more than one set of BLAS kernels, and their alarms counted.

{told}

A bound of {few} is all that {runs} runs without an alarm can show: it is the largest rate at which so few alarms still
come with a probability of 5 %. What no run can show, the proofs of the tests have to (`hushstream.privacy.audits`).

    OPENBLAS_CORETYPE=Haswell python deploy/docs/false_alarms.py 200

It takes hours for all rows, goes on where it was stopped, takes names of rows, too, and makes this page of
[its counts](false-alarms.json). OpenBLAS calls the kernels of `OPENBLAS_CORETYPE=Prescott` Katmai.

| row | BLAS | runs | alarms | rate at most (95 %) | |
|---|---|---|---|---|---|
"""

_RUNS, _UPPER_ERROR = 200, 0.05

SURPRISING = 1e-3
"""If the probability of at least this number of alarms at the stated rate is below this, the stated rate counts as
wrong."""


def as_stated(alarms: int, times: int, rate: float = FALSE_ALARM) -> bool:
    """Whether this number of alarms is plausible at the stated rate."""
    return bool(at_least(times, alarms, working(Fraction(rate))) > SURPRISING)


def kernels() -> str:
    """The BLAS of this process, and the kernels that it chose."""
    libraries = [one for one in threadpool_info() if one["user_api"] == "blas"]
    found = {f"{one['internal_api']} {one.get('architecture', '')}".strip() for one in libraries}
    return ", ".join(sorted(found))


@cache
def _audit(name: str) -> Audit:
    return make_audit(name)


def result_of(name: str, _: int) -> AuditResult:
    """Run a row once; its test is made once in a process."""
    return _audit(name).result("quick", FALSE_ALARM)


def count(times: int, names: Sequence[str], run: Callable[..., Iterable[AuditResult]] = map) -> None:
    """Run rows under this BLAS until each was run so many times; the file is complete after every run.

    Args:
        times: runs of each row, with those in the file.
        names: the rows; all if empty.
        run: `map`, or that of a pool of processes.

    Raises:
        HushstreamError: an unknown name.
    """
    counted = json.loads(RESULT.read_text(encoding="utf-8"))["counted"]
    kind = {"blas": kernels(), "effort": "quick", "false_alarm": FALSE_ALARM}
    for name in chosen_audits(names):
        fresh = {**kind, "name": name, "times": 0, "alarms": 0, "structure": ""}
        row = next((one for one in counted if one.items() >= {**kind, "name": name}.items()), fresh)
        counted += [row] if row is fresh else []
        for result in run(partial(result_of, name), range(times - row["times"])):
            row["times"] += 1
            row["alarms"] += not result.passed
            row["structure"] = row["structure"] or result.structure
            _write(counted)


def _write(counted: Sequence[dict[str, Any]]) -> None:
    ordered = sorted(counted, key=lambda one: (one["name"], one["blas"], one["effort"]))
    beside = RESULT.with_name(f"{RESULT.name}.new")
    beside.write_text(json.dumps({"counted": ordered}, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, RESULT)


def page(counted: Sequence[dict[str, Any]]) -> str:
    """Make the page from the counts."""
    names = audit_names()
    lines = [line for name in names for line in _lines(name, [one for one in counted if one["name"] == name])]
    reached = {name: sum(one["times"] for one in counted if one["name"] == name) for name in names}
    told = (
        f"Of {len(names)} rows {sum(map(bool, reached.values()))} were run, {sum(reached.values()):,} times in all, "
        f"with {sum(one['alarms'] for one in counted)} alarms."
    )
    few = float(upper_confidence(0, _RUNS, _UPPER_ERROR))
    head = _HEAD.format(stated=f"{FALSE_ALARM:.0e}".replace("e-0", "e-"), told=told, few=f"{few:.2g}", runs=_RUNS)
    return head + "".join(lines)


def _lines(name: str, counted: Sequence[dict[str, Any]]) -> list[str]:
    if not counted:
        return [f"| {name} | | not run | | | |\n"]
    return [_line(one) for one in counted]


def _line(one: dict[str, Any]) -> str:
    times, alarms, blas = one["times"], one["alarms"], one["blas"].removeprefix("openblas ")
    stated = as_stated(alarms, times, one["false_alarm"])
    verdict = "as stated" if stated else f"**more often than stated**: {one['structure']}"
    most = float(upper_confidence(alarms, times, _UPPER_ERROR))
    return f"| {one['name']} | {blas} | {times} | {alarms} | {most:.2g} | {verdict} |\n"


def main(arguments: list[str]) -> int:
    """Count if a number of runs is given; make or check the page."""
    if arguments and arguments != ["--check"]:
        one_thread = partial(threadpool_limits, limits=1)
        with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=one_thread) as pool:
            count(int(arguments[0]), arguments[1:], pool.map)
    made = page(json.loads(RESULT.read_text(encoding="utf-8"))["counted"])
    return settle({PAGE: made}, check=arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
