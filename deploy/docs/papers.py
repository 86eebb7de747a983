"""Make the page of the papers from the result of `hushstream experiment papers` in the file beside it.

python deploy/docs/papers.py [RESULT]    takes RESULT (papers.json of that experiment) first; --check compares alone
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT, PAGE = HERE / "papers.json", HERE / "papers.md"

_HEAD = """\
# Five papers, one table

What does each paper claim, what does its mechanism truly give, and what does a sound form reach at the true privacy
cost, or at the claimed epsilon where the true cost is no guarantee? *Alone* is the best that users, vendors, nodes or
devices have on their own. ± is half of the 95 % interval of the mean over seeds (Student's t); differences are of the
same seeds, bold where their interval is above 0. `hushstream experiment papers` plays it, with `--system colin` (or
another) one row of it; this page is made of [its result](papers.json).

| system | claimed | truly | measure | as published | sound form | at | alone | over published | over alone |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(found: dict[str, Any]) -> str:
    """Make the page from a result."""
    rows = "".join(_row(row) for row in found["rows"])
    settings = "\n".join(f"* {one}" for one in found["description"]["settings"])
    worlds = "\n".join(
        f"* {row['system']}: {row.get('source', '')}; {row['setting']}; {row.get('seeds', 0)} seeds."
        for row in found["rows"]
    )
    return f"{_HEAD}{rows}\n## What was played\n\n{worlds}\n\n## How to read it\n\n{settings}\n"


def _row(row: dict[str, Any]) -> str:
    if "sound" not in row:
        return f"| {row['system']} | {row['setting']} | | | | | | | | |\n"
    cells = (
        row["system"],
        f"ε {row['claimed_epsilon']:.4g}",
        _price(row["true_epsilon"], row["true_delta"]),
        f"{row['measure']} ({row['better']} is better)",
        _figure(row, "paper"),
        _figure(row, "sound"),
        _price(row["sound_epsilon"], row["sound_delta"]),
        f"{_figure(row, 'alone')} ({row['alone_is']})",
        _difference(row, "over_paper"),
        _difference(row, "over_alone"),
    )
    return f"| {' | '.join(cells)} |\n"


def _price(epsilon: float, delta: float) -> str:
    if delta >= 0.5:
        return f"nothing (δ {delta:.2g})"
    return f"ε {epsilon:.4g}" if delta < 1e-9 else f"ε {epsilon:.4g}, δ {delta:.1g}"


def _difference(row: dict[str, Any], name: str) -> str:
    """A difference; bold where its whole interval is above 0."""
    return f"**{_figure(row, name)}**" if (row[f"{name}_low"] or 0) > 0 else _figure(row, name)


def _figure(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    within = "" if low is None or high is None else f" ± {(high - low) / 2:.2g}"
    return f"{row[name]:.4g}{within}"


def main(arguments: list[str]) -> int:
    """Make or check the page."""
    if arguments == ["--check"]:
        same = PAGE.read_text(encoding="utf-8") == page(json.loads(RESULT.read_text(encoding="utf-8")))
        if not same:
            print(f"{PAGE}: not what {RESULT.name} gives; run python deploy/docs/papers.py", file=sys.stderr)
        return 0 if same else 1
    if arguments:
        RESULT.write_text(Path(arguments[0]).read_text(encoding="utf-8"), encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
