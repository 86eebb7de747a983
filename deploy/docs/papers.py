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

No paper's mechanism gives the epsilon that it claims. Our sound form of it is significantly better than the published
one in {over_paper} of {all} systems, and than learning alone in {over_alone}.

* Sound form: at the true privacy cost, or at the claimed epsilon where the true cost is no guarantee.
* Alone: the best that users, vendors, nodes or devices reach by themselves.
* Over: the gain, paired by seed; positive is better, bold is significant. ± is half of the 95 % interval of the
  mean over seeds (Student's t).

`hushstream experiment papers` runs it, `--system colin` one row; this page is made of [its result](papers.json).

| system | claimed | true | measure | as published | sound form | its cost | alone | over published | over alone |
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
    better = {name: sum(_significant(row, name) for row in found["rows"]) for name in ("over_paper", "over_alone")}
    head = _HEAD.format(all=len(found["rows"]), **better)
    return f"{head}{rows}\n## What was run\n\n{worlds}\n\n## How to read it\n\n{settings}\n"


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
        return f"none (δ {delta:.2g})"
    return f"ε {epsilon:.4g}" if delta < 1e-9 else f"ε {epsilon:.4g}, δ {delta:.1g}"


def _difference(row: dict[str, Any], name: str) -> str:
    """A difference; bold where its whole interval is above 0."""
    return f"**{_figure(row, name)}**" if _significant(row, name) else _figure(row, name)


def _significant(row: dict[str, Any], name: str) -> bool:
    return (row.get(f"{name}_low") or 0) > 0


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
