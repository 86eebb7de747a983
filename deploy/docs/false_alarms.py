"""Make the page of the audits' false alarms from the counts in the file beside it.

hushstream audit --all --quick --calibrate 200 --counts deploy/docs/false-alarms.json    counts on, under one BLAS
python deploy/docs/false_alarms.py    makes the page; --check compares alone
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hushstream.privacy.audits import FALSE_ALARM
from hushstream.replay.audits.catalogue import Calibration, audit_names

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

    OPENBLAS_CORETYPE=Haswell hushstream audit --all --quick --calibrate 200 --counts deploy/docs/false-alarms.json
    python deploy/docs/false_alarms.py

The first command takes hours for all rows, goes on where it was stopped, and takes `--only ROW`, too; the second makes
this page of [its counts](false-alarms.json). OpenBLAS calls the kernels of `OPENBLAS_CORETYPE=Prescott` Katmai.

| row | BLAS | runs | alarms | rate at most (95 %) | |
|---|---|---|---|---|---|
"""

_RUNS = 200


def page(counted: Sequence[dict[str, Any]]) -> str:
    """Make the page from the counts."""
    names = audit_names()
    lines = [line for name in names for line in _lines(name, [one for one in counted if one["name"] == name])]
    reached = {name: sum(one["times"] for one in counted if one["name"] == name) for name in names}
    told = (
        f"Of {len(names)} rows {sum(map(bool, reached.values()))} were run, {sum(reached.values()):,} times in all, "
        f"with {sum(one['alarms'] for one in counted)} alarms."
    )
    few = Calibration("", _RUNS, 0, FALSE_ALARM).upper
    head = _HEAD.format(stated=f"{FALSE_ALARM:.0e}".replace("e-0", "e-"), told=told, few=f"{few:.2g}", runs=_RUNS)
    return head + "".join(lines)


def _lines(name: str, counted: Sequence[dict[str, Any]]) -> list[str]:
    if not counted:
        return [f"| {name} | | not run | | | |\n"]
    return [_line(one) for one in counted]


def _line(one: dict[str, Any]) -> str:
    row = Calibration(one["name"], one["times"], one["alarms"], one["false_alarm"], one["structure"])
    verdict = "as stated" if row.as_stated else f"**more often than stated**: {row.structure}"
    blas = one["blas"].removeprefix("openblas ")
    return f"| {row.name} | {blas} | {row.times} | {row.alarms} | {row.upper:.2g} | {verdict} |\n"


def main(arguments: list[str]) -> int:
    """Make or check the page."""
    made = page(json.loads(RESULT.read_text(encoding="utf-8"))["counted"])
    if arguments == ["--check"]:
        same = PAGE.read_text(encoding="utf-8") == made
        if not same:
            print(f"{PAGE}: not what {RESULT.name} gives; run python deploy/docs/false_alarms.py", file=sys.stderr)
        return 0 if same else 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
